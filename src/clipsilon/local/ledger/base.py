"""What the server needs of a ledger. Each way to store one is a file beside this."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from clipsilon._core.database import StorageError

Array = NDArray[np.float64]


class LedgerError(StorageError):
    """A ledger that cannot be used; its content is unchanged."""


class Entry(NamedTuple):
    """One accepted report.

    Parameters
    ----------
    user : str
        Who sent it.
    mu : float
        The budget that the user stated for it.
    version : int
        Version of the θ that it was computed at: the number of rounds closed before.
    report : array of float
        The report itself.
    lost : float
        √(Σμ²) of the user's earlier reports that left the device and are in no ledger.
    round : int
        The round that it counts in, at least `version`.
    """

    user: str
    mu: float
    version: int
    report: Array
    lost: float = 0.0
    round: int = 0


class Closing(NamedTuple):
    """The end of a round; some hold a snapshot, so that a restart need not begin with the first report.

    Parameters
    ----------
    round : int
        The number of the round, from 0.
    sequence : int
        The number of reports up to its end.
    theta, average : array
        θ and the average after it; empty without a snapshot.
    """

    round: int
    sequence: int
    theta: Array = np.empty(0)
    average: Array = np.empty(0)


Event = Entry | Closing


class Head(NamedTuple):
    """A place in a ledger.

    Parameters
    ----------
    sequence, version : int
        The numbers of reports and of closed rounds before it.
    chain : bytes
        The digest of all of them.
    """

    sequence: int
    version: int
    chain: bytes


class Ledger(Protocol):
    """The reports and the closed rounds of one run, in order; each is bound to all before it by a chain of digests.

    A ledger has a position: what it has read or written last. It yields what others have written since, and refuses
    what does not follow from the position. After a failed write it refuses everything with LedgerError, because only
    opening it again can tell what was stored. The server calls it from one thread at a time.
    """

    @property
    def name(self) -> str:
        """The ledger's name in error messages."""
        ...

    @property
    def key(self) -> bytes:
        """A secret of the run, for signatures."""
        ...

    @property
    def position(self) -> Head:
        """What was read or written last."""
        ...

    @property
    def is_shared(self) -> bool:
        """Whether others may write to it, too."""
        ...

    def transaction(self) -> AbstractContextManager[None]:
        """Make what the block appends durable together when it ends, or not at all; others wait."""
        ...

    def resume(self) -> Closing | None:
        """Move the position from the start to the last snapshot, and return that; None if there is none."""
        ...

    def news(self) -> Iterator[Event]:
        """Move the position to the end, and yield what was passed; raise LedgerError if it is damaged."""
        ...

    def append(self, events: Sequence[Event]) -> None:
        """Store events at the position, which must be the end; within a transaction."""
        ...

    def events(self) -> Iterator[Event]:
        """Yield everything up to the position from the start; raise LedgerError if something is missing or damaged."""
        ...

    def find(self, user: str, version: int) -> list[tuple[int, Entry]]:
        """Return the numbers and the reports of a user that were computed at a version."""
        ...

    def require(self, known: Head) -> None:
        """Raise LedgerError unless the ledger goes on from a head that was seen before."""
        ...

    def budgets(self, after: int = 0) -> list[tuple[str, float, float]]:
        """Return user, μ and lost budget of a number of reports after number `after`; an empty list at the end."""
        ...

    def close(self) -> None:
        """Release the ledger, so that another process can open it."""
        ...
