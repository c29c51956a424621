"""The server: it holds θ, applies reports one by one, and never sees a record.

A report that has left a device has spent its budget, whether it is applied or not. Therefore reports are made in
*turns*: a user asks for θ, and nobody else gets the same θ until that user has reported or the turn has timed out.
Only the holder of the turn may report, so that no budget is spent on a θ that is out of date.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from threading import RLock
from types import TracebackType
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clipsilon._core import checks
from clipsilon._core.parts import fingerprint, require
from clipsilon.local.ledger import Entry, LedgerError, open_ledger
from clipsilon.local.report import check_budget
from clipsilon.local.statement import LocalStatement, compose_reports
from clipsilon.problems.regions import Everywhere, Region, project
from clipsilon.rules.schedules import Schedule, size

Array = NDArray[np.float64]

REPEATS = {"refuse": False, "compose": True}
_LONGEST_NAME = 200


class RefusalError(ValueError):
    """A user or a report that the server refuses; nothing changes.

    Parameters
    ----------
    code : str
        "repeated": this user has already reported. "stale": θ has changed, or the turn is not this user's. "applied":
        this very report is already in the ledger, so that the device is done.
    message : str
        The reason, in one sentence.
    sequence : int, optional
        With "applied", the number of the report.
    """

    def __init__(self, code: str, message: str, sequence: int | None = None):
        super().__init__(message)
        self.code, self.sequence = code, sequence


@dataclass(frozen=True, eq=False)
class State:
    """θ and its average after a number of reports (paper 4, eq. 2 and section 3).

    Parameters
    ----------
    version : int
        Number n of applied reports.
    theta : array
        θ_n.
    average : array
        The mean of θ_1, …, θ_n; θ_0 for n = 0.
    """

    version: int
    theta: Array
    average: Array


class Turn(NamedTuple):
    """What a user needs to report.

    Parameters
    ----------
    theta : array
        The model to compute the report at.
    version : int
        Its version.
    seconds : float
        How long the turn is reserved for this user.
    """

    theta: Array
    version: int
    seconds: float


class _Holder(NamedTuple):
    user: str
    token: str


class Server:
    """Apply reports by θ_i = project(θ_{i−1} − η_i·report_i), each of them stored in a ledger first.

    Parameters
    ----------
    path : str or path-like
        The ledger, a SQLite file. A new one is created; from an existing one θ is computed again. A ledger with
        another start, step, region or treatment of repeats is refused.
    start : array
        θ_0, a vector.
    step : Schedule
        The step sizes η_i, a part of `clipsilon.schedules`.
    region : Region, optional
        Where θ is projected to, a part of `clipsilon.regions`; by default anywhere.
    repeats : {"refuse", "compose"}, default "refuse"
        Refuse a second report of a user, or accept it and compose their budgets in the statement.
    turn_seconds : float, default 10.0
        Time after which a user who has not reported loses the turn to one who asks for it.

    Examples
    --------
    >>> import clipsilon as cs, tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> with cs.local.Server(f"{folder.name}/ledger.db", start=[0.0, 0.0], step=cs.schedules.Power(0.2, 0.5)) as server:
    ...     sent = cs.local.report(server.theta, ([1.0, 2.0], 1), cs.losses.MallowsLogistic(), mu=2.0)
    ...     server.apply("ann", 2.0, server.version, sent)
    ...     round(server.statement(delta=1e-5).of("ann")["epsilon"], 2)
    1
    10.0
    >>> folder.cleanup()
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        start: ArrayLike,
        step: Schedule,
        region: Region | None = None,
        repeats: str = "refuse",
        turn_seconds: float = 10.0,
    ):
        self.step: Schedule = step
        self.region: Region = Everywhere() if region is None else region
        require("step", self.step, [size])
        require("region", self.region, [project])
        self._composes = checks.choice("repeats", repeats, REPEATS)
        self.turn_seconds = checks.positive("turn_seconds", turn_seconds)
        self._start = _vector("start", start, np.size(start))
        self._lock = RLock()
        self._ledger = open_ledger(path, self._settings(repeats))
        try:
            self._state = self.replay()
            self._holder = self._last_turn()
        except BaseException:
            self._ledger.close()
            raise
        self._until = time.monotonic() + self.turn_seconds

    def _settings(self, repeats: str) -> dict[str, str]:
        parts = {"step": self.step, "region": self.region}
        described = {name: f"{part} [{fingerprint(part)[:16]}]" for name, part in parts.items()}
        return {"start": repr(self._start.tolist()), **described, "repeats": repeats}

    def _last_turn(self) -> _Holder | None:
        """Return who held the turn when the ledger was closed; they get the full time again."""
        known = self._ledger.last_turn()
        return _Holder(*known[1:]) if known is not None and known[0] == self.version else None

    @property
    def state(self) -> State:
        """θ, the average and their version, read together."""
        return self._state

    @property
    def theta(self) -> Array:
        """θ_n: what the population reacts to."""
        return self._state.theta

    @property
    def average(self) -> Array:
        """The mean of θ_1, …, θ_n; θ_0 before there is a report."""
        return self._state.average

    @property
    def version(self) -> int:
        """The number of applied reports."""
        return self._state.version

    def admit(self, user: str) -> str:
        """Return the user's name; raise RefusalError if a report of theirs will not be accepted."""
        name = _text("user", user)
        with self._lock:
            if not self._composes and self._ledger.has_user(name):
                raise RefusalError("repeated", f"user {name!r} has already reported; one report per user is accepted.")
        return name

    def turn(self, user: str, token: str) -> Turn | None:
        """Give the turn to a user and return what they need to report; None while another user holds it.

        `token` is the user's own secret, new for each report. Asking again with the same token keeps the turn.
        """
        with self._lock:
            holder = _Holder(self.admit(user), _text("token", token))
            if self._holder not in (None, holder) and self.turn_left() > 0.0:
                return None
            if self._holder != holder:
                self._ledger.set_turn(self.version, *holder)
            self._holder, self._until = holder, time.monotonic() + self.turn_seconds
            return Turn(self.theta, self.version, self.turn_seconds)

    def turn_left(self) -> float:
        """Return for how many more seconds nobody else can get the turn."""
        with self._lock:
            return 0.0 if self._holder is None else max(0.0, self._until - time.monotonic())

    def apply(self, user: str, mu: float, version: int, report: ArrayLike, token: str | None = None) -> int:
        """Apply one report, or refuse it and change nothing.

        A report does not show whether its noise fits μ: the server relies on the device for that.

        Parameters
        ----------
        user : str
            Who sent it, up to 200 printable characters.
        mu : float
            The budget that the user states for it, from 10⁻⁶ to 10⁶.
        version : int
            Version of the θ that it was computed at.
        report : array
            The report, of θ's length and finite.
        token : str, optional
            The token of the user's turn; None if nobody holds the turn.

        Returns
        -------
        int
            The number of the report, `version` + 1.

        Raises
        ------
        RefusalError
            If the user has already reported, the version or the turn has passed, or the report is already applied.
        ValueError
            If an argument is not as described, or θ would no longer be finite.
        LedgerError
            If the ledger could not be written; the server then stops.
        """
        entry = Entry(
            _text("user", user),
            check_budget("mu", mu),
            checks.integer("version", version, least=0),
            _vector("report", report, self._start.size),
        )
        with self._lock:
            self._check_version(entry)
            self.admit(entry.user)
            self._check_turn(entry.user, token)
            following = advance(self._state, entry.report, self.step, self.region)
            self._ledger.append(entry)  # durable before anyone can see it
            self._state, self._holder = following, None
        return entry.version + 1

    def _check_version(self, entry: Entry) -> None:
        if entry.version == self.version:
            return
        known, number = self._ledger.entry(entry.version), entry.version + 1
        if known is not None and known[:3] == entry[:3] and np.array_equal(known.report, entry.report):
            raise RefusalError("applied", f"this report has already been applied, as number {number}.", number)
        raise RefusalError("stale", f"version must be the current one, {self.version}, got {entry.version}.")

    def _check_turn(self, user: str, token: str | None) -> None:
        claimed = None if token is None else _Holder(user, _text("token", token))
        if claimed != self._holder:
            raise RefusalError(
                "stale",
                f"user {user!r} does not hold the current turn, or the token is wrong; "
                "request a new turn before reporting.",
            )

    def statement(self, delta: float) -> LocalStatement:
        """Return the privacy statement of each user, and their summary."""
        with self._lock:
            reports = self._ledger.budgets()
        return compose_reports(reports, delta)

    def replay(self) -> State:
        """Return θ and the average as computed from the ledger alone."""
        with self._lock:
            reports = (entry.report for entry in self._ledger.entries())
            try:
                return replay(reports, self._start, self.step, self.region)
            except LedgerError:
                raise
            except ValueError as problem:
                raise LedgerError(f"{self._ledger.name} is damaged: {problem}") from None

    def close(self) -> None:
        """Close the ledger; the server accepts no more reports."""
        with self._lock:
            self._ledger.close()

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def advance(before: State, report: ArrayLike, step: Schedule, region: Region) -> State:
    """Return the state after one more report.

    Parameters
    ----------
    before : State
        The state that the report was computed at.
    report : array
        The report, of θ's length.
    step, region : Schedule, Region
        Step sizes and feasible set of the run.

    Returns
    -------
    State

    Raises
    ------
    ValueError
        If the report is not a finite vector of θ's length, or θ or the average would no longer be finite.
    """
    t = before.version + 1
    sent = _vector("report", report, before.theta.size)
    with np.errstate(over="ignore", invalid="ignore"):
        theta = before.theta - size(step, t) * sent
        if not np.isfinite(theta).all():  # before the projection, which could hide it
            raise ValueError(f"report must leave θ finite, got one of size {np.abs(sent).max():g}.")
        project(region, theta)
        average = before.average + (theta - before.average) / t
    if not np.isfinite(average).all():
        raise ValueError(f"report must leave the average finite, got one of size {np.abs(sent).max():g}.")
    return State(t, checks.frozen(theta), checks.frozen(average))


