"""The best CorrelatedSGD along mean paths: its step sizes, and the matrix of its noise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize, minimize_scalar

from clipsilon.rules.correlation import average_response, fit, square_root
from clipsilon.rules.noise import Correlated
from clipsilon.rules.presets import CorrelatedSGD
from clipsilon.rules.rule import Rule
from clipsilon.rules.sampling import participations, separation
from clipsilon.rules.schedules import Constant, InverseTime, Schedule, size
from clipsilon.theory.correlated_forecast import correlated_forecast, response_table, tail_bias, tail_directions
from clipsilon.theory.forecast import Forecast, MeanPath
from clipsilon.theory.tuning.task import Option, TuningTask

Array = NDArray[np.float64]

_FALLS = (0.01, 0.03, 0.1, 0.3, 1.0)  # a_1/T of the falling steps that are tried, besides constant ones
_FIRSTS = 25  # first step sizes tried
_DIRECTIONS = 4  # eigendirections that the matrix is fitted to
_ITERATES = (0.01, 0.1, 1.0)  # of the way, at which the noise in iterates counts, too
_POLISHES = 20  # forecasts in full that choose the step
_RESTRAINTS = (0.3, 0.1, 0.03, 0.01, 0.003)  # weights of the noise in iterates, relative to that in their mean


class Plan(NamedTuple):
    """CorrelatedSGD with one matrix of noise.

    Attributes
    ----------
    sampling : str
        "single-pass", or "cyclic" for several passes.
    noise : Correlated
        The noise that the budget requires at clip one.
    tables : list of (Constant or InverseTime, callable)
        Step sizes that begin with 1, and their `response_table`.
    """

    sampling: str
    noise: Correlated
    tables: list[tuple[Constant | InverseTime, Callable[[Array], tuple[Array, Array]]]]

    def rule(self, step: Constant | InverseTime, clip: float, batch: int) -> Rule:
        """Return the rule with this step and clip.

        Parameters
        ----------
        step : Constant or InverseTime
            The step sizes.
        clip : float
            The clip, which the noise is multiplied by.
        batch : int
            The number of records per step.

        Returns
        -------
        Rule
            The rule.
        """
        return CorrelatedSGD(step, clip, self.noise.std * clip, batch, self.sampling, buffers=self.noise.buffers)


def plan_of(task: TuningTask, buffers: Array | None = None) -> Plan:
    """Calibrate CorrelatedSGD at clip one, by default with the square root, and tabulate what its noise adds."""
    pairs = square_root(task.steps) if buffers is None else buffers
    sampling, noise = _calibrated(task, pairs)
    steps: list[Constant | InverseTime] = [Constant(1.0)]
    steps += [InverseTime(fall * task.steps + 1.0, fall * task.steps) for fall in _FALLS]
    tables = [(step, response_table(step, task.steps, pairs, _slots(task))) for step in steps]
    return Plan(sampling, noise, tables)


class _Calibrated(NamedTuple):
    """How records are drawn, and the noise that the budget requires at clip one."""

    sampling: str
    noise: Correlated


def _calibrated(task: TuningTask, buffers: Array) -> _Calibrated:
    sampling = "single-pass" if task.steps * task.batch <= task.problem.records else "cyclic"
    rule = task.calibrated(CorrelatedSGD(Constant(1.0), 1.0, 1.0, task.batch, sampling, buffers=buffers))
    assert isinstance(rule.noise, Correlated)
    return _Calibrated(sampling, rule.noise)


def correlated_option(task: TuningTask, plan: Plan, path: MeanPath) -> Option:
    """Return CorrelatedSGD at the threshold of a path, with its best step of a grid and then between its points.

    Parameters
    ----------
    task : TuningTask
        The task.
    plan : Plan
        The matrix of noise, and its tables.
    path : MeanPath
        The mean path of one threshold.

    Returns
    -------
    Option
        The rule and its forecast.
    """
    logs = np.linspace(np.log(task.fastest / task.steps), np.log(task.fastest), _FIRSTS)
    width = logs[1] - logs[0] if logs[-1] > logs[0] else 1.0
    found = [(_expected(task, plan, path, k, log).gap, k, log) for k in range(len(plan.tables)) for log in logs]
    _, k, log = min(found)
    limits = (log - width, min(log + width, float(np.log(task.fastest))))
    log = minimize_scalar(lambda at: _expected(task, plan, path, k, at).gap, bounds=limits, method="bounded").x
    rule = plan.rule(_begun(plan.tables[k][0], log), path.clip, task.batch)
    return Option(rule, _expected(task, plan, path, k, log))


def refitted(task: TuningTask, option: Option, paths: Sequence[MeanPath]) -> Option:
    """Fit the matrix of noise to an option's step, choose step and threshold again, and forecast the winner in full.

    Parameters
    ----------
    task : TuningTask
        The task.
    option : Option
        The best option with the square root.
    paths : sequence of MeanPath
        One per threshold.

    Returns
    -------
    Option
        The best of all matrices that were tried.
    """
    path = _path_of(paths, option.rule)
    assert isinstance(option.rule.step, Constant | InverseTime)  # a step of the grid
    rates, _ = tail_directions(path, option.rule.step, task.steps)
    found = [_in_full(task, option.rule, path)]
    for restraint in _RESTRAINTS:
        noise = fitted_noise(task, option.rule, rates, restraint)
        rule = replace(option.rule, noise=noise._replace(std=noise.std * path.clip))
        found.append(_in_full(task, rule, path))
    best = min(found, key=lambda one: one.forecast.gap)
    assert isinstance(best.rule.noise, Correlated)
    plan = plan_of(task, best.rule.noise.buffers)
    again = min((correlated_option(task, plan, one) for one in paths), key=lambda one: one.forecast.gap)
    best = min(best, _in_full(task, again.rule, _path_of(paths, again.rule)), key=lambda one: one.forecast.gap)
    return _polish(task, best, _path_of(paths, best.rule))


def _polish(task: TuningTask, option: Option, path: MeanPath) -> Option:
    """Return the same threshold and matrix with the best falling step by forecasts in full.

    Tables know the noise in the mean alone. Where the field is not linear, single iterates must not wander far.
    """
    found = [option]

    def cost(at: Array) -> float:
        first, later = np.exp(at)
        if first > task.fastest:
            return np.inf
        step = InverseTime(float(first * (later * task.steps + 1.0)), float(later * task.steps))
        found.append(_in_full(task, replace(option.rule, step=step), path))
        return found[-1].forecast.gap

    step = option.rule.step
    later = step.a1 / task.steps if isinstance(step, InverseTime) else 3.0 * max(_FALLS)
    begin = np.log([size(step, 1), max(later, min(_FALLS))])
    simplex = begin + np.array([[0.0, 0.0], [-0.7, 0.0], [0.0, -1.0]])
    minimize(cost, begin, method="Nelder-Mead", options={"maxfev": _POLISHES, "initial_simplex": simplex})
    return min(found, key=lambda one: one.forecast.gap)


def _in_full(task: TuningTask, rule: Rule, path: MeanPath) -> Option:
    """Forecast a rule along its path, without a table."""
    assert isinstance(rule.noise, Correlated)
    assert isinstance(rule.step, Constant | InverseTime)  # a step of the grid
    about = (rule.step, task.steps, rule.noise, task.batch, task.problem)
    return Option(rule, correlated_forecast(path, task.target, *about))


def fitted_noise(task: TuningTask, rule: Rule, rates: Array, restraint: float) -> Correlated:
    """Return noise for clip one, calibrated to the budget, with a fitted matrix.

    Parameters
    ----------
    task : TuningTask
        The task.
    rule, rates, restraint
        As in `fitted_buffers`.

    Returns
    -------
    Correlated
        The noise.
    """
    return _calibrated(task, fitted_buffers(rule, task.problem.records, task.steps, rates, restraint)).noise


def fitted_buffers(rule: Rule, records: int, steps: int, rates: Array, restraint: float) -> Array:
    """Return the matrix of noise that leaves the least in a rule's output, the mean of the last half of its iterates.

    Parameters
    ----------
    rule : Rule
        A CorrelatedSGD, whose step and sampling are used.
    records, steps : int
        m and T.
    rates : array of shape (d,)
        How fast deviations decay where the run ends.
    restraint : float
        Weight of the noise in single iterates. With none, iterates may wander off as far as they like if only later
        ones return; but the field is not linear that far, and the mean is then drawn away from where it should be.

    Returns
    -------
    array of shape (k, 2)
        The buffers.
    """
    chosen = np.quantile(rates, np.linspace(0.0, 1.0, min(rates.size, _DIRECTIONS)))
    responses = [average_response(rule.step, rate, steps, steps // 2) for rate in chosen]
    times = [max(round(part * steps), 1) for part in _ITERATES]
    responses += [restraint * _iterate_response(rule.step, rate, t, steps) for rate in chosen for t in times]
    taken, apart = participations(rule.sampling, records, steps), separation(rule.sampling, records)
    assert taken is not None
    assert apart is not None
    return fit(np.stack(responses), taken, apart)


def _iterate_response(step: Schedule, rate: float, t: int, steps: int) -> Array:
    """Return how much the noise of each step moves iterate t."""
    return np.append(average_response(step, rate, t, t - 1), np.zeros(steps - t))


def _path_of(paths: Sequence[MeanPath], rule: Rule) -> MeanPath:
    return next(path for path in paths if path.clip == rule.clip.threshold)  # type: ignore[attr-defined]


def _expected(task: TuningTask, plan: Plan, path: MeanPath, k: int, log_first: float) -> Forecast:
    """Forecast a run by the k-th table."""
    unit, energies = plan.tables[k]
    step = _begun(unit, log_first)
    first = size(step, 1)
    rates, variances = tail_directions(path, step, task.steps)
    noises, uneven = energies(first * rates)
    return Forecast(
        tail_bias(path, task.target, step, task.steps),
        float(first**2 * (variances @ uneven)) / task.batch,
        float(noises.sum()) * (first * plan.noise.std * path.clip) ** 2,
    )


def _begun(unit: Constant | InverseTime, log_first: float) -> Constant | InverseTime:
    """Return step sizes that begin with 1, multiplied by exp(log_first)."""
    first = float(np.exp(log_first))
    return Constant(first) if isinstance(unit, Constant) else InverseTime(first * unit.a0, unit.a1)


def _slots(task: TuningTask) -> int:
    """Return the number of batches per pass."""
    return -(-task.problem.records // task.batch)
