"""The smallest expected gap.

For each clipping threshold, `clipsilon.theory.forecast` gives the mean path of the rule and the spread of runs around
it; with the noise that certifies the budget, every step size then has an expected gap. Rules without a forecast are
simulated.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from clipsilon.engine.means import mean_gradient
from clipsilon.engine.progress import Progress
from clipsilon.rules.clipping import Norm, bound_of
from clipsilon.rules.rule import Rule
from clipsilon.rules.schedules import InverseTime, size
from clipsilon.theory.forecast import Forecast, MeanPath, elapsed, forecast, mean_path
from clipsilon.theory.tuning.correlated import correlated_option, plan_of, refitted
from clipsilon.theory.tuning.simulation import SIMULATED, simulate
from clipsilon.theory.tuning.task import Candidate, Option, TuningTask, falling_step, gradient_lengths, reach_of

Array = NDArray[np.float64]

_CLIPS = 14  # thresholds tried at first
_STEPS = 14  # first step sizes tried, and speeds of decay tried for each
_ROUNDS = 2  # rounds that try thresholds between those
_SLACK = 0.8  # largest mean residual that may enter the error, as a fraction of the error's clip


def least_gap(task: TuningTask, progress: bool | None) -> list[Option]:
    """Return the best option of each preset, best first: by forecasts along mean paths, and by simulations."""
    simulated = [name for name in task.presets if name in SIMULATED]
    with Progress(progress, "thresholds", _CLIPS + 2 * _ROUNDS * len(task.presets)) as bar:
        found = _along_paths(task, bar) if len(simulated) < len(task.presets) else []
    return best(found + [option for name in simulated if (option := simulate(task, name)) is not None])


def _along_paths(task: TuningTask, bar: Progress) -> list[Option]:
    """Return the best option of each preset that can be forecast: by a grid of thresholds, then between neighbours."""
    clips = thresholds(task)
    width = float(np.sqrt(clips[-1] / clips[-2])) if clips.size > 1 else 1.0
    plan = plan_of(task) if "CorrelatedSGD" in task.presets else None
    found: list[Option] = []
    paths: list[MeanPath] = []
    for _ in range(_ROUNDS + 1):
        for clip in clips:
            paths.append(mean_path(task.problem, clip, task.start, task.horizon))
            found += _along(task, paths[-1])
            found += [] if plan is None else [correlated_option(task, plan, paths[-1])]
            bar.show(len(paths))
        if not found:
            raise ValueError("preset must be PCSGD: no DiceSGD was found whose error drains all along the path.")
        clips = np.array([reach_of(one.rule) * factor for one in best(found) for factor in (1 / width, width)])
        width = float(np.sqrt(width))
    return [
        refitted(task, one, paths) if one.rule.name == "CorrelatedSGD" else _polish(task, one) for one in best(found)
    ]


def best(found: list[Option]) -> list[Option]:
    """Return the best option of each preset, best first."""
    names = dict.fromkeys(option.rule.name for option in found)
    least = [min((o for o in found if o.rule.name == name), key=lambda o: o.forecast.gap) for name in names]
    return sorted(least, key=lambda option: option.forecast.gap)


def _candidate_of(task: TuningTask, rule: Rule) -> Candidate:
    """Return the candidate from which a rule was made."""
    ratio = reach_of(rule) / bound_of(rule.clip)
    same = [candidate for candidate in task.candidates if candidate.preset == rule.name]
    return min(same, key=lambda candidate: abs(candidate.ratio - ratio))


def thresholds(task: TuningTask) -> Array:
    """Return thresholds from nearly every record clipped to none clipped, at the stable point and at the start."""
    norms = gradient_lengths(task)
    low, high = 0.5 * float(np.quantile(norms, 0.1)), float(norms.max())
    return np.geomspace(low, high, _CLIPS) if high > low else np.array([high])


def _along(task: TuningTask, path: MeanPath) -> Iterator[Option]:
    """Yield the candidates along one mean path with their best steps, but those whose error does not drain."""
    trials = [(step, _forecast(task, path, step)) for step in _ladder(task)]
    for candidate in task.candidates:
        error = 0.0 if candidate.preset == "PCSGD" else _error_length(task, path, path.clip / candidate.ratio)
        if np.isfinite(error):
            found = [(step, _scaled(task, candidate, path.clip, error, step, unit)) for step, unit in trials]
            step, expected = min(found, key=lambda option: option[1].gap)
            yield Option(candidate.rule(step, path.clip, task.batch), expected)


def _forecast(task: TuningTask, path: MeanPath, step: InverseTime) -> Forecast:
    """Forecast a run with noise of standard deviation one."""
    return forecast(path, task.target, step, task.steps, 1.0, task.batch)


def _scaled(
    task: TuningTask, candidate: Candidate, reach: float, error: float, step: InverseTime, unit: Forecast
) -> Forecast:
    """Convert a forecast for noise of standard deviation one to a candidate's noise and error feedback."""
    std = candidate.noise_std * reach / candidate.ratio
    return unit._replace(noise=unit.noise * std**2, lag=float(size(step, task.steps) * error) ** 2)