def replay(reports: Iterable[ArrayLike], start: ArrayLike, step: Schedule, region: Region | None = None) -> State:
    """Return θ and the average after all `reports`.

    Parameters
    ----------
    reports : iterable of array
        The reports in the order in which they were applied.
    start : array
        θ_0.
    step : Schedule
        The step sizes.
    region : Region, optional
        Where θ is projected to; by default anywhere.

    Returns
    -------
    State
    """
    where: Region = Everywhere() if region is None else region
    theta = checks.frozen(_vector("start", start, np.size(start)))
    now = State(0, theta, theta)
    for report in reports:
        now = advance(now, report, step, where)
    return now


def _vector(name: str, value: ArrayLike, length: int) -> Array:
    """Return a vector of `length` finite numbers."""
    result = checks.floats(name, value)
    if result.ndim != 1 or result.size != length or not length:
        expected = f"a vector of {length} numbers" if length else "a vector of at least one number"
        raise ValueError(f"{name} must be {expected}, got shape {result.shape}.")
    return checks.vector(name, result, length)


def _text(name: str, value: object) -> str:
    if not isinstance(value, str) or not (0 < len(value) <= _LONGEST_NAME and value.isprintable()):
        raise ValueError(f"{name} must be 1 to {_LONGEST_NAME} printable characters, got {_shortened(value)}.")
    return value


def _shortened(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"
