"""Paper 4, Fig. 3: distances on the logistic problem, whose loss is not strongly convex."""

from __future__ import annotations

import math

import numpy as np
from scipy.special import expit

from clipsilon.reproduce.base import Finding, Lab, Result, experiment
from clipsilon.reproduce.numbers import slope
from clipsilon.reproduce.paper4.runs import (
    CONVERGING,
    LATE,
    NAMES,
    PARAMETERS,
    USERS,
    Regression,
    budgets,
    distance_charts,
    ends,
    ends_table,
    format_budget,
    format_power,
    grid,
)
from clipsilon.theory.local import LocalConstants, limit_variance

_CASE = Regression("logistic", 5)


@experiment(
    "paper4-fig3",
    paper=4,
    where="Fig. 3",
    title="Logistic regression under local privacy: distances",
    parameters={
        "problem": "logistic regression, d = 5, Mallows weights",
        **PARAMETERS,
        "replicates": "200 (quick: 16)",
    },
)
def distances(lab: Lab) -> Result:
    """The theorems about distances need strong convexity, which this loss lacks far from the optimum. The distances
    fall nevertheless, at every budget and every decay below 1. The number of users limits how close one can get.
    """
    traces = grid(lab, _CASE)
    found = ends(traces, _CASE)
    slopes = [
        slope(trace.iterations, trace.gap(_CASE.truth, of).mean(axis=0), LATE)
        for decay in CONVERGING
        for budget in budgets(lab)
        for trace in [traces[decay, budget]]
        for of in NAMES
    ]
    best = min(found, key=lambda cell: found[cell])
    nearest, expected = math.sqrt(found[best]), math.sqrt(lab.keep(_sampling_variance) / USERS)
    findings = [
        Finding(
            "For α < 1 both estimators converge to the optimum, although the loss is not strongly convex.",
            f"The squared distances fall as {format_power(max(slopes))} to {format_power(min(slopes))} over the last "
            "two decades.",
            max(slopes) < -0.05,
        ),
        Finding(
            "The smallest distance reached is about 10⁻².",
            f"The smallest ‖θ − θ*‖ is {nearest:.2g}, with {format_budget(best[1])}.",
            1 / 3e2 < nearest < 3e-2,
            f"The paper reads this as a sign that the optimum is missed. It is what {USERS:,} users allow: the root "
            f"mean square error of the best estimator without privacy is {expected:.2g}.",
        ),
    ]
    tables = [ends_table("Mean squared distance after the last user", found)]
    return Result(findings, distance_charts(traces, _CASE), tables)


def _sampling_variance() -> float:
    """Estimate n·E‖θ̂ − θ*‖² of the minimiser of the loss of n users, from the first 20,000 users."""
    x = _CASE.problem.features[:20_000]
    weight = np.minimum(1.0, 2.0 / (x**2).sum(axis=1))
    chance = expit(x @ _CASE.truth)
    spread = chance * (1 - chance)
    hessian, covariance = (
        x.T @ (factor[:, np.newaxis] * x) / len(x) for factor in (weight * spread, weight**2 * spread)
    )
    half = _CASE.problem.loss.sensitivity() / 2
    without = LocalConstants(half, budget=1e9, dimension=x.shape[1], start=1.0, smoothness=1.0)
    return limit_variance(without, hessian, covariance)