def _polish(task: TuningTask, option: Option) -> Option:
    """Return the same thresholds with the best step between those of the grid."""
    rule, reach = option.rule, reach_of(option.rule)
    path = mean_path(task.problem, reach, task.start, task.horizon)
    candidate = _candidate_of(task, rule)
    error = float(np.sqrt(option.forecast.lag) / size(rule.step, task.steps))

    def expected(at: Iterable[float]) -> Forecast:
        step = falling_step(*at)
        return _scaled(task, candidate, reach, error, step, _forecast(task, path, step))

    def cost(at: Iterable[float]) -> float:
        return expected(at).gap if _allowed(task, falling_step(*at)) else np.inf

    assert isinstance(rule.step, InverseTime)  # a step of the grid
    begin = (np.log(size(rule.step, 1)), np.log(rule.step.a0))
    found = minimize(cost, begin, method="Nelder-Mead", options={"maxfev": 80}).x
    return Option(candidate.rule(falling_step(*found), reach, task.batch), expected(found))


def _error_length(task: TuningTask, path: MeanPath, clip: float) -> float:
    """Return the approximate length of the fed-back error at the end; infinite if it does not drain all along the path.

    Per step, R = cap(g) − clip(g) enters e, and at most C2 leaves. While ‖E R‖ < C2, e behaves like a queue: ‖e‖ is
    about ‖E R‖ + E‖R − E R‖²/(2·(C2 − ‖E R‖)). The variance of cap(g) replaces that of R, which is no larger.
    """
    mean = 0.0
    for at in path.knots:
        theta = path.at(at)
        kept, sent = (mean_gradient(task.problem, theta, theta, 20, Norm(c)) for c in (path.clip, clip))
        mean = float(np.linalg.norm(kept - sent))
        if mean > _SLACK * clip:
            return np.inf
    return mean + float(np.trace(path.scatter[-1])) / (2.0 * task.batch * (clip - mean))


def _ladder(task: TuningTask) -> list[InverseTime]:
    """Return step sizes γ_t = a_0/(a_1 + t) that differ in their first size and in how soon they fall."""
    first = np.log(np.geomspace(task.fastest / task.steps, task.fastest, _STEPS))
    scales = np.log(np.geomspace(task.fastest, 10.0 * task.horizon, _STEPS))
    steps = [falling_step(gamma, scale) for gamma in first for scale in scales]
    return [step for step in steps if _allowed(task, step)]


def _allowed(task: TuningTask, step: InverseTime) -> bool:
    """Return whether no step overshoots the field and the run ends within the horizon of its mean path."""
    return bool(size(step, 1) <= task.fastest * (1 + 1e-9) and elapsed(step, task.steps) <= task.horizon)
