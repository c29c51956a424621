"""What the server needs of a ledger. Each way to store one is a file beside this."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray


class LedgerError(ValueError):
    """A ledger that cannot be used; its content is unchanged."""


class Entry(NamedTuple):
    """One applied report.

    Parameters
    ----------
    user : str
        Who sent it.
    mu : float
        The budget that the user stated for it.
    version : int
        Version of the θ that it was computed at: the number of reports applied before it.
    report : array of float
        The report itself.
    """

    user: str
    mu: float
    version: int
    report: NDArray[np.float64]


class Ledger(Protocol):
    """The reports of one run in the order in which they were applied, and the turn that was given last.

    What a method has written is durable when the method returns. After a failed write the ledger refuses everything
    with LedgerError, because only opening it again can tell what was stored. The server calls it from one thread at a
    time.
    """

    @property
    def name(self) -> str:
        """The ledger's name in error messages."""
        ...

    def append(self, entry: Entry) -> None:
        """Store a report as number `entry.version` + 1."""
        ...

    def set_turn(self, version: int, user: str, token: str) -> None:
        """Store whose turn it is, in place of the turn before.

        Parameters
        ----------
        version : int
            Version of the θ that was handed out.
        user, token : str
            Who holds the turn, and the secret that proves it.
        """
        ...

    def last_turn(self) -> tuple[int, str, str] | None:
        """Return version, user and token of the turn that was stored last, None if there was none."""
        ...

    def has_user(self, user: str) -> bool:
        """Return whether the ledger holds a report of this user."""
        ...

    def budgets(self) -> list[tuple[str, float]]:
        """Return the user and μ of each report, in order."""
        ...

    def entry(self, version: int) -> Entry | None:
        """Return the report that was computed at this version of θ, None if there is none."""
        ...

    def entries(self) -> Iterator[Entry]:
        """Yield all reports in order; raise LedgerError if one is missing or damaged."""
        ...

    def close(self) -> None:
        """Release the ledger, so that another process can open it."""
        ...
