"""Paper 5, Theorem D.4: what aggressive clipping costs."""

from __future__ import annotations

import math

import numpy as np

from clipsilon.analysis.metrics import performative_risk
from clipsilon.engine.sweep import Run
from clipsilon.report.charts import Chart, Series, Table
from clipsilon.reproduce.base import Finding, Lab, Result, experiment
from clipsilon.rules.presets import DPGD, ClippedDPGD
from clipsilon.rules.rule import Rule
from clipsilon.rules.schedules import Constant
from clipsilon.theory import glm, instances

_COPIES, _EPSILON, _DELTA = 1000, 1.0, 1e-5
_CLIPS = (0.5, 0.4, 0.3, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001)


@experiment(
    "paper5-aggressive",
    paper=5,
    where="Theorem D.4, section 5.3",
    title="The price of aggressive clipping is unbounded",
    parameters={
        "data": f"{2 * _COPIES:,} records (½, label 1) and {_COPIES:,} records (1, label 0): L = 1, θ* = 0",
        "privacy": f"ε = {_EPSILON:g}, δ = {_DELTA:g}, certified, full batches",
        "steps": "2,000 of size 1/B (quick: 1,000)",
        "replicates": "5 (quick: 2)",
    },
)
def aggressive(lab: Lab) -> Result:
    """The gradients of the two kinds of records balance at θ = 0. A clip B < ½ shortens the longer gradients of one
    kind only: descent drifts to 2·log(1/B − 1). The price is exact, is paid even without noise,
    and grows as log(1/B) without bound.
    """
    steps, replicates = (1000, 2) if lab.quick else (2000, 5)
    cases = [instances.aggressive_clipping(clip, _COPIES) for clip in _CLIPS]
    problem = cases[0].problem
    runs = [Run(problem, rule, steps, replicates=replicates, record=[steps]) for rule in _rules(problem.records, steps)]
    least = performative_risk(problem, np.zeros(1))
    *found, plain = (float(performative_risk(problem, trace.output).mean() - least) for trace in lab.sweep(runs))
    exact = [case.excess_risk for case in cases]
    unclipped = Finding(
        "Private descent without clipping (B = L = 1) solves the same problem.",
        f"Its excess risk is {plain:.2g}, compared with {found[-1]:.2g} at B = {_CLIPS[-1]:g}.",
        plain < 0.01,
    )
    x = [1 / clip for clip in _CLIPS]
    series = [Series("private clipped descent", x, found, kind="points"), Series("exact", x, exact, kind="dashed")]
    rows = [(f"B = {clip:g}", f, e, case.clipped) for clip, f, e, case in zip(_CLIPS, found, exact, cases, strict=True)]
    table = Table("Excess risk", ["clip", "measured", "exact", "clipped point"], rows)
    chart = Chart("What a clip costs", "1/B", "excess risk", series, x_log=True)
    return Result([_price(found, exact), unclipped], [chart], [table])


def _rules(records: int, steps: int) -> list[Rule]:
    """Return private descent with each clip, and last without clipping."""
    noise = glm.private_noise(1.0, _EPSILON, _DELTA, records, steps)  # in units of the clip
    clipped = [ClippedDPGD(Constant(1 / clip), clip, clip * noise) for clip in _CLIPS]
    return [*clipped, DPGD(Constant(1.0), 1.0, noise)]


def _price(found: list[float], exact: list[float]) -> Finding:
    below = [k for k, clip in enumerate(_CLIPS) if clip < 0.25]
    slope = float(np.polyfit([math.log(1 / _CLIPS[k]) for k in below[2:]], [found[k] for k in below[2:]], 1)[0])
    off = max(abs(found[k] / exact[k] - 1) for k in below)
    return Finding(
        "For B < ¼ the excess risk of private clipped descent is of order log(1/B).",
        f"It grows by {slope:.3f} per unit of log(1/B); the exact slope tends to 2/3.",
        all(found[k] > math.log(1 / _CLIPS[k]) / 60 for k in below) and abs(slope - 2 / 3) < 0.07,
        "The theorem has a constant of 1/60. For B ≤ ½ the price is ⅓·log((B² + (1 − B)²)/(B(1 − B))²) − log 2, and "
        f"for B < ¼ the runs are within {100 * off:.1f} % of it (errata, item 24).",
    )
