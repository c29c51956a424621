"""Paper 4, Fig. 2: distances on the linear problem."""

from __future__ import annotations

import numpy as np

from clipsilon.engine import Trace
from clipsilon.report.charts import Array, Cell, Table
from clipsilon.reproduce.base import Finding, Lab, Result, experiment
from clipsilon.reproduce.numbers import slope
from clipsilon.reproduce.paper4.runs import (
    CONVERGING,
    DECAYS,
    LATE,
    NAMES,
    PARAMETERS,
    Ends,
    Regression,
    Traces,
    budgets,
    distance_charts,
    ends,
    ends_table,
    format_power,
    grid,
    is_decreasing,
)
from clipsilon.theory.local import rates

_CASE = Regression("linear", 5)
_TOLERANCE = 0.2  # a fitted slope may be less steep than the stated rate by this much


@experiment(
    "paper4-fig2",
    paper=4,
    where="Fig. 2, Table 1 (strongly convex)",
    title="Linear regression under local privacy",
    parameters={
        "problem": "linear regression, d = 5, Huber's loss with c = 1.345 and its scale σ",
        **PARAMETERS,
        "replicates": "200 (quick: 16)",
    },
)
def distances(lab: Lab) -> Result:
    """How fast the steps shrink determines which estimator is better. With slow decay (α = 1/3) the average is far
    closer to the truth; with α = 2/3 it still contains the start, and the last model is closer; with α = 1 neither
    converges.
    """
    traces = grid(lab, _CASE)
    found = ends(traces, _CASE)
    slopes = {(decay, of): _slope(traces[decay, 2.0], of) for decay in DECAYS for of in NAMES}
    findings = [
        _comparison("For α < 1/2 the average ends closer than the last iterate, at every budget.", found, 1 / 3, 1),
        _comparison("For α ≥ 2/3 the average ends farther away than the last iterate.", found, 2 / 3, -1),
        _stuck(slopes),
        _budgets(found, budgets(lab)),
        _last_rate(slopes),
        _average_rate(traces),
        _scale_rate(traces[1 / 3, 2.0]),
    ]
    tables = [ends_table("Mean squared distance after the last user", found), _slope_table(slopes)]
    return Result(findings, distance_charts(traces, _CASE), tables)


def _comparison(statement: str, found: Ends, decay: float, sign: int) -> Finding:
    """Test whether the average ends closer (sign 1) or farther away (sign −1) at every budget."""
    mine = {(budget, of): end for (at, budget, of), end in found.items() if at == decay}
    ratios = [end / mine[budget, "average"] for (budget, of), end in mine.items() if of == "theta"]
    measured = f"α = {DECAYS[decay]}: the ratio of last to average is {min(ratios):.3g} to {max(ratios):.3g}."
    return Finding(statement, measured, all(sign * np.log(ratio) > 0 for ratio in ratios))


def _stuck(slopes: dict[tuple[float, str], float]) -> Finding:
    shown = " and ".join(f"{format_power(slopes[1.0, of])} ({NAMES[of]})" for of in NAMES)
    return Finding(
        "With α = 1 neither estimator converges.",
        f"Over the last two decades of users, at μ = 2, the squared distances fall as {shown}.",
        all(slopes[1.0, of] > -0.15 for of in NAMES),
        "Neither has stopped moving: the sum of the steps grows like a logarithm, and so does the distance covered.",
    )


def _budgets(found: Ends, budgets_tried: tuple[float | None, ...]) -> Finding:
    rows = [[found[decay, budget, of] for budget in budgets_tried] for decay in DECAYS for of in NAMES]
    return Finding(
        "A smaller privacy budget μ means a larger distance.",
        f"The distances fall as the budget grows in {sum(map(is_decreasing, rows))} of {len(rows)} cases.",
        all(map(is_decreasing, rows)),
    )


def _printed(decay: float, output: str) -> float:
    return next(rate.printed for rate in rates(decay) if rate.strongly_convex and rate.output == output)


def _last_rate(slopes: dict[tuple[float, str], float]) -> Finding:
    shown = ", ".join(f"{format_power(slopes[decay, 'theta'])} (α = {DECAYS[decay]})" for decay in CONVERGING)
    return Finding(
        "Table 1: the squared distance of the last iterate is of order n^(−α).",
        f"At μ = 2 it falls as {shown}.",
        all(slopes[decay, "theta"] <= -_printed(decay, "last") + _TOLERANCE for decay in CONVERGING),
    )


def _average_rate(traces: Traces) -> Finding:
    beta = {decay: _coefficients_slope(traces[decay, 2.0]) for decay in CONVERGING}
    return Finding(
        "Table 1: for the coefficients β, the squared distance of the average is of order n^(−1) for α ≤ 1/2, and "
        "n^(−2(1−α)) above.",
        f"At μ = 2 it falls as {', '.join(f'{format_power(beta[at])} (α = {DECAYS[at]})' for at in CONVERGING)}.",
        all(beta[decay] <= -_printed(decay, "average") + _TOLERANCE for decay in CONVERGING),
    )


def _scale_rate(trace: Trace) -> Finding:
    """Test for a bias that falls more slowly than the variance and so dominates the mean square in the end."""
    assert trace.average is not None
    off = trace.average[:, trace.iterations >= LATE, -1] - _CASE.truth[-1]
    fraction = off.mean(axis=0) ** 2 / (off**2).mean(axis=0)
    error = off[:, -1].std(ddof=1) / np.sqrt(len(off))
    return Finding(
        "Table 1: for the scale σ at α = 1/3, too, the squared distance of the average is of order n^(−1).",
        f"After the last user its average deviates by {off[:, -1].mean():.3f} ± {error:.3f}; this bias makes up "
        f"{100 * fraction[0]:.0f} % of the mean square after a hundredth of the users, and {100 * fraction[-1]:.0f} % "
        "at the end.",
        bool(fraction[-1] < 0.3),
        "The loss is not quadratic, and the average keeps a bias whose square falls only as n^(−2α). With it, the "
        f"squared distance of the whole of θ falls as {format_power(_slope(trace, 'average'))}, and ever more slowly "
        "(errata, item 10).",
    )


def _slope(trace: Trace, of: str) -> float:
    return slope(trace.iterations, trace.gap(_CASE.truth, of).mean(axis=0), LATE)


def _coefficients_slope(trace: Trace) -> float:
    assert trace.average is not None
    off: Array = (trace.average - _CASE.truth)[:, :, :-1]
    return slope(trace.iterations, (off**2).sum(axis=2).mean(axis=0), LATE)


def _slope_table(slopes: dict[tuple[float, str], float]) -> Table:
    """Return the measured exponents beside the proven and the printed ones, where the theorems apply."""
    rows: list[tuple[Cell, ...]] = []
    for decay in CONVERGING:
        for rate, of in zip(rates(decay)[:2], NAMES, strict=True):
            rows.append((f"α = {DECAYS[decay]}, {NAMES[of]}", slopes[decay, of], -rate.exponent, -rate.printed))
    return Table("Exponents of n at μ = 2", ["case", "measured", "proven", "printed"], rows)
