"""Paper 3, App. B.1: a clipping bias that no step size removes."""

from __future__ import annotations

import math

import numpy as np

from clipsilon.engine.sweep import Run
from clipsilon.report.charts import Array, Cell, Chart, Series, Table
from clipsilon.reproduce.base import Finding, Lab, Result, experiment
from clipsilon.rules.presets import PCSGD, DiceSGD
from clipsilon.rules.rule import Rule
from clipsilon.rules.schedules import Constant
from clipsilon.theory.dice import constant_bias

_SIZES = (4e-3, 1e-3)
_TIME = 40.0  # number of steps times their size
_CLOSE = 0.06  # distance that counts as agreement

Ends = dict[tuple[str, float], Array]  # by algorithm and step size; one entry per clip


@experiment(
    "paper3-bias",
    paper=3,
    where="App. B.1",
    title="A clipping bias that no step size removes",
    parameters={
        "data": "C' = ⌈C⌉ + 1 records at −1 and one at C', Huber's loss with c = C'",
        "C": "0.25 to 8 (quick: 0.5 to 5)",
        "steps": "10,000 of size 0.004 and 40,000 of size 0.001, one record per step, no noise, from the minimum at 0",
        "DiceSGD": "C₁ = C₂ = C",
        "replicates": "200 (quick: 60)",
    },
)
def bias(lab: Lab) -> Result:
    """The runs start at the minimum. Clipped SGD leaves it, because the gradient of the one distant record is clipped
    and the gradients of the many near records are not; where it stops does not depend on the step size. DiceSGD, with
    the same clip, stays.
    """
    clips = (0.5, 1.5, 3.0, 5.0) if lab.quick else (0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 5.0, 8.0)
    cases = [constant_bias(clip) for clip in clips]
    rules = {
        (name, size): [rule(size, clip) for clip in clips]
        for name, rule in (("clipped SGD", _clipped), ("DiceSGD", _dice))
        for size in _SIZES
    }
    replicates = 60 if lab.quick else 200
    runs = [
        Run(case.problem, rule, round(_TIME / size), replicates=replicates, record=[round(_TIME / size)])
        for (_, size), several in rules.items()
        for case, rule in zip(cases, several, strict=True)
    ]
    means = np.reshape([trace.output.mean() for trace in lab.sweep(runs)], (len(rules), len(clips)))
    found = dict(zip(rules, means, strict=True))
    exact = np.array([case.clipped for case in cases])
    printed = np.array([_printed_point(clip) for clip in clips])
    findings = [_stays(found, exact), _printed(found, printed), _removed(found)]
    clipped, dice = found["clipped SGD", _SIZES[-1]], found["DiceSGD", _SIZES[-1]]
    grid = np.linspace(0.05, 8.0, 160)  # both points jump where C crosses an integer
    series = [
        Series("clipped SGD", clips, clipped, kind="points"),
        Series("DiceSGD", clips, dice, kind="points"),
        Series("−(C' − C)/C'", grid, [constant_bias(clip).clipped for clip in grid], kind="dashed"),
        Series("printed: C'/(C' + C)", grid, [_printed_point(clip) for clip in grid], kind="dashed"),
    ]
    ends: list[list[float]] = np.column_stack([clipped, exact, printed, dice]).tolist()
    rows: list[list[Cell]] = [[f"C = {clip:g}", *row] for clip, row in zip(clips, ends, strict=True)]
    table = Table("Where runs end", ["clip", "clipped SGD", "exact", "printed", "DiceSGD"], rows)
    return Result(findings, [Chart("Where runs end", "clip C", "x (the minimum is 0)", series)], [table])


def _printed_point(clip: float) -> float:
    outer = math.ceil(clip) + 1
    return outer / (outer + clip)


def _clipped(size: float, clip: float) -> Rule:
    return PCSGD(Constant(size), clip, noise_std=0.0)


def _dice(size: float, clip: float) -> Rule:
    return DiceSGD(Constant(size), clip, clip, noise_std=0.0)


def _stays(found: Ends, exact: Array) -> Finding:
    off = max(float(np.abs(found["clipped SGD", size] - exact).max()) for size in _SIZES)
    least = min(float(np.abs(found["clipped SGD", size]).min()) for size in _SIZES)
    return Finding(
        "Clipped SGD stops away from the minimum, however small its step size.",
        f"For both step sizes it stops at least {least:.2f} away, and within {off:.3f} of −(C' − C)/C'.",
        least > _CLOSE and off < _CLOSE,
    )


def _printed(found: Ends, printed: Array) -> Finding:
    ends = found["clipped SGD", _SIZES[-1]]
    off, least = float(np.abs(ends - printed).max()), float(np.abs(ends).min())
    return Finding(
        "Clipped SGD stops at C'/(C' + C), at least ½ away from the minimum for any C.",
        f"It stops up to {off:.2f} away from that point, and for one C only {least:.2f} away from the minimum.",
        off < _CLOSE and least > 0.5 - _CLOSE,
        "The point is −(C' − C)/C': at least ½ away for C ≤ 1.5, and of order 1/C beyond. It is right that a bias "
        "remains (errata, item 18).",
    )


def _removed(found: Ends) -> Finding:
    most = max(float(np.abs(found["DiceSGD", size]).max()) for size in _SIZES)
    return Finding(
        "Error feedback removes the bias, whatever the clip.",
        f"On average, DiceSGD with C₁ = C₂ = C ends within {most:.3f} of the minimum.",
        most < _CLOSE,
    )
