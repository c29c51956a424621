"""A budget file: one SQLite file that two processes may write to, and that survives a crash at any moment.

Each charge is one transaction, on disk before the data are used. A chain of hashes over all charges tells whether a
stored number was changed or a charge was lost. The file is readable by its owner only.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from clipsilon.privacy.filters import Counted

_APPLICATION_ID = 0x636C6275  # "clbu", in the header of the file
_PATIENCE = 60.0  # seconds to wait for another process
_TABLES = """
CREATE TABLE settings (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE charge (place INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, content TEXT NOT NULL, chain TEXT NOT NULL);
"""


class BudgetError(ValueError):
    """A charge that would pass the limit, or a budget file that cannot be used; nothing was charged."""


class Charge(NamedTuple):
    """One charge of a budget file.

    Parameters
    ----------
    key : str
        What identifies the charge: a second one with the same key is the same charge.
    when, who, what : str
        Time (UTC), user and host, and the name of the release.
    records : int
        Number of records, or of people.
    unit : {"record", "person"}
        Which of them.
    epsilon, delta : float
        What the release certifies by itself.
    data : str or None
        A salted digest of the rows; None where they were not at hand.
    counted : Counted
        How it is counted.
    """

    key: str
    when: str
    who: str
    what: str
    records: int
    unit: str
    epsilon: float
    delta: float
    data: str | None
    counted: Counted


class Settings(NamedTuple):
    """What is fixed when a budget file is created.

    Parameters
    ----------
    epsilon, delta : float
        The limit.
    adjacency : str
        How neighbouring data sets differ.
    salt : int
        The key of the digests of rows.
    """

    epsilon: float
    delta: float
    adjacency: str
    salt: int


class OpenFile:
    """A budget file within one transaction."""

    def __init__(self, path: Path, database: sqlite3.Connection) -> None:
        self.path, self._database = path, database

    def create(self, settings: Settings) -> None:
        """Create the tables of a new file."""
        run = self._database.execute
        for statement in _TABLES.split(";"):
            run(statement)
        run(f"PRAGMA application_id = {_APPLICATION_ID}")
        head = _hash("", json.dumps(settings))
        values = {"settings": json.dumps(settings), "start": head, "head": head}
        self._database.executemany("INSERT INTO settings VALUES (?, ?)", values.items())

    def settings(self) -> Settings:
        """Return what was fixed when the file was created."""
        stored = self._stored()
        return Settings(*json.loads(stored["settings"]))

    def _stored(self) -> dict[str, str]:
        if self._database.execute("PRAGMA application_id").fetchone()[0] != _APPLICATION_ID:
            raise BudgetError(f"{self.path} is not a budget file; it was not modified.")
        stored = dict(self._database.execute("SELECT name, value FROM settings"))
        if _hash("", stored.get("settings", "")) != stored.get("start") or "head" not in stored:
            raise self._damaged()
        return stored

    def charges(self) -> list[Charge]:
        """Return all charges in order; raise BudgetError if one is missing or was changed."""
        stored = self._stored()
        rows = self._database.execute("SELECT place, key, content, chain FROM charge ORDER BY place").fetchall()
        chain, found = stored["start"], []
        for number, (place, key, content, link) in enumerate(rows):
            chain = _hash(chain, f"{key}\0{content}")
            if place != number or link != chain:
                raise self._damaged()
            found.append(_restored(key, json.loads(content)))
        if chain != stored["head"]:
            raise self._damaged()
        return found

    def append(self, charge: Charge) -> None:
        """Store a charge."""
        run = self._database.execute
        content = json.dumps(charge._replace(key="", counted=Counted(*charge.counted)))
        chain = _hash(run("SELECT value FROM settings WHERE name = 'head'").fetchone()[0], f"{charge.key}\0{content}")
        place = run("SELECT count(*) FROM charge").fetchone()[0]
        run("INSERT INTO charge VALUES (?, ?, ?, ?)", (place, charge.key, content, chain))
        run("UPDATE settings SET value = ? WHERE name = 'head'", (chain,))

    def _damaged(self) -> BudgetError:
        return BudgetError(
            f"{self.path} is damaged: a charge is missing or was changed; restore a copy that has all charges."
        )


def _hash(before: str, content: str) -> str:
    return hashlib.blake2b(f"{before}\0{content}".encode(), digest_size=16).hexdigest()


def _restored(key: str, content: list[Any]) -> Charge:
    charge = Charge(*content)
    return charge._replace(key=key, counted=Counted(*charge.counted))


def create_file(path: Path, settings: Settings) -> None:
    """Create a budget file unless there is one; it appears complete, so that an empty file is always a damaged one."""
    place = Path(os.path.realpath(path))
    temporary = None
    try:
        if place.exists():
            return
        handle, temporary = tempfile.mkstemp(dir=place.parent, prefix=f".{place.name}.")  # readable by its owner only
        os.close(handle)
        with open_file(Path(temporary)) as file:
            file.create(settings)
        os.link(temporary, place)  # unlike a rename, it never replaces a file
    except FileExistsError:  # another process was first
        pass
    except OSError as problem:
        raise BudgetError(f"{path} cannot be created as a budget file: {problem.strerror}.") from None
    finally:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)


@contextmanager
def open_file(path: Path) -> Iterator[OpenFile]:
    """Open a budget file for one transaction, which is on disk when the block ends, or has not happened if it raises.

    A file that does not exist is refused. Other processes wait meanwhile.
    """
    try:
        path.stat()
    except FileNotFoundError:
        raise BudgetError(
            f"{path} must be a budget file, and does not exist: create it by clipsilon.Budget with a limit, or by "
            "clipsilon budget --create."
        ) from None
    except OSError as problem:
        raise BudgetError(f"{path} cannot be opened as a budget file: {problem.strerror}.") from None
    try:
        database = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode=rw", timeout=_PATIENCE, isolation_level=None, uri=True
        )
        try:
            database.execute("PRAGMA synchronous = EXTRA")
            database.execute("BEGIN IMMEDIATE")
            yield OpenFile(path, database)
            database.execute("COMMIT")
        finally:
            database.close()  # rolls back what was not committed
    except (sqlite3.Error, json.JSONDecodeError, TypeError, KeyError) as problem:
        raise BudgetError(f"{path} cannot be used as a budget file ({problem}).") from None
