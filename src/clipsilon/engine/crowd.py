"""Rounds of simulated devices, some of which answer late, never, or with lies.

Devices come one after the other. Each computes its report at the model that it was given, which may be some rounds old,
and a round ends when it has its reports. Reports are made as in `reports.py`, and the second half of a step is that of
the loop: with prompt and honest devices, a simulation is a run with the records in order, to the last bit.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba.extending import register_jitable
from numpy.random import Generator
from numpy.typing import NDArray

from clipsilon._core.kernel_cache import kernel
from clipsilon._core.options import INNER
from clipsilon._core.rows import row
from clipsilon.engine.arrays import ProblemArrays, Sums
from clipsilon.engine.batch import workspace
from clipsilon.engine.grid import Scaling, step_grid
from clipsilon.engine.loop import State, finish_step
from clipsilon.engine.reports import add_report
from clipsilon.problems.losses.base import gradient
from clipsilon.problems.responses import respond
from clipsilon.rules.noise import make_report
from clipsilon.rules.rule import Update

Array = NDArray[np.float64]
Indices = NDArray[np.int64]

FILLED, VANISHED, REFUSED, LIES = range(4)  # entries of `Round.counts`


class Conduct(NamedTuple):
    """How the devices of a block behave.

    Attributes
    ----------
    delays : array of int
        The age, in rounds, of the model at which a report is computed; −1 for a device that never reports.
    lies : array of float
        What a liar sends in each coordinate; NaN for honest devices.
    """

    delays: Indices
    lies: Array


class Round(NamedTuple):
    """The round that is being filled, and what is carried from round to round besides the state.

    Attributes
    ----------
    reports : array of shape (b, d)
        The reports of the round so far.
    weights : array of shape (b,)
        Their weights.
    past : array of shape (k, d)
        The last k models, those of the rounds r in the rows r mod k. Reports at older models are refused.
    counts : array of 4 int
        Reports in the round, devices that vanished, reports that were refused, and lies that were taken.
    """

    reports: Array
    weights: Array
    past: Array
    counts: Indices


def begin_rounds(theta: Array, batch: int, staleness: int) -> Round:
    """Return an empty first round.

    Parameters
    ----------
    theta : array of shape (d,)
        The model at the start.
    batch : int
        b, the number of reports per round.
    staleness : int
        The largest age, in rounds, of a model at which a report may be computed.

    Returns
    -------
    Round
    """
    past = np.tile(theta, (staleness + 1, 1))
    return Round(np.empty((batch, theta.size)), np.empty(batch), past, np.zeros(4, dtype=np.int64))


@kernel
def take_block(
    arrays: ProblemArrays,
    update: Update,
    public: Scaling,
    conduct: Conduct,
    beyond: int,
    current: Round,
    state: State,
    noise_rng: Generator,
    response_rng: Generator,
) -> bool:
    """Let the devices of a block come in order; return False as soon as θ is no longer finite.

    Parameters
    ----------
    arrays : ProblemArrays
        The devices' records, and loss, response and region.
    update : Update
        The parts of the rule, whose noise has one budget per device of the block.
    public : Scaling
        The numbers that the grid of a step follows from; there is none for reports.
    conduct : Conduct
        How the devices behave.
    beyond : int
        How many of the largest, and of the smallest, values of each coordinate a round leaves out.
    current : Round
        The present round, updated in place.
    state : State
        Updated in place.
    noise_rng, response_rng : Generator
        The random streams of the replicate.
    """
    records, loss, response, region = arrays
    features, labels, _, _ = records
    delays, lies = conduct
    reports, weights, past, counts = current
    clock, theta, _, _, _, _, _, _, _ = state
    space, drawn = workspace(features, theta), np.zeros(1, np.int64)
    moved, dense_row, report, _, _, _, _, _, _, _, _, _, _ = space
    total = Sums(np.zeros(theta.size), np.empty(0), np.zeros(2), np.empty(0))
    grid = step_grid(public, np.inf, 0.0, theta.size)
    for i in range(labels.size):
        age = min(delays[i], clock[0])
        if age < 0 or age >= past.shape[0]:
            counts[VANISHED if age < 0 else REFUSED] += 1
            continue
        given = past[(clock[0] - age) % past.shape[0]]
        label = respond(response, given, row(features, i, dense_row), labels[i], moved, response_rng)
        gradient(loss, given, moved, label, report)
        place = counts[FILLED]
        weights[place] = make_report(update.noise, i, report, noise_rng)
        is_lie = lies[i] == lies[i]
        counts[LIES] += is_lie
        for j in range(theta.size):
            reports[place, j] = lies[i] if is_lie else report[j]
        counts[FILLED] = place + 1
        if place + 1 == weights.size:
            _average(reports, weights, beyond, total.v)
            counts[FILLED] = 0
            if not finish_step(update, region, drawn, grid, total, state, noise_rng):
                return False
            for j in range(theta.size):
                past[clock[0] % past.shape[0], j] = theta[j]
    return True


@register_jitable(**INNER)  # type: ignore[untyped-decorator]
def _average(reports: Array, weights: Array, beyond: int, mean: Array) -> None:
    """Write the weighted mean of the reports of a round, trimmed in each coordinate if `beyond` is above 0."""
    for j in range(mean.size):
        mean[j] = 0.0
    if beyond == 0:
        total = 0.0
        for k in range(weights.size):
            total += weights[k]
            add_report(weights[k] / total, reports[k], mean)
        return
    for j in range(mean.size):
        order, total = np.argsort(reports[:, j], kind="mergesort"), 0.0
        for k in order[beyond : weights.size - beyond]:
            total += weights[k]
            mean[j] += weights[k] / total * (reports[k, j] - mean[j])
