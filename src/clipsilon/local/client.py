"""The device's side of the service, on the standard library alone.

The device does not rely on the server for its privacy. It sends one report, and after a lost answer the same bytes
again. A second report of the same user is a second release: it is made only when asked for.
"""

from __future__ import annotations

import json
import math
import secrets
import time
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

import numpy as np
from numpy.typing import NDArray

from clipsilon._core import checks
from clipsilon.local.report import budget, prepare, report

Array = NDArray[np.float64]

_PAUSE = 0.1  # seconds between attempts
_TIMEOUT = 15.0  # seconds for one answer; a request for a turn stands in line for 2
_LARGEST_ANSWER = 2**26


class TurnError(ValueError):
    """The server will not take a report of this user; nothing has left the device."""


class BudgetSpentError(RuntimeError):
    """A report left the device, and was refused: its budget is spent, and the server did not use it."""


class NoAnswerError(ConnectionError):
    """No answer in time. If a report was sent, `take_part` sends the same one again."""


class Model(NamedTuple):
    """What the service publishes."""

    theta: Array
    average: Array
    version: int


class Receipt(NamedTuple):
    """The number of a report that was applied, and the budget that it is in the ledger with."""

    sequence: int
    mu: float


class _Answer(NamedTuple):
    status: int
    content: dict[str, Any]


class _Sent(NamedTuple):
    body: bytes
    mu: float


class Client:
    """Takes part in the service at `url`; `patience` is how many seconds to try for.

    What a user has spent is remembered as long as the client lives.
    """

    def __init__(self, url: str, patience: float = 60.0):
        self.patience = checks.positive("patience", patience)
        parts = urlsplit(str(url))
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"url must begin with http:// or https:// and name a host, got {url!r}.")
        self._kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        self._host, self._port, self._root = parts.hostname, parts.port, parts.path.rstrip("/")
        self._done: set[str] = set()  # who released a report
        self._lost: dict[str, float] = {}  # μ of what they released in vain, which is in no ledger
        self._sent: dict[str, _Sent] = {}  # reports without an answer

    def model(self) -> Model:
        """θ, the average and their version, as published."""
        content = self._understood("GET", "/model")
        theta, average = (checks.floats(name, content.get(name)) for name in ("theta", "average"))
        return Model(theta, average, checks.integer("version", content.get("version"), least=0))

    def statement(self, delta: float) -> dict[str, float]:
        """The summary of what all users gave away."""
        return self._understood("GET", f"/statement?delta={quote(repr(float(delta)))}")

    def take_part(
        self, user: str, record: Any, loss: Any, mu: float, response: Any = None, again: bool = False
    ) -> Receipt:
        """Fetch θ, let the record react to it, and send one report; `again` allows a second one of the same user.

        Whatever left the device before and is in no ledger is added to the budget that is stated: √(Σμ²).
        """
        checks.instance("user", user, str)
        if user not in self._sent:
            if user in self._done and not again:
                raise ValueError(f"again must be True for a second release of user {user!r}, got {again!r}.")
            total = math.hypot(budget("mu", mu), self._lost.get(user, 0.0))
            prepare(record, loss, response)  # what is wrong with it shows before a turn is asked for
            turn, token = self._turn(user)
            values = report(turn.get("theta"), record, loss, mu, response).tolist()
            content = {"user": user, "token": token, "version": turn.get("version"), "mu": total, "report": values}
            self._sent[user] = _Sent(json.dumps(content).encode(), total)
        return self._deliver(user)

    def _turn(self, user: str) -> tuple[dict[str, Any], str]:
        """A turn that is still ours for certain: time counts from before it was asked for."""
        token = secrets.token_hex(16)
        for _ in self._attempts():
            asked = time.monotonic()
            answer = self._ask("POST", "/turn", json.dumps({"user": user, "token": token}).encode())
            if answer is None:
                continue
            if answer.status != 200:
                raise TurnError(f"The server refused user {user!r} before anything left the device: {_why(answer)}")
            if time.monotonic() < asked + checks.positive("seconds", answer.content.get("seconds")):
                return answer.content, token
        raise NoAnswerError(f"No turn for user {user!r} within {self.patience:g} seconds; nothing has left the device.")

    def _deliver(self, user: str) -> Receipt:
        """Send the same bytes until there is an answer."""
        body, mu = self._sent[user]
        self._done.add(user)
        for _ in self._attempts():
            answer = self._ask("POST", "/report", body)
            if answer is None:
                continue
            if answer.status == 200 or answer.content.get("code") == "applied":
                # Checked before anything is forgotten: after nonsense, the same report can be sent again.
                sequence = checks.count("sequence", answer.content.get("sequence"))
                del self._sent[user]
                self._lost.pop(user, None)
                return Receipt(sequence, mu)
            del self._sent[user]
            self._lost[user] = mu
            raise BudgetSpentError(
                f"The report of user {user!r} left the device, so μ = {mu:g} is spent, but it was refused: "
                f"{_why(answer)} With again=True another one is sent, and both are stated."
            )
        raise NoAnswerError(
            f"The report of user {user!r} was sent, and there was no answer within {self.patience:g} seconds; "
            "it may have been applied. Call take_part again to send the same one."
        )

    def _attempts(self) -> Iterator[None]:
        end = time.monotonic() + self.patience
        yield
        while time.monotonic() < end:
            time.sleep(_PAUSE)
            yield

    def _understood(self, method: str, path: str) -> dict[str, Any]:
        for _ in self._attempts():
            answer = self._ask(method, path)
            if answer is not None:
                if answer.status != 200:
                    raise ValueError(f"The server refused {path}: {_why(answer)}")
                return answer.content
        raise NoAnswerError(f"No answer to {path} within {self.patience:g} seconds.")

    def _ask(self, method: str, path: str, body: bytes | None = None) -> _Answer | None:
        """One request; None if there was no answer, not a whole one, or the server cannot do it now."""
        connection = self._kind(self._host, self._port, timeout=_TIMEOUT)
        try:
            connection.request(method, self._root + path, body)
            answer = connection.getresponse()
            content = json.loads(answer.read(_LARGEST_ANSWER))
        except (OSError, HTTPException, ValueError):
            return None
        finally:
            connection.close()
        return _Answer(answer.status, content) if isinstance(content, dict) and answer.status < 500 else None


def _why(answer: _Answer) -> str:
    return str(answer.content.get("error", f"status {answer.status}."))[:500]
