"""From the name of a method to a calibrated rule and a number of steps."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import replace
from math import inf, sqrt
from typing import Any, NamedTuple

import numpy as np

from clipsilon._core import checks
from clipsilon.estimators import rescaling as length
from clipsilon.estimators.defaults import Settings, defaults
from clipsilon.estimators.rescaling import Array
from clipsilon.privacy.accounting.gaussian import largest_mu
from clipsilon.privacy.calibration import calibrate
from clipsilon.privacy.certificate import ADJACENCIES
from clipsilon.rules import presets
from clipsilon.rules.outputs import Last
from clipsilon.rules.rule import Rule
from clipsilon.rules.sampling import expected_batch
from clipsilon.rules.schedules import Constant, Power

METHODS: dict[str, Callable[..., Rule]] = {
    "dpsgd": presets.DPSGD,
    "pcsgd": presets.PCSGD,
    "dice": presets.DiceSGD,
    "adam-dice": presets.AdamDiceSGD,
    "auto-dice": presets.AutoDiceSGD,
    "dpgd": presets.DPGD,
    "clipped-dpgd": presets.ClippedDPGD,
    "noisy-selection": presets.NoisySelection,
    "gamma-dpsgd": presets.GammaDPSGD,
    "ldpsgd": presets.LDPSGD,
    "ldpasgd": presets.LDPASGD,
}


class Plan(NamedTuple):
    """A rule with the noise for its budget, and how long it runs; what sets the length of θ afterwards, if anything.

    With an intercept, the length is that of the slopes, and the intercept is set with it.
    """

    rule: Rule
    steps: int
    closing: Rule | None = None
    closing_steps: int = 0
    keeps_length: bool = False  # of a θ to go on from, because this run cannot tell it
    intercept: bool = False

    @property
    def all_steps(self) -> int:
        """How many steps spend the budget."""
        return self.steps + self.closing_steps


class Choices(NamedTuple):
    """What the user chose; None leaves it to the default rule."""

    clip: float | None = None
    batch: int | None = None
    epochs: float | None = None
    step: Any = None


class Budget(NamedTuple):
    """What may be spent, and on which neighbours."""

    epsilon: float
    delta: float
    adjacency: str


def plan(
    method: Any,
    choices: Choices,
    budget: Budget,
    records: int,
    columns: int,
    loss: str,
    stretches: bool = False,
    weight: float | None = None,
    intercept: bool = False,
    reacts: bool = False,
) -> Plan:
    """The calibrated rule of a method for so many records and columns, and a loss "logistic" or "squared".

    `stretches` says that one factor of θ would make the model's probabilities right; `weight` is the largest that a
    class has, or 1 if there are other weights, or None if there are none at all; `intercept` says that the last column
    is one of ones, `reacts` that records react to the model.
    """
    checks.choice("adjacency", budget.adjacency, ADJACENCIES)
    settings = defaults(records, columns, budget.epsilon, budget.delta, loss, weight, reacts)
    epochs = settings.steps * (settings.batch or records) / records
    if choices.epochs is not None:
        epochs = checks.positive("epochs", choices.epochs)
        if epochs * records > checks.LARGEST:
            raise ValueError(f"epochs must be at most {checks.LARGEST / records:.3g} here, got {epochs:g}.")
    rule = _given(method, choices) if isinstance(method, Rule) else None
    if rule is None:
        preset = checks.choice("method", method, METHODS)
        _refuse_unused(choices, inspect.signature(preset).parameters, method)
        settings = _with_choices(settings, choices, method, epochs, records)
        rule = _rule(preset, settings, epochs, records, budget)
    steps = _steps(rule, epochs, records)
    rule = _calibrated(rule, budget, records, steps)
    automatic = method == "dpsgd" and choices.clip is None and choices.step is None
    if not (stretches and automatic and weight is None):
        return Plan(rule, steps)
    effective = records * largest_mu(budget.epsilon, budget.delta)
    if steps < length.FEWEST or effective < length.ENOUGH:
        return Plan(rule, steps, keeps_length=True, intercept=intercept)
    return Plan(*length.split(rule, steps, effective, intercept), intercept=intercept)


def _calibrated(rule: Rule, budget: Budget, records: int, steps: int) -> Rule:
    """The rule with its noise; what is wrong with it is the method's fault, as the user sees it."""
    try:
        return calibrate(rule, budget.epsilon, budget.delta, records, steps, adjacency=budget.adjacency)
    except ValueError as problem:
        raise ValueError(re.sub("^rule must", "method must", str(problem))) from None


