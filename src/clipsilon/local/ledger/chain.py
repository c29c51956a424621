"""The chain of digests over a ledger, and the witness: a small file that knows how far a SQLite file had come.

A write-ahead log that is lost takes the stored head with it, and so does an older copy of the file. The witness, beside
the database, is written after each transaction, without waiting for the disk: it may be behind the database, never
ahead of it. It stays when the ledger is closed.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Mapping
from pathlib import Path

from clipsilon.local.ledger.base import Entry, Event, Head

_HEAD = struct.Struct("<qq32s")


def origin(settings: Mapping[str, str]) -> Head:
    """Return the head of an empty ledger; its digest is that of the settings, so that the chain covers them."""
    return Head(0, 0, hashlib.sha256(json.dumps(sorted(settings.items())).encode()).digest())


def link(chain: bytes, sequence: int, event: Event) -> bytes:
    """Return the digest of a chain that an event is added to.

    Parameters
    ----------
    chain : bytes
        The digest before.
    sequence : int
        The number of the report, or of the last report of a round.
    event : Entry or Closing
        What is added.

    Returns
    -------
    bytes
    """
    if isinstance(event, Entry):
        user = event.user.encode("utf-8", "surrogatepass")
        budgets = event.mu + 0.0, event.lost + 0.0  # not −0.0, which SQLite returns as 0.0
        numbers = struct.pack("<cqqqddq", b"r", sequence, event.version, event.round, *budgets, len(user))
        return hashlib.sha256(b"".join((chain, numbers, user, as_bytes(event.report)))).digest()
    numbers = struct.pack("<cqqq", b"c", sequence, event.round, event.theta.size)
    return hashlib.sha256(b"".join((chain, numbers, as_bytes(event.theta), as_bytes(event.average)))).digest()


def as_bytes(values) -> bytes:  # type: ignore[no-untyped-def]
    """Return an array of numbers as little-endian bytes."""
    return values.astype("<f8", copy=False).tobytes()  # type: ignore[no-any-return]


class Witness:
    """The file that holds the last head of a ledger."""

    def __init__(self, database: Path):
        self._path = Path(f"{database}-head")
        self._handle: int | None = None

    def read(self) -> Head | None:
        """Return the last head of the ledger; None if there is none, or it was torn."""
        try:
            content = self._path.read_bytes()
        except FileNotFoundError:
            return None
        if len(content) != _HEAD.size + 16 or _digest(content[: _HEAD.size]) != content[_HEAD.size :]:
            return None
        return Head(*_HEAD.unpack(content[: _HEAD.size]))

    def write(self, head: Head) -> None:
        """Replace the content, without waiting for the disk."""
        if self._handle is None:
            self._handle = os.open(self._path, os.O_CREAT | os.O_WRONLY, 0o600)
        content = _HEAD.pack(*head)
        os.pwrite(self._handle, content + _digest(content), 0)

    def close(self) -> None:
        """Close the file."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()[:16]
