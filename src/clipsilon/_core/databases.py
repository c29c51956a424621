"""Where a database is chosen by its location: a SQLite file, or PostgreSQL."""

from __future__ import annotations

import os
from pathlib import Path

from clipsilon._core.database import Database
from clipsilon._core.postgres import PostgresDatabase
from clipsilon._core.sqlite import SQLiteDatabase


def open_database(location: str | os.PathLike[str]) -> Database:
    """Open the database at the path of a SQLite file, which is created, or at a `postgresql://` address."""
    if isinstance(location, str) and location.startswith(("postgresql://", "postgres://")):
        return PostgresDatabase(location)
    return SQLiteDatabase(Path(location))
