"""What several of paper 1's figures measure."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from clipsilon.analysis.fixed_points import stable_point
from clipsilon.engine import Trace
from clipsilon.engine.sweep import Run
from clipsilon.privacy.calibration import calibrate
from clipsilon.problems.problem import Problem
from clipsilon.report.charts import Array, Chart, Series
from clipsilon.reproduce.base import Finding, Lab, Result
from clipsilon.reproduce.numbers import listed
from clipsilon.rules.presets import PCSGD, DiceSGD
from clipsilon.rules.rule import Rule
from clipsilon.rules.schedules import InverseTime


def papers_rules(step: Any, clip: float, epsilon: float, records: int, steps: int) -> dict[str, Rule]:
    """PCSGD and DiceSGD with C1 = C2 = `clip` and the noise that paper 1 prescribes at δ = 1/m: σ_DP and √96·σ_DP."""
    rules = (PCSGD(step, clip, 1.0), DiceSGD(step, clip, clip, 1.0))
    about = (epsilon, 1 / records, records, steps)
    return {rule.name: calibrate(rule, *about, how="paper") for rule in rules}


def densely(steps: int, count: int = 200) -> list[int]:
    """Iterations from 1 to `steps` in equal ratios."""
    return sorted({round(t) for t in np.geomspace(1, steps, count)})


def decade_means(iterations: Any, values: Array, first: int = 100) -> list[float]:
    """Means of the values over each decade from iteration `first` on, the last one up to the end."""
    times = np.asarray(iterations)
    decades = range(round(math.log10(first)), math.ceil(math.log10(times[-1])))
    means = [values[(times >= 10**k) & (times <= 10 ** (k + 1))].mean() for k in decades]
    return [float(mean) for mean in means]


def _resting(problem: Problem, clip: float) -> Run:
    """DiceSGD with θ held at θ_PS: its error settles at the level that it has once a run has converged."""
    rule = DiceSGD(InverseTime(1e-30, 0), clip, clip, 0.0)  # the kernel that the other runs have compiled
    return Run(problem, rule, 20_000, stable_point(problem).theta, 100, record=list(range(10_000, 20_001, 100)))


def _resting_level(trace: Trace) -> float:
    """The mean of ‖e‖² of such a run."""
    return float(np.mean(trace.error_norm() ** 2))


def _error_lines(traces: dict[str, Trace], level: float, width: int = 10) -> list[Series]:
    """‖e_t‖² of each, averaged over replicates and `width` records in a row; and the level at which it rests."""
    lines = []
    for name, trace in traces.items():
        parts = range(0, trace.iterations.size - width + 1, width)
        squares = trace.error_norm() ** 2
        times = [float(np.median(trace.iterations[k : k + width])) for k in parts]
        lines.append(Series(name, times, [float(squares[:, k : k + width].mean()) for k in parts]))
    return [*lines, Series("level with θ held at θ_PS", [1, int(trace.iterations[-1])], [level] * 2, kind="dashed")]


def memory(lab: Lab, traces: dict[float, Trace], problem: Callable[[float], Problem], spare: float) -> Result:
    """Whether what DiceSGD remembers stays bounded, from its run at each β, with C2 = 1 (Assumption 4.1).

    Bounded means that the last decade is at most `spare` times the level at which the error rests once θ does.
    """
    betas = list(traces)
    squares = [trace.error_norm() ** 2 for trace in traces.values()]
    levels = [_resting_level(trace) for trace in lab.sweep([_resting(problem(beta), 1.0) for beta in betas])]
    ends = [decade_means(traces[betas[0]].iterations, each.mean(axis=0))[-1] for each in squares]
    finding = Finding(
        "‖e_t‖² is bounded at each step (Assumption 4.1).",
        f"Its mean over the last decade is {listed(ends)} for β = {listed(betas)}. With θ held at θ_PS it settles at "
        f"{listed(levels)}. The largest ‖e_t‖ that was seen is {max(each.max() for each in squares) ** 0.5:.3g}.",
        all(end <= spare * level for end, level in zip(ends, levels, strict=True)),
    )
    lines = _error_lines({f"β = {beta:g}": trace for beta, trace in traces.items()}, levels[-1])
    return Result([finding], [Chart("DiceSGD", "iteration t", "mean of ‖e_t‖²", lines, x_log=True, y_log=True)])
