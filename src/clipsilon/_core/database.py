"""What a service needs of a database that survives a crash. Each way to store one is a file beside this.

All understand the same queries, with `?` for values, and the types TEXT, BIGINT, DOUBLE PRECISION and BYTEA. What a
transaction has written is durable when its block ends. One process at a time can open a database, unless it is shared.
After a failed write it is closed, because only opening it again can tell what was stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

Row = tuple[Any, ...]


class StorageError(ValueError):
    """A database that cannot be used, or no longer; what it holds is what was written last."""


def closed(problem: StorageError) -> StorageError:
    """Return the error of a write that failed, after which the database is closed."""
    return StorageError(f"{str(problem)[:-1]}, so it was closed; open it again when the cause is removed.")


class Database(Protocol):
    """An open database. Callers use it from one thread at a time."""

    @property
    def name(self) -> str:
        """The name in messages, without secrets."""
        ...

    def run(self, query: str, values: Sequence[object] = ()) -> list[Row]:
        """Run one query and return its rows; raise StorageError if that fails."""
        ...

    def run_many(self, query: str, rows: Sequence[Sequence[object]]) -> None:
        """Run one query, `INSERT … VALUES (…)`, for each row of values."""
        ...

    def transaction(self) -> AbstractContextManager[None]:
        """Make the queries of the block take effect together or not at all."""
        ...

    def is_empty(self) -> bool:
        """Return whether there are no tables yet."""
        ...

    def close(self) -> None:
        """Release the database, so that another process can open it."""
        ...
