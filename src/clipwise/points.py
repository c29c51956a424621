"""The points that algorithms converge to, found without running them.

All but the optimum are zeros of a mean gradient field F(θ), clipped or not, whose records react to θ.
They are found by implicit Euler steps on dθ/dt = −F(θ) with a growing step: while F is far from zero
this follows the flow that the algorithms follow, so it ends at a point that they can reach; close to it
the steps are Newton's. The Jacobian is never formed, and F may have kinks (clipping, projection).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.sparse.linalg import LinearOperator, gmres

from clipwise import checks
from clipwise.clipping import Norm, add_clipped
from clipwise.engine.means import mean_gradient, mean_loss
from clipwise.parts import require
from clipwise.problem import Problem
from clipwise.regions import project
from clipwise.responses import is_random

Array = NDArray[np.float64]
Field = Callable[[Array], Array]

_ROUNDS = 500  # implicit steps before giving up
_TOLERANCE = 1e-12  # of the residual, relative to the size of a record's gradient at the start


@dataclass(frozen=True)
class Point:
    """A point, how well it solves its equation, and what is known about it."""

    theta: Array
    residual: float  # the norm of what should be zero at theta
    converged: bool
    contraction: float | None  # β·L/μ around theta; from 1 on, theory promises neither existence nor uniqueness
    draws: int | None  # reactions averaged a record, if the response is random
    message: str


def stable_point(problem: Problem, start: Any = 0.0, draws: int = 100) -> Point:
    """θ_PS, which is optimal for the data it causes: θ = argmin f(·; θ) (paper 1, eq. 4).

    Solves ∇f(θ; θ) = 0 (or, on the border of a region, that the step −∇f leads outside). With a random
    response, `draws` reactions of each record are averaged, always the same ones.
    """
    return _solve_point(problem, None, start, draws)


def clipped_point(problem: Problem, clip: Any, start: Any = 0.0, draws: int = 100) -> Point:
    """θ_∞, where clipped SGD stops: E_{Z ~ D(θ)} clip(∇ℓ(θ; Z)) = 0 (paper 1, Theorem 3.5).

    `clip` is a threshold, or any part of `clipwise.clipping`.
    """
    part = clip if isinstance(clip, tuple) else Norm(checks.positive("clip", clip))
    require("clip", part, [add_clipped])
    return _solve_point(problem, part, start, draws)


def clipping_bias(problem: Problem, clip: Any, start: Any = 0.0, draws: int = 100) -> float:
    """‖θ_∞ − θ_PS‖²: what clipping costs in the end, known before any run."""
    stable = stable_point(problem, start, draws).theta
    return float(np.sum((clipped_point(problem, clip, start, draws).theta - stable) ** 2))


def optimal_point(problem: Problem, start: Any = 0.0, draws: int = 100) -> Point:
    """The performative optimum, argmin f(θ; θ): best when the reaction is taken into account (paper 1, eq. 2).

    The risk need not be convex: the search starts from the stable point and from `start`, and the better
    end is returned. The residual is the norm of the (numerical) gradient of the risk.
    """
    first = checks.vector("start", start, problem.dimension)
    checks.count("draws", draws)

    def risk(theta: Array) -> float:
        # Outside the region: the risk at the projection, plus a term that leads back inside.
        inside = _projected(problem, theta)
        return mean_loss(problem, inside, inside, draws) + 0.5 * float(np.sum((theta - inside) ** 2))

    stable = _solve(problem, _field(problem, None, draws), first)[0]
    ends = [minimize(risk, begin, method="BFGS", jac="3-point", options={"gtol": 1e-9}) for begin in (stable, first)]
    best = min(ends, key=lambda end: end.fun)
    residual = float(np.linalg.norm(best.jac))
    theta = _projected(problem, best.x)
    return _describe(problem, "optimal point", theta, residual, residual < 1e-5, draws)


def repeated_minimization(problem: Problem, rounds: int, start: Any = 0.0, draws: int = 100) -> Array:
    """Retrain to optimality, deploy, repeat: θ_{k+1} = argmin f(·; θ_k). The iterates, (rounds + 1, d)."""
    checks.count("rounds", rounds)
    iterates = [checks.vector("start", start, problem.dimension)]
    for k in range(rounds):
        deployed = iterates[-1]
        theta, residual, converged = _solve(problem, _fixed_field(problem, deployed, draws), deployed)
        if not converged:
            warnings.warn(f"round {k + 1} found no minimum (residual {residual:.1e}).", stacklevel=2)
        iterates.append(theta)
    return np.stack(iterates)


def repeated_gradient(problem: Problem, step: float, rounds: int, start: Any = 0.0, draws: int = 100) -> Array:
    """One full gradient step, deploy, repeat: θ_{k+1} = project(θ_k − step·∇f(θ_k; θ_k)). (rounds + 1, d)."""
    checks.count("rounds", rounds)
    checks.positive("step", step)
    iterates = [checks.vector("start", start, problem.dimension)]
    for _ in range(rounds):
        theta = iterates[-1]
        iterates.append(_projected(problem, theta - step * mean_gradient(problem, theta, theta, draws)))
    return np.stack(iterates)


def _solve_point(problem: Problem, clip: Any, start: Any, draws: int) -> Point:
    checks.count("draws", draws)
    first = checks.vector("start", start, problem.dimension)
    theta, residual, converged = _solve(problem, _field(problem, clip, draws), first)
    return _describe(problem, "stable point" if clip is None else "clipped point", theta, residual, converged, draws)


def _field(problem: Problem, clip: Any, draws: int) -> Field:
    return lambda theta: mean_gradient(problem, theta, theta, draws, clip)


def _fixed_field(problem: Problem, deployed: Array, draws: int) -> Field:
    return lambda theta: mean_gradient(problem, theta, deployed, draws)


def _projected(problem: Problem, theta: Array) -> Array:
    result = theta.copy()
    project(problem.region, result)
    return result


def _solve(problem: Problem, field: Field, start: Array) -> tuple[Array, float, bool]:
    """A zero of θ − project(θ − field(θ)), its residual, and whether that is small enough."""

    def residual(theta: Array) -> Array:
        return theta - _projected(problem, theta - field(theta))

    begin = _projected(problem, start)
    limit = _TOLERANCE * max(1.0, float(np.linalg.norm(field(begin))))
    theta, size = _follow(problem, residual, begin, 1.0, limit)
    if size > limit:
        # An unstable zero repels the flow; Newton's method alone may still find it.
        newton, other = _follow(problem, residual, begin, np.inf, limit)
        theta, size = (newton, other) if other < size else (theta, size)
    return theta, size, size <= 1e3 * limit


def _follow(problem: Problem, residual: Field, theta: Array, time_step: float, limit: float) -> tuple[Array, float]:
    """Implicit Euler steps with a step that doubles when the residual falls and shrinks when it grows."""
    value = residual(theta)
    size = float(np.linalg.norm(value))
    best, best_size = theta, size
    for _ in range(_ROUNDS):
        if best_size <= limit or not np.isfinite(size):
            break
        move = _implicit_step(residual, theta, value, time_step)
        trial = _projected(problem, theta + move)
        trial_value = residual(trial)
        trial_size = float(np.linalg.norm(trial_value))
        if trial_size > 2.0 * size and np.isfinite(time_step) and time_step > 1e-6:
            time_step /= 4.0
            continue
        time_step *= 2.0 if trial_size < 1.5 * size else 1.0
        theta, value, size = trial, trial_value, trial_size
        if size < best_size:
            best, best_size = theta, size
    return best, best_size


def _implicit_step(residual: Field, theta: Array, value: Array, time_step: float) -> Array:
    """Solve (I/time_step + J)·move = −value with differences in place of the Jacobian J."""
    scale = 1e-7 * max(1.0, float(np.linalg.norm(theta)))

    def product(direction: Array) -> Array:
        length = float(np.linalg.norm(direction))
        if length == 0.0:
            return np.zeros_like(direction)
        nudge = scale / length
        return direction / time_step + (residual(theta + nudge * direction) - value) / nudge

    operator = LinearOperator((theta.size, theta.size), matvec=product, dtype=np.float64)
    move, _ = gmres(operator, -value, rtol=1e-4, atol=0.0, restart=min(theta.size, 50), maxiter=4)
    return np.asarray(move) if np.isfinite(move).all() else -value


def _describe(problem: Problem, what: str, theta: Array, residual: float, converged: bool, draws: int) -> Point:
    """Say how good a point is, and what theory knows about its existence."""
    contraction = problem.constants(2.0 * max(1.0, float(np.linalg.norm(theta)))).contraction
    averaged = draws if is_random(problem.response) else None
    parts = [f"{what} with residual {residual:.1e}"]
    if averaged is not None:
        parts.append(f"averaged over {averaged} draws of the response a record")
    if contraction >= 1.0:
        parts.append(
            f"β ≥ μ/L (βL/μ = {contraction:.3g} by the bounds around it), so there may be no stable point, or several, "
            "and retraining may not converge"
        )
    message = "; ".join(parts) + "."
    if not converged:
        message = f"No {what} was found: " + message
        warnings.warn(message, stacklevel=4)
    return Point(theta, residual, converged, contraction, averaged, message)
