"""A ledger in one SQLite file that survives a crash.

Each report is one transaction with synchronous=FULL: it is on disk before anyone learns that it was accepted. The
write-ahead log (the file beside it that ends in -wal) is part of the ledger until it is closed. The file is readable
by its owner only, and locked while it is open, so that two servers cannot write to one ledger. Do not open the file by
other means in the server's own process: closing it again would release the lock.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from clipsilon.local.ledger.base import Entry, LedgerError

_APPLICATION_ID = 0x636C6970  # "clip", in the header of the file
_TABLES = """
CREATE TABLE settings (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE report (
    sequence INTEGER PRIMARY KEY,
    user TEXT NOT NULL,
    mu REAL NOT NULL,
    version INTEGER NOT NULL CHECK (version = sequence - 1),
    content BLOB NOT NULL
);
CREATE INDEX report_user ON report (user);
CREATE TABLE turn (version INTEGER PRIMARY KEY, user TEXT NOT NULL, token TEXT NOT NULL);
"""


class SQLiteLedger:
    """An open SQLite file as a `Ledger`; `settings` are those of `open_ledger`."""

    def __init__(self, path: str | os.PathLike[str], settings: dict[str, str] | None = None):
        self.path = Path(path)
        self._database = _connect(self.path, create=settings is not None)
        try:
            with _plain_errors(self.path):
                self._open(settings)
        except BaseException:
            self._database.close()
            raise

    def _open(self, settings: dict[str, str] | None) -> None:
        run = self._database.execute
        run("PRAGMA locking_mode = EXCLUSIVE")
        with self._transaction():
            if settings is not None and not run("SELECT 1 FROM sqlite_master").fetchone():
                self._create(settings)
            if run("PRAGMA application_id").fetchone()[0] != _APPLICATION_ID:
                raise LedgerError(f"{self.path} is not a ledger; it was not modified.")
            self._check_settings(settings)
        run("PRAGMA journal_mode = WAL")
        run("PRAGMA synchronous = FULL")

    def _create(self, settings: dict[str, str]) -> None:
        for statement in _TABLES.split(";"):
            self._database.execute(statement)
        self._database.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
        self._database.executemany("INSERT INTO settings VALUES (?, ?)", settings.items())

    def _check_settings(self, settings: dict[str, str] | None) -> None:
        for name, known in self._database.execute("SELECT name, value FROM settings"):
            if settings is not None and settings.get(name) != known:
                raise LedgerError(
                    f"{self.path} is the ledger of another run: its {name} is {known}, got {settings.get(name)}."
                )

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._database.execute("BEGIN EXCLUSIVE")
        try:
            yield
            self._database.execute("COMMIT")
        except BaseException:
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
            raise

    @property
    def name(self) -> str:
        """The path of the file."""
        return str(self.path)

    def append(self, entry: Entry) -> None:
        """Write a report; if that fails, close the ledger."""
        row = (entry.version + 1, entry.user, entry.mu, entry.version, entry.report.astype("<f8").tobytes())
        with self._closing_on_failure():
            self._database.execute("INSERT INTO report VALUES (?, ?, ?, ?, ?)", row)

    def set_turn(self, version: int, user: str, token: str) -> None:
        """Write whose turn it is, so that a restart does not forget it; if that fails, close the ledger.

        Parameters
        ----------
        version : int
            Version of the θ that was handed out.
        user, token : str
            Who holds the turn, and the secret that proves it.
        """
        with self._closing_on_failure():
            self._database.execute("DELETE FROM turn")
            self._database.execute("INSERT INTO turn VALUES (?, ?, ?)", (version, user, token))

    @contextmanager
    def _closing_on_failure(self) -> Iterator[None]:
        try:
            with self._transaction():
                yield
        except sqlite3.Error as problem:
            self._database.close()
            raise LedgerError(f"{self.path} could not be written ({problem}), so the server stopped.") from None

    def last_turn(self) -> tuple[int, str, str] | None:
        """Return version, user and token of the turn that was stored last, None if there was none."""
        return self._read("SELECT version, user, token FROM turn").fetchone()  # type: ignore[no-any-return]

    def has_user(self, user: str) -> bool:
        """Return whether the ledger holds a report of this user."""
        return self._read("SELECT 1 FROM report WHERE user = ? LIMIT 1", user).fetchone() is not None

    def budgets(self) -> list[tuple[str, float]]:
        """Return the user and μ of each report, in order."""
        return self._read("SELECT user, mu FROM report ORDER BY sequence").fetchall()

    def entry(self, version: int) -> Entry | None:
        """Return the report that was computed at this version of θ, None if there is none."""
        row = self._read("SELECT user, mu, version, content FROM report WHERE sequence = ?", version + 1).fetchone()
        return None if row is None else _entry(*row)

    def entries(self) -> Iterator[Entry]:
        """Yield all reports in order; raise LedgerError if one is missing or damaged."""
        rows = self._read("SELECT user, mu, version, content FROM report ORDER BY sequence")
        with _plain_errors(self.path):
            for place, row in enumerate(rows):
                try:
                    entry = _entry(*row)
                except (TypeError, ValueError):
                    raise LedgerError(f"{self.path} is damaged: report {place + 1} cannot be read.") from None
                if entry.version != place or not np.isfinite(entry.report).all():
                    raise LedgerError(f"{self.path} is damaged: report {place + 1} is missing or not finite.")
                yield entry

    def _read(self, query: str, *values: object) -> sqlite3.Cursor:
        with _plain_errors(self.path):
            return self._database.execute(query, values)

    def close(self) -> None:
        """Merge the write-ahead log into the file and unlock it."""
        self._database.close()


def _entry(user: str, mu: float, version: int, content: bytes) -> Entry:
    return Entry(user, mu, version, np.frombuffer(content, dtype="<f8").astype(np.float64))


def _connect(path: Path, create: bool) -> sqlite3.Connection:
    try:
        if create and not path.exists():
            os.close(os.open(path, os.O_CREAT | os.O_EXCL, 0o600))
        # Do not open an existing file to inspect it: closing it again would release SQLite's lock in this process.
        path.stat()
    except OSError as problem:
        raise LedgerError(f"{path} cannot be opened as a ledger: {problem.strerror}.") from None
    # The server's lock keeps two threads from using the connection at once.
    return sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)


@contextmanager
def _plain_errors(path: Path) -> Iterator[None]:
    """Turn errors of SQLite into a LedgerError of one sentence."""
    try:
        yield
    except sqlite3.Error as problem:
        if "locked" in str(problem):
            raise LedgerError(f"{path} is in use: only one process at a time can open a ledger.") from None
        raise LedgerError(f"{path} cannot be used as a ledger ({problem}).") from None
