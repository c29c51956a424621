"""Exact Gaussian differential privacy: distinguishing N(0, 1) from N(μ, 1).

δ(ε) = Φ(−ε/μ + μ/2) − e^ε·Φ(−ε/μ − μ/2). Both terms can be tiny, nearly equal, or the product of a huge and a tiny
number. With t = ε/μ − μ/2, e^ε·φ(t + μ) = φ(t), so that δ = φ(t)·(m(t) − m(t + μ)) with Mills' ratio m(u) = Φ(−u)/φ(u),
which is well-behaved wherever it is needed.
"""

from __future__ import annotations

import math
from typing import overload

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq
from scipy.special import erfcx, erfinv, log_ndtr, ndtri

from clipsilon._core import checks

Array = NDArray[np.float64]

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(8)
_SMALL = 0.5  # from this μ on, the difference of two Mills' ratios loses no digits that matter
_HUGE = 1e7  # from this μ on, ε = μ²/2 + O(μ) is exact enough, and rounding of t is not
_MOST_NEWTON = 60  # iterations; a dozen are usual
_NUDGE = 1e-12  # relative margin by which root searches end on the safe side
_DOUBT = 1e-13  # in log δ: closer to the goal than this at ε = 0, rounding could decide that no ε is needed


@overload
def delta(mu: float, epsilon: float) -> float: ...
@overload
def delta(mu: ArrayLike, epsilon: ArrayLike) -> float | Array: ...
def delta(mu: ArrayLike, epsilon: ArrayLike) -> float | Array:
    """Return δ_μ(ε) for any ε ≥ 0; arrays broadcast."""
    result = np.exp(log_delta(mu, epsilon))
    return result if result.ndim else float(result)


def log_delta(mu: ArrayLike, epsilon: ArrayLike) -> Array:
    """Return the logarithm of δ_μ(ε), also where δ itself underflows."""
    shift, loss = np.broadcast_arrays(np.asarray(mu, dtype=np.float64), np.asarray(epsilon, dtype=np.float64))
    if not (np.all(shift >= 0) and np.all(loss >= 0)):
        raise ValueError(f"mu and epsilon must be at least 0, got {mu!r} and {epsilon!r}.")
    result = np.where(shift == np.inf, 0.0, -np.inf)
    small = (shift > 0) & (shift < _SMALL)
    large = (shift >= _SMALL) & (shift < np.inf)
    result[small] = _log_delta_small(shift[small], loss[small])
    result[large] = _log_delta_large(shift[large], loss[large])
    return result


def epsilon(mu: float, delta: float) -> float:
    """Return the smallest ε ≥ 0 with δ_μ(ε) ≤ δ, rounded up."""
    goal = _log_of_fraction(delta)
    if mu == math.inf:
        return math.inf
    at_zero = log_delta(mu, 0.0) - goal
    if at_zero <= -_DOUBT:
        return 0.0
    # Φ(−t) < δ already holds at t = √(2·log(1/δ)).
    upper = mu * (mu / 2 + math.sqrt(-2 * goal))
    if mu > _HUGE:
        return upper
    if at_zero <= _DOUBT:
        return min(upper, float(_least_epsilon(mu, goal)))
    root = brentq(lambda loss: float(log_delta(mu, loss)) - goal, 0.0, upper, xtol=1e-15 * upper, rtol=1e-14)
    return float(root) * (1 + _NUDGE) + 2e-15 * upper


def epsilons(mus: Array, delta: float) -> Array:
    """Return `epsilon` of many μ at once, rounded up.

    log δ_μ is concave in ε: δ_μ(ε) is the convolution of exp(−x), x ≥ 0, with a normal tail, both log-concave. So a
    tangent of it lies above it, and Newton's iteration from an ε that is large enough stays large enough.
    """
    goal = _log_of_fraction(delta)
    found = np.where(np.asarray(mus) == np.inf, np.inf, 0.0)
    at_zero = log_delta(mus, 0.0) - goal
    open_ = np.isfinite(mus) & (at_zero > -_DOUBT)
    shift = mus[open_]
    upper = shift * (shift / 2 + math.sqrt(-2 * goal))
    root = upper.copy()
    for _ in range(_MOST_NEWTON):
        value = log_delta(shift, root)
        t = root / shift - shift / 2
        with np.errstate(all="ignore"):
            slope = np.exp(_log_density(t) + np.log(_mills(t + shift)) - value)
            step = np.where(value < goal, (goal - value) / slope, 0.0)
        root = np.where((step > 0) & (step <= root), root - step, root)
        if not np.any(step > 1e-14 * root):
            break
    root = root * (1 + _NUDGE) + 2e-15 * upper
    root = np.where(at_zero[open_] <= _DOUBT, np.minimum(upper, _least_epsilon(shift, goal)), root)
    root = np.where(shift > _HUGE, upper, root)
    for k in np.flatnonzero(log_delta(shift, root) > goal):  # only by rounding
        root[k] = epsilon(float(shift[k]), delta)
    found[open_] = root
    return found


