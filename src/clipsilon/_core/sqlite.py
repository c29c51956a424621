"""A database in one SQLite file."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from clipsilon._core.database import Row, StorageError, closed

try:
    import fcntl
except ImportError:  # on Windows, where closing a file releases no lock of others
    fcntl = None  # type: ignore[assignment]

_Identity = tuple[int, int]
_HELD: set[_Identity] = set()  # files that this process has opened


class SQLiteDatabase:
    """One SQLite file with synchronous=FULL, readable by its owner only, and locked while it is open.

    The write-ahead log, the file beside it that ends in -wal, is part of the database until it is closed. If the log
    disappears meanwhile, writing fails: a process that closes the file, such as a fork of this one, removes it.
    """

    def __init__(self, path: Path):
        self._path, self._log = path, Path(f"{os.path.realpath(path)}-wal")
        self._log_identity: _Identity | None = None
        try:
            if not path.exists():
                os.close(os.open(path, os.O_CREAT | os.O_EXCL, 0o600))
            self._identity = _identity(path)
            self._handle = self._lock()
        except OSError as problem:
            raise StorageError(f"{path} cannot be opened: {problem.strerror}.") from None
        try:
            # The caller's lock keeps two threads from using the connection at once. (":memory:" is a file, too.)
            self._connection = sqlite3.connect(
                path.absolute(), timeout=0, isolation_level=None, check_same_thread=False
            )
        except sqlite3.Error as problem:
            self._unlock()
            raise self._explained(problem) from None
        try:
            self.run("PRAGMA locking_mode = EXCLUSIVE")
            self.run("BEGIN EXCLUSIVE")  # takes the lock, and reads the header
            self.run("COMMIT")
            self.run("PRAGMA synchronous = FULL")
        except BaseException:
            self.close()
            raise

    def _lock(self) -> int | None:
        """Lock the file, and return the handle that holds the lock.

        SQLite's own lock alone is lost as soon as this process closes another handle of the file, as `read_bytes` does.
        """
        if self._identity in _HELD:
            raise self._in_use()
        handle = None
        if fcntl is not None:
            handle = os.open(self._path, os.O_RDONLY)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(handle)
                raise self._in_use() from None
        _HELD.add(self._identity)
        return handle

    def _unlock(self) -> None:
        _HELD.discard(self._identity)
        if self._handle is not None:
            fcntl.flock(self._handle, fcntl.LOCK_UN)  # forks have the handle, too
            os.close(self._handle)
            self._handle = None

    @property
    def name(self) -> str:
        """The path of the file."""
        return str(self._path)

    def run(self, query: str, values: Sequence[object] = ()) -> list[Row]:
        """Run one query and return its rows; raise StorageError if that fails."""
        try:
            return self._connection.execute(query, tuple(values)).fetchall()
        except sqlite3.Error as problem:
            raise self._explained(problem) from None

    def run_many(self, query: str, rows: Sequence[Sequence[object]]) -> None:
        """Run one query for each row of values."""
        try:
            self._connection.executemany(query, rows)
        except sqlite3.Error as problem:
            raise self._explained(problem) from None

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Make the queries of the block take effect together or not at all; if writing fails, close the file."""
        try:
            if self._log_identity is None:  # not before the first write: the file may not be ours
                self.run("PRAGMA journal_mode = WAL")
            self.run("BEGIN EXCLUSIVE")
            yield
            self.run("COMMIT")
            self._check_log()
        except StorageError as problem:
            self.close()
            raise closed(problem) from None
        except BaseException:
            self.run("ROLLBACK")
            raise

    def _check_log(self) -> None:
        """Raise StorageError if what was just written is in a log that others have removed or replaced."""
        found = None
        with suppress(OSError):
            found = _identity(self._log)
        self._log_identity = self._log_identity or found
        if found is None or found != self._log_identity:
            raise StorageError(f"{self._log} was removed by another process while the database was open.")

    def is_empty(self) -> bool:
        """Return whether there are no tables yet."""
        return not self.run("SELECT 1 FROM sqlite_master LIMIT 1")

    def close(self) -> None:
        """Merge the write-ahead log into the file and unlock it."""
        self._connection.close()
        self._unlock()  # afterwards: closing the handle would release SQLite's lock

    def _in_use(self) -> StorageError:
        return StorageError(f"{self.name} is in use: only one process at a time can open it.")

    def _explained(self, problem: sqlite3.Error) -> StorageError:
        if "locked" in str(problem):
            return self._in_use()
        return StorageError(f"{self.name} cannot be read or written ({problem}).")


def _identity(path: Path) -> _Identity:
    found = path.stat()
    return found.st_dev, found.st_ino
