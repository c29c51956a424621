"""The bias meter: what clipping costs for each threshold and each strength of the reaction, before any run.

It reads the data without noise, so its numbers are not private.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from clipsilon._core import checks
from clipsilon.analysis.fixed_points import Point, clipped_path
from clipsilon.engine.means import gradient_norms, mean_gradient
from clipsilon.problems.problem import Problem
from clipsilon.rules.clipping import Norm

_UNCLIPPED = 0.05  # the share of records that the smallest proposed threshold leaves as they are


class BiasRow(NamedTuple):
    """The clipping bias at one threshold and one strength of the reaction; NaN where a point was not found."""

    clip: float
    beta: float
    bias: float  #: ‖θ_∞ − θ_PS‖²
    share_clipped: float  #: of the records, at the clipped point
    stable_norm: float  #: ‖θ_PS‖, to compare with
    contraction: float  #: β·L/μ by the bounds around the points
    converged: bool  #: both points were found
    steady: bool  #: both were found, attract, are isolated, and are not held by the border of the region
    remark: str  #: what to know before the number is trusted; empty if nothing


def bias_table(problem_at: Callable[[float], Problem], clips: Any, betas: Any, draws: int = 100) -> list[BiasRow]:
    """‖θ_∞ − θ_PS‖² for every clip c and every strength β of the reaction (paper 1, Theorem 3.5).

    `problem_at` makes the problem of one β; everything else about it should stay the same. Rows come by β, then
    by clip. A point that is not found, repels, is not isolated, is held by the region, or need not be the only
    one is no error: the row's `remark` says so.

    >>> import clipsilon as cs
    >>> def reacting(beta):
    ...     response = cs.responses.LocationShift(beta)
    ...     return cs.Problem([0.0] * 9 + [1.0], loss=cs.losses.Quadratic(a=10.0), response=response)
    >>> for row in cs.bias_table(reacting, clips=[1.0, 20.0], betas=[0.0, 0.05]):
    ...     print(f"c = {row.clip:g}, β = {row.beta:g}: bias {row.bias:.3f}, clipped {row.share_clipped:.0%}")
    c = 1, β = 0: bias 0.790, clipped 10%
    c = 20, β = 0: bias 0.000, clipped 0%
    c = 1, β = 0.05: bias 3.160, clipped 10%
    c = 20, β = 0.05: bias 0.000, clipped 0%
    """
    thresholds = _each("clips", clips, checks.positive)
    strengths = _each("betas", betas, checks.number)
    checks.count("draws", draws)
    if not callable(problem_at):
        raise ValueError(f"problem_at must be a function from β to a Problem, got {checks.short_repr(problem_at)}.")
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # compiled code releases Python's lock
        found = pool.map(lambda beta: _rows(problem_at(beta), thresholds, beta, draws), strengths)
        return [row for rows in found for row in rows]


def share_clipped(problem: Problem, theta: Any, clip: float, draws: int = 100) -> float:
    """The share of records whose gradient is longer than `clip`, once they have reacted to θ."""
    checks.instance("problem", problem, Problem)
    checks.count("draws", draws)
    model = checks.vector("theta", theta, problem.dimension)
    return float(np.mean(gradient_norms(problem, model, model, draws) > checks.positive("clip", clip)))


def proposed_clips(problem: Problem, count: int = 8, draws: int = 100) -> list[float]:
    """Thresholds in equal ratios, rounded to two digits, over the gradients' norms at the stable point.

    The smallest clips 95 % of the records there, or is a tenth of the largest norm if that is smaller; the
    largest clips none.
    """
    stable, _ = clipped_path(problem, [], draws)
    norms = gradient_norms(problem, stable.theta, stable.theta, checks.count("draws", draws))
    high = float(norms.max())
    if not high > 0:
        raise ValueError("clips must be given for a problem whose gradients all vanish at the stable point.")
    low = float(np.clip(np.quantile(norms, _UNCLIPPED), 1e-4 * high, 0.1 * high))
    grid = [_two_digits(clip) for clip in np.geomspace(low, high, checks.count("count", count))]
    return sorted({*grid[:-1], _two_digits(high, up=True)})


def _rows(problem: Problem, clips: list[float], beta: float, draws: int) -> list[BiasRow]:
    stable, points = clipped_path(problem, clips, draws)
    remark = _remark(problem, "stable", None, stable, draws)
    if not stable.converged:
        text = _joined(remark, _unsure(stable.contraction))
        return [BiasRow(clip, beta, np.nan, np.nan, np.nan, stable.contraction, False, False, text) for clip in clips]
    return [_row(problem, clip, beta, stable, remark, points[clip], draws) for clip in clips]


def _row(problem: Problem, clip: float, beta: float, stable: Point, remark: str, clipped: Point, draws: int) -> BiasRow:
    """One row; `remark` is that on the stable point."""
    bias = share = np.nan
    if clipped.converged:
        bias = float(np.sum((clipped.theta - stable.theta) ** 2))
        share = share_clipped(problem, clipped.theta, clip, draws)
    length = float(np.linalg.norm(stable.theta))
    contraction = max(stable.contraction, clipped.contraction)
    remarks = _joined(remark, _remark(problem, "clipped", Norm(clip), clipped, draws))
    text = _joined(remarks, _unsure(contraction))
    return BiasRow(clip, beta, bias, share, length, contraction, clipped.converged, not remarks, text)


def _joined(*remarks: str) -> str:
    return "; ".join(filter(None, remarks))


def _unsure(contraction: float) -> str:
    return "β ≥ μ/L by the bounds, so the points need not be the only ones" if contraction >= 1 else ""


def _remark(problem: Problem, name: str, clip: Any, point: Point, draws: int) -> str:
    """Why a point should not be taken at face value; empty if it can be."""
    if not point.converged:
        return f"no {name} point was found"
    if not point.isolated:
        return f"the {name} point is not isolated, and its neighbours are as good"
    if not point.attracts:
        return f"the {name} point repels, so algorithms move away from it"
    field = mean_gradient(problem, point.theta, point.theta, draws, clip)
    # Inside the region the residual is the length of the field.
    held = np.linalg.norm(field) > 2.0 * point.residual + 1e-9
    return f"the {name} point is held by the border of the region" if held else ""


def _each(name: str, values: Any, check: Callable[[str, Any], float]) -> list[float]:
    numbers = np.atleast_1d(checks.floats(name, values))
    if numbers.ndim != 1 or not numbers.size:
        raise ValueError(f"{name} must hold one or more numbers, got {values!r}.")
    return [check(name, value) for value in numbers.tolist()]


def _two_digits(value: float, up: bool = False) -> float:
    unit = 10.0 ** (np.floor(np.log10(value)) - 1)
    return float(f"{(np.ceil(value / unit) if up else np.round(value / unit)) * unit:.2g}")
