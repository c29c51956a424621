"""Zeros of a vector field in a region, for fields with kinks and flat stretches.

The method takes implicit Euler steps on dθ/dt = −F(θ) with a growing step size. Far from a zero they follow the
flow that gradient algorithms follow, and so end at a point that these can reach; near a zero they are Newton
steps. The Jacobian is only applied to vectors, by finite differences.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.linalg import LinearOperator, gmres

Array = NDArray[np.float64]
Field = Callable[[Array], Array]

_ROUNDS = 500  # implicit steps before giving up
_SIDE_ROUNDS = 120  # short implicit steps from the side of a zero that repels
_FAR = 1e8  # a flow that reaches this norm is taken to diverge
_TOLERANCE = 1e-12  # of the residual, relative to the field at the start
_ASIDE = 1e-3  # distance from a zero that repels at which the flow is entered, relative to the zero
_CLOSE = 1e-7  # of the last Newton step, relative to the point
_MAX_EIGENVALUES = 300  # the largest dimension for which the eigenvalues of the Jacobian are computed


class Zero(NamedTuple):
    """A zero, or the point with the smallest residual if none was found.

    Parameters
    ----------
    theta : ndarray
        The point.
    residual : float
        The norm of the projected field at `theta`.
    converged : bool
        Whether `theta` is a zero up to rounding.
    attracts : bool
        Whether the flow −F leads to it from all sides.
    isolated : bool
        Whether the field is nowhere flat around it.
    """

    theta: Array
    residual: float
    converged: bool
    attracts: bool
    isolated: bool


class _Task(NamedTuple):
    """A field, the projection onto a region, and the scales of the coordinates."""

    field: Field
    project: Field
    scales: Array

    def residual(self, theta: Array) -> Array:
        """Return the field without the component that leads out of the region."""
        field = self.field(theta)
        ahead = theta - field
        inside = self.project(ahead)
        # Where the projection changes nothing, θ − (θ − F) would only lose digits of F.
        return np.where(inside == ahead, field, theta - inside)

    def product(self, theta: Array, value: Array, direction: Array) -> Array:
        """Return the Jacobian of the residual times a direction, both in scaled coordinates."""
        length = float(np.linalg.norm(direction))
        if length == 0.0:
            return np.zeros_like(direction)
        nudge = 1e-7 * max(1.0, float(np.linalg.norm(self.scales * theta))) / length
        moved = self.residual(theta + nudge * direction / self.scales)
        return (moved - value) / (nudge * self.scales)


def find_zero(field: Field, project: Field, start: Array, scales: Array, limit: float | None = None) -> Zero:
    """Find a zero of a vector field in a region.

    Parameters
    ----------
    field : callable
        F, from a point to a vector of the same length.
    project : callable
        The projection onto the region, which returns a new point.
    start : ndarray
        Where the search begins.
    scales : ndarray
        The sizes in which the coordinates of θ are measured, all above 0.
    limit : float, optional
        The residual that ends the search. The default is 10⁻¹² times the larger of 1 and ‖F(start)‖.

    Returns
    -------
    Zero
        The zero, or the best point that was found.
    """
    task = _Task(field, project, scales)
    begin = project(start)
    if limit is None:
        limit = _TOLERANCE * max(1.0, float(np.linalg.norm(field(begin))))
    theta, size = _follow(task, begin, 1.0, limit)
    if size > limit:
        # An unstable zero repels the flow; plain Newton steps may still find it.
        newton, other = _follow(task, begin, np.inf, limit)
        theta, size = (newton, other) if other < size else (theta, size)
    return _examine(task, theta, size, limit)


def leave_zero(field: Field, project: Field, zero: Array, scales: Array) -> list[Array]:
    """Return where the flow leads from both sides of a zero that repels.

    Parameters
    ----------
    field, project, scales
        As in `find_zero`.
    zero : ndarray
        The zero, in no more dimensions than those for which `find_zero` states whether it attracts.

    Returns
    -------
    list of ndarray
        Where the flow slowed down, for each of the two sides on which it did. Its steps are too short to pass a zero
        that attracts.
    """
    task = _Task(field, project, scales)
    values, vectors = np.linalg.eig(_jacobian(task, zero, task.residual(zero), 1.0))
    fastest = int(values.real.argmin())
    direction = vectors[:, fastest].real / np.linalg.norm(vectors[:, fastest].real) / scales
    aside = _ASIDE * (1.0 + float(np.linalg.norm(scales * zero)))
    longest = 0.25 / max(-float(values.real[fastest]), 1e-9)
    ends = [_flow(task, project(zero + side * direction), longest) for side in (aside, -aside)]
    return [end for end in ends if end is not None]


def differences(function: Callable[[Array], float], theta: Array) -> Array:
    """Return a gradient by fourth-order central differences.

    The error is about 10⁻¹⁰ for smooth functions with values and derivatives of order one.
    """
    step = 1e-5 * max(1.0, float(np.linalg.norm(theta)))
    result = np.empty_like(theta)
    for j in range(theta.size):
        far, near = np.zeros_like(theta), np.zeros_like(theta)
        far[j], near[j] = 2 * step, step
        wide = function(theta + far) - function(theta - far)
        narrow = function(theta + near) - function(theta - near)
        result[j] = (8 * narrow - wide) / (12 * step)
    return result


def _follow(task: _Task, theta: Array, time_step: float, limit: float) -> tuple[Array, float]:
    """Take implicit Euler steps along the flow; double the time step after each, and divide it by 4 after a failure."""
    value = task.residual(theta)
    size = float(np.linalg.norm(value))
    best, best_size = theta, size
    for _ in range(_ROUNDS):
        if best_size <= limit or not np.isfinite(size) or np.linalg.norm(theta) > _FAR:
            break
        move = _implicit_step(task, theta, value, time_step)
        trial = task.project(theta + move)
        trial_value = task.residual(trial)
        trial_size = float(np.linalg.norm(trial_value))
        if np.isfinite(time_step) and time_step > 1e-9 and _leaves_the_flow(value, size, move, trial_value, trial_size):
            time_step /= 4.0
            continue
        time_step *= 2.0
        theta, value, size = trial, trial_value, trial_size
        if size < best_size and np.linalg.norm(theta) <= _FAR:
            best, best_size = theta, size
    return best, best_size


def _flow(task: _Task, theta: Array, longest: float) -> Array | None:
    """Take implicit Euler steps of at most `longest` along the flow until it slows down; return None if it does not."""
    value = task.residual(theta)
    size = largest = float(np.linalg.norm(value))
    time_step = longest
    for _ in range(_SIDE_ROUNDS):
        move = _implicit_step(task, theta, value, time_step)
        trial = task.project(theta + move)
        trial_value = task.residual(trial)
        trial_size = float(np.linalg.norm(trial_value))
        if time_step > 1e-9 * longest and _leaves_the_flow(value, size, move, trial_value, trial_size):
            time_step /= 4.0
            continue
        if not np.isfinite(trial_size) or np.linalg.norm(trial) > _FAR:
            break
        time_step = min(2.0 * time_step, longest)
        theta, value, size = trial, trial_value, trial_size
        largest = max(largest, size)
        if size <= 1e-3 * largest:
            break
    return theta if size <= 0.5 * largest else None


def _leaves_the_flow(value: Array, size: float, move: Array, trial_value: Array, trial_size: float) -> bool:
    """Return whether a step went against the flow, past a zero, or to where the field is much larger."""
    against = move @ value >= 0
    # The field turned around but was not halved: a jump over the zero, perhaps from one flat stretch to another.
    past = trial_value @ value <= 0 and trial_size > 0.5 * size
    return bool(against or past or trial_size > 2.0 * size)


def _implicit_step(task: _Task, theta: Array, value: Array, time_step: float) -> Array:
    """Solve (I/time_step + J)·move = −value in scaled coordinates."""

    def product(direction: Array) -> Array:
        return direction / time_step + task.product(theta, value, direction)

    operator = LinearOperator((theta.size, theta.size), matvec=product, dtype=np.float64)
    restart = min(theta.size, 100)
    move, _ = gmres(operator, -value / task.scales, rtol=1e-8, atol=0.0, restart=restart, maxiter=2)
    return np.asarray(move) / task.scales if np.isfinite(move).all() else -value


def _examine(task: _Task, theta: Array, size: float, limit: float) -> Zero:
    """Distinguish a zero from a point where the field is merely small, and an attracting zero from others."""
    value = task.residual(theta)
    sides = [_eigenvalues(task, theta, value, side) for side in (1.0, -1.0)]  # at a kink they differ
    largest = max(1e-300, *(float(np.abs(values).max()) for values in sides))
    flat = any(np.abs(values).min() <= max(1e-7 * largest, 1e-12) for values in sides)
    # The next Newton step estimates the distance to the zero; for a field that decays towards infinity it is never
    # small.
    step = size / largest if flat else float(np.linalg.norm(_newton_step(task, theta, value, size)))
    near = step <= _CLOSE * (1.0 + float(np.linalg.norm(task.scales * theta)))
    attracts = not flat and all(values.real.min() > 0 for values in sides)
    return Zero(theta, size, bool(size <= 1e3 * limit and near), attracts, not flat)


def _newton_step(task: _Task, theta: Array, value: Array, size: float) -> Array:
    """Return the next Newton step, in scaled coordinates."""
    return task.scales * _implicit_step(task, theta, value, np.inf) if size else np.zeros_like(theta)


def _eigenvalues(task: _Task, theta: Array, value: Array, side: float) -> NDArray[np.complex128]:
    """Return the eigenvalues of the one-sided Jacobian, or 1 if the dimension is too large to compute them."""
    if theta.size > _MAX_EIGENVALUES:
        return np.ones(1, dtype=np.complex128)
    return np.asarray(np.linalg.eigvals(_jacobian(task, theta, value, side)), dtype=np.complex128)


def _jacobian(task: _Task, theta: Array, value: Array, side: float) -> Array:
    """Return the one-sided Jacobian, in scaled coordinates."""
    return np.stack([side * task.product(theta, value, side * direction) for direction in np.eye(theta.size)], axis=1)
