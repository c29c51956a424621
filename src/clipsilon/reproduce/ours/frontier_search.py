"""The best setting of each rule at a certified ε: a search by runs, with random numbers of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any, NamedTuple

import joblib
import numpy as np
from numpy.typing import NDArray

from clipsilon.engine.means import gradient_norms
from clipsilon.privacy.accounting.gaussian import largest_mu
from clipsilon.privacy.calibration import calibrated
from clipsilon.reproduce.ours.frontier_problems import Case
from clipsilon.rules.noise import Correlated, Gaussian
from clipsilon.rules.outputs import TailAverage
from clipsilon.rules.presets import PCSGD, AdaptiveDPSGD, CorrelatedSGD, DiceSGD, TrackedSGD
from clipsilon.rules.rule import Rule
from clipsilon.rules.sampling import Poisson
from clipsilon.rules.schedules import Constant, InverseTime, size
from clipsilon.theory.forecast import elapsed
from clipsilon.theory.tuning.correlated import fitted_buffers
from clipsilon.theory.tuning.descent import descend, released_models

ADJACENCY, DELTA = "zero-out", 1e-5
_CAP = 4.0
_QUANTILES = (0.9, 0.999)  # of gradient norms at θ_PS: the clips from which the search begins
# What is multiplied in one move. Batch and epochs move together with the step, so that the sum of all steps stays.
_FACTORS: tuple[dict[str, float], ...] = (
    {"step": 2.0},
    {"step": 0.5},
    {"clip": 1.5},
    {"clip": 1 / 1.5},
    {"clip": 1.5, "step": 1 / 1.5},
    {"clip": 1 / 1.5, "step": 1.5},
    {"batch": 2.0, "step": 2.0},
    {"batch": 0.5, "step": 0.5},
    {"epochs": 2.0, "step": 0.5},
    {"epochs": 0.5, "step": 2.0},
    {"step": 1.4},
    {"step": 1 / 1.4},
)
_CAPS = ({"cap": 2.0}, {"cap": 0.5})
# What takes one of several values.
_DECAYS = (0.0, 1.0, 3.0, 10.0, 30.0)
_RESTRAINTS = (0.3, 0.1, None, 0.03, 0.01, 0.0)
_WORTH = 0.97  # a move must bring the gap below this multiple of what it was
_WORK, _REPLICATES = 8e5, (2, 24)  # gradients of one trial, and runs
_FINAL = 3  # times as many runs compare what the searches for all ε found
TRIALS = 60  # settings per ε
_ROUGH = 1.05  # what the central limit theorem's noise is multiplied by
_SEED = 1  # of the search; another seed measures what it found

Array = NDArray[np.float64]


class Setting(NamedTuple):
    """What is searched for.

    Attributes
    ----------
    clip : float
        The threshold. AdaptiveDPSGD starts there, and aims at clipping as many records as this clips at θ_PS.
    step : float
        The mean of the step sizes.
    batch, epochs : int
        Records per step, and the number of passes over the records.
    cap : float, default 4.0
        DiceSGD's cap on what one record leaves in the error, in units of the clip.
    decay : float, default 0.0
        By how much the first step is larger than the last one, in units of the last; the steps are a_0/(a_1 + t).
    restraint : float or None, default None
        How far the matrix of CorrelatedSGD's noise keeps iterates together (`fitted_buffers`); None for the default
        matrix.
    """

    clip: float
    step: float
    batch: int
    epochs: int
    cap: float = _CAP
    decay: float = 0.0
    restraint: float | None = None

    def steps(self, records: int) -> int:
        """Return the number of steps on this number of records."""
        return self.epochs * (records // self.batch)

    def schedule(self, records: int) -> Constant | InverseTime:
        """Return the step sizes on this number of records."""
        if self.decay == 0:
            return Constant(self.step)
        steps = self.steps(records)
        later = steps / self.decay
        return InverseTime(self.step * steps / elapsed(InverseTime(1.0, later), steps), later)


def _ordered(setting: Setting, noise: float, case: Case) -> Rule:
    return _plain(setting, noise, case, "single-pass")


def _plain(setting: Setting, noise: float, case: Case, sampling: str = "poisson") -> Rule:
    step = setting.schedule(case.problem.records)
    return PCSGD(step, setting.clip, noise * setting.clip, setting.batch, sampling)


def _dice(setting: Setting, noise: float, case: Case) -> Rule:
    step, clip = setting.schedule(case.problem.records), setting.clip
    return DiceSGD(step, clip, clip, noise * clip, setting.cap * clip, setting.batch, "poisson")


def _correlated(setting: Setting, noise: float, case: Case) -> Rule:
    records = case.problem.records
    step, buffers = setting.schedule(records), None
    if setting.restraint is not None:
        rates = np.minimum(case.rates, 1.0 / size(step, 1))  # beyond, only the clip keeps a run from diverging
        buffers = _buffers(setting._replace(clip=1.0), records, tuple(rates))
    return CorrelatedSGD(step, setting.clip, noise * setting.clip, setting.batch, _order(setting), buffers=buffers)


@cache
def _buffers(setting: Setting, records: int, rates: tuple[float, ...]) -> Array:
    """Return the fitted matrix of a setting, which does not depend on the clip."""
    assert setting.restraint is not None
    rule = CorrelatedSGD(setting.schedule(records), 1.0, 1.0, setting.batch, _order(setting))
    return fitted_buffers(rule, records, setting.steps(records), np.array(rates), setting.restraint)


def _order(setting: Setting) -> str:
    return "single-pass" if setting.epochs == 1 else "cyclic"


def _tracked(setting: Setting, noise: float, case: Case) -> Rule:
    return TrackedSGD(setting.schedule(case.problem.records), setting.clip, noise * setting.clip, setting.batch)


def _adaptive(setting: Setting, noise: float, case: Case) -> Rule:
    within = np.mean(_norms(case) <= setting.clip)
    quantile = float(np.clip(within, 0.5 / case.problem.records, 1.0 - 0.5 / case.problem.records))
    step = setting.schedule(case.problem.records)
    return AdaptiveDPSGD(step, setting.clip, noise * setting.batch, setting.batch, quantile)


def _norms(case: Case) -> Array:
    return gradient_norms(case.problem, case.goal, case.goal, 1)


Move = Callable[[Setting], "Setting | None"]
Maker = Callable[[Setting, float, Case], Rule]  # of a rule with noise in units of the clip
RULES: dict[str, Maker] = {
    "PCSGD, in order": _ordered,
    "PCSGD": _plain,
    "DiceSGD": _dice,
    "CorrelatedSGD": _correlated,
    "TrackedSGD": _tracked,
    "AdaptiveDPSGD": _adaptive,
}


NoiseOf = Callable[[Rule, float, int, int], float]
_NOISE: dict[tuple[object, ...], float] = {}  # by rule, apart from its step, and budget


def _certified_noise(unit: Rule, epsilon: float, records: int, steps: int) -> float:
    """Return the noise that certifies ε at a clip of one; it is computed once for all step sizes."""
    key = (joblib.hash(replace(unit, step=Constant(1.0))), epsilon, records, steps)
    if key not in _NOISE:
        noise = calibrated(unit, epsilon, DELTA, records, steps, adjacency=ADJACENCY).noise
        assert isinstance(noise, Gaussian | Correlated)
        _NOISE[key] = noise.std
    return _NOISE[key]


def rule_of(case: Case, name: str, setting: Setting, epsilon: float, noise_of: NoiseOf = _certified_noise) -> Rule:
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
    noise_of : callable, default certified noise
        From a rule with clip one, ε, m and T to the standard deviation of its noise.

    Returns
    -------
    Rule
        The rule.
    """
    # Sum and count of an adaptive clip are certified together as PCSGD is, and so are tracked differences.
    unit = RULES["PCSGD" if name in ("AdaptiveDPSGD", "TrackedSGD") else name](setting._replace(clip=1.0), 1.0, case)
    noise = 0.0
    if np.isfinite(epsilon):
        noise = noise_of(unit, epsilon, case.problem.records, setting.steps(case.problem.records))
    return replace(RULES[name](setting, noise, case), output=TailAverage())


