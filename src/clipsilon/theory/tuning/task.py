"""A tuning task: the problem, how far a run has to go, and how much noise each candidate needs for the budget."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clipsilon._core import checks
from clipsilon.analysis.fixed_points import stable_point
from clipsilon.engine.means import gradient_norms
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

PRESETS = ("PCSGD", "DiceSGD", "CorrelatedSGD", "TrackedSGD", "AdaptiveDPSGD")
"""The presets that can be tuned: those of which something is certified, and which are not special cases of others."""

_REMOVABLE = ("PCSGD", "AdaptiveDPSGD")  # those of which something is certified under add-remove


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


class Budget(NamedTuple):
    """What one run may spend.

    Attributes
    ----------
    epsilon, delta : float
        The target of the certificate.
    adjacency : str
        How neighbouring data sets differ.
    """

    epsilon: float
    delta: float
    adjacency: str


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
        PCSGD and DiceSGD, if they are to be considered, each calibrated at clip one.
    fastest : float
        The largest step size allowed.
    horizon : float
        The τ after which the mean path no longer changes.
    presets : tuple of str
        All presets to consider.
    budget : Budget
        What a run may spend.
    """

    problem: Problem
    target: Array
    start: Array
    steps: int
    batch: int
    candidates: list[Candidate]
    fastest: float
    horizon: float
    presets: tuple[str, ...]
    budget: Budget

    def calibrated(self, rule: Rule) -> Rule:
        """Return a rule with the least noise that certifies the budget."""
        about = (*self.budget[:2], self.problem.records, self.steps)
        return calibrated(rule, *about, adjacency=self.budget.adjacency)


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
        As in `tune`; without a preset, all of which something is certified for the adjacency are considered.
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
    presets = _considered(preset, adjacency, proven)
    if batch > problem.records:
        raise ValueError(f"batch must be at most the number of records ({problem.records}), got {batch}.")
    samplings = [one for one in _SAMPLINGS[adjacency] if one in _FRESH or not proven]
    candidates = [
        _least_noise(name, ratio, batch, samplings, adjacency, (epsilon, delta, problem.records, steps))
        for name in presets
        for ratio in _RATIOS.get(name, ())
    ]
    point = stable_point(problem, begin)
    if not point.converged:
        raise ValueError(f"problem must have a stable point to come close to. {point.message}")
    rates = decay_rates(problem, point.theta)
    if rates.max() <= 0 or (point.isolated and not point.attracts):
        raise ValueError(
            f"problem must have a stable point that models are drawn to, got one with rates of decay from "
            f"{rates.min():.3g} to {rates.max():.3g}."
        )
    fastest = 1.0 / max(float(rates.max()), 1e-12)
    horizon = steps * fastest if rates.min() <= 0 else min(steps * fastest, 30.0 / float(rates.min()))
    budget = Budget(epsilon, delta, adjacency)
    return TuningTask(problem, point.theta, begin, steps, batch, candidates, fastest, horizon, presets, budget)


def samplings_of(task: TuningTask) -> list[dict[str, Any]]:
    """Return the samplings that the adjacency allows, as arguments of presets."""
    rate = task.batch / task.problem.records
    return [{"sampling": one, "rate": rate if one == "poisson" else None} for one in _SAMPLINGS[task.budget.adjacency]]


def gradient_lengths(task: TuningTask) -> Array:
    """Return the lengths of all gradients at the stable point and at the start that are not 0."""
    points = (task.target, task.start)
    norms = np.concatenate([gradient_norms(task.problem, at, at, 1).ravel() for at in points])
    if not norms.any():
        raise ValueError("problem must have a record with a gradient that is not zero.")
    return np.asarray(norms[norms > 0])


def _considered(preset: str | None, adjacency: str, proven: bool) -> tuple[str, ...]:
    """Return the presets to consider: the named one, or all of which something is certified, or a bound proven."""
    checks.choice("adjacency", adjacency, ADJACENCIES)
    known = _REMOVABLE if adjacency == "add-remove" else PRESETS
    if preset is None:
        return ("PCSGD",) if proven else known
    checks.choice("preset", preset, dict.fromkeys(PRESETS))
    if proven and preset != "PCSGD":
        raise ValueError(f"preset must be PCSGD for the goal 'bound': no bound is proven for others, got {preset!r}.")
    if preset not in known:
        raise ValueError(
            f"preset must be {' or '.join(known)} for adjacency {adjacency!r}, for which nothing is certified of "
            f"others, got {preset!r}."
        )
    return (preset,)


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
