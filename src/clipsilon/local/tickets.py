"""Tickets: what a user needs in order to report. The server signs them, and need not store them.

`Places` estimates how many reports are still to come at the θ that was handed out, so that a device is asked to wait
before it makes a report, instead of making one that comes too late.
"""

from __future__ import annotations

import hashlib
import hmac
import math
from collections import OrderedDict
from typing import NamedTuple

_LEAST_SHARE = 1 / 64  # of tickets that are assumed to be used, whatever was seen
_MEMORY = 512  # tickets after which what was seen counts half
_LATE = 4.0  # times the usual time of a report, after which a ticket is not expected to be used
_MOST_NAMES = 100_000  # that are remembered


class Ticket(NamedTuple):
    """What a ticket says.

    Parameters
    ----------
    version : int
        Version of the θ that was handed out.
    end : float
        Until when a report is accepted, in seconds since 1970.
    """

    version: int
    end: float


def sign(key: bytes, user: str, token: str, ticket: Ticket) -> str:
    """Return a ticket as text, with a signature that binds it to a user and their token.

    Parameters
    ----------
    key : bytes
        The secret of the run.
    user, token : str
        Whose ticket it is.
    ticket : Ticket
        What it says.

    Returns
    -------
    str
    """
    said = f"{ticket.version}.{round(ticket.end * 1000)}"
    return f"{said}.{_signature(key, user, token, said)}"


def read(key: bytes, user: str, token: str, text: str) -> Ticket | None:
    """Return what a ticket says; None if it is not one of this user with this token.

    Parameters
    ----------
    key : bytes
        The secret of the run.
    user, token : str
        Who presents it.
    text : str
        The ticket.

    Returns
    -------
    Ticket or None
    """
    said, _, signature = text.rpartition(".")
    if not hmac.compare_digest(signature.encode("utf-8", "replace"), _signature(key, user, token, said).encode()):
        return None
    version, end = said.split(".")
    return Ticket(int(version), int(end) / 1000)


def _signature(key: bytes, user: str, token: str, said: str) -> str:
    content = "\0".join((said, token, user)).encode("utf-8", "surrogatepass")
    # Keyed BLAKE2 is a MAC by itself. hmac.digest would release the interpreter's lock, and wait for it, each time.
    return hashlib.blake2b(content, key=key, digest_size=16).hexdigest()


class Place(NamedTuple):
    """A ticket that was handed out and not used yet.

    Parameters
    ----------
    token : str
        The token of its user.
    ticket : str
        The ticket itself.
    version : int
        Version of the θ that was handed out with it.
    given, end : float
        When it was handed out, and when it ends, in seconds since 1970.
    """

    token: str
    ticket: str
    version: int
    given: float
    end: float


class Places:
    """The tickets that were handed out, in their order; all end after the same time.

    Parameters
    ----------
    overbooks : bool
        Whether tickets are expected to be used as rarely, and as soon, as those before them were; if not, each of
        them is expected until its end. All are honoured until their end.
    """

    def __init__(self, overbooks: bool):
        self._overbooks = overbooks
        self._places: OrderedDict[str, Place] = OrderedDict()  # by user, of whom each has one
        self._late: OrderedDict[str, Place] = OrderedDict()  # no longer expected
        self._resting: OrderedDict[str, float] = OrderedDict()  # users who let a ticket end, and until when they wait
        self._usual = math.inf  # seconds from ticket to report
        self._used = self._unused = 0.0

    def of(self, user: str) -> Place | None:
        """Return the ticket that a user holds, None if there is none."""
        return self._places.get(user) or self._late.get(user)

    def is_resting(self, user: str, now: float) -> bool:
        """Return whether a user let a ticket end a short while ago."""
        return self._resting.get(user, 0.0) > now

    def add(self, user: str, place: Place) -> None:
        """Remember a ticket; asking again for one that is late does not make it expected again."""
        (self._late if user in self._late else self._places)[user] = place

    def use(self, user: str, now: float) -> None:
        """Forget the ticket of a user who has reported."""
        place = self._places.pop(user, None) or self._late.pop(user, None)
        if place is not None:
            taken = max(0.0, now - place.given)
            self._usual = taken if self._usual == math.inf else self._usual + 0.05 * (taken - self._usual)
            self._count(used=1.0)

    def expected(self, now: float) -> float:
        """Return how many reports are still to come."""
        self._forget(now)
        if not self._overbooks:
            return len(self._places)
        share = (self._used + 8.0) / (self._used + self._unused + 8.0)
        return max(share, _LEAST_SHARE) * len(self._places)

    def next_end(self) -> float:
        """Return when the next of the tickets is no longer expected; infinity if there is none."""
        first = next(iter(self._places.values()), None)
        return math.inf if first is None else self._until(first)

    def _until(self, place: Place) -> float:
        return min(place.end, place.given + max(0.1, _LATE * self._usual)) if self._overbooks else place.end

    def _forget(self, now: float) -> None:
        while self._places and self._until(next(iter(self._places.values()))) <= now:
            user, place = self._places.popitem(last=False)
            self._late[user] = place
            self._count(unused=1.0)
        while self._late and (next(iter(self._late.values())).end <= now or len(self._late) > _MOST_NAMES):
            user, place = self._late.popitem(last=False)
            self._resting[user] = now + (place.end - place.given)
        while self._resting and (next(iter(self._resting.values())) <= now or len(self._resting) > _MOST_NAMES):
            self._resting.popitem(last=False)

    def _count(self, used: float = 0.0, unused: float = 0.0) -> None:
        self._used, self._unused = self._used + used, self._unused + unused
        if self._used + self._unused > _MEMORY:
            self._used, self._unused = self._used / 2, self._unused / 2
