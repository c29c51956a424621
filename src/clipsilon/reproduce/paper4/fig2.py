"""Paper 4, Fig. 2: distances on the linear problem."""

from __future__ import annotations

import numpy as np

from clipsilon.engine import Trace
from clipsilon.report.charts import Array, Table
from clipsilon.reproduce.base import Finding, Lab, Result, experiment
from clipsilon.reproduce.numbers import slope
from clipsilon.reproduce.paper4.setting import (
    CONVERGING,
    DECAYS,
    LATE,
    NAMES,
    PARAMETERS,
    Case,
    Ends,
    Traces,
    budgets,
    distance_charts,
    ends,
    ends_table,
    falls,
    grid,
    power,
)
from clipsilon.theory.local import rates

_CASE = Case("linear", 5)
_SPARE = 0.2  # a slope may be that much less steep than its rate


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
    """How the steps shrink decides which estimator wins. With slow decay (α = 1/3) the average is far closer to the
    truth; at 2/3 it still carries the start with it, and the last model is closer; with α = 1 neither arrives.
    """
    traces = grid(lab, _CASE)
    found = ends(traces, _CASE)
    slopes = {(decay, of): _slope(traces[decay, 2.0], of) for decay in DECAYS for of in NAMES}
    findings = [
        _comparison("For α < 1/2 the average ends closer than the last iterate, at every budget.", found, 1 / 3, 1),
        _comparison("For α of 2/3 and more the average is behind the last iterate.", found, 2 / 3, -1),
        _stuck(slopes),
        _budgets(found, budgets(lab)),
        _last_rate(slopes),
        _average_rate(traces),
        _scale_rate(traces[1 / 3, 2.0]),
    ]
    tables = [ends_table("Mean squared distance after the last user", found), _slope_table(slopes)]
    return Result(findings, distance_charts(traces, _CASE), tables)


def _comparison(says: str, found: Ends, decay: float, sign: int) -> Finding:
    """Whether the average is closer (sign 1) or farther (−1) in the end, at every budget."""
    mine = {(budget, of): end for (at, budget, of), end in found.items() if at == decay}
    ratios = [end / mine[budget, "average"] for (budget, of), end in mine.items() if of == "theta"]
    measured = f"α = {DECAYS[decay]}: last over average is {min(ratios):.3g} to {max(ratios):.3g}"
    return Finding(says, measured, all(sign * np.log(ratio) > 0 for ratio in ratios))


def _stuck(slopes: dict[tuple[float, str], float]) -> Finding:
    shown = ", ".join(f"{NAMES[of]} {power(slopes[1.0, of])}" for of in NAMES)
    return Finding(
        "With α = 1 neither estimator converges.",
        f"over the last two decades of users, at μ = 2: {shown}",
        all(slopes[1.0, of] > -0.15 for of in NAMES),
        "Neither has stopped: the sum of the steps grows like a logarithm, and so does the way that they go.",
    )


def _budgets(found: Ends, crowds: tuple[float | None, ...]) -> Finding:
    rows = [[found[decay, budget, of] for budget in crowds] for decay in DECAYS for of in NAMES]
    return Finding(
        "A smaller privacy budget μ means a larger distance.",
        f"the ends are in the order of the budgets in {sum(map(falls, rows))} of {len(rows)} cases",
        all(map(falls, rows)),
    )


def _printed(decay: float, output: str) -> float:
    return next(rate.printed for rate in rates(decay) if rate.strongly_convex and rate.output == output)


def _last_rate(slopes: dict[tuple[float, str], float]) -> Finding:
    shown = ", ".join(f"{power(slopes[decay, 'theta'])} (α = {DECAYS[decay]})" for decay in CONVERGING)
    return Finding(
        "Table 1: the squared distance of the last iterate is of order n^(−α).",
        f"at μ = 2: {shown}",
        all(slopes[decay, "theta"] <= -_printed(decay, "last") + _SPARE for decay in CONVERGING),
    )


def _average_rate(traces: Traces) -> Finding:
    beta = {decay: _coefficients_slope(traces[decay, 2.0]) for decay in CONVERGING}
    return Finding(
        "Table 1: the squared distance of the average is of order n^(−1) for α ≤ 1/2, and n^(−2(1−α)) above: the "
        "coefficients β.",
        "at μ = 2: " + ", ".join(f"{power(beta[decay])} (α = {DECAYS[decay]})" for decay in CONVERGING),
        all(beta[decay] <= -_printed(decay, "average") + _SPARE for decay in CONVERGING),
    )


def _scale_rate(trace: Trace) -> Finding:
    """A variance of order 1/n leaves any slower bias behind, which then is nearly all of the mean square."""
    assert trace.average is not None
    off = trace.average[:, trace.iterations >= LATE, -1] - _CASE.truth[-1]
    share = off.mean(axis=0) ** 2 / (off**2).mean(axis=0)
    error = off[:, -1].std(ddof=1) / np.sqrt(len(off))
    return Finding(
        "The same for the scale σ, at α = 1/3.",
        f"its average is off by {off[:, -1].mean():.3f} ± {error:.3f} after the last user; this bias is "
        f"{100 * share[0]:.0f} % of the mean square a hundredth of the way, and {100 * share[-1]:.0f} % in the end",
        bool(share[-1] < 0.3),
        "The loss is curved, and the average keeps a bias whose square falls like n^(−2α) only. With it the whole of θ "
        f"falls as {power(_slope(trace, 'average'))}, and ever slower (errata, item 10).",
    )


def _slope(trace: Trace, of: str) -> float:
    return slope(trace.iterations, trace.gap(_CASE.truth, of).mean(axis=0), LATE)


def _coefficients_slope(trace: Trace) -> float:
    assert trace.average is not None
    off: Array = (trace.average - _CASE.truth)[:, :, :-1]
    return slope(trace.iterations, (off**2).sum(axis=2).mean(axis=0), LATE)


def _slope_table(slopes: dict[tuple[float, str], float]) -> Table:
    """Measured exponents beside those that can be proven and those that are printed, where the theorems apply."""
    rows = []
    for decay in CONVERGING:
        for rate, of in zip(rates(decay)[:2], NAMES, strict=True):
            rows.append([f"α = {DECAYS[decay]}, {NAMES[of]}", slopes[decay, of], -rate.exponent, -rate.printed])
    return Table("Exponents of n at μ = 2", ["setting", "measured", "proven", "printed"], rows)
