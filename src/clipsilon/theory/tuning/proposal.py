"""`tune`: a rule for a budget, and the reasons for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from clipsilon._core import checks
from clipsilon.analysis.fixed_points import clipping_bias
from clipsilon.privacy.calibration import calibrate
from clipsilon.privacy.statement import Statement, account
from clipsilon.problems.problem import Problem
from clipsilon.rules.clipping import bound_of
from clipsilon.rules.feedback import ErrorFeedback
from clipsilon.rules.noise import std_of
from clipsilon.rules.rule import Rule
from clipsilon.rules.schedules import size
from clipsilon.theory.forecast import Forecast
from clipsilon.theory.tuning.bound import least_bound
from clipsilon.theory.tuning.gap import least_gap
from clipsilon.theory.tuning.task import Option, TuningTask, reach_of, task_of


@dataclass(frozen=True, eq=False)
class Proposal:
    """What `tune` proposes, and why.

    Attributes
    ----------
    rule : Rule
        The rule, calibrated to the budget.
    statement : Statement
        The privacy of one run of the rule. It does not cover the tuning, which reads the data without noise.
    forecast : Forecast
        Of E‖θ_T − θ_PS‖².
    options : tuple of Option
        The best option of each preset, the proposed one first.
    reasons : tuple of str
        Sentences that explain the proposal.
    """

    rule: Rule
    statement: Statement
    forecast: Forecast
    options: tuple[Option, ...]
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
    *,
    preset: str | None = None,
    batch: int = 1,
    start: ArrayLike = 0.0,
    adjacency: str = "replace-one",
    progress: bool | None = None,
) -> Proposal:
    """Propose preset, thresholds and step for the smallest expected gap to θ_PS at a certified (ε, δ).

    The result depends on the data in ways that the statement does not cover: tune on public data, on generated data of
    the same shape, or spend budget on it.

    Parameters
    ----------
    problem : Problem
        The problem to run on. It must have a stable point that attracts nearby models.
    epsilon, delta : float
        The budget that one run of the proposed rule must certify.
    steps : int
        T, the length of the run.
    goal : {"gap", "bound"}, default "gap"
        "gap" minimises the squared distance to the stable point that is to be expected of a run on this very data.
        "bound" minimises what is proven of PCSGD for all data with the problem's constants; the region must be bounded,
        and the constants must not be estimates.
    preset : {"PCSGD", "DiceSGD"}, optional
        Consider only this preset.
    batch : int, default 1
        The number of records per step.
    start : array_like, default 0.0
        θ_0; one number stands for all coordinates.
    adjacency : {"replace-one", "zero-out", "add-remove"}, default "replace-one"
        As in `account`. For "add-remove" the proposed rule draws with a fixed rate, that
        of `batch` among the problem's records, and is PCSGD: no certificate is known for DiceSGD there.
    progress : bool, optional
        Whether to show a progress bar; by default, in a terminal only.

    Returns
    -------
    Proposal
        The rule, its statement, its forecast and the reasons.

    Formal guarantee
    ----------------
    One run of `rule` is (ε, δ)-differentially private on the terms that `statement` states. The tuning itself is not
    private.
    """
    search = checks.choice("goal", goal, {"gap": least_gap, "bound": least_bound})
    task = task_of(problem, epsilon, delta, steps, preset, batch, start, adjacency, proven=goal == "bound")
    options = search(task, progress)
    rule = calibrate(options[0].rule, epsilon, delta, problem.records, task.steps, adjacency=adjacency)
    statement = account(rule, problem.records, task.steps, delta, adjacency)
    reasons = tuple(_reasons(task, options, statement))
    return Proposal(rule, statement, options[0].forecast, tuple(options), reasons)


def _reasons(task: TuningTask, options: list[Option], statement: Statement) -> Iterator[str]:
    """Yield the reasons for a proposal, one sentence each."""
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
    """Describe an option and its expected gap in one sentence."""
    rule, expected = option.rule, option.forecast
    part = f"clip {bound_of(rule.clip):.3g}"
    if isinstance(rule.feedback, ErrorFeedback):
        part += f", error clip {bound_of(rule.feedback.clip):.3g}, residual cap {reach_of(rule):.3g}"
    return (
        f"{rule.name} with {part} and a step of {size(rule.step, 1):.3g} at first: the expected gap is "
        f"{expected.gap:.3g}, of which {expected.bias:.3g} is bias, {expected.noise:.3g} noise, "
        f"{expected.scatter + expected.lag:.3g} the rest."
    )


def _noise_reason(task: TuningTask, option: Option) -> str:
    """Describe the noise of an option and its sampling in one sentence."""
    std, clip = std_of(option.rule.noise), bound_of(option.rule.clip)
    return (
        f"The budget asks for noise of {std:.3g} on the mean update, {std * task.batch / clip:.3g} times the clip on "
        f"the sum, with {type(option.rule.sampling).__name__} sampling, which needs the least."
    )
