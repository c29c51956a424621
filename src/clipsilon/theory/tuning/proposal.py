"""`tune`: a rule for a budget, and why."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from clipsilon._core import checks
from clipsilon.analysis.fixed_points import clipping_bias
from clipsilon.privacy.calibration import calibrate
from clipsilon.privacy.statement import Statement, account
from clipsilon.problems.problem import Problem
from clipsilon.rules.rule import Rule
from clipsilon.rules.schedules import size
from clipsilon.theory.course import Forecast
from clipsilon.theory.tuning.bound import least_bound
from clipsilon.theory.tuning.gap import least_gap
from clipsilon.theory.tuning.task import Option, Task, reach_of, task_of


@dataclass(frozen=True, eq=False)
class Proposal:
    """What `tune` proposes, and why.

    The statement covers a run of the rule, not the tuning, which reads the data without noise.
    """

    rule: Rule
    statement: Statement
    forecast: Forecast  #: of E‖θ_T − θ_PS‖²
    options: tuple[Option, ...]  #: the best of each preset, the proposed one first
    reasons: tuple[str, ...]

    def __str__(self) -> str:
        about = f"{self.rule.name}, {self.statement.steps} steps on {self.statement.records} records"
        return "\n".join([about, *(f"  - {reason}" for reason in self.reasons)])


def tune(
    problem: Problem,
    epsilon: float,
    delta: float,
    steps: int,
    goal: str = "gap",
    preset: str | None = None,
    batch: int = 1,
    start: Any = 0.0,
    adjacency: str = "replace-one",
    progress: bool | None = None,
) -> Proposal:
    """Propose preset, thresholds and step for the smallest expected gap to θ_PS at a certified (ε, δ).

    The answer depends on the data in ways that the statement does not cover: tune on public data, on generated data
    of the same shape, or spend budget on it.

    Parameters
    ----------
    problem, epsilon, delta, steps
        What is to be run, for how long, on which budget.
    goal
        "gap", the squared distance to the stable point that is to be expected of a run on this very data; or "bound",
        what is proven of PCSGD for all data with the problem's constants (its region must be bounded, and the constants
        must not be estimates).
    preset
        "PCSGD" or "DiceSGD", to consider only that one.
    batch, start, adjacency, progress
        As in the presets, in `run` and in `account`.
    """
    search = checks.choice("goal", goal, {"gap": least_gap, "bound": least_bound})
    task = task_of(problem, epsilon, delta, steps, preset, batch, start, adjacency, proven=goal == "bound")
    options = search(task, progress)
    rule = calibrate(options[0].rule, epsilon, delta, problem.records, task.steps, adjacency=adjacency)
    statement = account(rule, problem.records, task.steps, delta, adjacency)
    reasons = tuple(_reasons(task, options, statement))
    return Proposal(rule, statement, options[0].forecast, tuple(options), reasons)


def _reasons(task: Task, options: list[Option], statement: Statement) -> Iterator[str]:
    """Why this proposal, in sentences."""
    best = options[0]
    yield _expectation(best)
    yield _noise_reason(task, best)
    reach = reach_of(best.rule)
    yield (
        f"Run for ever, a threshold of {reach:.3g} would end at a squared distance of "
        f"{clipping_bias(task.problem, reach, task.start):.3g}; not moving at all leaves "
        f"{np.sum((task.start - task.target) ** 2):.3g}."
    )
    if best.bound is not None:
        yield f"What is proven from the problem's constants alone is a gap of at most {best.bound:.3g}, in the mean."
    for other in options[1:]:
        yield f"The best {other.rule.name} found: {_expectation(other)}"
    yield f"Certified for one run: ε = {statement.certified:.4g} at δ = {statement.delta:g}, {statement.adjacency}."
    yield "Tuning read the data without noise: what the choice itself reveals is not covered by the statement."


def _expectation(option: Option) -> str:
    rule, expected = option.rule, option.forecast
    part = f"clip {rule.clip.threshold:.3g}"
    if rule.name == "DiceSGD":
        part += f", error clip {rule.feedback.clip.threshold:.3g}, residual cap {reach_of(rule):.3g}"
    return (
        f"{rule.name} with {part} and a step of {size(rule.step, 1):.3g} at first: the expected gap is "
        f"{expected.gap:.3g}, of which {expected.bias:.3g} is bias, {expected.noise:.3g} noise, "
        f"{expected.scatter + expected.lag:.3g} the rest."
    )


def _noise_reason(task: Task, option: Option) -> str:
    std, clip = option.rule.noise.std, option.rule.clip.threshold
    return (
        f"The budget asks for noise of {std:.3g} on the mean update, {std * task.batch / clip:.3g} times the clip on "
        f"the sum, with {type(option.rule.sampling).__name__} sampling, which needs the least."
    )
