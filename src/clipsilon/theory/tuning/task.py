"""What is to be tuned: the problem, how far it has to go, and how much noise each plan needs for the budget."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clipsilon._core import checks
from clipsilon.analysis.fixed_points import stable_point
from clipsilon.engine.runner import start_of
from clipsilon.privacy.calibration import calibrate
from clipsilon.privacy.certificate import ADJACENCIES
from clipsilon.problems.problem import Problem
from clipsilon.rules.presets import PCSGD, DiceSGD
from clipsilon.rules.rule import Rule
from clipsilon.rules.schedules import Constant, InverseTime
from clipsilon.theory.course import Forecast, decay_rates

Array = NDArray[np.float64]

_RATIOS = {"PCSGD": (1.0,), "DiceSGD": (1.5, 3.0, 6.0, 12.0, 25.0, 50.0)}  # cap over clip
_SAMPLINGS = {"add-remove": ("poisson",), "replace-one": ("uniform", "epochs"), "zero-out": ("uniform", "epochs")}
_FRESH = ("uniform", "poisson")  # the samplings that draw anew at every step, as the bounds ask


class Option(NamedTuple):
    """A rule, not yet calibrated to the last digit, and what to expect of it."""

    rule: Rule
    forecast: Forecast
    bound: float | None = None  #: what is proven of it, if that was the goal


class Plan(NamedTuple):
    """A preset at clip one: with error feedback both thresholds are one, and the cap is `ratio`."""

    preset: str
    ratio: float
    sampling: str  # the one that needs the least noise for the budget
    noise_std: float  # how much that is

    def rule(self, step: Any, reach: float, batch: int) -> Rule:
        """The rule whose cap (or clip, without feedback) is `reach`; the noise grows with the thresholds."""
        clip = reach / self.ratio
        make = _PRESETS[self.preset]
        return make(step, clip, self.noise_std * clip, reach, batch, self.sampling)


class Task(NamedTuple):
    """What is to be tuned."""

    problem: Problem
    target: Array
    start: Array
    steps: int
    batch: int
    plans: list[Plan]
    fastest: float  # no step above this
    horizon: float  # τ after which nothing is left to happen


def task_of(
    problem: Problem,
    epsilon: float,
    delta: float,
    steps: int,
    preset: str | None,
    batch: int,
    start: Any,
    adjacency: str,
    proven: bool = False,
) -> Task:
    """Check the arguments of `tune`, find where to go, and calibrate every plan at clip one.

    If something is to be `proven` of a plan, it must draw its batches anew at every step.
    """
    checks.instance("problem", problem, Problem)
    steps, batch = checks.count("steps", steps), checks.count("batch", batch)
    begin = start_of(start, problem)
    if preset is not None:
        checks.choice("preset", preset, _PRESETS)
    checks.choice("adjacency", adjacency, ADJACENCIES)
    samplings = [one for one in _SAMPLINGS[adjacency] if one in _FRESH or not proven]
    plans = [
        _least_noise(name, ratio, batch, samplings, adjacency, (epsilon, delta, problem.records, steps))
        for name, ratios in _RATIOS.items()
        if preset in (None, name)
        for ratio in ratios
    ]
    point = stable_point(problem, begin)
    if not point.converged:
        raise ValueError(f"problem must have a stable point to come close to. {point.message}")
    target = point.theta
    rates = decay_rates(problem, target)
    if rates.max() <= 0 or (point.isolated and not point.attracts):
        raise ValueError(
            f"problem must have a stable point that models are drawn to, got one with rates of decay from "
            f"{rates.min():.3g} to {rates.max():.3g}."
        )
    fastest = 1.0 / max(float(rates.max()), 1e-12)
    horizon = steps * fastest if rates.min() <= 0 else min(steps * fastest, 30.0 / float(rates.min()))
    return Task(problem, target, begin, steps, batch, plans, fastest, horizon)


def _least_noise(
    preset: str, ratio: float, batch: int, samplings: list[str], adjacency: str, about: tuple[float, float, int, int]
) -> Plan:
    """The sampling that needs the least noise for the budget."""
    plans = [Plan(preset, ratio, sampling, 1.0) for sampling in samplings]
    rules = [calibrate(plan.rule(Constant(1.0), ratio, batch), *about, adjacency=adjacency) for plan in plans]
    plans = [plan._replace(noise_std=rule.noise.std) for plan, rule in zip(plans, rules, strict=True)]
    return min(plans, key=lambda plan: plan.noise_std)


def _pcsgd(step: Any, clip: float, noise_std: float, cap: float, batch: int, sampling: str) -> Rule:
    return PCSGD(step, clip, noise_std, batch, sampling)


def _dice(step: Any, clip: float, noise_std: float, cap: float, batch: int, sampling: str) -> Rule:
    return DiceSGD(step, clip, clip, noise_std, cap, batch, sampling)


_PRESETS = {"PCSGD": _pcsgd, "DiceSGD": _dice}


def reach_of(rule: Rule) -> float:
    """The threshold that sets the bias: the cap on what a record leaves, with feedback, or else the clip."""
    cap = getattr(rule.feedback, "cap", rule.clip)
    return float(cap.threshold)


def falling_step(log_first: float, log_scale: float) -> InverseTime:
    """Step sizes γ_t = a_0/(a_1 + t) with γ_1 and a_0 given by their logarithms."""
    scale = float(np.exp(max(log_scale, log_first)))
    return InverseTime(scale, max(scale / float(np.exp(log_first)) - 1.0, 0.0))
