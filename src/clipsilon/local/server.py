"""The server: it holds θ, averages the reports of a round, and never sees a record.

A report that has left a device has spent its budget, whether it is used or not. Therefore a device asks for a ticket
before it makes a report. Tickets are handed out as long as the reports that are still to come fit into the round and
those that follow it closely; a report with a valid ticket is accepted until the ticket ends. With rounds of one report
and no staleness, one user at a time has the turn.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from threading import Lock, RLock
from types import TracebackType
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clipsilon._core import checks
from clipsilon._core.parts import fingerprint, require
from clipsilon.local import tickets
from clipsilon.local.ledger import Closing, Entry, Event, Ledger, LedgerError, open_ledger
from clipsilon.local.plausible import plausible
from clipsilon.local.report import check_budget
from clipsilon.local.rounds import Averaging, Process, State, advance, check_reach, finish_round, initial_state, replay
from clipsilon.local.spending import compose
from clipsilon.local.statement import LocalStatement, compose_reports
from clipsilon.local.tickets import Place, Places, Ticket
from clipsilon.problems.losses.base import Loss, sensitivity_of
from clipsilon.problems.regions import Everywhere, Region, project
from clipsilon.rules.schedules import Schedule, size

__all__ = ["REPEATS", "RefusalError", "Server", "State", "Turn", "advance", "replay"]

Array = NDArray[np.float64]

REPEATS = {"refuse": False, "compose": True}
WEIGHTS = {"budget": True, "equal": False}
_SNAPSHOT_EVERY = 10_000  # reports
_STALENESS = 4  # rounds, where a round has more than one report
_TRANSIT = 1.0  # seconds that a report with a ticket may be on its way after the end of the ticket


class RefusalError(ValueError):
    """A user or a report that the server refuses; nothing changes.

    Parameters
    ----------
    code : str
        "repeated": this user has already reported. "stale": θ has changed, or there is no valid ticket. "applied":
        this very report is already in the ledger, so that the device is done.
    message : str
        The reason, in one sentence.
    sequence : int, optional
        With "applied", the number of the report.
    """

    def __init__(self, code: str, message: str, sequence: int | None = None):
        super().__init__(message)
        self.code, self.sequence = code, sequence


class Turn(NamedTuple):
    """What a user needs to report.

    Parameters
    ----------
    theta : array
        The model to compute the report at.
    version : int
        Its version.
    seconds : float
        For how long a report with the ticket is accepted.
    ticket : str
        What proves it, also after a restart of the server.
    """

    theta: Array
    version: int
    seconds: float
    ticket: str = ""


class Submission(NamedTuple):
    """A report as it comes in.

    Parameters
    ----------
    user, mu, version, report, token, ticket, lost
        The arguments of `Server.apply`.
    """

    user: str
    mu: float
    version: int
    report: ArrayLike
    token: str | None = None
    ticket: str | None = None
    lost: float = 0.0


class Checked(NamedTuple):
    """A report that is sound, whatever the ledger holds; `Server.check` makes it.

    Parameters
    ----------
    entry : Entry
        The report.
    token, ticket : str, optional
        As of `Server.apply`.
    """

    entry: Entry
    token: str | None
    ticket: str | None


class Accepted(NamedTuple):
    """The number of an accepted report, and the round that it counts in."""

    sequence: int
    version: int


class _Draft:
    """What a group of reports changes, until it is on disk."""

    def __init__(self, state: State, entries: Sequence[Entry], sequence: int, last_snapshot: int):
        self.state, self.entries, self.sequence, self.last_snapshot = state, list(entries), sequence, last_snapshot
        self.events: list[Event] = []
        self.added: dict[str, list[tuple[int, Entry]]] = {}

    def add(self, entry: Entry) -> None:
        """Add a report to the open round."""
        self.sequence += 1
        self.entries.append(entry)
        self.events.append(entry)
        self.added.setdefault(entry.user, []).append((self.sequence, entry))

    def close_round(self, process: Process) -> None:
        """Close the open round, with a snapshot if the last one is long ago."""
        closed, self.state = self.state.version, finish_round(self.state, self.entries, process)
        self.entries = []
        is_due = self.sequence - self.last_snapshot >= _SNAPSHOT_EVERY
        self.last_snapshot = self.sequence if is_due else self.last_snapshot
        contents = (self.state.theta, self.state.average) if is_due else ()
        self.events.append(Closing(closed, self.sequence, *contents))


class Server:
    """Average the reports of each round, and step by θ_r = project(θ_{r−1} − η_r·mean_r), from a durable ledger.

    Parameters
    ----------
    path : str or path-like
        The ledger: a SQLite file, or a `postgresql://` address, which several servers may share. A new one is created;
        from an existing one θ is computed again. A ledger with other settings of θ is refused.
    start : array
        θ_0, a vector.
    step : Schedule
        The step sizes η_r, a part of `clipsilon.schedules`.
    region : Region, optional
        Where θ is projected to, a part of `clipsilon.regions`; by default anywhere.
    repeats : {"refuse", "compose"}, default "refuse"
        Refuse a second report of a user, or accept it and compose their budgets in the statement.
    turn_seconds : float, default 10.0
        How long a ticket is valid.
    batch : int, default 1
        b, the number of reports after which a round closes.
    round_seconds : float, optional
        A round also closes so many seconds after its first report; by default it waits for b reports.
    loss : Loss, optional
        The loss of the reports, which states its sensitivity Δ: implausible reports are refused, and devices can ask
        for it. Needed for the weights "budget" of rounds with several reports.
    weights : {"budget", "equal"}, default "budget"
        Weights 1/(V + d·(Δ/μ)²), or equal ones. The first estimate the mean gradient best if budgets do not depend on
        records; otherwise a population is learnt in which large budgets count more.
    variance : float, optional
        V, a public guess at the variance of a gradient; by default (Δ/2)², which no variance exceeds.
    weight_cap : float, default 2.0
        Larger budgets count as this one in the weights, since nobody can check them: a report weighs at most
        (weight_cap/m)² times as much as one with μ = m. Set it to the largest budget that is usual; infinity for none.
    trim : float, default 0.0
        The fraction of the largest, and of the smallest, values of each coordinate that a round leaves out. 0.1 adds
        6 % to the variance of normal reports, and up to 10 % of bad reports cannot move a coordinate beyond the others;
        skewed gradients are then estimated with a bias.
    staleness : int, optional
        For how many rounds after its own a report may count; by default 0 for b = 1, and 4 otherwise. Tickets are
        handed out accordingly. Restarts, rounds that close by time and several servers may exceed it.
    most_budget : float, optional
        The most that the reports of one user may compose to.
    feature_names : sequence of str, optional
        Names of the features, which devices can ask for.

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
        batch: int = 1,
        round_seconds: float | None = None,
        loss: Loss | None = None,
        weights: str = "budget",
        variance: float | None = None,
        weight_cap: float = 2.0,
        trim: float = 0.0,
        staleness: int | None = None,
        most_budget: float | None = None,
        feature_names: Sequence[str] | None = None,
    ):
        require("step", step, [size])
        require("region", where := Everywhere() if region is None else region, [project])
        self._composes, self.repeats = checks.choice("repeats", repeats, REPEATS), repeats
        self.turn_seconds = checks.positive("turn_seconds", turn_seconds)
        self.batch = checks.count("batch", batch)
        self.round_seconds = None if round_seconds is None else checks.positive("round_seconds", round_seconds)
        self.staleness = (
            (_STALENESS if batch > 1 else 0) if staleness is None else checks.integer("staleness", staleness, 0)
        )
        self.most_budget = None if most_budget is None else check_budget("most_budget", most_budget)
        names = None if feature_names is None else tuple(checks.text("feature_names", one) for one in feature_names)
        self.feature_names = names
        self.loss = loss
        averaging = _averaging(self.batch, loss, weights, variance, trim)
        cap = checks.positive_or_infinite("weight_cap", weight_cap)
        is_weighted = averaging.variance < math.inf
        self._process = Process(step, where, averaging._replace(weight_cap=cap) if is_weighted else averaging)
        self._origin = initial_state(start)
        self._plausible = None if loss is None else plausible(loss, self._origin.theta.size)
        self._path = path
        self._lock = RLock()  # of the ledger, held while it is written
        self._turn_lock = Lock()  # of the places, held for a moment
        self._places = Places(overbooks=self.batch > 1)
        self._ledger, self._problem, self._is_closed = self._open(), "", False

    def _open(self) -> Ledger:
        """Open the ledger, and compute θ from it."""
        ledger = open_ledger(self._path, self._settings())
        try:
            self._load(ledger)
        except BaseException:
            ledger.close()
            raise
        self._key = ledger.key
        return ledger

    def _settings(self) -> dict[str, str]:
        parts = {"step": self._process.step, "region": self._process.region}
        described = {name: f"{part} [{fingerprint(part)[:16]}]" for name, part in parts.items()}
        rounds = {"batch": str(self.batch), "averaging": str(tuple(self._process.averaging))}
        return {"start": repr(self._origin.theta.tolist()), **described, "repeats": self.repeats, **rounds}

    def _load(self, ledger: Ledger) -> None:
        """Begin with the last snapshot of a ledger, and take up what follows it."""
        snapshot = ledger.resume()
        self._state, self._entries, self._reported = self._origin, list[Entry](), dict[int, int]()
        self._spent = dict[int, float]()
        self._last_snapshot, self._sequence = 0, 0
        self._round_began = time.monotonic()
        if snapshot is not None:
            state = State(snapshot.round + 1, checks.frozen(snapshot.theta), checks.frozen(snapshot.average))
            self._state, self._sequence, self._last_snapshot = state, snapshot.sequence, snapshot.sequence
            for event in ledger.events():  # every digest is checked, also of what the statement will read
                if isinstance(event, Entry):
                    self._note(event)
        self._absorb(ledger)

    def _absorb(self, ledger: Ledger) -> None:
        """Take up what is new in the ledger."""
        for event in ledger.news():
            self._state, self._entries = _followed(self._state, self._entries, event, self._process, ledger.name)
            if isinstance(event, Entry):
                self._sequence += 1
                self._note(event)
                self._round_began = time.monotonic() if len(self._entries) == 1 else self._round_began
            elif event.theta.size:
                self._last_snapshot = event.sequence

    def _note(self, entry: Entry) -> None:
        """Remember that a user has reported, the last version that they reported at, and if need be what they spent."""
        key = hash(entry.user)
        self._reported[key] = max(entry.version, self._reported.get(key, 0))
        if self.most_budget is not None:
            self._spent[key] = compose(self._spent.get(key, 0.0), entry.mu, entry.lost)

    @property
    def step(self) -> Schedule:
        """The step sizes."""
        return self._process.step

    @property
    def region(self) -> Region:
        """Where θ is projected to."""
        return self._process.region

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
        """The mean of θ_1, …, θ_n; θ_0 before a round has closed."""
        return self._state.average

    @property
    def version(self) -> int:
        """The number of closed rounds."""
        return self._state.version

    @property
    def reports(self) -> int:
        """The number of accepted reports."""
        return self._sequence

    def admit(self, user: str) -> str:
        """Return the user's name; raise RefusalError if a report of theirs will not be accepted.

        Names are compared by 64 bits: that anyone among a million is refused for another has probability 10⁻⁷.
        """
        name = checks.person("user", user)
        if self._problem:
            raise LedgerError(self._problem)
        if not self._composes and hash(name) in self._reported:
            raise _repeated(name)
        return name

    def turn(self, user: str, token: str) -> Turn | None:
        """Return a ticket, with what else a user needs to report; None while there is no place.

        `token` is the user's own secret, new for each report. Asking again with the same token returns a ticket that
        ends at the same time, and a user who let a ticket end waits for as long again. A ticket is for one report, and
        a user gets one for each version: who has reported at this one waits for the next.
        """
        name, secret, now = self.admit(user), checks.text("token", token), time.time()
        with self._turn_lock:
            state, place = self._state, self._places.of(name)
            if self._reported.get(hash(name), -1) >= state.version:
                return None
            if place is not None and place.end > now:
                if place.token != secret:
                    return None
                given, end = place.given, place.end
            elif self._places.is_resting(name, now) or not self._has_place(state.version, now):
                return None
            else:
                given, end = now, now + self.turn_seconds
            ticket = tickets.sign(self._key, name, secret, Ticket(state.version, end))  # takes microseconds
            self._places.add(name, Place(secret, ticket, state.version, given, end))
        return Turn(state.theta, state.version, end - now, ticket)

    def _has_place(self, version: int, now: float) -> bool:
        """Return whether one more report at this version would count in time, after those still to come."""
        ahead = int((len(self._entries) + self._places.expected(now)) // self.batch)
        return 0 <= self._state.version - version <= self.staleness - ahead

    def turn_left(self) -> float:
        """Return for how many more seconds nobody else gets a ticket, unless reports come in before."""
        now = time.time()
        with self._turn_lock:
            return 0.0 if self._has_place(self.version, now) else max(0.0, self._places.next_end() - now)

    def apply(
        self,
        user: str,
        mu: float,
        version: int,
        report: ArrayLike,
        token: str | None = None,
        ticket: str | None = None,
        lost: float = 0.0,
    ) -> int:
        """Accept one report, or refuse it and change nothing.

        A report does not show whether its noise fits μ: the server relies on the device for that.

        Parameters
        ----------
        user : str
            Who sent it, up to 200 printable characters; forms of a name that look the same (NFC, NFD) are one user.
        mu : float
            The budget that the user states for it, from 10⁻⁶ to 10⁶.
        version : int
            Version of the θ that it was computed at.
        report : array
            The report, of θ's length and finite.
        token, ticket : str, optional
            The token of the user's turn, and the ticket that was returned for it. By default the ticket that this
            object remembers; without a token, the report needs a place that nobody holds.
        lost : float, default 0.0
            √(Σμ²) of the user's earlier reports that left the device and are in no ledger; with μ, at most 10⁶.

        Returns
        -------
        int
            The number of the report.

        Raises
        ------
        RefusalError
            If the user has already reported, the version or the turn has passed, or the report is already applied.
        ValueError
            If an argument is not as described, the report is implausible, or θ would no longer be finite.
        LedgerError
            If the ledger could not be written; the server then stops.
        """
        answer = self.apply_many([Submission(user, mu, version, report, token, ticket, lost)])[0]
        if isinstance(answer, ValueError):
            raise answer
        return answer.sequence

    def apply_many(self, submissions: Sequence[Submission]) -> list[Accepted | ValueError]:
        """Accept or refuse several reports with one write to the ledger, and return an answer for each.

        Parameters
        ----------
        submissions : sequence of Submission
            The reports, in the order in which they are to be applied.

        Returns
        -------
        list of Accepted or ValueError

        Raises
        ------
        LedgerError
            If the ledger could not be written. Each of the reports may be in it or not, and can be sent again.
        """
        checked = [self._checked(one) for one in submissions]
        sound = [one for one in checked if isinstance(one, Checked)]
        answers = iter(self.apply_checked(lambda: sound))
        return [one if isinstance(one, ValueError) else next(answers) for one in checked]

    def apply_checked(self, take: Callable[[], Sequence[Checked]]) -> list[Accepted | ValueError]:
        """Accept or refuse the reports that `take` returns when the turn to write has come, as `apply_many`.

        Parameters
        ----------
        take : callable
            Called once, or not at all if the ledger cannot be written.

        Returns
        -------
        list of Accepted or ValueError

        Raises
        ------
        LedgerError
            As of `apply_many`.
        """
        with self._lock:
            if self._problem:
                raise LedgerError(self._problem)
            with self._stopping(), self._ledger.transaction():
                if self._ledger.is_shared:
                    self._absorb(self._ledger)
                draft = self._draft()
                answers = [self._consider(draft, one) for one in take()]
                if draft.events:
                    self._ledger.append(draft.events)
            self._publish(draft)
        return answers

    def _checked(self, sent: Submission) -> Checked | ValueError:
        try:
            return self.check(sent)
        except ValueError as problem:
            return problem

    def check(self, sent: Submission) -> Checked:
        """Return a report as it can be applied; raise ValueError if it is refused whatever the ledger holds."""
        entry = Entry(
            checks.person("user", sent.user),
            check_budget("mu", sent.mu),
            checks.integer("version", sent.version, least=0),
            checks.full_vector("report", sent.report, self._origin.theta.size),
            checks.nonnegative("lost", sent.lost),
        )
        if self._plausible is not None:
            self._plausible.check(entry.mu, entry.report)
        total = check_budget("mu with lost", math.hypot(entry.mu, entry.lost))
        if self.most_budget is not None and total > self.most_budget:
            raise ValueError(f"mu must be at most {self.most_budget:g} for each user, got {total:g}.")
        return Checked(entry, sent.token, sent.ticket)

    def _draft(self) -> _Draft:
        return _Draft(self._state, self._entries, self._sequence, self._last_snapshot)

    def _consider(self, draft: _Draft, sent: Checked) -> Accepted | ValueError:
        """Add a report to a draft, or return why not."""
        entry = sent.entry
        try:
            if hash(entry.user) in self._reported or entry.user in draft.added:
                self._check_known(draft, entry, has_ticket=sent.token is not None)
            self._check_ticket(draft, entry, sent.token, sent.ticket)
            check_reach(draft.state, entry.report, self.step)
        except LedgerError:
            raise
        except ValueError as problem:
            return problem
        number = draft.state.version
        draft.add(entry._replace(round=number))
        if len(draft.entries) >= self.batch:
            draft.close_round(self._process)
        return Accepted(draft.sequence, number)

    def _check_known(self, draft: _Draft, entry: Entry, has_ticket: bool) -> None:
        """Raise RefusalError if this report is there already, or its user may not send another."""
        added = [pair for pair in draft.added.get(entry.user, []) if pair[1].version == entry.version]
        before = [*added, *self._ledger.find(entry.user, entry.version)]
        for number, known in before:
            same = (known.mu, known.version, known.lost) == (entry.mu, entry.version, entry.lost)
            if same and np.array_equal(known.report, entry.report):
                raise RefusalError("applied", f"this report has already been applied, as number {number}.", number)
        if not self._composes:
            raise _repeated(entry.user)
        if has_ticket and before:  # a ticket is for one version, so this is one report per ticket, at any server
            raise RefusalError("stale", f"user {entry.user!r} has already reported at version {entry.version}.")
        if self.most_budget is not None:
            new = [budget for _, other in draft.added.get(entry.user, []) for budget in (other.mu, other.lost)]
            total = compose(entry.mu, entry.lost, self._spent.get(hash(entry.user), 0.0), *new)
            if total > self.most_budget:
                raise ValueError(f"mu must be at most {self.most_budget:g} in total for each user, got {total:g}.")

    def _check_ticket(self, draft: _Draft, entry: Entry, token: str | None, ticket: str | None) -> None:
        """Raise RefusalError unless a report has a valid ticket, or there is a place for it."""
        now, said = time.time(), None
        if token is not None:
            with self._turn_lock:
                place = self._places.of(entry.user)
            if ticket is None and place is not None and place.token == token:
                ticket = place.ticket
            said = tickets.read(self._key, entry.user, checks.text("token", token), ticket or "")
            if said is None or said.version != entry.version:
                raise _without_turn(entry.user)
        if said is not None and now <= said.end + _TRANSIT:
            return
        behind = draft.state.version - entry.version
        if not 0 <= behind <= self.staleness:
            current = "the current one" if not self.staleness else f"at most {self.staleness} before the current one"
            raise RefusalError("stale", f"version must be {current}, {draft.state.version}, got {entry.version}.")
        with self._turn_lock:
            ahead = int((len(draft.entries) + self._places.expected(now)) // self.batch)
        if behind + ahead > self.staleness:
            raise _without_turn(entry.user)

    def _publish(self, draft: _Draft) -> None:
        """Make what is on disk the state of the server."""
        if draft.entries and not (self._entries and self._entries[0] is draft.entries[0]):
            self._round_began = time.monotonic()
        now = time.time()
        with self._turn_lock:
            self._state, self._entries = draft.state, draft.entries
            self._sequence, self._last_snapshot = draft.sequence, draft.last_snapshot
            for user, added in draft.added.items():
                for _, entry in added:
                    self._note(entry)
                self._places.use(user, now)

    def refresh(self) -> None:
        """Read what other servers have written, and close the round if its time is over."""
        with self._lock:
            if self._problem:
                raise LedgerError(self._problem)
            with self._stopping():
                if self._ledger.is_shared:
                    self._absorb(self._ledger)
                if not self._is_overdue():
                    return
                with self._ledger.transaction():
                    if self._ledger.is_shared:
                        self._absorb(self._ledger)
                    draft = self._draft()
                    if self._is_overdue():  # no other server has closed it
                        draft.close_round(self._process)
                        self._ledger.append(draft.events)
            self._publish(draft)

    def _is_overdue(self) -> bool:
        lasting = time.monotonic() - self._round_began
        return bool(self._entries) and self.round_seconds is not None and lasting >= self.round_seconds

    def _stopping(self) -> _Stopping:
        return _Stopping(self)

    @property
    def is_stopped(self) -> bool:
        """Whether the ledger failed, so that nothing is accepted until `reopen`."""
        return bool(self._problem) and not self._is_closed

    def stop(self, problem: BaseException) -> None:
        """Accept nothing more until `reopen`, for this reason."""
        self._problem = self._problem or str(problem) or type(problem).__name__

    def reopen(self) -> None:
        """Open the ledger again after it failed; raise LedgerError if that fails, or if it has lost a report."""
        with self._lock:
            known = self._ledger.position
            self._ledger.close()
            opened = self._open()
            try:
                opened.require(known)
            except BaseException:
                opened.close()
                raise
            self._ledger, self._problem = opened, ""

    def statement(self, delta: float) -> LocalStatement:
        """Return the privacy statement of each user, and their summary."""
        reports: list[tuple[str, float]] = []
        while True:
            with self._lock:  # page by page, so that reports are accepted in between
                page = self._ledger.budgets(len(reports))
            if not page:
                return compose_reports(reports, delta)
            reports += [(user, compose(mu, lost)) for user, mu, lost in page]

    def replay(self) -> State:
        """Return θ and the average as computed from the ledger alone, from its first report."""
        with self._lock:
            state, entries = self._origin, list[Entry]()
            for event in self._ledger.events():
                state, entries = _followed(state, entries, event, self._process, self._ledger.name)
            return state

    def close(self) -> None:
        """Close the ledger; the server accepts no more reports."""
        with self._lock:
            self._problem, self._is_closed = self._problem or f"{self._ledger.name} is closed.", True
            self._ledger.close()

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Stopping:
    """Stop a server if anything fails within the block: its state and the position in the ledger may then differ."""

    def __init__(self, server: Server):
        self._server = server

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if value is not None:
            self._server.stop(value)


def _averaging(batch: int, loss: Loss | None, weights: str, variance: float | None, trim: float) -> Averaging:
    """Return how rounds are averaged; rounds of one report have nothing to average."""
    by_budget, fraction = checks.choice("weights", weights, WEIGHTS), checks.below_half("trim", trim)
    if batch == 1 or not by_budget:
        return Averaging(trim=fraction if batch > 1 else 0.0)
    if loss is None:
        raise ValueError("loss must be given for rounds of several reports, unless weights is 'equal', got None.")
    sensitivity = sensitivity_of(loss)
    known = (sensitivity / 2) ** 2 if variance is None else checks.nonnegative("variance", variance)
    return Averaging(known, sensitivity, fraction)


def _followed(
    state: State, entries: list[Entry], event: Event, process: Process, name: str
) -> tuple[State, list[Entry]]:
    """Return the state and the reports of the open round after an event of the ledger."""
    if isinstance(event, Entry):
        entries.append(event)
        return state, entries
    try:
        after = finish_round(state, entries, process)
    except ValueError as problem:
        raise LedgerError(f"{name} is damaged: {problem}") from None
    is_same = after.theta.tobytes() == event.theta.tobytes() and after.average.tobytes() == event.average.tobytes()
    if event.theta.size and not is_same:
        raise LedgerError(f"{name} is damaged: θ after round {event.round} is not what its reports lead to.")
    return after, []


def _repeated(user: str) -> RefusalError:
    return RefusalError("repeated", f"user {user!r} has already reported; one report per user is accepted.")


def _without_turn(user: str) -> RefusalError:
    return RefusalError(
        "stale",
        f"user {user!r} does not hold the current turn, or the token is wrong; request a new turn before reporting.",
    )
