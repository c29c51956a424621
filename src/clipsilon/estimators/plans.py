"""The plan of a fit: from a task, which holds public facts only, to phases of calibrated rules and their statement."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from math import inf

from clipsilon._core import checks
from clipsilon.estimators import rescaling
from clipsilon.estimators.defaults import Settings, defaults
from clipsilon.estimators.methods import (
    METHODS,
    Budget,
    Choices,
    aim_clip,
    apply_choices,
    build_method_rule,
    refuse_unused,
)
from clipsilon.privacy.accounting.gaussian import largest_mu
from clipsilon.privacy.calibration import calibrated
from clipsilon.privacy.certificate import require_public_size
from clipsilon.privacy.statement import Statement, account
from clipsilon.problems.losses.base import Loss, dimension, label_kind, unclipped_slope
from clipsilon.rules.clipping import Adaptive, Norm
from clipsilon.rules.noise import Proportional
from clipsilon.rules.rule import Rule, join_phases
from clipsilon.rules.sampling import expected_batch, public_rate
from clipsilon.rules.schedules import Constant, size

_NO_CHOICES = Choices()


@dataclass(frozen=True, kw_only=True)
class Task:
    """What a fit is asked to do. All of it is public, so a plan made from it costs no budget.

    Parameters
    ----------
    method : str or Rule
        A name in `METHODS`, or a rule whose noise is then calibrated.
    budget : Budget
        What the fit may spend.
    records, columns : int
        Size of the data, with the column of ones for the intercept.
    loss : Loss
        The loss of one record; the default settings depend on the kind of labels that it takes.
    choices : Choices
        Settings that the user chose.
    largest_weight : float, optional
        The largest weight of a class, 1 if records have other weights, None without any weights.
    has_intercept : bool, default False
        Whether the last column is one of ones.
    reacts : bool, default False
        Whether records react to the model.
    is_rescalable : bool, default False
        Whether scaling θ, or its slopes and its intercept, changes the predicted probabilities only.
    """

    method: str | Rule
    budget: Budget
    records: int
    columns: int
    loss: Loss
    choices: Choices = _NO_CHOICES
    largest_weight: float | None = None
    has_intercept: bool = False
    reacts: bool = False
    is_rescalable: bool = False


@dataclass(frozen=True, kw_only=True)
class TrainingPhase:
    """Consecutive steps of one rule.

    Parameters
    ----------
    rule : Rule
        The rule, with the noise that its budget requires.
    steps : int
        Number of iterations.
    rescales : bool, default False
        Whether these steps set the length of the slopes and the intercept only (`clipsilon.estimators.rescaling`).
    """

    rule: Rule
    steps: int
    rescales: bool = False


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """What a fit will run.

    Parameters
    ----------
    phases : tuple of TrainingPhase
        The first one trains all of θ. One that rescales follows, if any, and possibly one that trains all of θ again,
        in a ball (`clipsilon.estimators.rescaling`).
    has_intercept : bool, default False
        Whether the last entry of θ is an intercept, which is not part of the length of the slopes.
    keeps_length : bool, default False
        Whether a fit that continues from an earlier θ keeps its length and intercept, which this one could not find.
    """

    phases: tuple[TrainingPhase, ...]
    has_intercept: bool = False
    keeps_length: bool = False

    @property
    def rule(self) -> Rule:
        """One rule that runs all phases one after the other, for accounting."""
        return join_phases([(phase.rule, phase.steps) for phase in self.phases])

    @property
    def steps(self) -> int:
        """The number of steps of all phases, each of which spends budget."""
        return sum(phase.steps for phase in self.phases)


def make_plan(task: Task) -> TrainingPlan:
    """Choose rules, steps and noise for a task.

    The phases together certify at most the task's budget; `statement_of` states how much.
    """
    require_public_size(task.budget.adjacency)
    settings = _default_settings(task)
    epochs = _epochs(task, settings)
    rule = _rule(task, settings, epochs)
    steps = _steps(rule, epochs, task.records)
    if isinstance(rule.clip, Adaptive) and not isinstance(task.method, Rule):
        rule = _aimed(rule, rule.clip, task, steps)
    rule = _calibrated(rule, task, steps)
    if not _is_rescaled(task):
        return TrainingPlan(phases=(TrainingPhase(rule=rule, steps=steps),), has_intercept=task.has_intercept)
    if steps < rescaling.FEWEST_STEPS or _effective(task) < rescaling.LEAST_EFFECTIVE:
        phases: tuple[TrainingPhase, ...] = (TrainingPhase(rule=rule, steps=steps),)
        return TrainingPlan(phases=phases, has_intercept=task.has_intercept, keeps_length=True)
    return TrainingPlan(phases=_with_rescaling(rule, steps, task), has_intercept=task.has_intercept)


def statement_of(plan: TrainingPlan, records: int, delta: float, adjacency: str) -> Statement:
    """State the privacy of all phases of a plan.

    All phases are one rule whose clip and noise change, and its steps are accounted for one by one.

    Parameters
    ----------
    plan : TrainingPlan
        The plan, from `make_plan`.
    records : int
        Number of records.
    delta : float
        The δ at which ε is certified.
    adjacency : str
        "zero-out" or "replace-one".

    Returns
    -------
    Statement
        As `clipsilon.account` states it, with a reason for each phase that rescales.
    """
    statement = account(plan.rule, records, plan.steps, delta, adjacency)
    notes = [rescaling.note(phase.steps, plan.has_intercept) for phase in plan.phases if phase.rescales]
    return replace(statement, reasons=(*statement.reasons, *notes))


def _default_settings(task: Task) -> Settings:
    epsilon, delta, _ = task.budget
    about = label_kind(task.loss), task.largest_weight, task.reacts, unclipped_slope(task.loss)
    return defaults(task.records, task.columns, epsilon, delta, *about)


def _epochs(task: Task, settings: Settings) -> float:
    """Return the passes over the records, chosen or by default."""
    if task.choices.epochs is None:
        return settings.steps * (settings.batch or task.records) / task.records
    epochs = checks.positive("epochs", task.choices.epochs)
    if epochs * task.records > checks.LARGEST:
        raise ValueError(f"epochs must be at most {checks.LARGEST / task.records:.3g} here, got {epochs:g}.")
    return epochs


def _rule(task: Task, settings: Settings, epochs: float) -> Rule:
    """Return the rule of the task's method, before its noise is calibrated."""
    if isinstance(task.method, Rule):
        _refuse_choices(task.choices)
        return task.method
    method = checks.choice("method", task.method, METHODS)
    refuse_unused(task.method, task.choices)
    settings = apply_choices(method, settings, task.choices, epochs, task.records)
    return build_method_rule(method, settings, task.budget, epochs, task.records)


