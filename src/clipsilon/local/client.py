"""The device's side of the service, which needs no HTTP library beyond Python's own.

The device does not rely on the server for its privacy. It notes what it spends before a report leaves, sends one
report, and after a lost answer the same bytes again. A second report of the same user is a second release: it is made
only on request.
"""

from __future__ import annotations

import json
import math
import os
import random
import secrets
import time
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from threading import local
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

import numpy as np
from numpy.typing import NDArray

from clipsilon._core import checks
from clipsilon.local.report import Record, check_budget, prepare, report
from clipsilon.local.spending import Account, Spending, compose
from clipsilon.problems.losses.base import Loss
from clipsilon.problems.problem import Problem
from clipsilon.problems.responses import Response

Array = NDArray[np.float64]

_PAUSE, _LONGEST_PAUSE = 0.1, 2.0  # seconds between attempts, at first and at last
_TIMEOUT = 15.0  # seconds for one answer; a request for a turn waits up to 2 seconds on the server
_LARGEST_ANSWER = 2**26
_FINAL = {400, 409, 413, 422}  # refusals of a report that no repetition changes


class TurnError(ValueError):
    """The server refuses this user; no report has left the device."""


class BudgetSpentError(RuntimeError):
    """A report left the device and was refused: its budget is spent, and the server did not use it."""


class NoAnswerError(ConnectionError):
    """No answer in time, or none that settles a report. If one was sent, `take_part` sends the same one again."""


class Model(NamedTuple):
    """What the service publishes.

    Parameters
    ----------
    theta : array
        θ, to compute the next report at.
    average : array
        The mean of all θ since the start.
    version : int
        Number of closed rounds.
    reports : int
        Number of accepted reports.
    """

    theta: Array
    average: Array
    version: int
    reports: int = 0


class Receipt(NamedTuple):
    """The number of an accepted report, and the budget that the ledger holds for it."""

    sequence: int
    mu: float


class _Answer(NamedTuple):
    status: int
    content: dict[str, Any]


class _Kept:
    """A connection that is closed when its thread, or its client, is gone."""

    def __init__(self, connection: HTTPConnection):
        self.connection = connection

    def __del__(self) -> None:
        self.connection.close()


