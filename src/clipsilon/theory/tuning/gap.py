"""The least expected gap.

For each clipping threshold, `clipsilon.theory.course` gives the mean path of the rule and how runs scatter around it;
with the noise that certifies the budget, every step size then has an expected gap.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from clipsilon.engine.means import gradient_norms, mean_gradient
from clipsilon.engine.progress import Progress
from clipsilon.rules.clipping import Norm
from clipsilon.rules.rule import Rule
from clipsilon.rules.schedules import InverseTime, size
from clipsilon.theory.course import Course, Forecast, course, elapsed, forecast
from clipsilon.theory.tuning.task import Option, Plan, Task, falling_step, reach_of

Array = NDArray[np.float64]

_CLIPS = 14  # thresholds tried at first
_STEPS = 14  # first step sizes tried, and as many ways for them to fall
_ROUNDS = 2  # of trying thresholds between those
_SLACK = 0.8  # the share of the error's clip that what must drain may use up


def least_gap(task: Task, progress: bool | None) -> list[Option]:
    """The best option of each preset, best first: a grid of thresholds, then between neighbours."""
    clips = thresholds(task)
    width = float(np.sqrt(clips[-1] / clips[-2])) if clips.size > 1 else 1.0
    found: list[Option] = []
    tried = 0
    with Progress(progress, "thresholds", clips.size + 2 * _ROUNDS * len({plan.preset for plan in task.plans})) as bar:
        for _ in range(_ROUNDS + 1):
            for clip in clips:
                found += options([task], clip)[0]
                tried += 1
                bar.show(tried)
            if not found:
                raise ValueError("preset must be PCSGD: no DiceSGD was found whose error drains all along the path.")
            clips = np.array([reach_of(one.rule) * factor for one in best(found) for factor in (1 / width, width)])
            width = float(np.sqrt(width))
        return best([_polish(task, option) for option in best(found)])


def best(found: list[Option]) -> list[Option]:
    """The best option of each preset, best first."""
    names = dict.fromkeys(option.rule.name for option in found)
    least = [min((o for o in found if o.rule.name == name), key=lambda o: o.forecast.gap) for name in names]
    return sorted(least, key=lambda option: option.forecast.gap)


def _plan_of(task: Task, rule: Rule) -> Plan:
    ratio = reach_of(rule) / rule.clip.threshold
    return min((p for p in task.plans if p.preset == rule.name), key=lambda plan: abs(plan.ratio - ratio))


def thresholds(task: Task) -> Array:
    """From where nearly everything is clipped to where nothing is, at the stable point and at the start."""
    points = (task.target, task.start)
    norms = np.concatenate([gradient_norms(task.problem, at, at, 1).ravel() for at in points])
    norms = norms[norms > 0]
    if norms.size == 0:
        raise ValueError("problem must have a record with a gradient that is not zero.")
    low, high = 0.5 * float(np.quantile(norms, 0.1)), float(norms.max())
    return np.geomspace(low, high, _CLIPS) if high > low else np.array([high])


def options(tasks: Sequence[Task], reach: float) -> list[list[Option]]:
    """Every plan at one threshold, each with the best step of a grid, for tasks that differ in their budgets only."""
    first = tasks[0]
    along = course(first.problem, reach, first.start, first.horizon)
    trials = [(step, _forecast(first, along, step)) for step in _ladder(first)]
    ratios = {plan.ratio for plan in first.plans if plan.preset == "DiceSGD"}
    errors = {("DiceSGD", ratio): _error_length(first, along, reach / ratio) for ratio in ratios}
    return [list(_options(task, reach, trials, errors)) for task in tasks]


def _options(
    task: Task, reach: float, trials: list[tuple[InverseTime, Forecast]], errors: dict[tuple[str, float], float]
) -> Iterator[Option]:
    for plan in task.plans:
        error = errors.get((plan.preset, plan.ratio), 0.0)
        if np.isfinite(error):
            found = [(step, _scaled(task, plan, reach, error, step, unit)) for step, unit in trials]
            step, expected = min(found, key=lambda option: option[1].gap)
            yield Option(plan.rule(step, reach, task.batch), expected)


def _forecast(task: Task, along: Course, step: InverseTime) -> Forecast:
    return forecast(along, task.target, step, task.steps, 1.0, task.batch)


def _scaled(task: Task, plan: Plan, reach: float, error: float, step: InverseTime, unit: Forecast) -> Forecast:
    """A forecast for noise of deviation one, for a plan's noise and its error feedback."""
    std = plan.noise_std * reach / plan.ratio
    return unit._replace(noise=unit.noise * std**2, lag=float(size(step, task.steps) * error) ** 2)


def _polish(task: Task, option: Option) -> Option:
    """The same thresholds, with the best step between those of the grid."""
    rule, reach = option.rule, reach_of(option.rule)
    along = course(task.problem, reach, task.start, task.horizon)
    plan = _plan_of(task, rule)
    error = float(np.sqrt(option.forecast.lag) / size(rule.step, task.steps))

    def expected(at: Any) -> Forecast:
        step = falling_step(*at)
        return _scaled(task, plan, reach, error, step, _forecast(task, along, step))

    def cost(at: Any) -> float:
        return expected(at).gap if _allowed(task, falling_step(*at)) else np.inf

    begin = (np.log(size(rule.step, 1)), np.log(rule.step.a0))
    found = minimize(cost, begin, method="Nelder-Mead", options={"maxfev": 80}).x
    return Option(plan.rule(falling_step(*found), reach, task.batch), expected(found))


def _error_length(task: Task, along: Course, clip: float) -> float:
    """About how long the fed-back error is in the end; infinite if it does not drain all along the path.

    What enters e at a step is R = cap(g) − clip(g), and at most C2 leaves. While ‖E R‖ < C2, e behaves like a queue:
    ‖e‖ is about ‖E R‖ + E‖R − E R‖²/(2·(C2 − ‖E R‖)). The variance of cap(g) stands for that of R, which is no larger.
    """
    mean = 0.0
    for at in along.knots:
        theta = along.at(at)
        kept, sent = (mean_gradient(task.problem, theta, theta, 20, Norm(c)) for c in (along.clip, clip))
        mean = float(np.linalg.norm(kept - sent))
        if mean > _SLACK * clip:
            return np.inf
    return mean + float(np.trace(along.scatter[-1])) / (2.0 * task.batch * (clip - mean))


def _ladder(task: Task) -> list[InverseTime]:
    """Step sizes γ_t = a_0/(a_1 + t): how large at first, and how soon they fall."""
    first = np.log(np.geomspace(task.fastest / task.steps, task.fastest, _STEPS))
    scales = np.log(np.geomspace(task.fastest, 10.0 * task.horizon, _STEPS))
    steps = [falling_step(gamma, scale) for gamma in first for scale in scales]
    return [step for step in steps if _allowed(task, step)]


def _allowed(task: Task, step: InverseTime) -> bool:
    """Steps that the field does not overshoot, and a run that does not end after its course."""
    return bool(size(step, 1) <= task.fastest * (1 + 1e-9) and elapsed(step, task.steps) <= task.horizon)
