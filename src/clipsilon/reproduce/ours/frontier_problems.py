"""Problems for frontiers: paper 1's two, one with rare labels, and one with skewed targets."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from clipsilon.analysis.fixed_points import stable_point
from clipsilon.problems import losses, responses
from clipsilon.problems.problem import Problem
from clipsilon.reproduce.problems import credit_problem, quadratic
from clipsilon.theory.forecast import decay_rates


class Case(NamedTuple):
    """A problem, where runs on it start, and where they should end.

    Attributes
    ----------
    problem : Problem
        The problem.
    start : float
        Every entry of θ at the start.
    goal : array of shape (d,)
        θ_PS.
    rates : array of shape (d,)
        How fast deviations from θ_PS decay without clipping, in increasing order.
    """

    problem: Problem
    start: float
    goal: NDArray[np.float64]
    rates: NDArray[np.float64]


def case_of(problem: Problem, start: float) -> Case:
    """Return a problem with its stable point."""
    goal = stable_point(problem).theta
    return Case(problem, start, goal, decay_rates(problem, goal))


@cache
def quadratic_case() -> Case:
    """Return paper 1's first problem with β = 0.05: 100,000 records of one number."""
    return case_of(quadratic(0.05), 5.0)


@cache
def credit_case() -> Case:
    """Return paper 1's credit problem with β = 0.1."""
    return case_of(credit_problem(0.1), 0.0)


@cache
def imbalanced_case() -> Case:
    """Return a logistic problem with few ones: 50,000 records, 20 columns, five of them log-normal, and a constant."""
    rng = np.random.default_rng(0)
    columns = rng.standard_normal((50_000, 20))
    columns[:, :5] = np.exp(0.75 * columns[:, :5])
    slopes = np.where(np.arange(20) % 2, -0.4, 0.4)
    labels = (rng.random(50_000) < expit(columns @ slopes - 4.2)).astype(float)
    features = np.column_stack([np.ones(50_000), columns])
    loss, response = losses.Logistic(l2=1e-3), responses.BestResponse(0.1)
    return case_of(Problem(features, labels, loss=loss, response=response), 0.0)


@cache
def skewed_case() -> Case:
    """Return a linear regression with skewed errors: 100,000 records, ten normal columns and a constant.

    The errors follow Lomax's law with exponent 2.5, centred and times 1.5. Targets move by 0.3 of their prediction,
    y = ȳ + 0.3·⟨x, θ⟩, so that a gradient is (0.7·⟨x, θ⟩ − ȳ)·x: that of the row √0.7·x and the target ȳ/√0.7 without
    a reaction, which is how the problem is stored.
    """
    rng = np.random.default_rng(0)
    features = np.column_stack([np.ones(100_000), rng.standard_normal((100_000, 10))])
    slopes = np.where(np.arange(11) % 2, -0.5, 0.5)
    errors = 1.5 * (rng.pareto(2.5, 100_000) - 1 / 1.5)
    targets = features @ slopes + errors
    scale = np.sqrt(0.7)
    return case_of(Problem(scale * features, targets / scale, loss=losses.SquaredError()), 0.0)
