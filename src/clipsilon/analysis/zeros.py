"""Zeros of a vector field in a region, for fields with kinks and flat stretches.

The method takes implicit Euler steps on dθ/dt = −F(θ) with a growing step: far from a zero they follow the
flow that gradient algorithms follow, so they end at a point that these can reach; close to it they are
Newton's. The Jacobian is only ever applied to vectors, by differences.
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
_FAR = 1e8  # a flow that has come this far has no end
_TOLERANCE = 1e-12  # of the residual, relative to the field at the start
_CLOSE = 1e-7  # of the last Newton step, relative to the point: how near the true zero is
_EXAMINED = 300  # dimensions up to which the Jacobian's eigenvalues are looked at


class Zero(NamedTuple):
    """What was found: a zero, or the point where the residual was least."""

    theta: Array
    residual: float
    converged: bool
    attracts: bool
    isolated: bool


class _Task(NamedTuple):
    """A field in a region, with the scales in which the coordinates are measured."""

    field: Field
    project: Field
    scales: Array

    def residual(self, theta: Array) -> Array:
        """The field, but for the part of it that leads out of the region."""
        field = self.field(theta)
        ahead = theta - field
        inside = self.project(ahead)
        # Where the projection does nothing, θ − (θ − F) would only lose digits of F.
        return np.where(inside == ahead, field, theta - inside)

    def product(self, theta: Array, value: Array, direction: Array) -> Array:
        """The Jacobian of the residual times a direction, both in scaled coordinates."""
        length = float(np.linalg.norm(direction))
        if length == 0.0:
            return np.zeros_like(direction)
        nudge = 1e-7 * max(1.0, float(np.linalg.norm(self.scales * theta))) / length
        moved = self.residual(theta + nudge * direction / self.scales)
        return (moved - value) / (nudge * self.scales)


def find_zero(field: Field, project: Field, start: Array, scales: Array, limit: float | None = None) -> Zero:
    """A zero of the field in the region that `project` projects onto, sought from `start`."""
    task = _Task(field, project, scales)
    begin = project(start)
    if limit is None:
        limit = _TOLERANCE * max(1.0, float(np.linalg.norm(field(begin))))
    theta, size = _follow(task, begin, 1.0, limit)
    if size > limit:
        # An unstable zero repels the flow; Newton's method alone may still find it.
        newton, other = _follow(task, begin, np.inf, limit)
        theta, size = (newton, other) if other < size else (theta, size)
    return _examine(task, theta, size, limit)


def differences(function: Callable[[Array], float], theta: Array) -> Array:
    """A gradient by fourth-order central differences: good to about 10⁻¹⁰ for smooth functions of order one."""
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
    """Implicit Euler steps along the flow, longer while it leads on, shorter when a step went past its end."""
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


def _leaves_the_flow(value: Array, size: float, move: Array, trial_value: Array, trial_size: float) -> bool:
    """Whether a step went the wrong way, or past a zero, or to where the field is much larger."""
    against = move @ value >= 0
    # Turning the field around without halving it: a jump over the zero, perhaps from one flat stretch to another.
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
    """Tell a zero from a place where the field is merely small, and an attracting one from others."""
    value = task.residual(theta)
    sides = [_eigenvalues(task, theta, value, side) for side in (1.0, -1.0)]  # at a kink they differ
    largest = max(1e-300, *(float(np.abs(values).max()) for values in sides))
    flat = any(np.abs(values).min() <= max(1e-7 * largest, 1e-12) for values in sides)
    # The next Newton step says how far the zero may be: a field that fades out at infinity never has it small.
    step = size / largest if flat else float(np.linalg.norm(_newton_step(task, theta, value, size)))
    near = step <= _CLOSE * (1.0 + float(np.linalg.norm(task.scales * theta)))
    attracts = not flat and all(values.real.min() > 0 for values in sides)
    return Zero(theta, size, bool(size <= 1e3 * limit and near), attracts, not flat)


def _newton_step(task: _Task, theta: Array, value: Array, size: float) -> Array:
    """The next Newton step, in scaled coordinates."""
    return task.scales * _implicit_step(task, theta, value, np.inf) if size else np.zeros_like(theta)


def _eigenvalues(task: _Task, theta: Array, value: Array, side: float) -> NDArray[np.complex128]:
    """Of the one-sided Jacobian, if that is small enough to look at; else as if it were the identity."""
    if theta.size > _EXAMINED:
        return np.ones(1, dtype=np.complex128)
    columns = [side * task.product(theta, value, side * direction) for direction in np.eye(theta.size)]
    return np.asarray(np.linalg.eigvals(np.stack(columns, axis=1)), dtype=np.complex128)