class Client:
    """Take part in the service at `url`. Threads may share a client.

    Parameters
    ----------
    url : str
        Address of the service, http:// or https://.
    patience : float, default 60.0
        How long to retry, in seconds.
    spending : path-like, optional
        A file that remembers what users have spent, over restarts, and for all clients that name it. By default this
        is remembered for the lifetime of the object.
    limit : float, optional
        The most that the reports of one user may compose to, √(Σμ²), over all services that share the file. By default
        there is no limit.
    enrolment : str, optional
        The user's enrolment token, where the service asks for one.
    """

    def __init__(
        self,
        url: str,
        patience: float = 60.0,
        *,
        spending: str | os.PathLike[str] | None = None,
        limit: float | None = None,
        enrolment: str | None = None,
    ):
        self.patience = checks.positive("patience", patience)
        parts = urlsplit(str(url))
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"url must begin with http:// or https:// and name a host, got {url!r}.")
        self._kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        self._host, self._port, self._root = parts.hostname, parts.port, parts.path.rstrip("/")
        port = "" if self._port in (None, self._kind.default_port) else f":{self._port}"
        self._url = f"{parts.scheme}://{self._host}{port}{self._root}"  # one name for each service
        self._headers = {} if enrolment is None else {"Authorization": f"Bearer {enrolment}"}
        self._limit = math.inf if limit is None else checks.positive("limit", limit)
        self._spending = Spending(None if spending is None else Path(spending))
        self._own = local()  # of each thread: its connection, and why its last request had no answer

    def model(self) -> Model:
        """Return θ, the average, their version and the number of reports, as published."""
        content = self._get("/model")
        theta, average = (checks.floats(name, content.get(name)) for name in ("theta", "average"))
        numbers = (checks.integer(name, content.get(name), least=0) for name in ("version", "reports"))
        return Model(theta, average, *numbers)

    def task(self) -> dict[str, Any]:
        """Return what the service says about its loss, its rounds and its users."""
        return self._get("/task")

    def statement(self, delta: float) -> dict[str, float]:
        """Return the summary of the privacy statement of all users at δ."""
        return self._get(f"/statement?delta={quote(repr(float(delta)))}")

    def spent(self, user: str) -> float:
        """Return √(Σμ²) of all reports of a user that may have left the device."""
        with self._spending.account(user) as account:
            return account.spent

    def take_part(
        self, user: str, record: Record, loss: Loss, mu: float, response: Response | None = None, again: bool = False
    ) -> Receipt:
        """Fetch θ, let the record react to it, and send one report.

        What it spends is noted before the report leaves. The stated budget includes earlier reports that left the
        device but are in no ledger: √(Σμ²).

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
            If the server refuses the user; no report has left the device.
        BudgetSpentError
            If the report was refused: its budget is spent.
        NoAnswerError
            If there was no answer in time, or one that neither accepts nor refuses the report, such as 401. If a report
            was sent, the next call sends the same one again.
        """
        checks.instance("user", user, str)
        with self._spending.account(user) as account:
            body, stated = self._pending(user, account), account.mu
        if not body:
            self._check_spending(user, account, check_budget("mu", mu), again)
            problem = prepare(record, loss, response)  # refuses a wrong record before a turn is requested
            turn, token = self._turn(user)
            theta: Any = turn.get("theta")
            _check_length(problem, theta)
            values = report(theta, record, loss, mu, response).tolist()
            content = {"user": user, "token": token, **_signed(turn)}
            with self._spending.account(user) as account:
                body = self._pending(user, account)  # another process may have been faster; ours has not left
                if not body:
                    self._check_spending(user, account, mu, again)
                    lost = {"lost": account.lost[self._url]} if self._url in account.lost else {}
                    body = json.dumps({**content, "mu": float(mu), "report": values, **lost})
                    account.charge(mu, body, self._url)
                stated = account.mu
        return self._deliver(user, body, stated)

    def _pending(self, user: str, account: Account) -> str:
        """Return the report of a user that is still to be answered, empty if there is none."""
        if account.pending and account.url != self._url:
            raise ValueError(
                f"url must be {account.url} until the report of user {user!r} is answered, got {self._url}."
            )
        return account.pending

    def _check_spending(self, user: str, account: Account, mu: float, again: bool) -> None:
        """Raise ValueError if another report was not asked for, or would pass the limit."""
        if account.spent > 0.0 and not again:
            raise ValueError(f"again must be True for a second release of user {user!r}, got {again!r}.")
        total = compose(account.spent, mu)
        if total > self._limit:
            raise ValueError(f"mu must keep user {user!r} within the limit of {self._limit:g}, got {total:g} in total.")

    def _turn(self, user: str) -> tuple[dict[str, Any], str]:
        """Return a turn that certainly still holds: its time counts from before the request."""
        token = secrets.token_hex(16)
        for _ in self._attempts():
            requested = time.monotonic()
            answer = self._request("POST", "/turn", json.dumps({"user": user, "token": token}).encode())
            if answer is None:
                continue
            if answer.status != 200:
                raise TurnError(f"The server refused user {user!r} before a report left the device: {_reason(answer)}")
            if time.monotonic() < requested + checks.nonnegative("seconds", answer.content.get("seconds")):
                return answer.content, token
            self._own.trouble = "turns end before they arrive"
        raise NoAnswerError(
            f"No turn for user {user!r} within {self.patience:g} seconds{self._why()}; no report has left the device."
        )

    def _deliver(self, user: str, body: str, mu: float) -> Receipt:
        """Send the pending report, the same bytes each time, until there is an answer."""
        for _ in self._attempts():
            answer = self._request("POST", "/report", body.encode())
            if answer is None:
                continue
            if answer.status == 200 or answer.content.get("code") == "applied":
                # Checked before anything is cleared: after a malformed answer, the same report can be sent again.
                sequence = checks.count("sequence", answer.content.get("sequence"))
                with self._spending.account(user) as account:
                    account.settle(body, used=True)
                return Receipt(sequence, mu)
            if answer.status not in _FINAL:  # as of a proxy, or for a wrong enrolment token
                raise NoAnswerError(
                    f"The report of user {user!r} was sent, and is kept: {_reason(answer)} Call take_part again to "
                    "send the same one."
                )
            with self._spending.account(user) as account:
                account.settle(body, used=False)
            raise BudgetSpentError(
                f"The report of user {user!r} left the device, so μ = {mu:g} is spent, but it was refused: "
                f"{_reason(answer)} Pass again=True to send another report; the stated budget will cover both."
            )
        raise NoAnswerError(
            f"The report of user {user!r} was sent, and there was no answer within {self.patience:g} seconds"
            f"{self._why()}; it may have been applied. Call take_part again to send the same one."
        )

    def _attempts(self) -> Iterator[None]:
        end, pause = time.monotonic() + self.patience, _PAUSE
        yield
        while (left := end - time.monotonic()) > 0.0:
            time.sleep(min(left, pause * random.uniform(0.5, 1.0)))  # devices do not come back all at once
            pause = min(_LONGEST_PAUSE, 1.5 * pause)
            yield

    def _why(self) -> str:
        """Return why the last request of this thread had no answer, in brackets."""
        trouble = getattr(self._own, "trouble", "")
        return f" ({trouble})" if trouble else ""

    def _get(self, path: str) -> dict[str, Any]:
        for _ in self._attempts():
            answer = self._request("GET", path)
            if answer is not None:
                if answer.status != 200:
                    raise ValueError(f"The server refused {path}: {_reason(answer)}")
                return answer.content
        raise NoAnswerError(f"No answer to {path} within {self.patience:g} seconds{self._why()}.")

    def _request(self, method: str, path: str, body: bytes | None = None) -> _Answer | None:
        """Send one request; return None if the answer is missing or incomplete, or the server is not ready."""
        kept: _Kept | None = getattr(self._own, "kept", None)
        answer = None if kept is None else self._exchange(kept.connection, method, path, body)
        if answer is None:  # the server may have closed a kept connection
            answer = self._exchange(self._kind(self._host, self._port, timeout=_TIMEOUT), method, path, body)
        if answer is None or (answer.status < 500 and answer.status != 429):
            return answer
        self._own.trouble = _reason(answer).rstrip(".")
        return None

    def _exchange(self, connection: HTTPConnection, method: str, path: str, body: bytes | None) -> _Answer | None:
        """Return the answer to one request, and keep the connection; note why if there is none."""
        try:
            connection.request(method, self._root + path, body, self._headers)
            answer = connection.getresponse()
            content = json.loads(answer.read(_LARGEST_ANSWER))
            if not isinstance(content, dict):
                raise ValueError("the answer is not a JSON object")
        except (OSError, HTTPException, ValueError, RecursionError) as problem:
            self._own.trouble = _described(problem)
            self._own.kept = None
            connection.close()
            return None
        if answer.will_close:
            self._own.kept = None
            connection.close()
        elif getattr(self._own, "kept", None) is None:
            self._own.kept = _Kept(connection)
        return _Answer(answer.status, content)


def _signed(turn: dict[str, Any]) -> dict[str, Any]:
    """Return the ticket and the version of a turn, without which a report would be spent in vain."""
    ticket = turn.get("ticket")
    if not isinstance(ticket, str):
        raise ValueError(f"ticket must be a string, got {type(ticket).__name__}; no report has left the device.")
    return {"ticket": ticket, "version": checks.integer("version", turn.get("version"), least=0)}


def _check_length(problem: Problem, theta: Any) -> None:
    """Raise ValueError if a record does not have the length that the published model is for."""
    if isinstance(theta, list) and len(theta) != problem.dimension:
        raise ValueError(
            f"record must have the length for the service's model of {len(theta)} entries, got "
            f"{problem.features.shape[1]} feature(s), for a model of {problem.dimension}; no report has left the "
            "device."
        )


def _described(problem: Exception) -> str:
    """Return why there was no answer, in a few words."""
    words = problem.strerror if isinstance(problem, OSError) and problem.strerror else str(problem)
    return (words or type(problem).__name__)[:1].lower() + (words or type(problem).__name__)[1:200]


def _reason(answer: _Answer) -> str:
    return str(answer.content.get("error", f"status {answer.status}."))[:500]
