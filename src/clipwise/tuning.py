"""Tuning: which rule, which thresholds and which step, before any budget is spent.

For each clipping threshold, `clipwise.theory.course` gives the mean path of the rule and how runs scatter around it;
with the noise that certifies the budget, every step size then has an expected gap. The smallest one is proposed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from clipwise import checks
from clipwise.clipping import Norm, Unclipped
from clipwise.engine.means import mean_gradient, record_gradients
from clipwise.engine.progress import Progress
from clipwise.points import clipping_bias, stable_point
from clipwise.presets import PCSGD, DiceSGD
from clipwise.privacy.calibration import calibrate
from clipwise.privacy.certificate import ADJACENCIES
from clipwise.privacy.statement import Statement, account
from clipwise.problem import Problem
from clipwise.rule import Rule
from clipwise.steps import Constant, InverseTime, size
from clipwise.theory.course import Course, Forecast, course, decay_rates, elapsed, forecast

Array = NDArray[np.float64]
Step = InverseTime

_CLIPS = 14  # thresholds tried at first
_STEPS = 14  # first step sizes tried, and as many ways for them to fall
_ROUNDS = 2  # of trying thresholds between those
_RATIOS = {"PCSGD": (1.0,), "DiceSGD": (1.5, 3.0, 6.0, 12.0, 25.0, 50.0)}  # cap over clip
_SLACK = 0.8  # the share of the error's clip that what must drain may use up
_SAMPLINGS = {"add-remove": ("poisson",), "replace-one": ("uniform", "epochs"), "zero-out": ("uniform", "epochs")}


class Option(NamedTuple):
    """A rule, not yet calibrated to the last digit, and what to expect of it."""

    rule: Rule
    forecast: Forecast


@dataclass(frozen=True, eq=False)
class Proposal:
    """What `tune` proposes, and why.

    The statement covers a run of the rule, not the tuning, which reads the data without noise.
    """

    rule: Rule
    statement: Statement
    forecast: Forecast  # of E‖θ_T − θ_PS‖²
    options: tuple[Option, ...]  # the best of each preset, the proposed one first
    reasons: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join([f"{self.rule}", *(f"  - {reason}" for reason in self.reasons)])


class _Plan(NamedTuple):
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


class _Task(NamedTuple):
    """What is to be tuned."""

    problem: Problem
    target: Array
    start: Array
    steps: int
    batch: int
    plans: list[_Plan]
    fastest: float  # no step above this
    horizon: float  # τ after which nothing is left to happen


def tune(
    problem: Problem,
    epsilon: float,
    delta: float,
    steps: int,
    goal: str = "gap",
    preset: str | None = None,
    batch: int = 1,
    start: Any = 0.0,
    adjacency: str = "replace-one",
    progress: bool | None = None,
) -> Proposal:
    """Propose preset, thresholds and step for the smallest expected gap to θ_PS at a certified (ε, δ).

    Parameters
    ----------
    problem, epsilon, delta, steps : what is to be run, for how long, on which budget.
    goal : "gap", the squared distance to the stable point at the end of the run.
    preset : "PCSGD" or "DiceSGD", to consider only that one.
    batch, start, adjacency, progress : as in the presets, in `run` and in `account`.

    The answer depends on the data in ways that the statement does not cover: tune on public data, on generated data
    of the same shape, or spend budget on it.
    """
    checks.choice("goal", goal, {"gap": None})
    task = _task(problem, epsilon, delta, steps, preset, batch, start, adjacency)
    options = _search(task, progress)
    rule = calibrate(options[0].rule, epsilon, delta, problem.records, task.steps, adjacency=adjacency)
    statement = account(rule, problem.records, task.steps, delta, adjacency)
    reasons = tuple(_reasons(task, options, statement))
    return Proposal(rule, statement, options[0].forecast, tuple(options), reasons)


def _task(
    problem: Problem,
    epsilon: float,
    delta: float,
    steps: int,
    preset: str | None,
    batch: int,
    start: Any,
    adjacency: str,
) -> _Task:
    checks.instance("problem", problem, Problem)
    steps, batch = checks.count("steps", steps), checks.count("batch", batch)
    begin = checks.vector("start", start, problem.dimension)
    if preset is not None:
        checks.choice("preset", preset, _PRESETS)
    checks.choice("adjacency", adjacency, ADJACENCIES)
    plans = [
        _least_noise(name, ratio, batch, adjacency, (epsilon, delta, problem.records, steps))
        for name, ratios in _RATIOS.items()
        if preset in (None, name)
        for ratio in ratios
    ]
    point = stable_point(problem, begin)
    if not point.converged:
        raise ValueError(f"problem must have a stable point to come close to. {point.message}")
    target = point.theta
    rates = decay_rates(problem, target)
    fastest = 1.0 / max(float(rates.max()), 1e-12)
    horizon = steps * fastest if rates.min() <= 0 else min(steps * fastest, 30.0 / float(rates.min()))
    return _Task(problem, target, begin, steps, batch, plans, fastest, horizon)


def _least_noise(preset: str, ratio: float, batch: int, adjacency: str, about: tuple[float, float, int, int]) -> _Plan:
    """The sampling that needs the least noise for the budget."""
    plans = [_Plan(preset, ratio, sampling, 1.0) for sampling in _SAMPLINGS[adjacency]]
    rules = [calibrate(plan.rule(Constant(1.0), ratio, batch), *about, adjacency=adjacency) for plan in plans]
    plans = [plan._replace(noise_std=rule.noise.std) for plan, rule in zip(plans, rules, strict=True)]
    return min(plans, key=lambda plan: plan.noise_std)


def _pcsgd(step: Any, clip: float, noise_std: float, cap: float, batch: int, sampling: str) -> Rule:
    return PCSGD(step, clip, noise_std, batch, sampling)


def _dice(step: Any, clip: float, noise_std: float, cap: float, batch: int, sampling: str) -> Rule:
    return DiceSGD(step, clip, clip, noise_std, cap, batch, sampling)


_PRESETS = {"PCSGD": _pcsgd, "DiceSGD": _dice}


def _search(task: _Task, progress: bool | None) -> list[Option]:
    """The best option of each preset, best first: a grid of thresholds, then between neighbours."""
    clips = _thresholds(task)
    width = float(np.sqrt(clips[-1] / clips[-2])) if clips.size > 1 else 1.0
    found: list[Option] = []
    tried = 0
    with Progress(progress, "thresholds", clips.size + 2 * _ROUNDS * len({plan.preset for plan in task.plans})) as bar:
        for _ in range(_ROUNDS + 1):
            for clip in clips:
                found += _options(task, clip)
                tried += 1
                bar.show(tried)
            if not found:
                raise ValueError("preset must be PCSGD: no DiceSGD was found whose error drains all along the path.")
            clips = np.array([_reach(best.rule) * factor for best in _best(found) for factor in (1 / width, width)])
            width = float(np.sqrt(width))
        return _best([_polish(task, option) for option in _best(found)])


def _best(found: list[Option]) -> list[Option]:
    names = dict.fromkeys(option.rule.name for option in found)
    best = [min((o for o in found if o.rule.name == name), key=lambda o: o.forecast.gap) for name in names]
    return sorted(best, key=lambda option: option.forecast.gap)


def _reach(rule: Rule) -> float:
    """The threshold that sets the bias: the cap on what a record leaves, with feedback, or else the clip."""
    cap = getattr(rule.feedback, "cap", rule.clip)
    return float(cap.threshold)


def _plan_of(task: _Task, rule: Rule) -> _Plan:
    ratio = _reach(rule) / rule.clip.threshold
    return min((p for p in task.plans if p.preset == rule.name), key=lambda plan: abs(plan.ratio - ratio))


def _thresholds(task: _Task) -> Array:
    """From where nearly everything is clipped to where nothing is, at the stable point and at the start."""
    points = (task.target, task.start)
    norms = np.concatenate([np.linalg.norm(record_gradients(task.problem, at, Unclipped()), axis=1) for at in points])
    norms = norms[norms > 0]
    if norms.size == 0:
        raise ValueError("problem must have a record with a gradient that is not zero.")
    low, high = 0.5 * float(np.quantile(norms, 0.1)), float(norms.max())
    return np.geomspace(low, high, _CLIPS) if high > low else np.array([high])


def _options(task: _Task, reach: float) -> Iterator[Option]:
    """Every plan at one threshold, each with the best step of a grid."""
    along = course(task.problem, reach, task.start, task.horizon)
    trials = [(step, _forecast(task, along, step)) for step in _ladder(task)]
    for plan in task.plans:
        error = _error_length(task, along, reach / plan.ratio) if plan.preset == "DiceSGD" else 0.0
        if np.isfinite(error):
            options = [(step, _scaled(task, plan, reach, error, step, unit)) for step, unit in trials]
            step, expected = min(options, key=lambda option: option[1].gap)
            yield Option(plan.rule(step, reach, task.batch), expected)


def _forecast(task: _Task, along: Course, step: Step) -> Forecast:
    return forecast(along, task.target, step, task.steps, 1.0, task.batch)


def _scaled(task: _Task, plan: _Plan, reach: float, error: float, step: Step, unit: Forecast) -> Forecast:
    """A forecast for noise of deviation one, for a plan's noise and its error feedback."""
    std = plan.noise_std * reach / plan.ratio
    return unit._replace(noise=unit.noise * std**2, lag=float(size(step, task.steps) * error) ** 2)


