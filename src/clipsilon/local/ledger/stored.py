"""A ledger in a database that survives a crash: a SQLite file, or PostgreSQL for several servers at once.

What a transaction has written is on disk when it ends, before anyone learns that a report was accepted. A SQLite file
is open in one process at a time. In PostgreSQL, transactions take turns; each begins with what others have written.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np

from clipsilon._core.database import Row, StorageError
from clipsilon._core.databases import is_address, open_database
from clipsilon.local.ledger.base import Closing, Entry, Event, Head, LedgerError
from clipsilon.local.ledger.chain import Witness, as_bytes, link, origin

_FORMAT = "clipsilon-ledger-3"
_TABLES = (
    "CREATE TABLE setting (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
    "CREATE TABLE report (sequence BIGINT PRIMARY KEY, round BIGINT NOT NULL, sender TEXT NOT NULL, "
    "mu DOUBLE PRECISION NOT NULL, lost DOUBLE PRECISION NOT NULL, version BIGINT NOT NULL, content BYTEA NOT NULL, "
    "chain BYTEA NOT NULL)",
    "CREATE INDEX report_sender ON report (sender, version)",
    "CREATE TABLE closing (round BIGINT PRIMARY KEY, sequence BIGINT NOT NULL, theta BYTEA NOT NULL, "
    "average BYTEA NOT NULL, chain BYTEA NOT NULL)",
    "CREATE TABLE head (name TEXT PRIMARY KEY, sequence BIGINT NOT NULL, version BIGINT NOT NULL, "
    "chain BYTEA NOT NULL)",
)
_PAGE = 1000  # rows that are read at once
_REPORT = "sequence, round, sender, mu, lost, version, content, chain"


class StoredLedger:
    """An open database as a `Ledger`; the arguments are those of `open_ledger`."""

    def __init__(self, location: str | os.PathLike[str], settings: Mapping[str, str] | None = None):
        self.is_shared = is_address(location)
        if settings is None and not self.is_shared and not Path(location).exists():
            raise LedgerError(f"{location} cannot be opened as a ledger: No such file or directory.")
        with _plain_errors():
            self._database = open_database(location, shared=True)
        self.name = self._database.name
        self._witness = None if self.is_shared else Witness(Path(os.path.realpath(location)))
        try:
            with _plain_errors():
                self._settings = self._open(settings)
                self._start = self._position = origin(self._settings)
                self._check_witness()
        except BaseException:
            self._database.close()
            raise

    def _open(self, settings: Mapping[str, str] | None) -> dict[str, str]:
        if self._database.is_empty() and settings is not None:
            with self._database.transaction():
                if self._database.is_empty():  # still, now that others wait
                    self._create(settings)
        found: dict[str, str] = {}
        with suppress(StorageError):  # no such table
            found = dict(self._database.run("SELECT name, value FROM setting"))
        if found.get("format") != _FORMAT:
            raise LedgerError(f"{self.name} is not a ledger of this version; it was not modified.")
        for name, value in (settings or {}).items():
            if found.get(name) != value:
                raise LedgerError(
                    f"{self.name} is the ledger of another run: its {name} is {found.get(name)}, got {value}."
                )
        return found

    def _create(self, settings: Mapping[str, str]) -> None:
        for table in _TABLES:
            self._database.run(table)
        values = {"format": _FORMAT, "key": secrets.token_hex(32), **settings}
        self._database.run_many("INSERT INTO setting VALUES (?, ?)", list(values.items()))
        self._database.run("INSERT INTO head VALUES ('now', ?, ?, ?)", origin(values))

    def _check_witness(self) -> None:
        """Raise LedgerError if the file had come further, or elsewhere, when it was open last."""
        known = None if self._witness is None else self._witness.read()
        if known is not None:
            self.require(known)

    def require(self, known: Head) -> None:
        """Raise LedgerError unless the ledger goes on from a head that was seen before."""
        now = self._head()
        if now.sequence < known.sequence or now.version < known.version:
            raise LedgerError(
                f"{self.name} has lost reports: it had {known.sequence}, and has {now.sequence}; its journal was "
                "removed, or an older copy put in its place. Restore it, with the files that end in -wal and -head."
            )
        links = self._database.run(
            "SELECT chain FROM report WHERE sequence = ? UNION SELECT chain FROM closing WHERE round = ?",
            (known.sequence, known.version - 1),
        )
        if known != self._start and known.chain not in {bytes(row[0]) for row in links}:
            raise LedgerError(f"{self.name} is damaged: it does not go on from its report {known.sequence}.")

    @property
    def key(self) -> bytes:
        """A secret of the run, for signatures."""
        return bytes.fromhex(self._settings["key"])

    @property
    def position(self) -> Head:
        """What was read or written last."""
        return self._position

    def _head(self) -> Head:
        rows = self._database.run("SELECT sequence, version, chain FROM head WHERE name = 'now'")
        if len(rows) != 1:
            raise LedgerError(f"{self.name} is damaged: its head is missing.")
        return Head(rows[0][0], rows[0][1], bytes(rows[0][2]))

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Make what the block appends durable together when it ends; if writing fails, close the ledger."""
        before = self._position
        try:
            with _plain_errors(), self._database.transaction():
                yield
        except BaseException as problem:
            self._position = before
            if isinstance(problem, LedgerError):
                self.close()
            raise
        if self._witness is not None and self._position != before:
            self._witness.write(self._position)

    def resume(self) -> Closing | None:
        """Move the position from the start to the last snapshot, and return that; None if there is none."""
        query = (
            "SELECT round, sequence, theta, average, chain FROM closing "
            "WHERE LENGTH(theta) > 0 ORDER BY round DESC LIMIT 1"
        )
        with _plain_errors():
            rows = self._database.run(query)
            if not rows:
                return None
            before = self._link_before(rows[0][0], rows[0][1])
        closing, chain = self._closing(rows[0])
        if link(before, closing.sequence, closing) != chain:
            raise LedgerError(f"{self.name} is damaged: the end of round {closing.round} was changed.")
        self._position = Head(closing.sequence, closing.round + 1, chain)
        return closing

    def _link_before(self, number: int, sequence: int) -> bytes:
        """Return the stored digest before the end of a round: that of the round's last report."""
        rows = self._database.run("SELECT chain FROM report WHERE sequence = ? AND round = ?", (sequence, number))
        return bytes(rows[0][0]) if rows else b""

    def news(self) -> Iterator[Event]:
        """Move the position to the end, and yield what was passed; raise LedgerError if it is damaged."""
        with _plain_errors():
            end = self._head()
            if end.sequence < self._position.sequence or end.version < self._position.version:
                self.require(self._position)
            if end[:2] != self._position[:2]:
                for event, head in self._walk(self._position, end):
                    self._position = head
                    yield event
        if self._position != end:
            raise LedgerError(f"{self.name} is damaged: its reports do not lead to its head.")

    def events(self) -> Iterator[Event]:
        """Yield everything up to the position from the start; raise LedgerError if something is missing or damaged."""
        head = self._start
        with _plain_errors():
            for event, head in self._walk(self._start, self._position):  # noqa: B007
                yield event
        if head != self._position:
            raise LedgerError(f"{self.name} is damaged: its reports do not lead to its head.")

    def _walk(self, head: Head, end: Head) -> Iterator[tuple[Event, Head]]:
        """Yield the events between two heads, each with the head after it, if each is what its digest says."""
        rounds = self._closings(head.version, end.version)
        closing = next(rounds, None)
        for row in self._reports(head.sequence, end.sequence):
            while closing is not None and closing[0].round < row[1]:
                head = self._follow(head, closing[0], closing[1])
                yield closing[0], head
                closing = next(rounds, None)
            entry = self._entry(row)
            head = self._follow(head, entry, bytes(row[7]), row[0])
            yield entry, head
        while closing is not None:
            head = self._follow(head, closing[0], closing[1])
            yield closing[0], head
            closing = next(rounds, None)

    def _follow(self, head: Head, event: Event, chain: bytes, number: int = -1) -> Head:
        """Return the head after an event; raise LedgerError unless it is the next one, as it was written."""
        is_report = isinstance(event, Entry)
        sequence = head.sequence + is_report
        is_next = event.round == head.version and (number == sequence if is_report else event.sequence == sequence)  # type: ignore[union-attr]
        if not is_next or link(head.chain, sequence, event) != chain:
            what = f"report {sequence}" if is_report else f"the end of round {head.version}"
            raise LedgerError(f"{self.name} is damaged: {what} was changed, or is missing.")
        return Head(sequence, head.version + (not is_report), chain)

    def _reports(self, after: int, last: int) -> Iterator[Row]:
        query = f"SELECT {_REPORT} FROM report WHERE sequence > ? AND sequence <= ? ORDER BY sequence LIMIT {_PAGE}"
        while after < last and (rows := self._database.run(query, (after, last))):
            yield from rows
            after = rows[-1][0]

    def _closings(self, first: int, end: int) -> Iterator[tuple[Closing, bytes]]:
        query = f"SELECT * FROM closing WHERE round >= ? AND round < ? ORDER BY round LIMIT {_PAGE}"
        while first < end and (rows := self._database.run(query, (first, end))):
            yield from map(self._closing, rows)
            first = rows[-1][0] + 1

    def _closing(self, row: Row) -> tuple[Closing, bytes]:
        return Closing(row[0], row[1], self._numbers(row[2], row[0]), self._numbers(row[3], row[0])), bytes(row[4])

    def _entry(self, row: Row) -> Entry:
        return Entry(row[2], row[3], row[5], self._numbers(row[6], row[0]), row[4], row[1])

    def _numbers(self, content: bytes, place: int) -> np.ndarray:  # type: ignore[type-arg]
        try:
            return np.frombuffer(bytes(content), dtype="<f8").astype(np.float64)
        except (TypeError, ValueError):
            raise LedgerError(f"{self.name} is damaged: number {place} cannot be read.") from None

    def append(self, events: Sequence[Event]) -> None:
        """Store events at the position, which must be the end; within a transaction."""
        head, reports, closings = self._position, [], []
        for event in events:
            if isinstance(event, Entry):
                head = Head(head.sequence + 1, head.version, link(head.chain, head.sequence + 1, event))
                stored = (head.sequence, event.round, event.user, event.mu, event.lost, event.version)
                reports.append((*stored, as_bytes(event.report), head.chain))
            else:
                head = Head(head.sequence, head.version + 1, link(head.chain, head.sequence, event))
                contents = as_bytes(event.theta), as_bytes(event.average)
                closings.append((event.round, event.sequence, *contents, head.chain))
        with _plain_errors():
            if reports:
                self._database.run_many("INSERT INTO report VALUES (?, ?, ?, ?, ?, ?, ?, ?)", reports)
            if closings:
                self._database.run_many("INSERT INTO closing VALUES (?, ?, ?, ?, ?)", closings)
            self._database.run("UPDATE head SET sequence = ?, version = ?, chain = ? WHERE name = 'now'", head)
        self._position = head

    def find(self, user: str, version: int) -> list[tuple[int, Entry]]:
        """Return the numbers and the reports of a user that were computed at a version."""
        with _plain_errors():
            rows = self._database.run(f"SELECT {_REPORT} FROM report WHERE sender = ? AND version = ?", (user, version))
        return [(row[0], self._entry(row)) for row in rows]

    def budgets(self, after: int = 0) -> list[tuple[str, float, float]]:
        """Return user, μ and lost budget of a number of reports after number `after`; an empty list at the end."""
        query = "SELECT sender, mu, lost FROM report WHERE sequence > ? AND sequence <= ? ORDER BY sequence LIMIT 10000"
        with _plain_errors():
            return [tuple(row) for row in self._database.run(query, (after, self._position.sequence))]  # type: ignore[misc]

    def close(self) -> None:
        """Release the database; a SQLite file takes up its log first. The witness stays."""
        self._database.close()
        if self._witness is not None:
            self._witness.close()


@contextmanager
def _plain_errors() -> Iterator[None]:
    """Turn errors of the database into a LedgerError."""
    try:
        yield
    except LedgerError:
        raise
    except StorageError as problem:
        raise LedgerError(str(problem)) from None
