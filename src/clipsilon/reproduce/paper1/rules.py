"""The rules of paper 1's experiments, and measurements that several of its figures share."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from clipsilon.analysis.fixed_points import stable_point
from clipsilon.engine import Trace
from clipsilon.engine.sweep import Run
from clipsilon.privacy.calibration import calibrate
from clipsilon.problems.problem import Problem
from clipsilon.report.charts import Array, Chart, Series
from clipsilon.reproduce.base import Finding, Lab, Result
from clipsilon.reproduce.numbers import join
from clipsilon.rules.presets import PCSGD, DiceSGD
from clipsilon.rules.rule import Rule
from clipsilon.rules.schedules import InverseTime, Schedule


def papers_rules(step: Schedule, clip: float, epsilon: float, records: int, steps: int) -> dict[str, Rule]:
    """Return PCSGD and DiceSGD with the noise that paper 1 prescribes at δ = 1/m: σ_DP and √96·σ_DP.

    Parameters
    ----------
    step : Schedule
        Step sizes.
    clip : float
        C1 and C2.
    epsilon : float
        The claimed ε.
    records, steps : int
        m and T.

    Returns
    -------
    dict of str to Rule
        By name.
    """
    rules = (PCSGD(step, clip, 1.0), DiceSGD(step, clip, clip, 1.0))
    return {rule.name: calibrate(rule, epsilon, 1 / records, records, steps, how="paper") for rule in rules}


def geometric_times(steps: int, count: int = 200) -> list[int]:
    """Return up to `count` iterations from 1 to `steps` in equal ratios."""
    return sorted({round(t) for t in np.geomspace(1, steps, count)})


def decade_means(iterations: ArrayLike, values: Array, first: int = 100) -> list[float]:
    """Return the means of the values over each decade from iteration `first` on.

    Parameters
    ----------
    iterations : array_like of shape (K,)
        Increasing numbers.
    values : ndarray of shape (K,)
        One value per iteration.
    first : int, default 100
        A power of ten.

    Returns
    -------
    list of float
        One mean per decade; the last decade may be incomplete.
    """
    times = np.asarray(iterations)
    decades = range(round(math.log10(first)), math.ceil(math.log10(times[-1])))
    means = [values[(times >= 10**k) & (times <= 10 ** (k + 1))].mean() for k in decades]
    return [float(mean) for mean in means]


def _resting(problem: Problem, clip: float) -> Run:
    """Return a run of DiceSGD with θ held at θ_PS, whose error reaches the level of a converged run."""
    rule = DiceSGD(InverseTime(1e-30, 0), clip, clip, 0.0)  # uses the kernel that the other runs have compiled
    return Run(problem, rule, 20_000, stable_point(problem).theta, 100, record=list(range(10_000, 20_001, 100)))


def _resting_level(trace: Trace) -> float:
    """Return the mean of ‖e‖² in such a run."""
    return float(np.mean(trace.error_norm() ** 2))


def _error_lines(traces: dict[str, Trace], level: float, width: int = 10) -> list[Series]:
    """Return ‖e_t‖² of each trace, averaged over replicates and `width` recorded times, and the resting level."""
    lines = []
    for name, trace in traces.items():
        parts = range(0, trace.iterations.size - width + 1, width)
        squares = trace.error_norm() ** 2
        times = [float(np.median(trace.iterations[k : k + width])) for k in parts]
        lines.append(Series(name, times, [float(squares[:, k : k + width].mean()) for k in parts]))
    return [*lines, Series("level with θ held at θ_PS", [1, int(trace.iterations[-1])], [level] * 2, kind="dashed")]


def error_bound(lab: Lab, traces: dict[float, Trace], problem: Callable[[float], Problem], factor: float) -> Result:
    """Test whether the accumulated error of DiceSGD stays bounded, with C2 = 1 (Assumption 4.1).

    Parameters
    ----------
    lab : Lab
        Where further runs are made.
    traces : dict of float to Trace
        The run of DiceSGD at each β.
    problem : callable
        Returns the problem at a given β.
    factor : float
        The error counts as bounded if its mean over the last decade is at most this multiple of the level that it
        has with θ held at θ_PS.

    Returns
    -------
    Result
        One finding and one chart.
    """
    betas = list(traces)
    squares = [trace.error_norm() ** 2 for trace in traces.values()]
    levels = [_resting_level(trace) for trace in lab.sweep([_resting(problem(beta), 1.0) for beta in betas])]
    ends = [decade_means(traces[betas[0]].iterations, each.mean(axis=0))[-1] for each in squares]
    finding = Finding(
        "‖e_t‖² is bounded at each step (Assumption 4.1).",
        f"Its mean over the last decade is {join(ends)} for β = {join(betas)}. With θ held at θ_PS it is "
        f"{join(levels)}. The largest ‖e_t‖ observed is {max(each.max() for each in squares) ** 0.5:.3g}.",
        all(end <= factor * level for end, level in zip(ends, levels, strict=True)),
    )
    lines = _error_lines({f"β = {beta:g}": trace for beta, trace in traces.items()}, levels[-1])
    return Result([finding], [Chart("DiceSGD", "iteration t", "mean of ‖e_t‖²", lines, x_log=True, y_log=True)])