def _polish(task: _Task, option: Option) -> Option:
    """The same thresholds, with the best step between those of the grid."""
    rule, reach = option.rule, _reach(option.rule)
    along = course(task.problem, reach, task.start, task.horizon)
    plan = _plan_of(task, rule)
    error = float(np.sqrt(option.forecast.lag) / size(rule.step, task.steps))

    def expected(at: Any) -> Forecast:
        step = _step(*at)
        return _scaled(task, plan, reach, error, step, _forecast(task, along, step))

    def cost(at: Any) -> float:
        return expected(at).gap if _allowed(task, _step(*at)) else np.inf

    begin = (np.log(size(rule.step, 1)), np.log(rule.step.a0))
    found = minimize(cost, begin, method="Nelder-Mead", options={"maxfev": 80}).x
    return Option(plan.rule(_step(*found), reach, task.batch), expected(found))


def _error_length(task: _Task, along: Course, clip: float) -> float:
    """About how long the fed-back error is in the end; infinite if it does not drain all along the path.

    What enters e at a step is R = cap(g) − clip(g), and at most C2 leaves. While ‖E R‖ < C2, e behaves like a queue:
    ‖e‖ is about ‖E R‖ + E‖R − E R‖²/(2·(C2 − ‖E R‖)).
    """
    mean = 0.0
    for at in along.knots:
        theta = along.at(at)
        kept, sent = (mean_gradient(task.problem, theta, theta, 20, Norm(c)) for c in (along.clip, clip))
        mean = float(np.linalg.norm(kept - sent))
        if mean > _SLACK * clip:
            return np.inf
    return mean + float(np.trace(along.scatter[-1])) / (2.0 * task.batch * (clip - mean))


