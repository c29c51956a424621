"""The privacy loss of one step with subsampled Gaussian noise, on a grid, never understated.

With probability q a record takes part and shifts the output x by μ = 1/noise multiplier. So the distributions to be
distinguished are mix = (1−q)·N(0, 1) + q·N(μ, 1) and base = N(0, 1), and the privacy loss at x is
ℓ(x) = log(mix/base) = log(1 − q + q·e^{μx − μ²/2}), which increases with x: the grid of losses is a grid of x.

The mass between two grid points moves to those two points, in the proportions that preserve both its mix and its base
probability. This dominates the original ("connect the dots", arXiv 2207.04380), with an error of second order.
All computations are in logarithms, because a loss of 1000 compares probabilities e^1000 apart.
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
    """The requested grid has more points than `LARGEST_GRID`."""


@dataclass(frozen=True)
class Losses:
    """A random loss: (first + i)·interval with probability masses[i], and infinite otherwise.

    Attributes
    ----------
    interval : float
        The distance between two grid points.
    first : int
        The index of the smallest finite loss.
    masses : array of float
        The probabilities of the finite losses.
    infinite : float
        The probability of an infinite loss.
    """

    interval: float
    first: int
    masses: Array
    infinite: float


def removal(q: float, mu: float, interval: float, tail: float) -> Losses:
    """Return the loss of x ~ mix against base.

    Parameters
    ----------
    q : float
        The probability that the record takes part, above 0 and below 1.
    mu : float
        The shift, 1/noise multiplier.
    interval : float
        The distance between two grid points.
    tail : float
        The largest probability that may be left off the grid, on which the loss counts as infinite.

    Returns
    -------
    Losses
        A loss that dominates the true one.
    """
    first, last = _places(q, mu, float(ndtri(tail)), _top(q, mu, tail), interval)
    bins = _bins(q, mu, first, last, interval)
    masses = _connected(bins.log_mix, bins.log_base, bins.error, bins.losses[:-1], interval)
    masses[0] += _mix_below(q, mu, bins.outcomes[0])
    return Losses(interval, first, masses, _mix_above(q, mu, bins.outcomes[-1]))


def addition(q: float, mu: float, interval: float, tail: float) -> Losses:
    """Return the loss of x ~ base against mix.

    Parameters
    ----------
    q, mu, interval, tail
        As in `removal`.

    Returns
    -------
    Losses
        A loss that dominates the true one.
    """
    first, last = _places(q, mu, float(ndtri(tail)), -float(ndtri(tail)), interval)
    bins = _bins(q, mu, first, last, interval)
    masses = _reversed(bins, interval)
    masses[0] += ndtr(-bins.outcomes[-1])
    return Losses(interval, -last, masses, float(ndtr(bins.outcomes[0])))


def symmetrised(q: float, mu: float, interval: float, tail: float) -> Losses:
    """Return the loss whose profile is h(α) = max{H_α(mix‖base), H_α(base‖mix)}, for every α.

    For α ≥ 1 the maximum is H_α(mix‖base), which depends only on the losses above 0 of x ~ mix; below 1 it is
    H_α(base‖mix), which adds those below 0 of x ~ base; and the kink of h at 1 is a probability of a loss of 0. Both
    parts concern the outputs x > μ/2.

    Parameters
    ----------
    q, mu, interval, tail
        As in `removal`.

    Returns
    -------
    Losses
        A loss that dominates the true one in both directions.
    """
    bins = _bins(q, mu, 0, _last(_loss(q, mu, _top(q, mu, tail)), interval), interval)
    above = _connected(bins.log_mix, bins.log_base, bins.error, bins.losses[:-1], interval)
    below = _reversed(bins, interval)
    below[0] += ndtr(-bins.outcomes[-1])
    masses = _joined(below, (1 - q) * (1 - 2 * float(ndtr(-mu / 2))), above)
    return Losses(interval, 1 - below.size, masses, _mix_above(q, mu, bins.outcomes[-1]))


def subset_removal(q: float, mu: float, interval: float, tail: float) -> Losses:
    """Return the loss of one step on a uniform subset with a record, against one to which it adds nothing.

    The profile (docs/privacy.md) is H_α(far‖near) for α ≥ 1, with far = (1−q)·N(0, 1) + q·N(2μ, 1) and near =
    (1−q)·N(0, 1) + q·N(μ, 1), because another record may be drawn instead that pulls the other way; and H_α(base‖mix)
    for α ≤ 1. The first concerns outputs x > 3μ/2, the second x > μ/2, and the kink at 1 is a probability of a loss
    of 0.

    Parameters
    ----------
    q, mu, interval, tail
        As in `removal`, with μ the shift by the record itself.

    Returns
    -------
    Losses
        A loss that dominates the true one.
    """
    far = _subset_bins(q, mu, tail, interval)
    near = _bins(q, mu, 0, _last(_loss(q, mu, -float(ndtri(tail))), interval), interval)
    above = _connected(far.log_mix, far.log_base, far.error, far.losses[:-1], interval)
    below = _reversed(near, interval)
    below[0] += ndtr(-near.outcomes[-1])
    masses = _joined(below, _subset_kink(q, mu), above)
    return Losses(interval, 1 - below.size, masses, _mix_above(q, 2 * mu, far.outcomes[-1]))


def subset_addition(q: float, mu: float, interval: float, tail: float) -> Losses:
    """Return the loss of one step on a uniform subset to which a record adds nothing, against one with the record.

    Parameters
    ----------
    q, mu, interval, tail
        As in `subset_removal`.

    Returns
    -------
    Losses
        A loss that dominates the true one.
    """
    far = _subset_bins(q, mu, tail, interval)
    near = _bins(q, mu, 0, _last(_loss(q, mu, _top(q, mu, tail)), interval), interval)
    above = _connected(near.log_mix, near.log_base, near.error, near.losses[:-1], interval)
    below = _reversed(far, interval)
    below[0] += _mix_above(q, mu, far.outcomes[-1])
    masses = _joined(below, _subset_kink(q, mu), above)
    return Losses(interval, 1 - below.size, masses, _mix_above(q, mu, near.outcomes[-1]))


def reach(q: float, mu: float, tail: float) -> float:
    """Return the range of the losses of one step, which is the scale of the first grid.

    Parameters
    ----------
    q, mu, tail
        As in `removal`.

    Returns
    -------
    float
        The range, above 0.
    """
    spread = _loss(q, mu, _top(q, mu, tail)) - _loss(q, mu, float(ndtri(tail)))
    # If the shift is so large and rare that all of it is cut, only the loss of not taking part remains, log(1 − q).
    return spread if spread > 0 else -math.log1p(-q)


@dataclass(frozen=True)
class _Bins:
    """The bins between n + 1 losses: edges, outputs x at the edges, log probabilities, and a bound on their error."""

    losses: Array  # at the n + 1 edges
    outcomes: Array  # x at the edges
    log_mix: Array  # of the n bins
    log_base: Array
    error: Array  # a bound on the error of log_mix − log_base


def _bins(q: float, mu: float, first: int, last: int, interval: float) -> _Bins:
    """Return the probabilities of the bins between the losses first·interval, …, last·interval."""
    if last - first > LARGEST_GRID:
        raise TooFineError
    losses = np.arange(first, last + 1, dtype=np.float64) * interval
    outcomes = _outcomes(q, mu, losses)
    log_base, base_error = _log_between(outcomes)
    log_shifted, shifted_error = _log_between(outcomes - mu)
    log_mix = np.logaddexp(math.log1p(-q) + log_base, math.log(q) + log_shifted)
    return _Bins(losses, outcomes, log_mix, log_base, base_error + shifted_error)


def _subset_bins(q: float, mu: float, tail: float, interval: float) -> _Bins:
    """Return the bins of log(far/near) from 0 on, with `log_mix` of far and `log_base` of near."""
    top = _top(q, 2 * mu, tail)
    last = _last(_loss(q, 2 * mu, top) - _loss(q, mu, top), interval)
    if last > LARGEST_GRID:
        raise TooFineError
    losses = np.arange(last + 1, dtype=np.float64) * interval
    outcomes = _subset_outcomes(q, mu, losses)
    parts = [_log_between(outcomes - shift) for shift in (0.0, mu, 2 * mu)]
    weights = (math.log1p(-q), math.log(q), math.log(q))
    out, near, far = (weight + log for weight, (log, _) in zip(weights, parts, strict=True))
    error = parts[0][1] + parts[1][1] + parts[2][1]
    return _Bins(losses, outcomes, np.logaddexp(out, far), np.logaddexp(out, near), error)


def _subset_outcomes(q: float, mu: float, losses: Array) -> Array:
    """Return the x > 3μ/2 at which log(far/near) has each of the losses, which are at least 0.

    With v = e^{μ(x − 3μ/2)} and α = e^loss, far/near = α is v² − α·v − (α − 1)·r = 0 for r = e^{−μ²}·(1−q)/q.
    """
    r = math.exp(-mu * mu) * (1 - q) / q
    excess = np.expm1(np.minimum(losses, 1.0))
    ratio = 1 + excess
    small = np.log1p(excess * (1 + 2 * r / (np.sqrt(ratio**2 + 4 * excess * r) + ratio)))
    inverse = np.exp(-np.maximum(losses, 1.0))
    scaled = (inverse - inverse**2) * r
    large = losses + np.log1p(2 * scaled / (np.sqrt(1 + 4 * scaled) + 1))
    return np.asarray(np.where(losses < 1.0, small, large) / mu + 1.5 * mu)


def _subset_kink(q: float, mu: float) -> float:
    """Return the probability of a loss of 0, by which the two halves of the subset profile fall short of 1."""
    return (1 - q) * float(ndtr(1.5 * mu) - ndtr(-0.5 * mu))


def _joined(below: Array, zero: float, above: Array) -> Array:
    """Return the masses of the losses below 0, at 0 and above 0; those of `below` and `above` meet at 0."""
    return np.concatenate([below[:-1], [below[-1] + zero + above[0]], above[1:]])


def _last(loss: float, interval: float) -> int:
    """Return the index of the first grid point above 0 that is not below a loss."""
    return max(1, math.ceil(loss / interval))


def _places(q: float, mu: float, bottom: float, top: float, interval: float) -> tuple[int, int]:
    """Return the first and last index of a grid of losses for the outputs from `bottom` to `top`."""
    first = math.floor(_loss(q, mu, bottom) / interval)
    return first, max(first + 1, math.ceil(_loss(q, mu, top) / interval))


def _connected(log_p: Array, log_q: Array, error: Array, lower: Array, interval: float) -> Array:
    """Return masses at the edges of the bins that preserve p and q in each bin; `lower` are their lower losses."""
    # The fraction of a bin at its upper edge is (1 − e^lower·q/p)/(1 − e^−interval); rounding must not make it smaller.
    with np.errstate(invalid="ignore"):
        ratio = np.nan_to_num(log_q - log_p, nan=0.0)  # nan: a bin without mass in double precision
    fraction = -np.expm1(np.minimum(0.0, ratio + lower)) + error
    fraction = np.minimum(1.0, fraction / -math.expm1(-interval))
    mass = np.exp(log_p)
    result = np.zeros(mass.size + 1)
    result[1:] = mass * fraction
    result[:-1] += mass * (1 - fraction)
    return result


def _reversed(bins: _Bins, interval: float) -> Array:
    """Return the masses of the same bins seen from base: their losses change sign, and so does the order."""
    return _connected(bins.log_base[::-1], bins.log_mix[::-1], bins.error[::-1], -bins.losses[:0:-1], interval)


def _log_between(x: Array) -> tuple[Array, Array]:
    """Return the logarithm of Φ(b) − Φ(a) for neighbours a < b in x, and a bound on its error."""
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
    """Return ℓ(x)."""
    exponent = mu * x - mu * mu / 2
    if exponent < 1:
        return math.log1p(q * math.expm1(exponent))
    return exponent + math.log(q + (1 - q) * math.exp(-exponent))


def _outcomes(q: float, mu: float, losses: Array) -> Array:
    """Return the x of each loss; −∞ for a loss below log(1 − q), which no x has."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        small = np.log1p(np.maximum(-1.0, np.expm1(np.minimum(losses, 1.0)) / q))
        large = losses + np.log1p(-(1 - q) * np.exp(-np.maximum(losses, 1.0))) - math.log(q)
        return np.asarray(np.where(losses < 1.0, small, large) / mu + mu / 2)


def _top(q: float, mu: float, tail: float) -> float:
    """Return an x that x ~ mix exceeds with probability at most `tail`."""
    return -min(float(ndtri(tail / 2)), float(ndtri(min(1.0, tail / (2 * q)))) - mu)


def _mix_below(q: float, mu: float, x: float) -> float:
    """Return the probability of mix below x."""
    return float((1 - q) * ndtr(x) + q * ndtr(x - mu))


def _mix_above(q: float, mu: float, x: float) -> float:
    """Return the probability of mix above x."""
    return float((1 - q) * ndtr(-x) + q * ndtr(mu - x))