def _refuse_choices(choices: Choices) -> None:
    """Raise ValueError if the user chose a setting besides a rule, which has all but its noise and its length."""
    for name, value in choices._replace(epochs=None)._asdict().items():
        if value is not None:
            raise ValueError(f"{name} must be left out where method is a Rule, which has its own, got {value!r}.")


def _steps(rule: Rule, epochs: float, records: int) -> int:
    """Return the number of steps: one pass if the sampler allows no more, else as many as the epochs take."""
    most = rule.longest_run(records)
    if most < inf:
        return int(most)
    rate = public_rate(rule.sampling)
    if rate is not None:
        return max(1, round(epochs / rate))
    return max(1, round(epochs * records / expected_batch(rule.sampling, records)))


def _calibrated(rule: Rule, task: Task, steps: int) -> Rule:
    """Calibrate the noise of a rule; errors name the user's argument, `method`."""
    epsilon, delta, adjacency = task.budget
    try:
        return calibrated(rule, epsilon, delta, task.records, steps, adjacency=adjacency)
    except ValueError as error:
        raise ValueError(re.sub("^rule must", "method must", str(error))) from None


def _aimed(rule: Rule, clip: Adaptive, task: Task, steps: int) -> Rule:
    """Choose what an adaptive clip aims at by the noise that a constant one would have."""
    noise = _calibrated(replace(rule, clip=Norm(clip.start)), task, steps).noise
    multiplier = noise.multiplier if isinstance(noise, Proportional) else 1.0
    batch = expected_batch(rule.sampling, task.records)
    return replace(rule, clip=aim_clip(clip, multiplier, dimension(task.loss, task.columns), batch, steps))


def _is_rescaled(task: Task) -> bool:
    """Whether length and intercept are set apart: with the default clip and step of a method that allows it."""
    rescales = isinstance(task.method, str) and METHODS[task.method].rescales
    automatic = task.choices.clip is None and task.choices.step is None and task.largest_weight is None
    return task.is_rescalable and rescales and automatic


def _with_rescaling(rule: Rule, steps: int, task: Task) -> tuple[TrainingPhase, ...]:
    """Split a run into phases that train all of θ, which travel as far as all steps would, and one that rescales it.

    With plenty of data there is a phase after the one that rescales, which keeps θ in a ball.
    """
    effective = _effective(task)
    some = steps // rescaling.ONE_IN
    longer = Constant(size(rule.step, 1) * steps / (steps - some))  # methods that rescale have constant steps
    train, rescaled = replace(rule, step=longer), rescaling.rescaling_rule(rule, effective, task.has_intercept)
    free = rescaling.FREE * some if effective >= rescaling.PLENTY * task.columns else steps - some
    phases = TrainingPhase(rule=train, steps=free), TrainingPhase(rule=rescaled, steps=some, rescales=True)
    rest = steps - free - some
    return (*phases, TrainingPhase(rule=train, steps=rest)) if rest else phases


def _effective(task: Task) -> float:
    """Return n·μ, the number of records times the Gaussian privacy of the budget."""
    return task.records * largest_mu(task.budget.epsilon, task.budget.delta)
