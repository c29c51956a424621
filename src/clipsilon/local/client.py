"""The device's side of the service, which needs no HTTP library beyond Python's own.

The device does not rely on the server for its privacy. It sends one report, and after a lost answer the same bytes
again. A second report of the same user is a second release: it is made only on request.
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
from clipsilon.local.report import Record, check_budget, prepare, report
from clipsilon.problems.losses.base import Loss
from clipsilon.problems.responses import Response

Array = NDArray[np.float64]

_PAUSE = 0.1  # seconds between attempts
_TIMEOUT = 15.0  # seconds for one answer; a request for a turn waits up to 2 seconds on the server
_LARGEST_ANSWER = 2**26


class TurnError(ValueError):
    """The server refuses this user; nothing has left the device."""


class BudgetSpentError(RuntimeError):
    """A report left the device and was refused: its budget is spent, and the server did not use it."""


class NoAnswerError(ConnectionError):
    """No answer in time. If a report was sent, `take_part` sends the same one again."""


class Model(NamedTuple):
    """What the service publishes.

    Parameters
    ----------
    theta : array
        θ, to compute the next report at.
    average : array
        The mean of all θ since the start.
    version : int
        Number of applied reports.
    """

    theta: Array
    average: Array
    version: int


class Receipt(NamedTuple):
    """The number of an applied report, and the budget that the ledger holds for it."""

    sequence: int
    mu: float


class _Answer(NamedTuple):
    status: int
    content: dict[str, Any]


class _Sent(NamedTuple):
    body: bytes
    mu: float


class Client:
    """Take part in the service at `url`.

    What a user has spent is remembered for the lifetime of the object.

    Parameters
    ----------
    url : str
        Address of the service, http:// or https://.
    patience : float, default 60.0
        How long to retry, in seconds.
    """

    def __init__(self, url: str, patience: float = 60.0):
        self.patience = checks.positive("patience", patience)
        parts = urlsplit(str(url))
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"url must begin with http:// or https:// and name a host, got {url!r}.")
        self._kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        self._host, self._port, self._root = parts.hostname, parts.port, parts.path.rstrip("/")
        self._done: set[str] = set()  # users who released a report
        self._lost: dict[str, float] = {}  # μ of each user's refused reports, which is in no ledger
        self._sent: dict[str, _Sent] = {}  # reports without an answer

    def model(self) -> Model:
        """Return θ, the average and their version, as published."""
        content = self._get("/model")
        theta, average = (checks.floats(name, content.get(name)) for name in ("theta", "average"))
        return Model(theta, average, checks.integer("version", content.get("version"), least=0))

    def statement(self, delta: float) -> dict[str, float]:
        """Return the summary of the privacy statement of all users at δ."""
        return self._get(f"/statement?delta={quote(repr(float(delta)))}")

    def take_part(
        self, user: str, record: Record, loss: Loss, mu: float, response: Response | None = None, again: bool = False
    ) -> Receipt:
        """Fetch θ, let the record react to it, and send one report.

        The stated budget includes earlier reports that left the device but are in no ledger: √(Σμ²).

        Parameters
        ----------
        user : str
            The user's name.
        record : pair (features, label)
            The user's record. It stays on the device.
        loss : Loss
            A loss that knows its sensitivity.
        mu : float
            The budget μ of this report.
        response : Response, optional
            How the record reacts to θ; by default it does not.
        again : bool, default False
            Allow a further report of the same user, which spends again.

        Returns
        -------
        Receipt
            The number of the report, and its stated budget.

        Raises
        ------
        TurnError
            If the server refuses the user; nothing has left the device.
        BudgetSpentError
            If the report was refused: its budget is spent.
        NoAnswerError
            If there was no answer in time. If a report was sent, the next call sends the same one again.
        """
        checks.instance("user", user, str)
        if user not in self._sent:
            if user in self._done and not again:
                raise ValueError(f"again must be True for a second release of user {user!r}, got {again!r}.")
            total = math.hypot(check_budget("mu", mu), self._lost.get(user, 0.0))
            prepare(record, loss, response)  # refuses a wrong record before a turn is requested
            turn, token = self._turn(user)
            theta: Any = turn.get("theta")
            values = report(theta, record, loss, mu, response).tolist()
            content = {"user": user, "token": token, "version": turn.get("version"), "mu": total, "report": values}
            self._sent[user] = _Sent(json.dumps(content).encode(), total)
        return self._deliver(user)

    def _turn(self, user: str) -> tuple[dict[str, Any], str]:
        """Return a turn that certainly still holds: its time counts from before the request."""
        token = secrets.token_hex(16)
        for _ in self._attempts():
            requested = time.monotonic()
            answer = self._request("POST", "/turn", json.dumps({"user": user, "token": token}).encode())
            if answer is None:
                continue
            if answer.status != 200:
                raise TurnError(f"The server refused user {user!r} before anything left the device: {_reason(answer)}")
            if time.monotonic() < requested + checks.positive("seconds", answer.content.get("seconds")):
                return answer.content, token
        raise NoAnswerError(f"No turn for user {user!r} within {self.patience:g} seconds; nothing has left the device.")

    def _deliver(self, user: str) -> Receipt:
        """Send the pending report, the same bytes each time, until there is an answer."""
        body, mu = self._sent[user]
        self._done.add(user)
        for _ in self._attempts():
            answer = self._request("POST", "/report", body)
            if answer is None:
                continue
            if answer.status == 200 or answer.content.get("code") == "applied":
                # Checked before anything is cleared: after a malformed answer, the same report can be sent again.
                sequence = checks.count("sequence", answer.content.get("sequence"))
                del self._sent[user]
                self._lost.pop(user, None)
                return Receipt(sequence, mu)
            del self._sent[user]
            self._lost[user] = mu
            raise BudgetSpentError(
                f"The report of user {user!r} left the device, so μ = {mu:g} is spent, but it was refused: "
                f"{_reason(answer)} Pass again=True to send another report; the stated budget will cover both."
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

    def _get(self, path: str) -> dict[str, Any]:
        for _ in self._attempts():
            answer = self._request("GET", path)
            if answer is not None:
                if answer.status != 200:
                    raise ValueError(f"The server refused {path}: {_reason(answer)}")
                return answer.content
        raise NoAnswerError(f"No answer to {path} within {self.patience:g} seconds.")

    def _request(self, method: str, path: str, body: bytes | None = None) -> _Answer | None:
        """Send one request; return None if the answer is missing or incomplete, or the server is not ready."""
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


def _reason(answer: _Answer) -> str:
    return str(answer.content.get("error", f"status {answer.status}."))[:500]
