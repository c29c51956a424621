"""The points that algorithms converge to, found without running them.

All but the optimum are zeros of a mean gradient field F(θ), clipped or not, of records that react to θ;
`clipsilon.analysis.zeros` finds them, and `clipsilon.analysis.attracting` prefers those that attract.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import minimize

from clipsilon._core import checks
from clipsilon._core.parts import require
from clipsilon._core.rows import dense
from clipsilon.analysis.attracting import Search, find_attracting
from clipsilon.analysis.zeros import Field, Zero, differences, find_zero
from clipsilon.engine.means import mean_gradient, mean_loss
from clipsilon.problems.losses.base import is_linear
from clipsilon.problems.problem import Problem
from clipsilon.problems.regions import project
from clipsilon.problems.responses import Identity, is_random, lag
from clipsilon.rules.clipping import Clip, Norm, add_clipped

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Point:
    """A point, how well it solves its equation, and what is known about it.

    Parameters
    ----------
    theta : ndarray
        The point.
    residual : float
        The norm at `theta` of what should be zero.
    converged : bool
        Whether the residual is as small as rounding allows.
    attracts : bool
        Whether the flow −F leads to it from all sides.
    isolated : bool
        False if the field is flat around it, so that neighbouring points are solutions as well.
    contraction : float
        β·L/μ around `theta`. From 1 on, theory guarantees neither existence nor uniqueness.
    draws : int or None
        The number of reactions averaged per record; None if the response is not random.
    message : str
        All of this in a sentence.
    points_seen : int
        The number of different points that the searches found. They end at the first that attracts, so there may be
        more.
    """

    theta: Array
    residual: float
    converged: bool
    attracts: bool
    isolated: bool
    contraction: float
    draws: int | None
    message: str
    points_seen: int


def stable_point(problem: Problem, start: ArrayLike = 0.0, draws: int = 100) -> Point:
    """Find θ_PS, which is optimal for the data it causes: θ = argmin f(·; θ) (paper 1, eq. 4).

    Solves ∇f(θ; θ) = 0 or, on the boundary of a region, that −∇f points out of the region. Where there are several
    such points, one that attracts is preferred: if the search from `start` finds none or one that repels, it is
    repeated where retraining from `start` leads, and then on both sides of the one that repels.

    Parameters
    ----------
    problem : Problem
        The problem.
    start : float or array-like, default 0
        Where the search begins: one number for all coordinates, or one per coordinate.
    draws : int, default 100
        The number of reactions averaged per record if the response is random; they are the same in every call.

    Returns
    -------
    Point
        The stable point. If none was found, the best point, with a warning.
    """
    return _warn_if_not_found(_point(problem, None, start, draws))


def clipped_point(problem: Problem, clip: float | Clip, start: ArrayLike = 0.0, draws: int = 100) -> Point:
    """Find θ_∞, where clipped SGD converges: E_{Z ~ D(θ)} clip(∇ℓ(θ; Z)) = 0 (paper 1, Theorem 3.5).

    Where there are several, one that attracts is preferred, as by `stable_point`.

    Parameters
    ----------
    problem : Problem
        The problem.
    clip : float or Clip
        A threshold for the norm, or a part of `clipsilon.clipping`.
    start : float or array-like, default 0
        Where the search begins: one number for all coordinates, or one per coordinate.
    draws : int, default 100
        The number of reactions averaged per record if the response is random; they are the same in every call.

    Returns
    -------
    Point
        The clipped point. If none was found, the best point, with a warning.
    """
    return _warn_if_not_found(_point(problem, _clip(problem, clip), start, draws))


def clipping_bias(problem: Problem, clip: float | Clip, start: ArrayLike = 0.0, draws: int = 100) -> float:
    """Return ‖θ_∞ − θ_PS‖², the asymptotic cost of clipping, without a run.

    Warns if the number may mislead because a point was not found, repels, or is not isolated.

    Parameters
    ----------
    problem : Problem
        The problem.
    clip : float or Clip
        A threshold for the norm, or a part of `clipsilon.clipping`.
    start : float or array-like, default 0
        Where both searches begin: one number for all coordinates, or one per coordinate.
    draws : int, default 100
        The number of reactions averaged per record if the response is random.

    Returns
    -------
    float
        The squared distance between the clipped and the stable point.
    """
    points = (_point(problem, None, start, draws), _point(problem, _clip(problem, clip), start, draws))
    for point in points:
        _warn_if_not_found(point)
        if point.converged and not (point.attracts and point.isolated):
            warnings.warn(f"The clipping bias depends on a {point.message}", stacklevel=2)
    return float(np.sum((points[0].theta - points[1].theta) ** 2))


def clipped_path(problem: Problem, clips: Sequence[float], draws: int = 100) -> tuple[Point, dict[float, Point]]:
    """Return the stable point and, if it was found, the clipped point for each threshold. Does not warn.

    Thresholds are processed from the largest to the smallest, and each search begins at the point before. So where
    several points exist, the path follows the one that starts at the stable point. A search that fails is repeated
    from 0.

    Parameters
    ----------
    problem : Problem
        The problem.
    clips : sequence of float
        The thresholds for the norm.
    draws : int, default 100
        The number of reactions averaged per record if the response is random.

    Returns
    -------
    stable : Point
        The stable point.
    points : dict of float to Point
        The clipped points by threshold; empty if there is no stable point.
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


