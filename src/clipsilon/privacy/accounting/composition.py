"""The sum of the privacy losses of many steps, and the δ(ε) that it implies.

A plain Fourier transform computes every probability with an error of about 1e-16, which is useless where δ is smaller
than that. So the loss is tilted first: each probability p(ℓ) becomes p(ℓ)·e^{λℓ − K(λ)} with K(λ) = log E e^{λℓ}, so
that losses around ε become the likely ones, and δ(ε) = e^{T·K(λ) − λε}·Σ_{ℓ > ε} w(ℓ − ε)·tilted_T(ℓ) with w(u) = (1 −
e^{−u})·e^{−λu}. This holds for every λ > 0; everything that is neglected is bounded, and added. Replacing the sum by
the largest w gives the bound of Rényi accounting, which finds a good λ.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.fft import irfft, next_fast_len, rfft
from scipy.optimize import brentq, minimize_scalar

from clipsilon.privacy.accounting.privacy_loss import LARGEST_GRID, Losses, TooFineError

Array = NDArray[np.float64]

_EPS = float(np.finfo(np.float64).eps)
_OUTSIDE = 1e-15  # mass of the tilted sum outside the window, on each side


def total_epsilon(step: Losses, steps: int, delta: float) -> float:
    """Return an upper bound on the smallest ε ≥ 0 with δ(ε) ≤ δ after `steps` steps; infinite if there is none.

    Parameters
    ----------
    step : Losses
        The privacy loss of one step.
    steps : int
        The number of independent steps.
    delta : float
        The δ at which ε is stated.

    Returns
    -------
    float
        ε, from above: everything that is neglected is bounded, and added.
    """
    rest = delta - _ever_infinite(step, steps)
    if rest <= 0:
        return math.inf
    goal = math.log(rest)
    moments = _Moments(step)

    def bound(tilt: float) -> float:
        return (steps * moments.log_moment(tilt) + _log_largest_weight(tilt) - goal) / tilt

    tilted = _compose(moments, steps, _minimiser(bound, moments))
    upper = tilted.safe_epsilon(goal)
    if upper <= 0 or tilted.log_delta(0.0) <= goal:
        return 0.0
    root = brentq(lambda epsilon: tilted.log_delta(epsilon) - goal, 0.0, upper, xtol=1e-12 * upper, rtol=1e-9)
    return float(root) * (1 + 1e-8) + 2e-12 * upper


def total_delta(step: Losses, steps: int, epsilon: float) -> float:
    """Return an upper bound on δ(ε) after `steps` steps.

    Parameters
    ----------
    step : Losses
        The privacy loss of one step.
    steps : int
        The number of independent steps.
    epsilon : float
        The ε at which δ is stated.

    Returns
    -------
    float
        δ, from above: everything that is neglected is bounded, and added.
    """
    moments = _Moments(step)

    def bound(tilt: float) -> float:
        return steps * moments.log_moment(tilt) + _log_largest_weight(tilt) - tilt * epsilon

    tilted = _compose(moments, steps, _minimiser(bound, moments))
    return math.exp(min(0.0, tilted.log_delta(epsilon))) + _ever_infinite(step, steps)


class _Moments:
    """The finite part of a loss, with the logarithms of its probabilities."""

    def __init__(self, step: Losses) -> None:
        inside = np.flatnonzero(step.masses > 0)
        self.interval = step.interval
        self.first = step.first + int(inside[0])
        masses = step.masses[inside[0] : inside[-1] + 1]
        self.values = (self.first + np.arange(masses.size)) * step.interval
        with np.errstate(divide="ignore"):
            self.logs = np.log(masses)

    def log_moment(self, tilt: float) -> float:
        """Return K(λ)."""
        terms = self.logs + tilt * self.values
        largest = terms.max()
        return float(largest + np.log(np.exp(terms - largest).sum()))


@dataclass(frozen=True)
class _Tilted:
    """The tilted distribution of the sum, in a window."""

    values: Array
    masses: Array
    tilt: float
    log_scale: float  # T·K(λ)
    neglected: float  # mass outside the window, plus rounding

    def log_delta(self, epsilon: float) -> float:
        """Return an upper bound on the logarithm of δ(ε), leaving out infinite losses."""
        begin = np.searchsorted(self.values, epsilon, side="right")
        end = np.searchsorted(self.values, epsilon + 745 / self.tilt)  # beyond this, e^{−λu} underflows
        beyond = self.values[begin:end] - epsilon
        total = float(np.sum(-np.expm1(-beyond) * np.exp(-self.tilt * beyond) * self.masses[begin:end]))
        return self.log_scale - self.tilt * epsilon + math.log(total + self._slack())

    def safe_epsilon(self, goal: float) -> float:
        """Return an ε with log_delta(ε) below `goal`."""
        weight = math.exp(_log_largest_weight(self.tilt)) * (self.masses.sum() + self.neglected)
        return (self.log_scale + math.log(weight) - goal) / self.tilt * (1 + 1e-12)

    def _slack(self) -> float:
        """Return a bound on the contribution of the neglected mass."""
        return max(math.exp(_log_largest_weight(self.tilt)) * self.neglected, 1e-300)


def _compose(moments: _Moments, steps: int, tilt: float) -> _Tilted:
    """Return the tilted distribution of the sum of `steps` losses, by one Fourier transform."""
    log_moment = moments.log_moment(tilt)
    one = np.exp(moments.logs + tilt * moments.values - log_moment)
    mean = float(np.sum(one * np.arange(one.size)))
    # Places count from steps·center: near it the phases, and so their rounding, are small.
    center = round(mean)
    places = np.arange(one.size) - center
    spread = max(math.sqrt(steps * float(np.sum(one * (places + center - mean) ** 2))), 1.0) * moments.interval
    middle = (moments.first + mean) * moments.interval
    drift = round(steps * (mean - center))
    left = drift - _furthest(moments, steps, tilt, middle, -1 / spread)
    right = drift + _furthest(moments, steps, tilt, middle, 1 / spread)
    size = next_fast_len(right - left + 1, real=True)
    transformed = rfft(np.bincount(places % size, weights=one, minlength=size)) ** steps
    masses = np.maximum(0.0, np.roll(irfft(transformed, size), -left))
    rounding = 4 * _EPS * steps * math.log2(size + 1) * size * float(masses.max())
    values = (steps * (moments.first + center) + left + np.arange(size)) * moments.interval
    return _Tilted(values, masses, tilt, steps * log_moment, 2 * _OUTSIDE + rounding)


def _furthest(moments: _Moments, steps: int, tilt: float, middle: float, order: float) -> int:
    """Return how far the window must reach from steps·middle on the side of `order`, in places.

    By Chernoff's bound, at most `_OUTSIDE` of the tilted sum lies beyond.
    """
    extreme = float(moments.values[-1] if order > 0 else moments.values[0])
    reached = steps * abs(extreme - middle)
    here = moments.log_moment(tilt)
    for factor in (0.125, 0.5, 2, 4, 8, 16):
        growth = moments.log_moment(tilt + factor * order) - here - factor * order * middle
        reached = min(reached, (steps * growth - math.log(_OUTSIDE)) / (factor * abs(order)))
    if reached > LARGEST_GRID * moments.interval:
        raise TooFineError
    return 1 + math.ceil(reached / moments.interval)


def _minimiser(bound: Callable[[float], float], moments: _Moments) -> float:
    """Return approximately the best tilt; every tilt gives a valid bound."""
    scale = math.log((moments.values.size + 1) * moments.interval)
    found = minimize_scalar(
        lambda log_tilt: bound(math.exp(log_tilt)),
        bounds=(math.log(1e-8) - scale, math.log(1e8) - scale),
        method="bounded",
        options={"xatol": 0.02},
    )
    return math.exp(found.x)


def _log_largest_weight(tilt: float) -> float:
    """Return the logarithm of max_u (1 − e^{−u})·e^{−λu}, which is attained at e^{−u} = λ/(1 + λ)."""
    return -tilt * math.log1p(1 / tilt) - math.log1p(tilt)


def _ever_infinite(step: Losses, steps: int) -> float:
    """Return the probability that some step has an infinite loss."""
    return -math.expm1(steps * math.log1p(-step.infinite))