def execute(plan: Plan, run_part: Callable[..., Array], seed: int | None, start: Any) -> Array:
    """θ of a plan; `run_part(rule, steps, seed, start, directions)` runs a rule, along directions if any."""
    theta = run_part(plan.rule, plan.steps, seed, start, None)
    before = length.numbers(np.broadcast_to(start, theta.shape), plan.intercept)
    if not length.slopes(theta, plan.intercept).any():
        return theta
    if plan.closing is None:
        return length.stretched(theta, before) if plan.keeps_length and before[0] > 0 else theta
    later, directions = length.another_seed(seed, plan.steps), length.directions(theta, plan.intercept)
    beginning = length.beginning(theta, before, plan.intercept)
    found = run_part(plan.closing, plan.closing_steps, later, beginning, directions)
    return length.stretched(theta, length.leaning(theta, found) if plan.intercept else found)


def _given(rule: Rule, choices: Choices) -> Rule:
    """A rule of the user's own, which says all but its noise and how long it runs."""
    for name, value in choices._replace(epochs=None)._asdict().items():
        if value is not None:
            raise ValueError(f"{name} must be left out where method is a Rule, which has its own, got {value!r}.")
    return rule


def _refuse_unused(choices: Choices, known: Any, method: str) -> None:
    """Refuse a choice that the method would ignore."""
    used = {"clip": {"clip", "lipschitz"}, "batch": {"batch"}, "epochs": {"noise_std", "scale"}, "step": {"step"}}
    for name, value in choices._asdict().items():
        if value is not None and not used[name] & known.keys():
            raise ValueError(f"{name} must be left out for method {method!r}, which has no use for it, got {value!r}.")


def _with_choices(settings: Settings, choices: Choices, method: str, epochs: float, records: int) -> Settings:
    """The default settings, but for what the user chose and the method needs."""
    clip = settings.clip if choices.clip is None else checks.positive("clip", choices.clip)
    batch = settings.batch if choices.batch is None else checks.count("batch", choices.batch)
    if choices.step is None:
        step = _default_step(settings, method, clip, epochs * records / (batch or records))
    else:
        step = choices.step if isinstance(choices.step, tuple) else Constant(checks.positive("step", choices.step))
    return settings._replace(clip=clip, batch=batch, step=step)


def _default_step(settings: Settings, method: str, clip: float, steps: float) -> Any:
    if method == "adam-dice":
        return Constant(0.05)  # Adam moves every entry by about the step, however large the gradients are
    if method in ("ldpsgd", "ldpasgd"):
        return Power(0.5, 0.5)  # one record a step
    # A step moves θ by as much as with the default clip, and all steps by no more than with their default number.
    move = settings.clip * settings.step.gamma * min(1.0, settings.steps / steps)
    return Constant(move if method == "auto-dice" else move / clip)


def _rule(preset: Callable[..., Rule], settings: Settings, epochs: float, records: int, budget: Budget) -> Rule:
    """The preset with these settings, and noise of any size."""
    known = inspect.signature(preset).parameters
    offered = {
        "step": settings.step,
        "clip": settings.clip,
        "lipschitz": settings.clip,
        "error_clip": settings.clip,
        "residual_cap": settings.clip * (1 + 1 / sqrt(max(1.0, epochs))),
        "noise_std": 1.0,
        "scale": 1.0,
        "budget": 1.0,
        "selection_epsilon": budget.epsilon / 2,  # it costs half of that where a record is not replaced
    }
    offered |= _sampling(settings.batch, records, poisson=budget.adjacency == "add-remove" or "scale" in known)
    rule = preset(**{name: offered[name] for name in offered.keys() & known.keys()})
    local = "budget" in known  # LDPSGD averaged is another method, LDPASGD
    return replace(rule, output=settings.output) if type(rule.output) is Last and not local else rule


def _sampling(batch: int | None, records: int, poisson: bool) -> dict[str, Any]:
    """Poisson batches, or all records; the latter as Poisson batches where only these can be accounted for."""
    if batch is None and not poisson:
        return {"sampling": "full", "batch": 1}
    return {"sampling": "poisson", "batch": batch or records}


def _steps(rule: Rule, epochs: float, records: int) -> int:
    most = rule.longest_run(records)
    if most < inf:
        return int(most)  # a single pass
    return max(1, round(epochs * records / expected_batch(rule.sampling, records)))