def optimal_point(problem: Problem, start: ArrayLike = 0.0, draws: int = 100) -> Point:
    """Find the performative optimum argmin f(θ; θ), which takes the reaction into account (paper 1, eq. 2).

    The risk need not be convex: one search begins at the stable point and one at `start`, and the better result is
    returned. The residual is the norm of the risk's gradient by finite differences; for a loss with kinks it is not
    small.

    Parameters
    ----------
    problem : Problem
        The problem.
    start : float or array-like, default 0
        Where the second search begins: one number for all coordinates, or one per coordinate.
    draws : int, default 100
        The number of reactions averaged per record if the response is random.

    Returns
    -------
    Point
        A local optimum, the better of the two; with a warning if it did not converge.
    """
    first = check_start(problem, start, draws)

    def risk(theta: Array) -> float:
        return mean_loss(problem, theta, theta, draws)

    def slope(theta: Array) -> Array:
        return differences(risk, theta)

    stable = find_attracting(_search(problem, None, draws), first)[0].theta
    ends = [minimize(risk, begin, jac=slope, method="BFGS", options={"gtol": 1e-8}).x for begin in (stable, first)]
    # BFGS ignores the region. An optimum on its boundary is a zero of the projected slope, sought from there.
    zeros = [_zero(problem, slope, end, limit=1e-8) for end in ends]
    best = min(zeros, key=lambda zero: risk(zero.theta))
    return _warn_if_not_found(_describe(problem, "optimal point", best, draws, 1))


def repeated_minimization(problem: Problem, rounds: int, start: ArrayLike = 0.0, draws: int = 100) -> Array:
    """Retrain to optimality and deploy, repeatedly: θ_{k+1} = argmin f(·; θ_k).

    Records with memory (`clipsilon.responses.Slow`) react to a mean of the deployed models.

    Parameters
    ----------
    problem : Problem
        The problem.
    rounds : int
        The number of retrainings.
    start : float or array-like, default 0
        θ_0: one number for all coordinates, or one per coordinate.
    draws : int, default 100
        The number of reactions averaged per record if the response is random.

    Returns
    -------
    ndarray of shape (rounds + 1, d)
        θ_0, θ_1, …
    """
    checks.count("rounds", rounds)
    iterates = [check_start(problem, start, draws)]
    deployed = iterates[0]
    for k in range(rounds):
        deployed = adapt(problem, deployed, iterates[-1])
        zero = _zero(problem, _fixed_field(problem, deployed, draws), iterates[-1])
        if not zero.converged:
            warnings.warn(f"Round {k + 1} found no minimum (residual {zero.residual:.1e}).", stacklevel=2)
        iterates.append(zero.theta)
    return np.stack(iterates)


def repeated_gradient(problem: Problem, step: float, rounds: int, start: ArrayLike = 0.0, draws: int = 100) -> Array:
    """Take a full gradient step and deploy, repeatedly: θ_{k+1} = project(θ_k − step·∇f(θ_k; θ_k)).

    Parameters
    ----------
    problem : Problem
        The problem.
    step : float
        The step size, above 0.
    rounds : int
        The number of steps.
    start : float or array-like, default 0
        θ_0: one number for all coordinates, or one per coordinate.
    draws : int, default 100
        The number of reactions averaged per record if the response is random.

    Returns
    -------
    ndarray of shape (rounds + 1, d)
        θ_0, θ_1, …
    """
    checks.count("rounds", rounds)
    checks.positive("step", step)
    iterates = [check_start(problem, start, draws)]
    deployed = iterates[0]
    for _ in range(rounds):
        theta = iterates[-1]
        deployed = adapt(problem, deployed, theta)
        iterates.append(projected(problem, theta - step * mean_gradient(problem, theta, deployed, draws)))
    return np.stack(iterates)


