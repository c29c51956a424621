"""Ledgers: durable records of who reported, with which budget and which report. Storage is chosen here alone."""

from __future__ import annotations

import os
from collections.abc import Mapping

from clipsilon.local.ledger.base import Closing, Entry, Event, Head, Ledger, LedgerError
from clipsilon.local.ledger.stored import StoredLedger

__all__ = ["Closing", "Entry", "Event", "Head", "Ledger", "LedgerError", "open_ledger"]


def open_ledger(location: str | os.PathLike[str], settings: Mapping[str, str] | None = None) -> Ledger:
    """Open the ledger at `location`: the path of a SQLite file, or a `postgresql://` address.

    With `settings`, which identify a run, a ledger that does not exist is created, and one of another run is refused
    with LedgerError. Without, the ledger must exist, and may belong to any run.
    """
    return StoredLedger(location, settings)
