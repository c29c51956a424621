"""What a collector wants to know before asking anyone: the error against devices, rounds and budgets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.random import default_rng
from numpy.typing import NDArray

from clipsilon.engine.means import mean_gradient, record_gradients
from clipsilon.local.simulation import Averaging, Crowd, Simulation, simulate
from clipsilon.problems.losses.base import sensitivity_of
from clipsilon.problems.problem import Problem
from clipsilon.rules.clipping import Unclipped
from clipsilon.rules.noise import Local
from clipsilon.rules.presets import LDPASGD
from clipsilon.rules.schedules import Constant, Schedule
from clipsilon.theory.local import LocalConstants, limit_variance

Array = NDArray[np.float64]

FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
_FEWER = 10  # by which the crowds are smaller for which budgets are changed
_SAMPLE, _STEP = 100_000, 0.05  # records, and the step of differences, from which curvature is estimated


class Study(NamedTuple):
    """Simulations of one crowd.

    Attributes
    ----------
    simulations : list of Simulation
        One per batch.
    limits : list of float
        Of each, the forecast of n·E‖θ̄_n − θ*‖² for many reports n; NaN where devices lie or rounds are trimmed.
    fewer : int
        The number of devices of the simulations with other budgets.
    by_budget : dict of str to array of shape (factors, replicates)
        For each kind of weights, the squared distance of the mean model if all budgets are multiplied by `FACTORS`, in
        rounds of the largest batch.
    """

    simulations: list[Simulation]
    limits: list[float]
    fewer: int
    by_budget: dict[str, Array]


def make_study(
    crowd: Crowd,
    averaging: Averaging,
    batches: Sequence[int],
    step: Callable[[int], Schedule],
    *,
    replicates: int = 4,
    seed: int | None = None,
    report: Callable[[str], None] = lambda text: None,
) -> Study:
    """Simulate a crowd with several batches, and a smaller one with larger and smaller budgets.

    Parameters
    ----------
    crowd : Crowd
        The devices.
    averaging : Averaging
        How reports are averaged, apart from the batch.
    batches : sequence of int
        The numbers of reports per round.
    step : callable
        From a batch to its step sizes.
    replicates : int, default 4
        How often each crowd is drawn.
    seed : int, optional
        Makes the study repeatable.
    report : callable, optional
        Called with a line of text before each simulation.

    Returns
    -------
    Study
    """
    simulations = []
    for batch in batches:
        report(f"{crowd.devices:,} devices in rounds of {batch:,}, {replicates} times")
        simulations.append(
            simulate(crowd, replace(averaging, batch=batch), step(batch), replicates=replicates, seed=seed)
        )
    fewer, largest = replace(crowd, devices=max(1, crowd.devices // _FEWER)), max(batches)
    by_budget: dict[str, Array] = {}
    for weights in ("budget", "equal"):
        how = replace(averaging, batch=largest, weights=weights, variance=None)
        report(f"{fewer.devices:,} devices with {len(FACTORS)} laws of budgets, weights: {weights}")
        others = [replace(fewer, budgets=str(crowd.law.times(factor))) for factor in FACTORS]
        found = [simulate(each, how, step(largest), replicates=replicates, seed=seed) for each in others]
        by_budget[weights] = np.array([each.average[:, -1] for each in found])
    return Study(simulations, [forecast_limit(crowd, each.averaging) for each in simulations], fewer.devices, by_budget)


def forecast_limit(crowd: Crowd, averaging: Averaging) -> float:
    """Forecast the limit of n·E‖θ̄_n − θ*‖² for many reports n by paper 4, Theorem 4, as `theory.local` has it.

    Curvature and covariance of the gradients are estimated from made-up records. Reports that are late do not change
    the limit. Returns NaN if devices lie or rounds are trimmed, for which there is no theory here.

    Parameters
    ----------
    crowd : Crowd
        The devices.
    averaging : Averaging
        How reports are averaged.

    Returns
    -------
    float
    """
    if crowd.liars > 0 or averaging.trim > 0:
        return float("nan")
    rng = default_rng(0)
    problem, mus, _ = replace(crowd, devices=_SAMPLE).block(_SAMPLE, rng)
    truth, d = crowd.truth, problem.dimension
    moves = _STEP * np.eye(d)
    differences = [_mean(problem, truth + move) - _mean(problem, truth - move) for move in moves]
    hessian = np.array(differences) / (2 * _STEP)
    covariance = np.cov(record_gradients(problem, truth, Unclipped()), rowvar=False).reshape(d, d)
    rule = LDPASGD(Constant(1.0), mus, weights=averaging.weights, variance=averaging.variance).on(problem, 1)
    assert isinstance(rule.noise, Local)
    constants = LocalConstants(
        gradient_bound=sensitivity_of(crowd.loss) / 2,
        budget=mus[:1000],
        dimension=d,
        start=0.0,
        smoothness=1.0,
        batch=averaging.batch,
        variance=rule.noise.variance,
    )
    return limit_variance(constants, (hessian + hessian.T) / 2, covariance)


def _mean(problem: Problem, theta: Array) -> Array:
    return mean_gradient(problem, theta, theta, 1)
