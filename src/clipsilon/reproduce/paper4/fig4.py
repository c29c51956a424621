"""Paper 4, Fig. 4: losses on the logistic problem."""

from __future__ import annotations

import numpy as np
from scipy.special import expit

from clipsilon.analysis.metrics import performative_risk
from clipsilon.engine import Trace
from clipsilon.problems.problem import Problem
from clipsilon.report.charts import Array, Table
from clipsilon.reproduce.base import Finding, Lab, Result, experiment
from clipsilon.reproduce.numbers import slope
from clipsilon.reproduce.paper4.runs import (
    CONVERGING,
    DECAYS,
    LATE,
    NAMES,
    PARAMETERS,
    Regression,
    chart_by_users,
    format_power,
    grid,
)
from clipsilon.theory.local import rates

_CASE = Regression("logistic", 5)
_EVALUATED = 1000  # records
_EVERY = 4  # one in four recorded models is evaluated
_TOLERANCE = 0.15  # a fitted slope may be less steep than the stated rate by this much


@experiment(
    "paper4-fig4",
    paper=4,
    where="Fig. 4, Table 1 (not strongly convex)",
    title="Logistic regression under local privacy: losses",
    parameters={
        "problem": "logistic regression, d = 5, Mallows weights",
        **PARAMETERS,
        "replicates": "200 (quick: 16)",
        "loss": f"mean over {_EVALUATED:,} records with the true label probabilities, minus the loss of the truth",
    },
)
def losses(lab: Lab) -> Result:
    """Without strong convexity the theorems are about the loss. Averaging helps if the steps shrink slowly. If they
    shrink fast (α = 2/3), the average still contains the start, and is the worse of the two.
    """
    traces = grid(lab, _CASE)
    users = next(iter(traces.values())).iterations[::-_EVERY][::-1]
    models = {(*cell, of): kept for cell, trace in traces.items() for of, kept in _recorded(trace).items()}
    excess = {key: lab.keep(_excess, kept) for key, kept in models.items()}
    slopes = {(decay, of): slope(users, excess[decay, 2.0, of], LATE) for decay in CONVERGING for of in NAMES}
    findings = [_faster(slopes), _behind(excess), _rates(slopes)]
    charts = [
        chart_by_users(
            f"α = {name}",
            "mean F(θ) − F(θ*)",
            {(budget, of): (users, excess[at, budget, of]) for at, budget, of in excess if at == decay},
        )
        for decay, name in DECAYS.items()
    ]
    rows = [(f"α = {DECAYS[d]}, {NAMES[of]}", slopes[d, of], -_rate(d, of)) for d in CONVERGING for of in NAMES]
    return Result(findings, charts, [Table("Exponents of n at μ = 2", ["case", "measured", "Table 1"], rows)])


def _recorded(trace: Trace) -> dict[str, Array]:
    """Return the models to evaluate, (replicates, K, d), including the last ones."""
    assert trace.average is not None
    return {"theta": trace.theta[:, ::-_EVERY][:, ::-1], "average": trace.average[:, ::-_EVERY][:, ::-1]}


def _excess(models: Array) -> Array:
    """Return F(θ) − F(θ*) at each recorded time, averaged over replicates.

    Both labels of each record count, weighted by their probabilities. So the truth minimises the loss on these
    records, too, and no estimation error is subtracted.
    """
    x = _CASE.problem.features[:_EVALUATED]
    probability = expit(x @ _CASE.truth)
    both, labels = np.vstack([x, x]), np.repeat([1.0, 0.0], _EVALUATED)
    evaluation = Problem(both, labels, loss=_CASE.problem.loss, weights=2 * np.append(probability, 1 - probability))
    risks = performative_risk(evaluation, models) - performative_risk(evaluation, _CASE.truth)
    return np.asarray(risks.mean(axis=0))


def _rate(decay: float, of: str) -> float:
    output = {"theta": "last", "average": "average"}[of]
    return next(rate.printed for rate in rates(decay) if not rate.strongly_convex and rate.output == output)


def _faster(slopes: dict[tuple[float, str], float]) -> Finding:
    slower = [decay for decay in CONVERGING if slopes[decay, "average"] >= slopes[decay, "theta"]]
    shown = [
        f"{format_power(slopes[d, 'average'])} against {format_power(slopes[d, 'theta'])} (α = {DECAYS[d]})"
        for d in CONVERGING
    ]
    names = ", ".join(f"α = {DECAYS[decay]}" for decay in slower)
    return Finding(
        "For any α in (0, 1) the loss of the average falls faster than the loss of the last iterate.",
        f"Average against last, at μ = 2: {', '.join(shown)}.",
        not slower,
        f"It does not for {names}: from 2/3 on, Theorems 5 and 6 state the same rate for both." if slower else "",
    )


def _behind(excess: dict[tuple[float, float | None, str], Array]) -> Finding:
    ratios = [e[-1] / excess[d, mu, "theta"][-1] for (d, mu, of), e in excess.items() if d == 2 / 3 and of == "average"]
    return Finding(
        "For α > 1/2 the average may end with the larger loss.",
        f"For α = 2/3 the ratio of average to last is {min(ratios):.2f} to {max(ratios):.2f}.",
        min(ratios) > 1,
    )


def _rates(slopes: dict[tuple[float, str], float]) -> Finding:
    margin = min(-_rate(decay, of) - slope for (decay, of), slope in slopes.items())
    return Finding(
        "Theorems 5 and 6: the loss of the last iterate falls at least as fast as n^(−(3α−1)/2) for α ≤ 1/2 and "
        "n^(−α/2) for α ≤ 2/3, and the loss of the average as n^(−α) and n^(−(1−α)).",
        f"At μ = 2 the loss falls faster than stated; the exponents differ by at least {margin:.2f}."
        if margin > 0
        else f"At μ = 2 a measured exponent is less steep than stated by {-margin:.2f}.",
        margin > -_TOLERANCE,
        "The bound of Theorem 5 is wrong in its units; its rate is right (errata, item 11).",
    )
