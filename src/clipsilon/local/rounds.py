"""A round: the reports of one θ are averaged, and θ takes one projected step."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clipsilon._core import checks
from clipsilon.local.ledger import Entry
from clipsilon.problems.regions import Everywhere, Region, project
from clipsilon.rules.schedules import Schedule, size

Array = NDArray[np.float64]

_LARGEST = 1e300  # of |θ| + η·|report|: means of such numbers stay finite, whatever rounding does


@dataclass(frozen=True, eq=False)
class State:
    """θ and its average after a number of rounds (paper 4, eq. 2 and section 3, for rounds of one report).

    Parameters
    ----------
    version : int
        Number n of closed rounds.
    theta : array
        θ_n.
    average : array
        The mean of θ_1, …, θ_n; θ_0 for n = 0.
    """

    version: int
    theta: Array
    average: Array

    @cached_property
    def largest(self) -> float:
        """The largest |θ_i|."""
        return float(np.abs(self.theta).max())


class Averaging(NamedTuple):
    """How the reports of a round become one.

    Parameters
    ----------
    variance : float
        V of the weights 1/(V + d·(Δ/μ)²); infinity for equal weights.
    sensitivity : float
        Δ.
    trim : float
        The fraction of the largest, and of the smallest, values of each coordinate that are left out.
    weight_cap : float
        Larger μ count as this one in the weights.
    """

    variance: float = math.inf
    sensitivity: float = 0.0
    trim: float = 0.0
    weight_cap: float = math.inf


class Process(NamedTuple):
    """What turns reports into θ.

    Parameters
    ----------
    step, region : Schedule, Region
        Step sizes and feasible set.
    averaging : Averaging
        How the reports of a round are averaged.
    """

    step: Schedule
    region: Region
    averaging: Averaging = Averaging()


def finish_round(before: State, entries: Sequence[Entry], process: Process) -> State:
    """Return the state after a round with these reports, in the order of the ledger.

    Parameters
    ----------
    before : State
        The state of the round.
    entries : sequence of Entry
        Its reports, at least one.
    process : Process
        What turns reports into θ.

    Returns
    -------
    State
    """
    reports = np.array([entry.report for entry in entries])
    mean = average_reports(reports, np.array([entry.mu for entry in entries]), process.averaging)
    return advance(before, mean, process.step, process.region)


def average_reports(reports: Array, budgets: Array, how: Averaging) -> Array:
    """Return the weighted mean of reports, trimmed in each coordinate if that is asked for.

    It estimates the mean gradient without bias if budgets do not depend on records and nothing is trimmed. Each of
    ⌊trim·n⌋ arbitrary reports among n can move a coordinate at most to the extremes of the others. No report has more
    than (weight_cap/m)² times the weight of one with μ = m ≤ weight_cap.

    Parameters
    ----------
    reports : array of shape (n, d)
        The reports.
    budgets : array of shape (n,)
        Their μ.
    how : Averaging
        Weights and trimming.

    Returns
    -------
    array of shape (d,)
    """
    many, dimension = reports.shape
    if many == 1:
        return np.array(reports[0])
    equal = how.variance == math.inf
    believed = np.minimum(budgets, how.weight_cap)  # μ is what the device says
    weights = np.ones(many) if equal else 1.0 / (how.variance + dimension * (how.sensitivity / believed) ** 2)
    beyond = int(how.trim * many)
    if not beyond:
        return np.asarray(np.add.reduce(reports * (weights / weights.sum())[:, None], axis=0))
    kept = np.argsort(reports, axis=0, kind="stable")[beyond : many - beyond]
    shares = weights[kept]
    return np.asarray(np.add.reduce(np.take_along_axis(reports, kept, 0) * (shares / shares.sum(axis=0)), axis=0))


def trimming_cost(trim: float) -> float:
    """Return the variance of a trimmed mean of many equal normal reports, divided by that of their mean.

    >>> round(trimming_cost(0.1), 3)
    1.06
    """
    from scipy.special import ndtri

    fraction = checks.below_half("trim", trim)
    if fraction == 0.0:
        return 1.0
    edge = -float(ndtri(fraction))
    density = math.exp(-0.5 * edge * edge) / math.sqrt(2.0 * math.pi)
    return (1.0 - 2.0 * fraction - 2.0 * edge * density + 2.0 * fraction * edge**2) / (1.0 - 2.0 * fraction) ** 2


def check_reach(state: State, report: Array, step: Schedule) -> None:
    """Raise ValueError if a report could make θ or the average overflow when the round closes.

    Parameters
    ----------
    state : State
        The state of the open round.
    report : array
        The report.
    step : Schedule
        The step sizes.
    """
    largest = float(np.abs(report).max())
    if not state.largest + size(step, state.version + 1) * largest <= _LARGEST:
        raise ValueError(f"report must leave θ finite, got one of size {largest:g}.")


def advance(before: State, report: ArrayLike, step: Schedule, region: Region) -> State:
    """Return the state after one more step.

    Parameters
    ----------
    before : State
        The state that the report was computed at.
    report : array
        The report, or the mean of a round, of θ's length.
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
    sent = checks.full_vector("report", report, before.theta.size)
    with np.errstate(over="ignore", invalid="ignore"):
        theta = before.theta - size(step, t) * sent
        if not np.isfinite(theta).all():  # before the projection, which could hide it
            raise ValueError(f"report must leave θ finite, got one of size {np.abs(sent).max():g}.")
        project(region, theta)
        average = before.average + (theta - before.average) / t
    if not np.isfinite(average).all():
        raise ValueError(f"report must leave the average finite, got one of size {np.abs(sent).max():g}.")
    return State(t, checks.frozen(theta), checks.frozen(average))


def initial_state(start: ArrayLike) -> State:
    """Return the state before the first round."""
    theta = checks.frozen(checks.full_vector("start", start, max(1, np.size(start))))
    return State(0, theta, theta)


def replay(reports: Iterable[ArrayLike], start: ArrayLike, step: Schedule, region: Region | None = None) -> State:
    """Return θ and the average after all `reports`.

    Parameters
    ----------
    reports : iterable of array
        The reports in the order in which they were applied; for larger rounds, the mean of each.
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
    now = initial_state(start)
    for report in reports:
        now = advance(now, report, step, where)
    return now