def _rough_noise(unit: Rule, epsilon: float, records: int, steps: int) -> float:
    """Return nearly the noise that certifies ε, within a tenth, in no time.

    Certified noise takes a second for Poisson batches, which is longer than a trial. A central limit theorem has it at
    once (Bu, Dong, Long & Su, 2020): it is too small by 3 to 10 %, nearly the same for all settings, so that
    the comparison of settings does not suffer. What is shown is run with certified noise.
    """
    if unit.name != "PCSGD" or not isinstance(unit.sampling, Poisson):
        return _certified_noise(unit, epsilon, records, steps)
    batch = unit.sampling.batch
    excess = (largest_mu(epsilon, DELTA) * records / batch) ** 2 / steps  # e^(1/z²) − 1 for the noise multiplier z
    return float(_ROUGH / (batch * np.sqrt(np.log1p(excess))))


def gaps(
    case: Case,
    name: str,
    setting: Setting,
    epsilon: float,
    replicates: int,
    seed: int,
    noise_of: NoiseOf = _certified_noise,
) -> Array:
    """Run a rule at a certified ε and return ‖θ − θ_PS‖² of what each replicate releases.

    Parameters
    ----------
    case, name, setting, epsilon, noise_of
        As in `rule_of`.
    replicates, seed : int
        As in `clipsilon.run`.

    Returns
    -------
    array of shape (replicates,)
        The gaps; infinite if a run diverges.
    """
    rule, steps = rule_of(case, name, setting, epsilon, noise_of), setting.steps(case.problem.records)
    models = released_models(case.problem, rule, steps, case.start, replicates, seed)
    return np.asarray(np.sum((models - case.goal) ** 2, axis=1))


