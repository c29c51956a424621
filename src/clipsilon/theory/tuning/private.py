"""Tuning within the budget: a rule from a private sketch of the gradients at the start, and from public facts.

What is proposed is CorrelatedSGD: the mean of its last iterates forgives a step that is not the best, and sketch and
run compose exactly, because both are Gaussian mechanisms. The step is the best for a stand-in, a linear field that has
the lengths and the curvature of the sketch:
- its rates are in the proportions 1, ½, …, 1/d, and add up to the curvature;
- its zero is equally far away in all directions, as far as makes the mean gradient at the start as long as it is;
- what differs from record to record is as long as a typical gradient.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from clipsilon._core import checks
from clipsilon.privacy.accounting import gaussian, profiles
from clipsilon.privacy.certificate import Certificate, require_public_size
from clipsilon.privacy.quantiles import WORST_ERROR, answer_error, balance_noise
from clipsilon.privacy.statement import Statement, account
from clipsilon.problems.problem import Problem
from clipsilon.problems.responses import is_random
from clipsilon.rules.correlation import average_response, output_norm
from clipsilon.rules.rule import Rule
from clipsilon.rules.schedules import Constant
from clipsilon.theory.forecast import MeanPath
from clipsilon.theory.tuning.correlated import Plan, correlated_option, fitted_noise, plan_of
from clipsilon.theory.tuning.sketch import ASKED, Sketch, take_sketch
from clipsilon.theory.tuning.task import Budget, TuningTask

Array = NDArray[np.float64]

SHARE = 0.05
"""The part of μ² that the sketch spends."""

_COUNTED = 0.5  # the part of this that noisy counts spend; the rest is for the mean gradient
_CLIPPED = 5e-4, 0.5  # limits of the fraction of records that is clipped at the start
_RESTRAINT = 0.1  # weight of the noise in single iterates, as it is not known how far the field is linear
_MARGIN = 1e-9  # relative, for the rounding of μ


def private_rule(
    problem: Problem, budget: Budget, steps: int, batch: int, start: Array, noise: Generator
) -> tuple[Rule, Statement, Sketch]:
    """Return a rule for a budget, from a sketch that is part of it.

    Parameters
    ----------
    problem : Problem
        The problem.
    budget : Budget
        What sketch and run may spend together.
    steps, batch : int
        The length of the run and the number of records per step.
    start : array of shape (d,)
        θ_0.
    noise : Generator
        Source of the noise of the sketch.

    Returns
    -------
    rule : Rule
        The rule, calibrated to what the sketch leaves.
    statement : Statement
        Of the sketch and one run together.
    sketch : Sketch
        What the rule was chosen by.
    """
    require_public_size(budget.adjacency)
    if is_random(problem.response):  # reactions are drawn from one stream, which other records could shift
        kind = type(problem.response).__name__
        raise ValueError(f"problem must have a response that is not random for private tuning, got {kind}.")
    total = gaussian.largest_mu(checks.positive("epsilon", budget.epsilon), budget.delta)
    total *= 1.0 - _MARGIN
    spent, left = math.sqrt(SHARE) * total, math.sqrt(1.0 - SHARE) * total
    std = balance_noise(math.sqrt(_COUNTED) * spent, ASKED, budget.adjacency)
    multiplier = balance_noise(math.sqrt(1.0 - _COUNTED) * spent, 1, budget.adjacency)  # a record moves it as a count
    if answer_error(std, problem.records) > WORST_ERROR:
        raise ValueError(
            f"epsilon must be larger for private tuning on {problem.records} records, got {budget.epsilon!r}: noise "
            "would hide what the sketch asks for."
        )
    # All that follows is fixed by public facts, up to the sketch; of what comes after it, only the clip, the step and
    # the matrix of the noise depend on the sketch, and the run is calibrated to the same μ whatever they are.
    task = _public_task(problem, budget, left, steps, batch)
    plan = plan_of(task)
    sketch = take_sketch(problem, start, 1.0 - _clipped_fraction(task, plan), std, multiplier, noise)
    path = stand_in(sketch, problem.dimension, steps)
    task = task._replace(start=path.theta[0], fastest=1.0 / float(path.rates.sum()))
    rule = correlated_option(task, plan, path).rule
    fitted = fitted_noise(task, rule, path.rates[0], _RESTRAINT)
    rule = replace(rule, noise=fitted._replace(std=fitted.std * path.clip))
    return rule, _together(account(rule, problem.records, steps, budget.delta, budget.adjacency), spent, left), sketch


def stand_in(sketch: Sketch, dimension: int, steps: int) -> MeanPath:
    """Return the mean path of a linear field with the length and the curvature of a sketch, and with its zero at 0.

    Parameters
    ----------
    sketch : Sketch
        The sketch; where it is 0, a field of unit size stands in.
    dimension : int
        d.
    steps : int
        T.

    Returns
    -------
    MeanPath
        The path; its clip is that of the sketch.
    """
    curvature, typical = sketch.curvature or 1.0, sketch.typical or sketch.longest or 1.0
    rates = 1.0 / np.arange(1.0, dimension + 1.0)
    rates *= curvature / rates.sum()
    side = typical / math.sqrt(dimension)
    horizon = min(30.0 / float(rates.min()), steps / curvature)
    times = np.concatenate([[0.0], np.geomspace(horizon / 1e4, horizon, 400)])
    theta = sketch.common / np.linalg.norm(rates) * np.exp(-np.outer(times, rates))
    scatter, axes = np.diag(np.full(dimension, side**2)), np.eye(dimension)
    return MeanPath(sketch.longest or 1.0, times, theta, times[:1], rates[None], axes[None], scatter[None])


def _public_task(problem: Problem, budget: Budget, mu: float, steps: int, batch: int) -> TuningTask:
    """Return a task for a run of μ-GDP that knows nothing of the records but their number."""
    nowhere = np.zeros(problem.dimension)
    alone = budget._replace(epsilon=gaussian.epsilon(mu * (1.0 - _MARGIN), budget.delta))
    return TuningTask(problem, nowhere, nowhere, steps, batch, [], 1.0, 1.0, ("CorrelatedSGD",), alone)


def _clipped_fraction(task: TuningTask, plan: Plan) -> float:
    """Return the fraction of clipped records at which clipping and noise move the released mean equally far.

    As `suggest_quantile`, for correlated noise: in units of the clip, noise moves the mean of the last iterates as a
    gradient of length √d·s·‖C⁻ᵀr‖ would, r being the response to a step of 20/T at a curvature of 1.
    """
    response = average_response(Constant(20.0 / task.steps), 1.0, task.steps, task.steps // 2)
    size = math.sqrt(task.target.size) * plan.noise.std * output_norm(plan.noise.buffers, response)
    return min(max(size, _CLIPPED[0]), _CLIPPED[1])


def _together(run: Statement, spent: float, left: float) -> Statement:
    """Return the statement of the sketch and the run together: μ² = Σμ_i², whatever the sketch was."""
    profile = run.certificate.profile
    if profile is None or profile.mu is None or profile.mu > left:
        raise AssertionError("the run must be Gaussian, and within what the sketch leaves")
    reasons = (
        f"The private sketch behind this rule: {ASKED} noisy counts and a mean, Gaussian differential privacy with μ = "
        f"{spent:.4g}. The run: at most μ = {left:.4g}, whatever the sketch was. Together: μ = "
        f"{math.hypot(spent, left):.4g}.",
        "The sketch and one run are covered: each further run of the same length has μ = "
        f"{left:.4g} again, and each call of `tune` with private=True takes a new sketch.",
    )
    certificate = Certificate(profiles.gaussian(math.hypot(spent, left)), reasons)
    return replace(
        run,
        rule=f"{run.rule} after a private sketch",
        certified=certificate.epsilon(run.delta),
        reasons=(*reasons, *run.reasons),
        certificate=certificate,
    )
