"""The best setting of each rule at a certified ε: a search by runs, with random numbers of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import joblib
import numpy as np
from numpy.typing import NDArray

from clipsilon.engine.means import gradient_norms
from clipsilon.engine.runner import DivergenceError, run
from clipsilon.privacy.calibration import calibrated
from clipsilon.reproduce.ours.frontier_problems import Case
from clipsilon.rules import correlation
from clipsilon.rules.clipping import suggest_quantile
from clipsilon.rules.noise import Correlated, Gaussian
from clipsilon.rules.outputs import TailAverage
from clipsilon.rules.presets import PCSGD, AdaptiveDPSGD, CorrelatedSGD, DiceSGD, TrackedSGD
from clipsilon.rules.rule import Rule
from clipsilon.rules.schedules import Constant

ADJACENCY, DELTA = "zero-out", 1e-5
_CAP = 4.0
_QUANTILES = (0.9, 0.999)  # of gradient norms at θ_PS: the clips from which the search begins
# What is multiplied in one move. Batch and epochs move together with the step, so that the sum of all steps stays.
_MOVES: tuple[dict[str, float], ...] = (
    {"step": 2.0},
    {"step": 0.5},
    {"clip": 1.5},
    {"clip": 1 / 1.5},
    {"clip": 1.5, "step": 1 / 1.5},
    {"clip": 1 / 1.5, "step": 1.5},
    {"batch": 4.0, "step": 4.0},
    {"batch": 0.25, "step": 0.25},
    {"epochs": 2.0, "step": 0.5},
    {"epochs": 0.5, "step": 2.0},
    {"cap": 2.0},
    {"cap": 0.5},
)
_WORTH = 0.97  # a move must bring the gap below this multiple of what it was
_REPLICATES, _SEED = 8, 1  # of the search; another seed measures what it found

Array = NDArray[np.float64]


class Setting(NamedTuple):
    """What is searched for.

    Attributes
    ----------
    clip, step : float
        The threshold and the constant step size.
    batch, epochs : int
        Records per step, and the number of passes over the records.
    cap : float, default 4.0
        DiceSGD's cap on what one record leaves in the error, in units of the clip.
    """

    clip: float
    step: float
    batch: int
    epochs: int
    cap: float = _CAP

    def steps(self, records: int) -> int:
        """Return the number of steps on this number of records."""
        return self.epochs * (records // self.batch)


def _ordered(setting: Setting, noise: float, _: Case) -> Rule:
    return PCSGD(Constant(setting.step), setting.clip, noise * setting.clip, setting.batch, "single-pass")


def _plain(setting: Setting, noise: float, _: Case) -> Rule:
    return PCSGD(Constant(setting.step), setting.clip, noise * setting.clip, setting.batch, "poisson")


def _dice(setting: Setting, noise: float, _: Case) -> Rule:
    step, clip = Constant(setting.step), setting.clip
    return DiceSGD(step, clip, clip, noise * clip, setting.cap * clip, setting.batch, "poisson")


def _correlated(setting: Setting, noise: float, case: Case) -> Rule:
    sampling = "single-pass" if setting.epochs == 1 else "cyclic"
    buffers = _buffers(setting.step, setting.batch, setting.epochs, case.problem.records, tuple(case.rates))
    step, clip = Constant(setting.step), setting.clip
    return CorrelatedSGD(step, clip, noise * clip, setting.batch, sampling, buffers=buffers)


@cache
def _buffers(step: float, batch: int, epochs: int, records: int, rates: tuple[float, ...]) -> Array:
    """Return the matrix with the least noise in the mean of the last half, for a few of the rates of decay."""
    separation = records // batch
    steps = epochs * separation
    some = np.sort(rates)[np.unique(np.linspace(0, len(rates) - 1, 4).round().astype(int))]
    some = np.minimum(some, 1 / step)  # beyond, only the clip keeps a run from diverging
    responses = [correlation.average_response(Constant(step), rate, steps, steps // 2) for rate in some]
    return correlation.fit(np.stack(responses), epochs, separation)


def _tracked(setting: Setting, noise: float, _: Case) -> Rule:
    return TrackedSGD(Constant(setting.step), setting.clip, noise * setting.clip, setting.batch)


def _adaptive(setting: Setting, noise: float, case: Case) -> Rule:
    multiplier, steps = noise * setting.batch, setting.steps(case.problem.records)
    quantile = suggest_quantile(case.problem.dimension, multiplier, setting.batch, steps)
    return AdaptiveDPSGD(Constant(setting.step), setting.clip, multiplier, setting.batch, quantile)


Maker = Callable[[Setting, float, Case], Rule]  # of a rule with noise in units of the clip
RULES: dict[str, Maker] = {
    "PCSGD, in order": _ordered,
    "PCSGD": _plain,
    "DiceSGD": _dice,
    "CorrelatedSGD": _correlated,
    "TrackedSGD": _tracked,
    "AdaptiveDPSGD": _adaptive,
}


def rule_of(case: Case, name: str, setting: Setting, epsilon: float) -> Rule:
    """Return the rule, with the noise that certifies ε, which releases the mean of the last half of its iterates.

    Parameters
    ----------
    case : Case
        The problem.
    name : str
        A key of `RULES`.
    setting : Setting
        Threshold, step, batch and epochs.
    epsilon : float
        The certified ε; infinite for none.

    Returns
    -------
    Rule
        The rule.
    """
    # Sum and count of an adaptive clip are certified together as PCSGD is.
    unit = RULES["PCSGD" if name == "AdaptiveDPSGD" else name](setting._replace(clip=1.0), 1.0, case)
    noise = 0.0
    if np.isfinite(epsilon):
        noise = _certified_noise(unit, epsilon, case.problem.records, setting.steps(case.problem.records))
    return replace(RULES[name](setting, noise, case), output=TailAverage())


_NOISE: dict[tuple[object, ...], float] = {}  # by rule, apart from its step, and budget


def _certified_noise(unit: Rule, epsilon: float, records: int, steps: int) -> float:
    """Return the noise that certifies ε at a clip of one; it is computed once for all step sizes."""
    key = (joblib.hash(replace(unit, step=Constant(1.0))), epsilon, records, steps)
    if key not in _NOISE:
        noise = calibrated(unit, epsilon, DELTA, records, steps, adjacency=ADJACENCY).noise
        assert isinstance(noise, Gaussian | Correlated)
        _NOISE[key] = noise.std
    return _NOISE[key]


def gaps(case: Case, rule: Rule, steps: int, replicates: int, seed: int) -> Array:
    """Run a rule and return ‖θ − θ_PS‖² of what each replicate releases; infinite if a run diverges.

    Parameters
    ----------
    case : Case
        The problem.
    rule : Rule
        The rule.
    steps, replicates, seed : int
        As for `clipsilon.run`.

    Returns
    -------
    array of shape (replicates,)
        The gaps.
    """
    try:
        trace = run(case.problem, rule, steps, case.start, replicates, seed, record=[steps], progress=False)
    except DivergenceError:
        return np.full(replicates, np.inf)
    return np.asarray(np.sum((trace.output - case.goal) ** 2, axis=1))


def search(case: Case, name: str, epsilons: tuple[float, ...], most: int) -> list[Setting]:
    """Return the setting with the smallest mean gap for each ε.

    Parameters
    ----------
    case : Case
        The problem.
    name : str
        A key of `RULES`.
    epsilons : tuple of float
        The certified ε.
    most : int
        The largest number of epochs.

    Returns
    -------
    list of Setting
        One per ε.
    """
    first = _first(case, name, most)
    begins, found = first, []
    for epsilon in epsilons:
        found.append(min(_climb(case, name, epsilon, most, begin) for begin in begins)[1])
        begins = [first[-1], found[-1]]
    return [_best(case, name, epsilon, found) for epsilon in epsilons]  # one search may end where another should have


def _best(case: Case, name: str, epsilon: float, settings: list[Setting]) -> Setting:
    return min(settings, key=lambda setting: _mean_gap(case, name, epsilon, setting))


def _mean_gap(case: Case, name: str, epsilon: float, setting: Setting) -> float:
    rule = rule_of(case, name, setting, epsilon)
    return float(gaps(case, rule, setting.steps(case.problem.records), _REPLICATES, _SEED).mean())


def _climb(
    case: Case,
    name: str,
    epsilon: float,
    most: int,
    best: Setting,
) -> tuple[float, Setting]:
    """Move one thing at a time, for as long as the mean gap falls; return the gap and the setting."""
    records = case.problem.records

    @cache
    def score(setting: Setting) -> float:
        return _mean_gap(case, name, epsilon, setting)

    moved = True
    while moved:
        moved = False
        for factors in _MOVES:
            other = _moved(best, factors)
            while _allowed(other, name, records, most) and score(other) < _WORTH * score(best):
                best, other, moved = other, _moved(other, factors), True
    return score(best), best


def _moved(at: Setting, factors: dict[str, float]) -> Setting:
    """Return the setting with some of its numbers multiplied."""
    changed = {key: type(getattr(at, key))(factor * getattr(at, key)) for key, factor in factors.items()}
    return at._replace(**changed)


def _allowed(setting: Setting, name: str, records: int, most: int) -> bool:
    """Return whether a setting is within the limits; the cap is searched for DiceSGD alone."""
    fits = 1 <= setting.batch <= records // 4 and 1 <= setting.epochs <= most
    return fits and setting.cap >= 1 and (name == "DiceSGD" or setting.cap == _CAP)


def _first(case: Case, name: str, most: int) -> list[Setting]:
    """Return settings from which to search: a step that is stable and travels far enough, a small and a large clip."""
    batch, epochs = max(1, case.problem.records // 1000), min(8, most)
    steps = Setting(1.0, 1.0, batch, epochs).steps(case.problem.records)
    step = float(min(0.5 / case.rates.max(), 10 / (steps * max(case.rates.min(), 1e-9))))
    clips = np.quantile(gradient_norms(case.problem, case.goal, case.goal, 1), _QUANTILES)
    share = 0.1 if name == "TrackedSGD" else 1.0  # a record takes part several times until it is tracked
    return [Setting(share * float(clip), step, batch, epochs) for clip in clips]
