"""A tuning task: the problem, how far a run has to go, and how much noise each candidate needs for the budget."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clipsilon._core import checks
from clipsilon.analysis.fixed_points import stable_point
from clipsilon.engine.runner import start_of
from clipsilon.privacy.calibration import calibrated
from clipsilon.privacy.certificate import ADJACENCIES
from clipsilon.problems.problem import Problem
from clipsilon.rules.clipping import bound_of
from clipsilon.rules.feedback import ErrorFeedback
from clipsilon.rules.noise import std_of
from clipsilon.rules.presets import PCSGD, DiceSGD
from clipsilon.rules.rule import Rule
from clipsilon.rules.schedules import Constant, InverseTime, Schedule
from clipsilon.theory.forecast import Forecast, decay_rates

Array = NDArray[np.float64]

_RATIOS = {"PCSGD": (1.0,), "DiceSGD": (1.5, 3.0, 6.0, 12.0, 25.0, 50.0)}  # cap over clip
_SAMPLINGS = {"add-remove": ("poisson",), "replace-one": ("uniform", "epochs"), "zero-out": ("uniform", "epochs")}
_FRESH = ("uniform", "poisson")  # the samplings that draw anew at each step, as the bounds require


class Option(NamedTuple):
    """A rule, not yet calibrated to the last digit, and what to expect of it.

    Attributes
    ----------
    rule : Rule
        The rule.
    forecast : Forecast
        Of E‖θ_T − θ_PS‖².
    bound : float or None
        The proven bound on it, if the goal was "bound".
    """

    rule: Rule
    forecast: Forecast
    bound: float | None = None


class Candidate(NamedTuple):
    """A preset at clip one: with error feedback, both thresholds are one and the cap is `ratio`.

    Attributes
    ----------
    preset : str
        "PCSGD" or "DiceSGD".
    ratio : float
        Cap over clip; 1 for PCSGD.
    sampling : str
        The sampling that needs the least noise for the budget.
    noise_std : float
        That noise, on the mean update.
    rate : float or None
        The public rate of Poisson sampling, which add-remove requires; it stays when the number of records changes.
    """

    preset: str
    ratio: float
    sampling: str
    noise_std: float
    rate: float | None = None

    def rule(self, step: Schedule, reach: float, batch: int) -> Rule:
        """Return the rule whose cap (without feedback: whose clip) is `reach`; the noise is scaled with the thresholds.

        Parameters
        ----------
        step : Schedule
            The step sizes.
        reach : float
            The cap, or the clip of a preset without feedback.
        batch : int
            The number of records per step.

        Returns
        -------
        Rule
            The rule.
        """
        clip = reach / self.ratio
        make = _PRESETS[self.preset]
        return make(step, clip, self.noise_std * clip, reach, batch, self.sampling, self.rate)


class TuningTask(NamedTuple):
    """What is to be tuned.

    Attributes
    ----------
    problem : Problem
        The problem.
    target, start : array of shape (d,)
        θ_PS and θ_0.
    steps, batch : int
        The length of the run and the number of records per step.
    candidates : list of Candidate
        The presets to consider, each calibrated at clip one.
    fastest : float
        The largest step size allowed.
    horizon : float
        The τ after which the mean path no longer changes.
    """

    problem: Problem
    target: Array
    start: Array
    steps: int
    batch: int
    candidates: list[Candidate]
    fastest: float
    horizon: float


def task_of(
    problem: Problem,
    epsilon: float,
    delta: float,
    steps: int,
    preset: str | None,
    batch: int,
    start: ArrayLike,
    adjacency: str,
    proven: bool = False,
) -> TuningTask:
    """Check the arguments of `tune`, solve for the stable point, and calibrate every candidate at clip one.

    Parameters
    ----------
    problem, epsilon, delta, steps, preset, batch, start, adjacency
        As in `tune`.
    proven : bool, default False
        Whether a bound is to be proven; then only samplings that draw anew at each step are considered.

    Returns
    -------
    TuningTask
        The task.
    """
    checks.instance("problem", problem, Problem)
    steps, batch = checks.count("steps", steps), checks.count("batch", batch)
    begin = start_of(start, problem)
    if preset is not None:
        checks.choice("preset", preset, _PRESETS)
    checks.choice("adjacency", adjacency, ADJACENCIES)
    if batch > problem.records:
        raise ValueError(f"batch must be at most the number of records ({problem.records}), got {batch}.")
    samplings = [one for one in _SAMPLINGS[adjacency] if one in _FRESH or not proven]
    if adjacency == "add-remove" and preset is None:
        preset = "PCSGD"  # no certificate is known for DiceSGD with a cap and a public rate
    candidates = [
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
    return TuningTask(problem, target, begin, steps, batch, candidates, fastest, horizon)


def _least_noise(
    preset: str, ratio: float, batch: int, samplings: list[str], adjacency: str, about: tuple[float, float, int, int]
) -> Candidate:
    """Return the candidate with the sampling that needs the least noise for the budget."""
    candidates = []
    for sampling in samplings:
        unit = Candidate(preset, ratio, sampling, 1.0, batch / about[2] if sampling == "poisson" else None)
        rule = calibrated(unit.rule(Constant(1.0), ratio, batch), *about, adjacency=adjacency)
        candidates.append(unit._replace(noise_std=std_of(rule.noise)))
    return min(candidates, key=lambda candidate: candidate.noise_std)


def _pcsgd(
    step: Schedule, clip: float, noise_std: float, cap: float, batch: int, sampling: str, rate: float | None
) -> Rule:
    return PCSGD(step, clip, noise_std, batch, sampling, rate=rate)


def _dice(
    step: Schedule, clip: float, noise_std: float, cap: float, batch: int, sampling: str, rate: float | None
) -> Rule:
    return DiceSGD(step, clip, clip, noise_std, cap, batch, sampling, rate=rate)


_PRESETS = {"PCSGD": _pcsgd, "DiceSGD": _dice}


def reach_of(rule: Rule) -> float:
    """Return the threshold that sets the bias: with feedback, the cap on a record's gradient; otherwise the clip."""
    return bound_of(rule.feedback.cap if isinstance(rule.feedback, ErrorFeedback) else rule.clip)


def falling_step(log_first: float, log_scale: float) -> InverseTime:
    """Return step sizes γ_t = a_0/(a_1 + t) with γ_1 and a_0 given by their logarithms."""
    scale = float(np.exp(max(log_scale, log_first)))
    return InverseTime(scale, max(scale / float(np.exp(log_first)) - 1.0, 0.0))
