"""The privacy loss of one step with subsampled Gaussian noise, on a grid, never understated.

With probability q a record takes part and shifts the output x by μ = 1/noise multiplier. So the outputs to be
told apart are mix = (1−q)·N(0, 1) + q·N(μ, 1) and base = N(0, 1), and the privacy loss at x is
ℓ(x) = log(mix/base) = log(1 − q + q·e^{μx − μ²/2}), which grows with x: the grid of losses is a grid of x.

What lies between two grid points moves to those two points, in the shares that keep both its mix and its base
probability. This dominates the original ("connect the dots", arXiv 2207.04380), with an error of second order.
Everything is in logarithms, because a loss of 1000 compares probabilities e^1000 apart.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtr, ndtri

Array = NDArray[np.float64]

_EPS = float(np.finfo(np.float64).eps)
LARGEST_GRID = 2**21  # points


class TooFineError(ValueError):
    """The grid asked for has more points than are worth it."""


@dataclass(frozen=True)
class Losses:
    """A random loss: (first + i)·interval with probability masses[i], and infinite otherwise."""

    interval: float
    first: int
    masses: Array
    infinite: float


def removal(q: float, mu: float, interval: float, tail: float) -> Losses:
    """The loss of x ~ mix against base; all but `tail` of it is on the grid."""
    first, last = _places(q, mu, float(ndtri(tail)), _top(q, mu, tail), interval)
    bins = _bins(q, mu, first, last, interval)
    masses = _connected(bins.log_mix, bins.log_base, bins.error, bins.losses[:-1], interval)
    masses[0] += _mix_below(q, mu, bins.outcomes[0])
    return Losses(interval, first, masses, _mix_above(q, mu, bins.outcomes[-1]))


def addition(q: float, mu: float, interval: float, tail: float) -> Losses:
    """The loss of x ~ base against mix; all but `tail` of it is on the grid."""
    first, last = _places(q, mu, float(ndtri(tail)), -float(ndtri(tail)), interval)
    bins = _bins(q, mu, first, last, interval)
    masses = _reversed(bins, interval)
    masses[0] += ndtr(-bins.outcomes[-1])
    return Losses(interval, -last, masses, float(ndtr(bins.outcomes[0])))


def symmetrised(q: float, mu: float, interval: float, tail: float) -> Losses:
    """The loss whose profile is h(α) = max{H_α(mix‖base), H_α(base‖mix)}, for every α.

    From α = 1 on the maximum is H_α(mix‖base), which only knows the losses above 0 of x ~ mix; below 1 it is
    H_α(base‖mix), which adds those below 0 of x ~ base; and the kink of h at 1 is a probability of a loss of 0.
    Both parts are about the outputs x > μ/2.
    """
    last = max(1, math.ceil(_loss(q, mu, _top(q, mu, tail)) / interval))
    bins = _bins(q, mu, 0, last, interval)
    above = _connected(bins.log_mix, bins.log_base, bins.error, bins.losses[:-1], interval)
    below = _reversed(bins, interval)
    below[0] += ndtr(-bins.outcomes[-1])
    zero = (1 - q) * (1 - 2 * ndtr(-mu / 2)) + above[0] + below[-1]
    masses = np.concatenate([below[:-1], [zero], above[1:]])
    return Losses(interval, -last, masses, _mix_above(q, mu, bins.outcomes[-1]))


def reach(q: float, mu: float, tail: float) -> float:
    """How far apart the losses of one step are: the scale of the first grid."""
    spread = _loss(q, mu, _top(q, mu, tail)) - _loss(q, mu, float(ndtri(tail)))
    # A shift so large and rare that all of it is cut leaves the loss of not taking part, log(1 − q), alone.
    return spread if spread > 0 else -math.log1p(-q)


@dataclass(frozen=True)
class _Bins:
    losses: Array  # at the n + 1 edges
    outcomes: Array  # x at the edges
    log_mix: Array  # of the n bins
    log_base: Array
    error: Array  # of log_mix − log_base, at most


def _bins(q: float, mu: float, first: int, last: int, interval: float) -> _Bins:
    if last - first > LARGEST_GRID:
        raise TooFineError
    losses = np.arange(first, last + 1, dtype=np.float64) * interval
    outcomes = _outcomes(q, mu, losses)
    log_base, base_error = _log_between(outcomes)
    log_shifted, shifted_error = _log_between(outcomes - mu)
    log_mix = np.logaddexp(math.log1p(-q) + log_base, math.log(q) + log_shifted)
    return _Bins(losses, outcomes, log_mix, log_base, base_error + shifted_error)


def _places(q: float, mu: float, bottom: float, top: float, interval: float) -> tuple[int, int]:
    """The ends of a grid of losses for the outputs from bottom to top."""
    first = math.floor(_loss(q, mu, bottom) / interval)
    return first, max(first + 1, math.ceil(_loss(q, mu, top) / interval))


def _connected(log_p: Array, log_q: Array, error: Array, lower: Array, interval: float) -> Array:
    """Masses at the edges of the bins, whose lower losses are `lower`, as p and q in each bin ask for."""
    # A bin's share at its upper edge is (1 − e^lower·q/p)/(1 − e^−interval); rounding must not make it smaller.
    with np.errstate(invalid="ignore"):
        ratio = np.nan_to_num(log_q - log_p, nan=0.0)  # of a bin that doubles see nothing in
    share = -np.expm1(np.minimum(0.0, ratio + lower)) + error
    share = np.minimum(1.0, share / -math.expm1(-interval))
    mass = np.exp(log_p)
    result = np.zeros(mass.size + 1)
    result[1:] = mass * share
    result[:-1] += mass * (1 - share)
    return result


def _reversed(bins: _Bins, interval: float) -> Array:
    """The same bins seen from base: their losses change sign, and so the order."""
    return _connected(bins.log_base[::-1], bins.log_mix[::-1], bins.error[::-1], -bins.losses[:0:-1], interval)


def _log_between(x: Array) -> tuple[Array, Array]:
    """The logarithm of Φ(b) − Φ(a) for neighbours a < b in x, and a bound on its error."""
    tails = log_ndtr(-np.abs(x))
    larger, smaller = np.maximum(tails[:-1], tails[1:]), np.minimum(tails[:-1], tails[1:])
    around = (x[:-1] < 0) & (x[1:] > 0)
    whole = np.where(around, 0.0, larger)
    with np.errstate(divide="ignore", invalid="ignore"):
        removed = np.where(around, np.exp(larger) + np.exp(smaller), np.exp(smaller - larger))
        rest = 1 - np.nan_to_num(removed, nan=1.0)
        error = np.nan_to_num(4 * _EPS * (1 - larger) / rest, nan=1.0, posinf=1.0)
        return whole + np.log(rest), np.minimum(1.0, error)


def _loss(q: float, mu: float, x: float) -> float:
    exponent = mu * x - mu * mu / 2
    if exponent < 1:
        return math.log1p(q * math.expm1(exponent))
    return exponent + math.log(q + (1 - q) * math.exp(-exponent))


def _outcomes(q: float, mu: float, losses: Array) -> Array:
    """The x of each loss; −∞ for a loss below log(1 − q), which no x has."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        small = np.log1p(np.maximum(-1.0, np.expm1(np.minimum(losses, 1.0)) / q))
        large = losses + np.log1p(-(1 - q) * np.exp(-np.maximum(losses, 1.0))) - math.log(q)
        return np.asarray(np.where(losses < 1.0, small, large) / mu + mu / 2)


def _top(q: float, mu: float, tail: float) -> float:
    """An x that x ~ mix exceeds with probability `tail` at most."""
    return -min(float(ndtri(tail / 2)), float(ndtri(min(1.0, tail / (2 * q)))) - mu)


def _mix_below(q: float, mu: float, x: float) -> float:
    return float((1 - q) * ndtr(x) + q * ndtr(x - mu))


def _mix_above(q: float, mu: float, x: float) -> float:
    return float((1 - q) * ndtr(-x) + q * ndtr(mu - x))
