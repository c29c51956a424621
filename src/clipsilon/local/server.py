"""The server: it holds θ, applies reports one by one, and never sees a record.

A report that has left a device has spent its budget, whether it is applied or not. So reports are made in *turns*: a
user asks for θ, and nobody else is handed the same θ until that user has reported, or has kept everybody waiting for
too long. Only who holds the turn may report, so that no budget is spent on a θ that has passed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from threading import RLock
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clipsilon._core import checks
from clipsilon._core.parts import fingerprint, require
from clipsilon.local.ledger import Entry, Ledger, LedgerError
from clipsilon.local.report import budget
from clipsilon.local.statement import LocalStatement, statement_of
from clipsilon.problems.regions import Everywhere, project
from clipsilon.rules.schedules import size

Array = NDArray[np.float64]

REPEATS = {"refuse": False, "compose": True}
_LONGEST_NAME = 200


class RefusalError(ValueError):
    """A user or a report that the server turns away, unchanged; `code` is "repeated", "stale" or "applied".

    "applied" is good news: this very report is in the ledger already, as number `sequence`.
    """

    def __init__(self, code: str, sentence: str, sequence: int | None = None):
        super().__init__(sentence)
        self.code, self.sequence = code, sequence


@dataclass(frozen=True, eq=False)
class State:
    """θ_n and the mean of θ_1, …, θ_n, after n = `version` reports (paper 4, eq. 2 and section 3)."""

    version: int
    theta: Array
    average: Array


class Turn(NamedTuple):
    """What a user needs to report: θ, its version, and how long others will wait."""

    theta: Array
    version: int
    seconds: float


class _Holder(NamedTuple):
    user: str
    token: str


class Server:
    """θ_i = project(θ_{i−1} − η_i·report_i), with every report in a ledger before it counts.

    Parameters
    ----------
    path
        The ledger, a SQLite file; made if it is not there, else replayed. Other settings than its own are refused.
    start
        θ_0, a vector.
    step
        A part of `clipsilon.schedules`.
    region
        A part of `clipsilon.regions`; None for no constraint.
    repeats
        "refuse" a second report of a user, or "compose" them in the statement.
    turn_seconds
        After how long a user who asked for θ and has not reported loses the turn to one who asks.

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
        start: Any,
        step: Any,
        region: Any = None,
        repeats: str = "refuse",
        turn_seconds: float = 10.0,
    ):
        self.step, self.region = step, Everywhere() if region is None else region
        require("step", self.step, [size])
        require("region", self.region, [project])
        self._composes = checks.choice("repeats", repeats, REPEATS)
        self.turn_seconds = checks.positive("turn_seconds", turn_seconds)
        self._start = _vector("start", start, np.size(start))
        self._lock = RLock()
        self._ledger = Ledger(path, self._settings(repeats))
        try:
            self._state = self.replay()
            self._holder = self._last_turn()
        except BaseException:
            self._ledger.close()
            raise
        self._until = time.monotonic() + self.turn_seconds

    def _settings(self, repeats: str) -> dict[str, str]:
        parts = {"step": self.step, "region": self.region}
        shown = {name: f"{part} [{fingerprint(part)[:16]}]" for name, part in parts.items()}
        return {"start": repr(self._start.tolist()), **shown, "repeats": repeats}

    def _last_turn(self) -> _Holder | None:
        """Whose turn it was when the ledger was last open: they get the full time again."""
        known = self._ledger.turn()
        return _Holder(*known[1:]) if known is not None and known[0] == self.version else None

    @property
    def state(self) -> State:
        """θ, the average and their version, which belong together."""
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
        """How many reports were applied."""
        return self._state.version

    def admit(self, user: str) -> str:
        """The user's name, if a report of theirs would be taken now or later."""
        name = _text("user", user)
        with self._lock:
            if not self._composes and self._ledger.has(name):
                raise RefusalError("repeated", f"user {name!r} has taken part already; one report each is taken.")
        return name

    def turn(self, user: str, token: str) -> Turn | None:
        """What the user who is to report next needs, or None as long as it is somebody else's turn.

        `token` is a secret of the user's own, new for each report. Who asks again with the same one keeps the turn.
        """
        with self._lock:
            holder = _Holder(self.admit(user), _text("token", token))
            if self._holder not in (None, holder) and self.turn_left() > 0.0:
                return None
            if self._holder != holder:
                self._ledger.give_turn(self.version, *holder)
            self._holder, self._until = holder, time.monotonic() + self.turn_seconds
            return Turn(self.theta, self.version, self.turn_seconds)

    def turn_left(self) -> float:
        """For how many seconds nobody else will be given the turn."""
        with self._lock:
            return 0.0 if self._holder is None else max(0.0, self._until - time.monotonic())

    def apply(self, user: str, mu: float, version: int, report: Any, token: str | None = None) -> int:
        """Apply one report, computed at θ of that version, and return its number; or refuse it and change nothing.

        If somebody has the turn, `token` must be theirs. That the noise fits μ cannot be seen from a report: the
        device vouches for it.
        """
        entry = Entry(
            _text("user", user),
            budget("mu", mu),
            checks.integer("version", version, least=0),
            _vector("report", report, self._start.size),
        )
        with self._lock:
            self._check_version(entry)
            self.admit(entry.user)
            self._check_turn(entry.user, token)
            following = advance(self._state, entry.report, self.step, self.region)
            self._ledger.append(entry)  # on disk before anybody can see it
            self._state, self._holder = following, None
        return entry.version + 1

    def _check_version(self, entry: Entry) -> None:
        if entry.version == self.version:
            return
        known, number = self._ledger.entry(entry.version), entry.version + 1
        if known is not None and known[:3] == entry[:3] and np.array_equal(known.report, entry.report):
            raise RefusalError("applied", f"this report was applied already, as number {number}.", number)
        raise RefusalError("stale", f"version must be that of θ, which is {self.version}, got {entry.version}.")

    def _check_turn(self, user: str, token: str | None) -> None:
        claimed = None if token is None else _Holder(user, _text("token", token))
        if claimed != self._holder:
            raise RefusalError("stale", f"user {user!r} must have the turn, and its token, to report; it is not so.")

    def statement(self, delta: float) -> LocalStatement:
        """What each user gave away, and the summary."""
        with self._lock:
            reports = self._ledger.budgets()
        return statement_of(reports, delta)

    def replay(self) -> State:
        """θ and the average computed from the ledger alone."""
        with self._lock:
            reports = (entry.report for entry in self._ledger.entries())
            try:
                return replay(reports, self._start, self.step, self.region)
            except LedgerError:
                raise
            except ValueError as problem:
                raise LedgerError(f"{self._ledger.path} is damaged: {problem}") from None

    def close(self) -> None:
        """Close the ledger; the server takes no more reports."""
        with self._lock:
            self._ledger.close()

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def advance(before: State, report: Array, step: Any, region: Any) -> State:
    """The state after one more report; raises if θ would no longer be finite."""
    t = before.version + 1
    report = _vector("report", report, before.theta.size)
    with np.errstate(over="ignore", invalid="ignore"):
        theta = before.theta - size(step, t) * report
        if not np.isfinite(theta).all():  # before the projection, which could hide it
            raise ValueError(f"report must leave θ finite, got one of size {np.abs(report).max():g}.")
        project(region, theta)
        average = before.average + (theta - before.average) / t
    if not np.isfinite(average).all():
        raise ValueError(f"report must leave the average finite, got one of size {np.abs(report).max():g}.")
    return State(t, checks.frozen(theta), checks.frozen(average))


def replay(reports: Iterable[Array], start: Any, step: Any, region: Any = None) -> State:
    """θ and the average after `reports`, from θ_0 = `start`."""
    where = Everywhere() if region is None else region
    theta = checks.frozen(_vector("start", start, np.size(start)))
    now = State(0, theta, theta)
    for report in reports:
        now = advance(now, report, step, where)
    return now


def _vector(name: str, value: Any, length: int) -> Array:
    """Finite numbers, `length` of them, in a plain vector."""
    result = checks.floats(name, value)
    if result.ndim != 1 or result.size != length or not length:
        raise ValueError(f"{name} must be a vector of {length or 'some'} numbers, got shape {result.shape}.")
    return checks.vector(name, result, length)


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not (0 < len(value) <= _LONGEST_NAME and value.isprintable()):
        raise ValueError(f"{name} must be 1 to {_LONGEST_NAME} printable characters, got {_shortened(value)}.")
    return value


def _shortened(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:60]}…"