def _ladder(task: _Task) -> list[Step]:
    """Step sizes γ_t = a_0/(a_1 + t): how large at first, and how soon they fall."""
    first = np.log(np.geomspace(task.fastest / task.steps, task.fastest, _STEPS))
    scales = np.log(np.geomspace(task.fastest, 10.0 * task.horizon, _STEPS))
    steps = [_step(gamma, scale) for gamma in first for scale in scales]
    return [step for step in steps if _allowed(task, step)]


def _step(log_first: float, log_scale: float) -> Step:
    """γ_t = a_0/(a_1 + t) with γ_1 and a_0 given by their logarithms."""
    scale = float(np.exp(max(log_scale, log_first)))
    return InverseTime(scale, max(scale / float(np.exp(log_first)) - 1.0, 0.0))


def _allowed(task: _Task, step: Step) -> bool:
    """Steps that the field does not overshoot, and a run that does not end after its course."""
    return bool(size(step, 1) <= task.fastest * (1 + 1e-9) and elapsed(step, task.steps) <= task.horizon)


def _reasons(task: _Task, options: list[Option], statement: Statement) -> Iterator[str]:
    """Why this proposal, in sentences."""
    best = options[0]
    yield _expectation(best)
    yield _noise_reason(task, best)
    reach = _reach(best.rule)
    yield (
        f"Run for ever, a threshold of {reach:.3g} would end at a squared distance of "
        f"{clipping_bias(task.problem, reach, task.start):.3g}; not moving at all leaves "
        f"{np.sum((task.start - task.target) ** 2):.3g}."
    )
    for other in options[1:]:
        yield f"The best {other.rule.name} found: {_expectation(other)}"
    yield f"Certified for one run: ε = {statement.certified:.4g} at δ = {statement.delta:g}, {statement.adjacency}."
    yield "Tuning read the data without noise: what the choice itself reveals is not covered by the statement."


def _expectation(option: Option) -> str:
    rule, expected = option
    part = f"clip {rule.clip.threshold:.3g}"
    if rule.name == "DiceSGD":
        part += f", error clip {rule.feedback.clip.threshold:.3g}, residual cap {_reach(rule):.3g}"
    return (
        f"{rule.name} with {part} and a step of {size(rule.step, 1):.3g} at first: the expected gap is "
        f"{expected.gap:.3g}, of which {expected.bias:.3g} is bias, {expected.noise:.3g} noise, "
        f"{expected.scatter + expected.lag:.3g} the rest."
    )


def _noise_reason(task: _Task, option: Option) -> str:
    std, clip = option.rule.noise.std, option.rule.clip.threshold
    return (
        f"The budget asks for noise of {std:.3g} on the mean update, {std * task.batch / clip:.3g} times the clip on "
        f"the sum, with {type(option.rule.sampling).__name__} sampling, which needs the least."
    )
