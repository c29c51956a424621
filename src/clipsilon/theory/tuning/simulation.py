"""The best TrackedSGD and AdaptiveDPSGD, which have no forecast: scored by runs with fixed seeds.

A coarse grid of thresholds and constant steps is run, then the best point is moved along one coordinate at a time, in
ever smaller moves, as long as this helps. All candidates of a preset see the same draws; the winner is run again with
others, so that its gap is not that of the luckiest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clipsilon.rules.clipping import Adaptive, suggest_quantile
from clipsilon.rules.noise import Proportional, std_of
from clipsilon.rules.presets import AdaptiveDPSGD, TrackedSGD
from clipsilon.rules.rule import Rule
from clipsilon.rules.schedules import Constant, InverseTime, Schedule
from clipsilon.theory.forecast import Forecast
from clipsilon.theory.tuning.descent import descend, released_models
from clipsilon.theory.tuning.task import Option, TuningTask, gradient_lengths, samplings_of

Array = NDArray[np.float64]

_TRIALS = 40  # points that are run, about
_WORK = 3e7  # gradients per preset that all trials together may take
_MOST_WORK = 10 * _WORK  # a preset that needs more, with two runs per point, is tried only if it is named
_REPLICATES = (2, 8)  # runs per point
_SHARES = (0.5, 1.0, 2.0, 4.0, 8.0)  # clips of TrackedSGD, in units of what makes a record catch up by the end
_CLIPPED = (0.003, 0.01, 0.03, 0.1, 0.3)  # fractions of records that AdaptiveDPSGD may clip
_FIRSTS = (1.0, 0.1, 0.01, 0.001)  # first steps, in units of the largest that is allowed
_FALLS = (np.inf, 0.3, 0.03)  # a_1/T of the steps; infinite for constant ones
_FACTORS = (3.0, 1.5)  # by which thresholds and steps are changed
_WORTH = 0.98  # a move must bring the gap below this multiple of what it was: else one that changes nothing is repeated


class Point(NamedTuple):
    """A setting that is run.

    Attributes
    ----------
    threshold : float
        The clip of TrackedSGD, or the fraction of records that AdaptiveDPSGD clips.
    first : float
        The first step size.
    fall : int
        How soon the step falls: an index of `_FALLS`.
    """

    threshold: float
    first: float
    fall: int


def simulate(task: TuningTask, preset: str) -> Option | None:
    """Return the best setting of a preset that was found by runs; None if that would take too long.

    Parameters
    ----------
    task : TuningTask
        The task.
    preset : str
        One of `SIMULATED`.

    Returns
    -------
    Option or None
        The rule, with the gap found in runs that had no part in the choice.
    """
    replicates = int(np.clip(_WORK / (_TRIALS * task.steps * task.batch), *_REPLICATES))
    if replicates * _TRIALS * task.steps * task.batch > _MOST_WORK and len(task.presets) > 1:
        return None
    make, thresholds = SIMULATED[preset](task)

    def score(at: Point) -> float:
        rule = make(at.threshold, _step(task, at))
        return _gap_of(_ends(task, rule, replicates, seed=1), task.target).gap

    grid = [Point(threshold, first * task.fastest, 0) for threshold, first in product(thresholds, _FIRSTS)]
    scores = {point: score(point) for point in grid}
    most = Point(1.0 if preset == "AdaptiveDPSGD" else np.inf, task.fastest, len(_FALLS) - 1)
    for factor in _FACTORS:
        best = descend(scores, score, _moves(factor, most), trials=_TRIALS, worth=_WORTH)
    rule = make(best.threshold, _step(task, best))
    return Option(rule, _gap_of(_ends(task, rule, 4 * replicates, seed=2), task.target))


def _moves(factor: float, most: Point) -> list[Callable[[Point], Point | None]]:
    """Return moves that multiply threshold or first step by a factor or its inverse, or change the fall."""
    changes = [(factor, 1.0, 0), (1 / factor, 1.0, 0), (1.0, factor, 0), (1.0, 1 / factor, 0)]
    return [partial(_moved, change=change, most=most) for change in (*changes, (1.0, 1.0, 1), (1.0, 1.0, -1))]


def _moved(at: Point, change: tuple[float, float, int], most: Point) -> Point | None:
    other = Point(at.threshold * change[0], min(at.first * change[1], most.first), at.fall + change[2])
    return other if other.threshold < most.threshold and 0 <= other.fall <= most.fall else None


def _step(task: TuningTask, at: Point) -> Schedule:
    if np.isinf(_FALLS[at.fall]):
        return Constant(at.first)
    later = _FALLS[at.fall] * task.steps
    return InverseTime(at.first * (later + 1.0), later)


def _ends(task: TuningTask, rule: Rule, replicates: int, seed: int) -> Array:
    return released_models(task.problem, rule, task.steps, task.start, replicates, seed)


def _gap_of(ends: Array, target: Array) -> Forecast:
    """Split the mean squared distance of runs into bias and spread, both without bias of their own."""
    if not np.isfinite(ends).all():
        return Forecast(np.inf, 0.0, 0.0)
    gap, spread = float(np.mean(np.sum((ends - target) ** 2, axis=1))), float(ends.var(axis=0, ddof=1).sum())
    bias = max(gap - spread, 0.0)
    return Forecast(bias, 0.0, 0.0, spread=gap - bias)


def _tracked(task: TuningTask) -> tuple[Callable[[float, Schedule], Rule], list[float]]:
    """Return how to make a TrackedSGD from a clip and a step, and clips to try."""
    m = task.problem.records
    sampling, batch = ("full", 1) if task.batch == m else ("poisson", task.batch)
    noise = std_of(task.calibrated(TrackedSGD(Constant(1.0), 1.0, 1.0, batch, sampling)).noise)
    norms = gradient_lengths(task)
    taken = max(task.steps * task.batch / m, 1.0)  # how often a record takes part
    clips = [min(share * float(np.quantile(norms, 0.9)) / taken, float(norms.max())) for share in _SHARES]

    def make(clip: float, step: Schedule) -> Rule:
        return TrackedSGD(step, clip, noise * clip, batch, sampling)

    return make, clips


def _adaptive(task: TuningTask) -> tuple[Callable[[float, Schedule], Rule], list[float]]:
    """Return how to make an AdaptiveDPSGD from a fraction of clipped records and a step, and fractions to try."""
    units = [AdaptiveDPSGD(Constant(1.0), 1.0, 1.0, task.batch, 0.9, **about) for about in samplings_of(task)]
    rule = min((_counting(task, unit) for unit in units), key=_multiplier)
    usual = 1.0 - suggest_quantile(task.target.size, _multiplier(rule), task.batch, task.steps)
    middle = float(np.median(gradient_lengths(task)))

    def make(clipped: float, step: Schedule) -> Rule:
        return replace(rule, step=step, clip=_clip(rule)._replace(start=middle, quantile=1.0 - clipped))

    return make, sorted({*_CLIPPED, usual})


def _counting(task: TuningTask, rule: Rule) -> Rule:
    """Calibrate an adaptive rule whose count adds at most 0.5 % to the noise on the sum.

    The threshold follows the counts as slowly as their noise demands: its logarithm then deviates by about 0.2.
    """
    clip = _clip(rule)
    alone = task.calibrated(replace(rule, clip=clip._replace(count_noise=1e6)))
    noise = max(task.batch / 20, 5.0 * _multiplier(alone))
    rate = min(0.2, max(0.02 * (task.batch / noise) ** 2, 10.0 / task.steps))
    return task.calibrated(replace(rule, clip=clip._replace(count_noise=noise, rate=rate)))


def _clip(rule: Rule) -> Adaptive:
    assert isinstance(rule.clip, Adaptive)
    return rule.clip


def _multiplier(rule: Rule) -> float:
    assert isinstance(rule.noise, Proportional)
    return rule.noise.multiplier


SIMULATED = {"TrackedSGD": _tracked, "AdaptiveDPSGD": _adaptive}