def _least_epsilon(mu: ArrayLike, goal: float) -> Array:
    """Return an ε that is enough where log δ_μ(0) is the goal up to rounding: log δ falls by Φ(−μ/2)/δ per ε at least.

    That is its slope at 0, and it is concave.
    """
    with np.errstate(over="ignore"):
        return np.asarray(4 * _DOUBT * np.exp(goal - log_ndtr(-np.asarray(mu) / 2)))


def largest_mu(epsilon: float, delta: float) -> float:
    """Return the largest μ with δ_μ(ε) ≤ δ, rounded down: how far a release may shift and still be (ε, δ)-private."""
    goal = _log_of_fraction(delta)
    checks.nonnegative("epsilon", epsilon)
    # Two values that are private for certain: the one for ε = 0, and the inverse of the upper bound in `epsilon`.
    width = math.sqrt(-2 * goal)
    still = 2 * math.sqrt(2) * float(erfinv(delta)) if delta < 0.5 else -2 * float(ndtri((1 - delta) / 2))
    lower = max(still, 2 * epsilon / (math.sqrt(width**2 + 2 * epsilon) + width)) * (1 - _NUDGE)
    while log_delta(lower, epsilon) > goal:  # only by rounding
        lower *= 1 - 1e-6
    if lower > _HUGE:
        return lower
    upper = 2 * lower
    while log_delta(upper, epsilon) <= goal:
        upper *= 2
    root = brentq(lambda shift: float(log_delta(shift, epsilon)) - goal, lower, upper, xtol=1e-14 * lower, rtol=1e-14)
    return float(root) * (1 - _NUDGE)


def _log_of_fraction(delta: float) -> float:
    """Return log δ; raise ValueError unless 0 < δ < 1."""
    return math.log(checks.open_fraction("delta", delta))


def _log_density(t: Array) -> Array:
    """Return log φ(t)."""
    return -0.5 * t * t - 0.5 * math.log(2 * math.pi)


def _mills(t: Array) -> Array:
    """Return Mills' ratio m(t)."""
    return np.asarray(math.sqrt(math.pi / 2) * erfcx(t / math.sqrt(2)))


def _log_delta_small(mu: Array, epsilon: Array) -> Array:
    """Return log δ with m(t) − m(t + μ) as the integral of −m'(u) = 1 − u·m(u), because the difference would cancel."""
    t = epsilon / mu - mu / 2
    u = t[..., np.newaxis] + mu[..., np.newaxis] * (1 + _NODES) / 2
    # For large u, 1 − u·m(u) is nothing but rounding; 1/(u² + 3) is a lower bound there, and the limit.
    with np.errstate(over="ignore"):
        slope = np.maximum(1 - u * _mills(u), 1 / (u * u + 3))
        return np.asarray(_log_density(t) + np.log(slope @ _WEIGHTS * mu / 2))


def _log_delta_large(mu: Array, epsilon: Array) -> Array:
    """Return log δ from the difference of two Mills' ratios, or of two probabilities where t < 0."""
    t = epsilon / mu - mu / 2
    with np.errstate(over="ignore"):
        # m(t) overflows for t ≪ 0, where Φ(−t) itself is close to 1.
        ahead = _log_density(t) + np.log(np.maximum(_mills(np.maximum(t, 0)) - _mills(t + mu), np.finfo(float).tiny))
        behind = np.exp(log_ndtr(-t)) - np.exp(_log_density(t)) * _mills(t + mu)
        return np.asarray(np.where(t >= 0, ahead, np.log(np.maximum(behind, np.finfo(float).tiny))))