def check_start(problem: Problem, start: ArrayLike, draws: int) -> Array:
    """Return the start of a search as a vector, after checking the arguments that all searches have.

    Parameters
    ----------
    problem : Problem
        The problem.
    start : float or array-like
        One number for all coordinates, or one per coordinate.
    draws : int
        The number of reactions averaged per record if the response is random.

    Returns
    -------
    ndarray of shape (d,)
        The start.
    """
    checks.instance("problem", problem, Problem)
    checks.count("draws", draws)
    return checks.vector("start", start, problem.dimension)


def _clip(problem: Problem, clip: float | Clip) -> Clip:
    part: Clip = clip if isinstance(clip, tuple) else Norm(checks.positive("clip", clip))
    require("clip", part, [add_clipped])
    if hasattr(part, "check_dimension"):
        part.check_dimension(problem.dimension)
    return part


def _point(problem: Problem, clip: Clip | None, start: ArrayLike, draws: int) -> Point:
    begin = check_start(problem, start, draws)
    problem.require_equal_rows()
    zero, seen = find_attracting(_search(problem, clip, draws), begin)
    return _describe(problem, "stable point" if clip is None else "clipped point", zero, draws, seen)


def _warn_if_not_found(point: Point) -> Point:
    """Warn the caller of a public function if its point was not found."""
    if not point.converged:
        warnings.warn(point.message, stacklevel=3)
    return point


def _search(problem: Problem, clip: Clip | None, draws: int) -> Search:
    def under(deployed: Array) -> Field:
        return _fixed_field(problem, deployed, draws, clip)

    return Search(
        lambda theta: mean_gradient(problem, theta, theta, draws, clip),
        None if type(problem.response) is Identity else under,
        lambda theta: projected(problem, theta),
        _scales(problem),
    )


def _fixed_field(problem: Problem, deployed: Array, draws: int, clip: Clip | None = None) -> Field:
    return lambda theta: mean_gradient(problem, theta, deployed, draws, clip)


def adapt(problem: Problem, deployed: Array, theta: Array) -> Array:
    """Return the model that records react to after θ is deployed: θ, or a mean with earlier ones if they are slow.

    Parameters
    ----------
    problem : Problem
        Its response has a lag, or none.
    deployed : ndarray of shape (d,)
        The model that records reacted to before.
    theta : ndarray of shape (d,)
        The model that is deployed.

    Returns
    -------
    ndarray of shape (d,)
        What records react to now.
    """
    past = float(lag(problem.response))
    return theta if past == 0.0 else past * deployed + (1.0 - past) * theta


def projected(problem: Problem, theta: Array) -> Array:
    """Return the point of the problem's region that is nearest to θ."""
    result = theta.copy()
    project(problem.region, result)
    return result


def _zero(problem: Problem, field: Field, start: Array, limit: float | None = None) -> Zero:
    """Find a zero of the field in the problem's region."""
    return find_zero(field, lambda theta: projected(problem, theta), start, _scales(problem), limit)


def _scales(problem: Problem) -> Array:
    """Return the scales of θ: the sizes of the columns if the loss is one of a margin, else 1."""
    scales = np.ones(problem.dimension)
    if is_linear(problem.loss):
        sizes = np.sqrt(np.mean(dense(problem.features) ** 2, axis=0))
        scales = np.where(sizes > 0, sizes, 1.0)
    return scales


def _describe(problem: Problem, what: str, zero: Zero, draws: int, seen: int) -> Point:
    """Describe how good a point is, and what theory guarantees about it."""
    contraction = problem.constants(2.0 * max(1.0, float(np.linalg.norm(zero.theta)))).contraction
    averaged = draws if is_random(problem.response) else None
    found = f"{what} with" if zero.converged else f"No {what} was found; the best candidate has"
    remarks = [f"{found} residual {zero.residual:.1e}"]
    if averaged is not None:
        remarks.append(f"averaged over {averaged} draws of the response per record")
    if zero.converged and not zero.isolated:
        remarks.append("it is not isolated: the field is flat around it, and neighbouring points are solutions too")
    elif zero.converged and not zero.attracts:
        remarks.append("it repels: algorithms move away from it")
    if seen > 1:
        remarks.append(f"{seen} different points were seen")
    if contraction >= 1.0:
        remarks.append(f"β ≥ μ/L (βL/μ = {contraction:.3g} by the bounds around it), so a stable point need not exist "
                       "or be the only one, and retraining need not converge")  # fmt: skip
    message = "; ".join(remarks) + "."
    return Point(
        zero.theta, zero.residual, zero.converged, zero.attracts, zero.isolated, contraction, averaged, message, seen
    )