def search(
    case: Case,
    name: str,
    epsilons: tuple[float, ...],
    most: int,
    known: Sequence[Setting] = (),
    trials: int = TRIALS,
) -> list[Setting]:
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
    known : sequence of Setting, default ()
        Settings from which to begin, besides the usual ones.
    trials : int, default 60
        How many settings to try for each ε.

    Returns
    -------
    list of Setting
        One per ε.
    """
    moves = _moves(name, case.problem.records, most)
    begin = [*known, *_first(case, name, most)]
    found: list[Setting] = []
    for epsilon in epsilons:
        score = partial(_mean_gap, case, name, epsilon)
        scores = {setting: score(setting) for setting in dict.fromkeys([*begin, *found])}
        found.append(descend(scores, score, moves, trials=trials, worth=_WORTH))
    # One search may end where another should have.
    final = [partial(_mean_gap, case, name, epsilon, times=_FINAL) for epsilon in epsilons]
    return [min(dict.fromkeys(found), key=score) for score in final]


def _mean_gap(case: Case, name: str, epsilon: float, setting: Setting, times: int = 1) -> float:
    work = setting.steps(case.problem.records) * setting.batch
    replicates = times * int(np.clip(_WORK / work, *_REPLICATES))
    return float(gaps(case, name, setting, epsilon, replicates, _SEED, _rough_noise).mean())


def _moves(name: str, records: int, most: int) -> list[Move]:
    """Return what a search may change in a setting of a rule."""
    moves: list[Move] = [
        partial(_multiplied, factors=factors) for factors in (*_FACTORS, *(_CAPS if name == "DiceSGD" else ()))
    ]
    moves += [partial(_shifted, field="decay", values=_DECAYS, by=by) for by in (1, -1)]
    if name == "CorrelatedSGD":
        moves += [partial(_shifted, field="restraint", values=_RESTRAINTS, by=by) for by in (1, -1)]

    def within(setting: Setting, move: Move) -> Setting | None:
        other = move(setting)
        if other is None or not (1 <= other.batch <= records // 4 and 1 <= other.epochs <= most and other.cap >= 1):
            return None
        return other

    return [partial(within, move=move) for move in moves]


def _multiplied(setting: Setting, factors: dict[str, float]) -> Setting:
    """Return the setting with some of its numbers multiplied."""
    changed: dict[str, Any] = {
        key: type(getattr(setting, key))(factor * getattr(setting, key)) for key, factor in factors.items()
    }
    return setting._replace(**changed)


def _shifted(setting: Setting, field: str, values: tuple[float | None, ...], by: int) -> Setting | None:
    """Return the setting with the next value, or the one before, in one of its fields; None beyond the last."""
    place = values.index(getattr(setting, field)) + by
    changed: dict[str, Any] = {field: values[place]} if 0 <= place < len(values) else {}
    return setting._replace(**changed) if changed else None


def _first(case: Case, name: str, most: int) -> list[Setting]:
    """Return settings from which to search: a step that is stable and travels far enough, a small and a large clip."""
    batch, epochs = max(1, case.problem.records // 1000), min(8, most)
    steps = Setting(1.0, 1.0, batch, epochs).steps(case.problem.records)
    step = float(min(0.5 / case.rates.max(), 10 / (steps * max(case.rates.min(), 1e-9))))
    clips = np.quantile(_norms(case), _QUANTILES)
    share = 0.1 if name == "TrackedSGD" else 1.0  # a record takes part several times until it is tracked
    return [Setting(share * float(clip), step, batch, epochs) for clip in clips]
