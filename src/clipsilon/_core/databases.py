"""Where a database is chosen by its location: a SQLite file, or PostgreSQL."""

from __future__ import annotations

import os
from pathlib import Path

from clipsilon._core.database import Database
from clipsilon._core.postgres import PostgresDatabase
from clipsilon._core.sqlite import SQLiteDatabase


def is_address(location: str | os.PathLike[str]) -> bool:
    """Return whether a location is a `postgresql://` address, not the path of a file."""
    return isinstance(location, str) and location.startswith(("postgresql://", "postgres://"))


def open_database(location: str | os.PathLike[str], shared: bool = False) -> Database:
    """Open the database at the path of a SQLite file, which is created, or at a `postgresql://` address.

    With `shared`, several processes may open a database in PostgreSQL, and their transactions take turns.
    """
    if is_address(location):
        return PostgresDatabase(str(location), shared)
    return SQLiteDatabase(Path(location))
