"""The points that algorithms converge to, found without running them.

All but the optimum are zeros of a mean gradient field F(θ), clipped or not, whose records react to θ;
`clipsilon.analysis.zeros` finds them.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from clipsilon._core import checks
from clipsilon._core.parts import require
from clipsilon._core.rows import dense
from clipsilon.analysis.zeros import Field, Zero, differences, find_zero
from clipsilon.engine.means import mean_gradient, mean_loss
from clipsilon.problems.losses.base import is_linear
from clipsilon.problems.problem import Problem
from clipsilon.problems.regions import project
from clipsilon.problems.responses import is_random
from clipsilon.rules.clipping import Norm, add_clipped

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Point:
    """A point, how well it solves its equation, and what is known about it."""

    theta: Array  #: the point
    residual: float  #: the norm of what should be zero at theta
    converged: bool  #: whether the residual is as small as it should be
    attracts: bool  #: whether the flow −F leads to it from all sides
    isolated: bool  #: False where the field is flat, so that neighbouring points are as good
    contraction: float  #: β·L/μ around theta; from 1 on, theory promises neither existence nor uniqueness
    draws: int | None  #: reactions averaged a record, if the response is random
    message: str  #: all of this in a sentence


def stable_point(problem: Problem, start: Any = 0.0, draws: int = 100) -> Point:
    """θ_PS, which is optimal for the data it causes: θ = argmin f(·; θ) (paper 1, eq. 4).

    Solves ∇f(θ; θ) = 0 (or, on the border of a region, that the step −∇f leads outside). With a random
    response, `draws` reactions of each record are averaged, always the same ones.
    """
    return _announced(_point(problem, None, start, draws))


def clipped_point(problem: Problem, clip: Any, start: Any = 0.0, draws: int = 100) -> Point:
    """θ_∞, where clipped SGD stops: E_{Z ~ D(θ)} clip(∇ℓ(θ; Z)) = 0 (paper 1, Theorem 3.5).

    `clip` is a threshold, or any part of `clipsilon.clipping`.
    """
    return _announced(_point(problem, _clip(problem, clip), start, draws))


def clipping_bias(problem: Problem, clip: Any, start: Any = 0.0, draws: int = 100) -> float:
    """‖θ_∞ − θ_PS‖²: what clipping costs in the end, known before any run.

    Warns where that number is not the whole truth: a point that was not found, repels, or is not isolated.
    """
    points = (_point(problem, None, start, draws), _point(problem, _clip(problem, clip), start, draws))
    for point in points:
        _announced(point)
        if point.converged and not (point.attracts and point.isolated):
            warnings.warn(f"The clipping bias rests on a {point.message}", stacklevel=2)
    return float(np.sum((points[0].theta - points[1].theta) ** 2))


def clipped_path(problem: Problem, clips: Sequence[float], draws: int = 100) -> tuple[Point, dict[float, Point]]:
    """The stable point and, if it was found, the clipped point of every threshold. Nothing is warned of.

    Thresholds are taken from the largest to the smallest, and each point is sought from the one before: where
    several exist, this follows the one that grows out of the stable point. If that fails, it is sought from 0.
    """
    stable = _point(problem, None, 0.0, draws)
    points: dict[float, Point] = {}
    begin = stable.theta
    for clip in sorted(clips, reverse=True) if stable.converged else ():
        part = _clip(problem, clip)
        near = _point(problem, part, begin, draws)
        points[clip] = near if near.converged else _point(problem, part, 0.0, draws)
        begin = points[clip].theta if points[clip].converged else begin
    return stable, points


def optimal_point(problem: Problem, start: Any = 0.0, draws: int = 100) -> Point:
    """The performative optimum, argmin f(θ; θ): best when the reaction is taken into account (paper 1, eq. 2).

    The risk need not be convex: the search starts from the stable point and from `start`, and the better
    end is returned. The residual is that of the risk's gradient, which is taken by differences: a loss with
    kinks leaves a residual that is not small.
    """
    first = _checked(problem, start, draws)

    def risk(theta: Array) -> float:
        return mean_loss(problem, theta, theta, draws)

    def slope(theta: Array) -> Array:
        return differences(risk, theta)

    stable = _zero(problem, _field(problem, None, draws), first).theta
    ends = [minimize(risk, begin, jac=slope, method="BFGS", options={"gtol": 1e-8}).x for begin in (stable, first)]
    # An end outside the region is only a start: the border's own best point is a zero of the projected slope.
    zeros = [_zero(problem, slope, end, limit=1e-8) for end in ends]
    best = min(zeros, key=lambda zero: risk(zero.theta))
    return _announced(_describe(problem, "optimal point", best, draws))


def repeated_minimization(problem: Problem, rounds: int, start: Any = 0.0, draws: int = 100) -> Array:
    """Retrain to optimality, deploy, repeat: θ_{k+1} = argmin f(·; θ_k). The iterates, (rounds + 1, d)."""
    checks.count("rounds", rounds)
    iterates = [_checked(problem, start, draws)]
    for k in range(rounds):
        zero = _zero(problem, _fixed_field(problem, iterates[-1], draws), iterates[-1])
        if not zero.converged:
            warnings.warn(f"round {k + 1} found no minimum (residual {zero.residual:.1e}).", stacklevel=2)
        iterates.append(zero.theta)
    return np.stack(iterates)


def repeated_gradient(problem: Problem, step: float, rounds: int, start: Any = 0.0, draws: int = 100) -> Array:
    """One full gradient step, deploy, repeat: θ_{k+1} = project(θ_k − step·∇f(θ_k; θ_k)). (rounds + 1, d)."""
    checks.count("rounds", rounds)
    checks.positive("step", step)
    iterates = [_checked(problem, start, draws)]
    for _ in range(rounds):
        theta = iterates[-1]
        iterates.append(_projected(problem, theta - step * mean_gradient(problem, theta, theta, draws)))
    return np.stack(iterates)


def _checked(problem: Problem, start: Any, draws: int) -> Array:
    checks.instance("problem", problem, Problem)
    checks.count("draws", draws)
    return checks.vector("start", start, problem.dimension)


def _clip(problem: Problem, clip: Any) -> Any:
    part = clip if isinstance(clip, tuple) else Norm(checks.positive("clip", clip))
    require("clip", part, [add_clipped])
    if hasattr(part, "check_dimension"):
        part.check_dimension(problem.dimension)
    return part


def _point(problem: Problem, clip: Any, start: Any, draws: int) -> Point:
    zero = _zero(problem, _field(problem, clip, draws), _checked(problem, start, draws))
    return _describe(problem, "stable point" if clip is None else "clipped point", zero, draws)


def _announced(point: Point) -> Point:
    """Warn whoever called the public function if its point was not found."""
    if not point.converged:
        warnings.warn(point.message, stacklevel=3)
    return point


def _field(problem: Problem, clip: Any, draws: int) -> Field:
    return lambda theta: mean_gradient(problem, theta, theta, draws, clip)


def _fixed_field(problem: Problem, deployed: Array, draws: int) -> Field:
    return lambda theta: mean_gradient(problem, theta, deployed, draws)


def _projected(problem: Problem, theta: Array) -> Array:
    result = theta.copy()
    project(problem.region, result)
    return result


def _zero(problem: Problem, field: Field, start: Array, limit: float | None = None) -> Zero:
    """A zero of the field in the problem's region, with the columns' sizes as the scales of θ."""
    scales = np.ones(problem.dimension)
    if is_linear(problem.loss):
        sizes = np.sqrt(np.mean(dense(problem.features) ** 2, axis=0))
        scales = np.where(sizes > 0, sizes, 1.0)
    return find_zero(field, lambda theta: _projected(problem, theta), start, scales, limit)


def _describe(problem: Problem, what: str, zero: Zero, draws: int) -> Point:
    """Say how good a point is, and what theory knows about it."""
    contraction = problem.constants(2.0 * max(1.0, float(np.linalg.norm(zero.theta)))).contraction
    averaged = draws if is_random(problem.response) else None
    remarks = [f"{what} with residual {zero.residual:.1e}"]
    if averaged is not None:
        remarks.append(f"averaged over {averaged} draws of the response a record")
    if zero.converged and not zero.isolated:
        remarks.append("it is not isolated: the field is flat around it, and neighbouring points are as good")
    elif zero.converged and not zero.attracts:
        remarks.append("it repels: algorithms move away from it")
    if contraction >= 1.0:
        remarks.append(f"β ≥ μ/L (βL/μ = {contraction:.3g} by the bounds around it), so a stable point need not exist "
                       "or be the only one, and retraining need not converge")  # fmt: skip
    message = "; ".join(remarks) + "."
    if not zero.converged:
        message = f"No {what} was found: the best is a {message}"
    return Point(
        zero.theta, zero.residual, zero.converged, zero.attracts, zero.isolated, contraction, averaged, message
    )
