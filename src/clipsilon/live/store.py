"""What a stream stores: its settings, its records in order, its models, its state and the answers it has given.

The file holds the records and the key of the noise: keep it as private as the data. Never continue from a copy of it:
two runs with one key, and different records, reveal the records.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clipsilon._core.database import Database, StorageError
from clipsilon._core.databases import open_database

Array = NDArray[np.float64]

_FORMAT = "clipsilon-live-1"
_TABLES = (
    "CREATE TABLE setting (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
    "CREATE TABLE record (place BIGINT PRIMARY KEY, person TEXT NOT NULL UNIQUE, version BIGINT NOT NULL, "
    "features BYTEA NOT NULL, label DOUBLE PRECISION NOT NULL)",
    "CREATE TABLE model (version BIGINT PRIMARY KEY, step BIGINT NOT NULL, theta BYTEA NOT NULL, "
    "sent BIGINT NOT NULL, total BYTEA NOT NULL)",
    "CREATE TABLE post (name TEXT PRIMARY KEY, digest TEXT NOT NULL, answer TEXT NOT NULL)",
    "CREATE TABLE progress (name TEXT PRIMARY KEY, horizon BIGINT NOT NULL, content BYTEA NOT NULL, "
    "streams TEXT NOT NULL, refused TEXT NOT NULL)",
)


class Entry(NamedTuple):
    """One accepted record.

    Parameters
    ----------
    person : str
        Whose it is.
    features : array
        The features, with the 1 of an intercept.
    label : float
        The label; 0 for losses without labels.
    """

    person: str
    features: Array
    label: float


class Answer(NamedTuple):
    """The digest of a request, and what was answered to it, as JSON."""

    digest: str
    content: str


class Saved(NamedTuple):
    """The state of a stream after its last transaction.

    Parameters
    ----------
    horizon : int
        The number of records at the end.
    content : bytes
        The state of the update.
    streams : list
        The states of the random streams.
    refused : dict
        How many records were refused, by reason.
    """

    horizon: int
    content: bytes
    streams: list[object]
    refused: dict[str, int]


class Deployment(NamedTuple):
    """A model that was deployed, and what people sent under it.

    Parameters
    ----------
    version, step : int
        Its number, and the number of steps before it.
    theta : array
        The model.
    sent : int
        Number of records that were sent under it.
    total : array
        The sum of their features.
    """

    version: int
    step: int
    theta: Array
    sent: int = 0
    total: Array = np.empty(0)


class Store:
    """The database of one stream.

    Parameters
    ----------
    location : str or path-like
        The path of a SQLite file, or a `postgresql://` address.
    """

    def __init__(self, location: str | os.PathLike[str]):
        self._database: Database = open_database(location)
        self.name = self._database.name
        self._seen = ""  # the random streams of the state that was read or written last
        try:
            self.is_new = self._database.is_empty()
            self.settings: dict[str, str] = {} if self.is_new else self._read_settings()
        except BaseException:
            self._database.close()
            raise

    def _read_settings(self) -> dict[str, str]:
        found: dict[str, str] = {}
        with suppress(StorageError):  # no such table
            found = dict(self._database.run("SELECT name, value FROM setting"))
        if found.get("format") != _FORMAT:
            raise StorageError(f"{self.name} is not the file of a stream; it was not modified.")
        return found

    def create(self, settings: Mapping[str, str], saved: Saved, first: Deployment) -> None:
        """Write the tables, the settings and the first model in one transaction.

        Parameters
        ----------
        settings : mapping of str to str
            The public numbers.
        saved : Saved
            The state before the first step.
        first : Deployment
            The model that is deployed first.
        """
        with self._database.transaction():
            for table in _TABLES:
                self._database.run(table)
            self.settings = {"format": _FORMAT, **settings}
            self._database.run_many("INSERT INTO setting VALUES (?, ?)", list(self.settings.items()))
            for name in ("origin", "now"):  # the first is for replays
                self._database.run("INSERT INTO progress VALUES (?, ?, ?, ?, ?)", (name, *_columns(saved)))
            self._insert_models([first])
        self.is_new, self._seen = False, _columns(saved)[2]

    def write(
        self,
        place: int,
        version: int,
        entries: Sequence[Entry],
        models: Sequence[Deployment],
        saved: Saved,
        post: tuple[str, Answer],
    ) -> None:
        """Write what one request has changed in one transaction.

        Parameters
        ----------
        place : int
            The place of the first of the entries.
        version : int
            The version under which they were sent.
        entries : sequence of Entry
            The accepted records.
        models : sequence of Deployment
            The models that were deployed.
        saved : Saved
            The state after all steps.
        post : tuple of str and Answer
            The key of the request, and the answer to it.
        """
        rows = [(place + k, e.person, version, e.features.tobytes(), e.label) for k, e in enumerate(entries)]
        with self._database.transaction():
            if rows:
                self._database.run_many("INSERT INTO record VALUES (?, ?, ?, ?, ?)", rows)
                self._add_to_model(version, entries)
            self._insert_models(models)
            self._save(saved)
            self._database.run("INSERT INTO post VALUES (?, ?, ?)", (post[0], *post[1]))

    def save(self, saved: Saved) -> None:
        """Write a new state, or horizon, in one transaction."""
        with self._database.transaction():
            self._save(saved)

    def _save(self, saved: Saved) -> None:
        """Replace the state, if it is still the one that this object has seen last."""
        values = _columns(saved)
        query = (
            "UPDATE progress SET horizon = ?, content = ?, streams = ?, refused = ? WHERE name = 'now' AND streams = ?"
        )
        self._database.run(query, (*values, self._seen))
        ((self._seen,),) = self._database.run("SELECT streams FROM progress WHERE name = 'now'")
        if self._seen != values[2]:
            raise StorageError(f"{self.name} was changed by another process.")

    def _insert_models(self, models: Iterable[Deployment]) -> None:
        rows = [(m.version, m.step, m.theta.tobytes(), m.sent, m.total.tobytes()) for m in models]
        if rows:
            self._database.run_many("INSERT INTO model VALUES (?, ?, ?, ?, ?)", rows)

    def _add_to_model(self, version: int, entries: Sequence[Entry]) -> None:
        (sent, total), *_ = self._database.run("SELECT sent, total FROM model WHERE version = ?", (version,))
        with np.errstate(over="ignore"):  # a sum that is not finite is not shown
            more = np.sum([entry.features for entry in entries], axis=0)
            more = more + np.frombuffer(total) if sent else more
        values = (sent + len(entries), more.tobytes(), version)
        self._database.run("UPDATE model SET sent = ?, total = ? WHERE version = ?", values)

    def load(self, name: str = "now") -> Saved:
        """Return the state that was saved last, or with name="origin" the one before the first step."""
        query = "SELECT horizon, content, streams, refused FROM progress WHERE name = ?"
        (horizon, content, streams, refused), *_ = self._database.run(query, (name,))
        self._seen = streams if name == "now" else self._seen
        return Saved(int(horizon), bytes(content), json.loads(streams), json.loads(refused))

    def answer(self, key: str) -> Answer | None:
        """Return what was answered to the request with this key, None if it is new."""
        found = self._database.run("SELECT digest, answer FROM post WHERE name = ?", (key,))
        return Answer(*found[0]) if found else None

    def known(self, people: Sequence[str]) -> set[str]:
        """Return those of the people who have a record already."""
        if not people:
            return set()
        places = ", ".join("?" * len(people))
        return {row[0] for row in self._database.run(f"SELECT person FROM record WHERE person IN ({places})", people)}

    def count(self) -> int:
        """Return the number of accepted records."""
        return int(self._database.run("SELECT COUNT(*) FROM record")[0][0])

    def entries(self, first: int = 0) -> Iterator[Entry]:
        """Yield the records from place `first` on; raise StorageError if one is missing."""
        query = "SELECT place, person, features, label FROM record WHERE place >= ? ORDER BY place"
        for expected, (place, person, features, label) in enumerate(self._database.run(query, (first,)), first):
            if place != expected:
                raise StorageError(f"{self.name} is damaged: record {expected} is missing.")
            yield Entry(person, np.frombuffer(bytes(features)).copy(), float(label))

    def models(self, every: int = 1) -> list[Deployment]:
        """Return each `every`-th of the deployed models, and the last one."""
        query = (
            "SELECT version, step, theta, sent, total FROM model "
            "WHERE version % ? = 0 OR version = (SELECT MAX(version) FROM model) ORDER BY version"
        )
        return [
            Deployment(version, step, np.frombuffer(bytes(theta)), sent, np.frombuffer(bytes(total)))
            for version, step, theta, sent, total in self._database.run(query, (every,))
        ]

    def close(self) -> None:
        """Release the database."""
        self._database.close()


def _columns(saved: Saved) -> tuple[int, bytes, str, str]:
    return saved.horizon, saved.content, json.dumps(saved.streams), json.dumps(saved.refused)
