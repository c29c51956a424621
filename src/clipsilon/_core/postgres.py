"""A database in PostgreSQL; needs the extra `postgres` (psycopg)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from clipsilon._core.database import Row, StorageError, closed
from clipsilon._core.extras import needs_package

_LOCK = 0x636C6970  # "clip"; held by the process that has opened a schema
_TOGETHER = 500  # rows per query
_TURN = _LOCK + 1  # held during a transaction of those who share it
_LONGEST_PAUSE = 30_000  # milliseconds between two queries of a transaction


class PostgresDatabase:
    """The first schema on the search path of a connection, locked for others of this class while it is open.

    With `shared`, it is locked for those that do not share it, and transactions of those that do take turns.
    """

    def __init__(self, address: str, shared: bool = False):
        try:
            import psycopg
        except ImportError:
            raise StorageError(needs_package("PostgreSQL", "psycopg", "clipsilon[postgres]")) from None
        parts = urlsplit(address)
        self._name = f"postgresql://{parts.hostname or ''}{parts.path}"  # without user, password and options
        self._error: type[Exception] = psycopg.Error
        lock = f"; SELECT pg_advisory_xact_lock({_TURN}, hashtext(current_schema()))"
        self._begin = f"BEGIN{lock if shared else ''}"  # at once: each query waits for an answer
        try:
            self._connection: Any = psycopg.connect(address, autocommit=True)
        except psycopg.Error as problem:
            raise StorageError(f"{self._name} cannot be opened ({_first_line(problem)}).") from None
        try:
            lock = "pg_try_advisory_lock_shared" if shared else "pg_try_advisory_lock"
            if not self.run(f"SELECT {lock}(?, hashtext(current_schema()))", (_LOCK,))[0][0]:
                raise StorageError(f"{self._name} is in use: only one process at a time can open it.")
            self.run("SET synchronous_commit = on")
            if shared:  # a process that is stopped within a transaction must not keep the others waiting
                self.run(f"SET idle_in_transaction_session_timeout = {_LONGEST_PAUSE}")
        except BaseException:
            self._connection.close()
            raise

    @property
    def name(self) -> str:
        """Host and database, without user and password."""
        return self._name

    def run(self, query: str, values: Sequence[object] = ()) -> list[Row]:
        """Run one query and return its rows; raise StorageError if that fails."""
        try:
            cursor = self._connection.execute(_translated(query), tuple(values))
            return cursor.fetchall() if cursor.description else []
        except self._error as problem:
            raise self._explained(problem) from None

    def run_many(self, query: str, rows: Sequence[Sequence[object]]) -> None:
        """Run one `INSERT … VALUES (…)` for each row of values, many of them as one query."""
        insert, places = query.split(" VALUES ")
        for k in range(0, len(rows), _TOGETHER):
            some = rows[k : k + _TOGETHER]
            self.run(f"{insert} VALUES {', '.join([places] * len(some))}", [value for row in some for value in row])

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Make the queries of the block take effect together or not at all; if writing fails, close the connection."""
        try:
            self.run(self._begin)
            yield
            self.run("COMMIT")
        except StorageError as problem:
            self._connection.close()
            raise closed(problem) from None
        except BaseException:
            self.run("ROLLBACK")
            raise

    def is_empty(self) -> bool:
        """Return whether the schema has no tables yet."""
        return not self.run("SELECT 1 FROM pg_tables WHERE schemaname = current_schema() LIMIT 1")

    def close(self) -> None:
        """End the connection, which releases the lock."""
        self._connection.close()

    def _explained(self, problem: Exception) -> StorageError:
        return StorageError(f"{self.name} cannot be read or written ({_first_line(problem)}).")


def _translated(query: str) -> str:
    return query.replace("%", "%%").replace("?", "%s")


def _first_line(problem: Exception) -> str:
    return str(problem).strip().splitlines()[0] if str(problem).strip() else type(problem).__name__
