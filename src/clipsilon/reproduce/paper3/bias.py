"""Paper 3, App. B.1: a clipping bias that no step size removes."""

from __future__ import annotations

import math

import numpy as np

from clipsilon.engine.sweep import Run
from clipsilon.report.charts import Chart, Series, Table
from clipsilon.reproduce.base import Finding, Lab, Result, experiment
from clipsilon.rules.presets import PCSGD, DiceSGD
from clipsilon.rules.rule import Rule
from clipsilon.rules.schedules import Constant
from clipsilon.theory.dice import constant_bias

_SIZES = (4e-3, 1e-3)
_TIME = 40.0  # steps times their size
_CLOSE = 0.06

Ends = dict[tuple[str, float], np.ndarray]  # by algorithm and step size, one for each clip


@experiment(
    "paper3-bias",
    paper=3,
    where="App. B.1",
    title="A clipping bias that no step size removes",
    parameters={
        "data": "C' = ⌈C⌉ + 1 records at −1 and one at C', Huber's loss with c = C'",
        "C": "0.25 to 8 (quick: 0.5 to 5)",
        "steps": "0.004 and 0.001, 10,000 and 40,000 of them, one record each, no noise, from the minimum at 0",
        "DiceSGD": "C₁ = C₂ = C",
        "replicates": "200 (quick: 60)",
    },
)
def bias(lab: Lab) -> Result:
    """The runs start at the minimum. Clipped SGD leaves it, since the one far record is cut and the many near ones are
    not, and where it stops does not depend on the step. DiceSGD, with the same clip, stays.
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
    grid = np.linspace(0.05, 8.0, 160)  # both points jump where C passes a whole number
    series = [
        Series("clipped SGD", clips, clipped, kind="points"),
        Series("DiceSGD", clips, dice, kind="points"),
        Series("−(C' − C)/C'", grid, [constant_bias(clip).clipped for clip in grid], kind="dashed"),
        Series("printed: C'/(C' + C)", grid, [_printed_point(clip) for clip in grid], kind="dashed"),
    ]
    rows = [[f"C = {row[0]:g}", *map(float, row[1:])] for row in zip(clips, clipped, exact, printed, dice, strict=True)]
    table = Table("Where runs end", ["clip", "clipped SGD", "exact", "printed", "DiceSGD"], rows)
    return Result(findings, [Chart("Where runs end", "clip C", "x (the minimum is 0)", series)], [table])


def _printed_point(clip: float) -> float:
    outer = math.ceil(clip) + 1
    return outer / (outer + clip)


def _clipped(size: float, clip: float) -> Rule:
    return PCSGD(Constant(size), clip, noise_std=0.0)


def _dice(size: float, clip: float) -> Rule:
    return DiceSGD(Constant(size), clip, clip, noise_std=0.0)


def _stays(found: Ends, exact: np.ndarray) -> Finding:
    off = max(float(np.abs(found["clipped SGD", size] - exact).max()) for size in _SIZES)
    least = min(float(np.abs(found["clipped SGD", size]).min()) for size in _SIZES)
    return Finding(
        "Clipped SGD stops away from the minimum, however small its step.",
        f"for both steps at least {least:.2f} away, and within {off:.3f} of −(C' − C)/C'",
        least > _CLOSE and off < _CLOSE,
    )


def _printed(found: Ends, printed: np.ndarray) -> Finding:
    ends = found["clipped SGD", _SIZES[-1]]
    off, least = float(np.abs(ends - printed).max()), float(np.abs(ends).min())
    return Finding(
        "It stops at C'/(C' + C), at least ½ away for any C.",
        f"it ends up to {off:.2f} from there, and at one C only {least:.2f} away from the minimum",
        off < _CLOSE and least > 0.5 - _CLOSE,
        "The point is −(C' − C)/C': at least ½ away for C ≤ 1.5, and like 1/C beyond. That a bias remains is right "
        "(errata, item 18).",
    )


def _removed(found: Ends) -> Finding:
    most = max(float(np.abs(found["DiceSGD", size]).max()) for size in _SIZES)
    return Finding(
        "Error feedback removes the bias, whatever the clip.",
        f"DiceSGD with C₁ = C₂ = C ends within {most:.3f} of the minimum in the mean",
        most < _CLOSE,
    )
