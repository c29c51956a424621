"""`tune`: a rule for a budget, and the reasons for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from clipsilon._core import checks
from clipsilon.analysis.fixed_points import clipping_bias
from clipsilon.engine.runner import start_of
from clipsilon.engine.streams import spawn
from clipsilon.privacy.calibration import calibrate
from clipsilon.privacy.release import release
from clipsilon.privacy.statement import Statement, account
from clipsilon.privacy.warning import warn_about_delta
from clipsilon.problems.problem import Problem
from clipsilon.rules.clipping import Adaptive, bound_of
from clipsilon.rules.feedback import ErrorFeedback, Tracked
from clipsilon.rules.rule import Rule
from clipsilon.rules.schedules import size
from clipsilon.theory.forecast import Forecast
from clipsilon.theory.tuning.bound import least_bound
from clipsilon.theory.tuning.gap import least_gap
from clipsilon.theory.tuning.private import private_rule
from clipsilon.theory.tuning.simulation import SIMULATED
from clipsilon.theory.tuning.task import Budget, Option, TuningTask, reach_of, task_of


@dataclass(frozen=True, eq=False)
class Proposal:
    """What `tune` proposes, and why.

    Attributes
    ----------
    rule : Rule
        The rule, calibrated to the budget.
    statement : Statement
        The privacy of one run of the rule; with `private`, of tuning and run together. Otherwise it does not cover the
        tuning, which reads the data without noise.
    forecast : Forecast or None
        Of E‖θ_T − θ_PS‖²; None with `private`, because θ_PS is not known then.
    options : tuple of Option
        The best option of each preset, the proposed one first; empty with `private`.
    reasons : tuple of str
        Sentences that explain the proposal.
    """

    rule: Rule
    statement: Statement
    forecast: Forecast | None
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
    private: bool = False,
    progress: bool | None = None,
) -> Proposal:
    """Propose preset, thresholds and step for the smallest expected gap to θ_PS at a certified (ε, δ).

    Unless `private` is set, the result depends on the data in ways that the statement does not cover: tune on public
    data, on generated data of the same shape, or among those who may see the data anyway.

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
    preset : {"PCSGD", "DiceSGD", "CorrelatedSGD", "TrackedSGD", "AdaptiveDPSGD"}, optional
        Consider only this preset. By default, all of which something is certified for the adjacency; those that need
        simulations are left out if these would take too long.
    batch : int, default 1
        The number of records per step.
    start : array_like, default 0.0
        θ_0; one number stands for all coordinates.
    adjacency : {"replace-one", "zero-out", "add-remove"}, default "replace-one"
        As in `account`. For "add-remove" the proposed rule draws with a fixed rate, that of `batch` among the
        problem's records, and is PCSGD or AdaptiveDPSGD: no certificate is known for the others there.
    private : bool, default False
        Whether to choose by a private sketch of the gradients at the start and by public facts alone. The sketch spends
        5 % of μ², and the proposal is a CorrelatedSGD for the rest. Every call takes a new sketch, with cryptographic
        noise: a release of its own.
    progress : bool, optional
        Whether to show a progress bar; by default, in a terminal only.

    Returns
    -------
    Proposal
        The rule, its statement, its forecast and the reasons.

    Formal guarantee
    ----------------
    One run of `rule` is (ε, δ)-differentially private on the terms that `statement` states. With `private`, the
    proposal and one run of its rule together are; without, the tuning itself is not private.
    """
    if checks.flag("private", private):
        return _private_proposal(problem, Budget(epsilon, delta, adjacency), steps, goal, preset, batch, start)
    search = checks.choice("goal", goal, {"gap": least_gap, "bound": least_bound})
    task = task_of(problem, epsilon, delta, steps, preset, batch, start, adjacency, proven=goal == "bound")
    options = search(task, progress)
    rule = calibrate(options[0].rule, epsilon, delta, problem.records, task.steps, adjacency=adjacency)
    statement = account(rule, problem.records, task.steps, delta, adjacency)
    reasons = tuple(_reasons(task, options, statement))
    return Proposal(rule, statement, options[0].forecast, tuple(options), reasons)


def _private_proposal(
    problem: Problem, budget: Budget, steps: int, goal: str, preset: str | None, batch: int, start: ArrayLike
) -> Proposal:
    """Check the arguments of `tune`, and propose a rule that a private sketch is the only thing to depend on."""
    checks.instance("problem", problem, Problem)
    steps, batch = checks.count("steps", steps), checks.count("batch", batch)
    checks.open_fraction("delta", budget.delta)
    if batch > problem.records:
        raise ValueError(f"batch must be at most the number of records ({problem.records}), got {batch}.")
    if goal != "gap":
        raise ValueError(f"goal must be 'gap' for private tuning, got {goal!r}.")
    if preset not in (None, "CorrelatedSGD"):
        raise ValueError(f"preset must be CorrelatedSGD for private tuning, got {preset!r}.")
    rule, statement, sketch = private_rule(
        problem, budget, steps, batch, start_of(start, problem), spawn(None, 1)[0].noise
    )
    warn_about_delta(budget.delta, problem.records, stacklevel=3)
    reasons = (
        f"Half of the gradients at the start are shorter than about {sketch.typical:.3g}, and most than "
        f"{sketch.longest:.3g}, which is the clip; they change by up to {sketch.curvature:.3g} per unit of θ, and "
        f"their mean is about {sketch.common:.3g} long.",
        f"A step of {size(rule.step, 1):.3g} at first suits a linear problem with such gradients. How close a run "
        "comes to θ_PS is not forecast.",
        f"Certified for this proposal and one run: ε = {statement.certified:.4g} at δ = {statement.delta:g}, "
        f"{statement.adjacency}.",
    )
    return Proposal(rule, statement, None, (), reasons)


def _reasons(task: TuningTask, options: list[Option], statement: Statement) -> Iterator[str]:
    """Yield the reasons for a proposal, one sentence each."""
    best = options[0]
    yield _expectation(best)
    yield _noise_reason(task, best)
    yield from _limits(task, best.rule)
    if best.bound is not None:
        yield f"What is proven from the problem's constants alone is a gap of at most {best.bound:.3g}, in the mean."
    for other in options[1:]:
        yield f"The best {other.rule.name} found: {_expectation(other)}"
    found = {option.rule.name for option in options}
    yield from (_absence(name) for name in task.presets if name not in found)
    yield f"Certified for one run: ε = {statement.certified:.4g} at δ = {statement.delta:g}, {statement.adjacency}."
    yield "Tuning read the data without noise: what the choice itself reveals is not covered by the statement."


def _expectation(option: Option) -> str:
    """Describe an option and its expected gap in one sentence."""
    rule, expected = option.rule, option.forecast
    parts = f"{expected.bias:.3g} is bias, "
    if expected.spread:
        parts += f"{expected.spread:.3g} spread, by simulation"
    else:
        parts += f"{expected.noise:.3g} noise, {expected.scatter + expected.lag:.3g} the rest"
    return (
        f"{rule.name} with {_thresholds(rule)} and a step of {size(rule.step, 1):.3g} at first: the expected gap is "
        f"{expected.gap:.3g}, of which {parts}."
    )


def _thresholds(rule: Rule) -> str:
    if isinstance(rule.clip, Adaptive):
        return f"a clip that starts at {rule.clip.start:.3g} and spares {rule.clip.quantile:.3g} of the records"
    part = f"clip {bound_of(rule.clip):.3g}"
    if isinstance(rule.feedback, ErrorFeedback):
        part += f", error clip {bound_of(rule.feedback.clip):.3g}, residual cap {reach_of(rule):.3g}"
    return part


def _limits(task: TuningTask, rule: Rule) -> Iterator[str]:
    """Yield where a rule would end that is biased by a constant clip, and where it begins."""
    if not (isinstance(rule.clip, Adaptive) or isinstance(rule.feedback, Tracked)):
        reach = reach_of(rule)
        bias = clipping_bias(task.problem, reach, task.start)
        yield f"Run for ever, a threshold of {reach:.3g} would end at a squared distance of {bias:.3g}."
    yield f"Not moving at all leaves a squared distance of {np.sum((task.start - task.target) ** 2):.3g}."


def _absence(preset: str) -> str:
    """Say in one sentence why there is no option of a preset."""
    if preset in SIMULATED:
        return f"{preset} was not tried: the simulations would take too long; name it as the preset to try it."
    return f"No {preset} was found whose error drains all along the path."


def _noise_reason(task: TuningTask, option: Option) -> str:
    """Describe the noise of an option and its sampling in one sentence."""
    released = release(option.rule, task.problem.records, task.steps)
    return (
        f"The budget asks for noise of {released.noise_std:.3g} on the mean update, "
        f"{released.noise_std * released.batch / released.bound:.3g} times the clip on the sum, with "
        f"{type(option.rule.sampling).__name__} sampling."
    )
