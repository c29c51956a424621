"""The bias meter: the cost of clipping for each threshold and each strength of the reaction, without a run.

It reads the data without adding noise, so its numbers are not private.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from clipsilon._core import checks
from clipsilon.analysis.fixed_points import Point, clipped_path
from clipsilon.engine.means import gradient_norms, mean_gradient
from clipsilon.problems.problem import Problem
from clipsilon.rules.clipping import Clip, Norm

_UNCLIPPED = 0.05  # the fraction of records that the smallest proposed threshold does not clip


class BiasRow(NamedTuple):
    """The clipping bias at one threshold and one strength of the reaction; NaN where a point was not found.

    Parameters
    ----------
    clip : float
        The threshold c.
    beta : float
        The strength β of the reaction.
    bias : float
        ‖θ_∞ − θ_PS‖².
    fraction_clipped : float
        The fraction of records whose gradient is clipped at the clipped point.
    stable_norm : float
        ‖θ_PS‖, for comparison.
    contraction : float
        β·L/μ by the bounds around the points.
    converged : bool
        Whether both points were found.
    steady : bool
        Whether both points were found, attract, are isolated, and are not held at the boundary of the region.
    remark : str
        Why the number may mislead; empty if nothing is known against it.
    """

    clip: float
    beta: float
    bias: float
    fraction_clipped: float
    stable_norm: float
    contraction: float
    converged: bool
    steady: bool
    remark: str


def bias_table(
    problem_at: Callable[[float], Problem], clips: ArrayLike, betas: ArrayLike, draws: int = 100
) -> list[BiasRow]:
    """Return ‖θ_∞ − θ_PS‖² for every threshold c and every strength β of the reaction (paper 1, Theorem 3.5).

    A point that is not found, repels, is not isolated, is held at the boundary of the region, or may not be the
    only one does not raise an error: the `remark` of the row states it.

    Parameters
    ----------
    problem_at : callable
        Returns the problem for a given β. Only the response should depend on β.
    clips : float or array-like
        The thresholds, above 0.
    betas : float or array-like
        The strengths of the reaction.
    draws : int, default 100
        The number of reactions averaged per record if the response is random.

    Returns
    -------
    list of BiasRow
        One row per pair, ordered by β, then by clip.

    Examples
    --------
    >>> import clipsilon as cs
    >>> def reacting(beta):
    ...     response = cs.responses.LocationShift(beta)
    ...     return cs.Problem([0.0] * 9 + [1.0], loss=cs.losses.Quadratic(a=10.0), response=response)
    >>> for row in cs.bias_table(reacting, clips=[1.0, 20.0], betas=[0.0, 0.05]):
    ...     print(f"c = {row.clip:g}, β = {row.beta:g}: bias {row.bias:.3f}, clipped {row.fraction_clipped:.0%}")
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


def fraction_clipped(problem: Problem, theta: ArrayLike, clip: float, draws: int = 100) -> float:
    """Return the fraction of records whose gradient is longer than `clip` after their reaction to θ.

    Parameters
    ----------
    problem : Problem
        The problem.
    theta : float or array-like
        The deployed model.
    clip : float
        The threshold, above 0.
    draws : int, default 100
        The number of reactions per record if the response is random.

    Returns
    -------
    float
        A fraction from 0 to 1, over records and draws.
    """
    checks.instance("problem", problem, Problem)
    checks.count("draws", draws)
    model = checks.vector("theta", theta, problem.dimension)
    return float(np.mean(gradient_norms(problem, model, model, draws) > checks.positive("clip", clip)))


def proposed_clips(problem: Problem, count: int = 8, draws: int = 100) -> list[float]:
    """Propose thresholds that cover the norms of the gradients at the stable point.

    They are in equal ratios and rounded to two digits. The smallest clips 95 % of the records there, or is a tenth
    of the largest norm if that is smaller; the largest clips none.

    Parameters
    ----------
    problem : Problem
        The problem.
    count : int, default 8
        The number of thresholds; rounding may leave fewer.
    draws : int, default 100
        The number of reactions per record if the response is random.

    Returns
    -------
    list of float
        The thresholds in increasing order.
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
    """Return one row; `remark` concerns the stable point."""
    bias = fraction = np.nan
    if clipped.converged:
        bias = float(np.sum((clipped.theta - stable.theta) ** 2))
        fraction = fraction_clipped(problem, clipped.theta, clip, draws)
    length = float(np.linalg.norm(stable.theta))
    contraction = max(stable.contraction, clipped.contraction)
    remarks = _joined(remark, _remark(problem, "clipped", Norm(clip), clipped, draws))
    text = _joined(remarks, _unsure(contraction))
    return BiasRow(clip, beta, bias, fraction, length, contraction, clipped.converged, not remarks, text)


def _joined(*remarks: str) -> str:
    return "; ".join(filter(None, remarks))


def _unsure(contraction: float) -> str:
    return "β ≥ μ/L by the bounds, so the points need not be the only ones" if contraction >= 1 else ""


def _remark(problem: Problem, name: str, clip: Clip | None, point: Point, draws: int) -> str:
    """Return why a point may mislead, or an empty string."""
    if not point.converged:
        return f"no {name} point was found"
    if not point.isolated:
        return f"the {name} point is not isolated, and its neighbours are as good"
    if not point.attracts:
        return f"the {name} point repels, so algorithms move away from it"
    field = mean_gradient(problem, point.theta, point.theta, draws, clip)
    # Inside the region the residual is the norm of the field.
    held = np.linalg.norm(field) > 2.0 * point.residual + 1e-9
    return f"the {name} point is held at the boundary of the region" if held else ""


def _each(name: str, values: ArrayLike, check: Callable[[str, object], float]) -> list[float]:
    numbers = np.atleast_1d(checks.floats(name, values))
    if numbers.ndim != 1 or not numbers.size:
        raise ValueError(f"{name} must hold one or more numbers, got {values!r}.")
    return [check(name, value) for value in numbers.tolist()]


def _two_digits(value: float, up: bool = False) -> float:
    unit = 10.0 ** (np.floor(np.log10(value)) - 1)
    return float(f"{(np.ceil(value / unit) if up else np.round(value / unit)) * unit:.2g}")
