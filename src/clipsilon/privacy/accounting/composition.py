"""The sum of many steps' privacy losses, and the δ(ε) that it means.

A plain Fourier transform computes every probability with an error of about 1e-16, useless where δ is smaller
than that. So the loss is tilted first, each probability p(ℓ) becoming p(ℓ)·e^{λℓ − K(λ)} with
K(λ) = log E e^{λℓ}, so that the losses around ε are the likely ones, and
δ(ε) = e^{T·K(λ) − λε}·Σ_{ℓ > ε} w(ℓ − ε)·tilted_T(ℓ) with w(u) = (1 − e^{−u})·e^{−λu}.
Every λ > 0 is right; all that is neglected is bounded, and added. Replacing the sum by the largest w gives the
bound that Rényi accounting gives, which finds a good λ.
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
_OUTSIDE = 1e-15  # of the tilted sum, left and right of the window


def total_epsilon(step: Losses, steps: int, delta: float) -> float:
    """The smallest ε ≥ 0 with δ(ε) ≤ δ after `steps` steps; infinite if there is none."""
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
    """δ(ε) after `steps` steps."""
    moments = _Moments(step)

    def bound(tilt: float) -> float:
        return steps * moments.log_moment(tilt) + _log_largest_weight(tilt) - tilt * epsilon

    tilted = _compose(moments, steps, _minimiser(bound, moments))
    return math.exp(min(0.0, tilted.log_delta(epsilon))) + _ever_infinite(step, steps)


class _Moments:
    """The finite part of a loss, with its logarithms at hand."""

    def __init__(self, step: Losses) -> None:
        inside = np.flatnonzero(step.masses > 0)
        self.interval = step.interval
        self.first = step.first + int(inside[0])
        masses = step.masses[inside[0] : inside[-1] + 1]
        self.values = (self.first + np.arange(masses.size)) * step.interval
        with np.errstate(divide="ignore"):
            self.logs = np.log(masses)

    def log_moment(self, tilt: float) -> float:
        """K(λ)."""
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
    neglected: float  # mass outside of the window, and rounding

    def log_delta(self, epsilon: float) -> float:
        """The logarithm of δ(ε) without what is infinitely lossy, from above."""
        begin = np.searchsorted(self.values, epsilon, side="right")
        end = np.searchsorted(self.values, epsilon + 745 / self.tilt)  # beyond it e^{−λu} underflows
        beyond = self.values[begin:end] - epsilon
        total = float(np.sum(-np.expm1(-beyond) * np.exp(-self.tilt * beyond) * self.masses[begin:end]))
        return self.log_scale - self.tilt * epsilon + math.log(total + self._slack())

    def safe_epsilon(self, goal: float) -> float:
        """An ε with log_delta(ε) below `goal`."""
        weight = math.exp(_log_largest_weight(self.tilt)) * (self.masses.sum() + self.neglected)
        return (self.log_scale + math.log(weight) - goal) / self.tilt * (1 + 1e-12)

    def _slack(self) -> float:
        return max(math.exp(_log_largest_weight(self.tilt)) * self.neglected, 1e-300)


def _compose(moments: _Moments, steps: int, tilt: float) -> _Tilted:
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
    """How many places from steps·middle, on the side of `order`, all but `_OUTSIDE` of the tilted sum is (Chernoff)."""
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
    """The best tilt, roughly: it need not be exact."""
    scale = math.log((moments.values.size + 1) * moments.interval)
    found = minimize_scalar(
        lambda log_tilt: bound(math.exp(log_tilt)),
        bounds=(math.log(1e-8) - scale, math.log(1e8) - scale),
        method="bounded",
        options={"xatol": 0.02},
    )
    return math.exp(found.x)


def _log_largest_weight(tilt: float) -> float:
    """The logarithm of max_u (1 − e^{−u})·e^{−λu}, at e^{−u} = λ/(1 + λ)."""
    return -tilt * math.log1p(1 / tilt) - math.log1p(tilt)


def _ever_infinite(step: Losses, steps: int) -> float:
    return -math.expm1(steps * math.log1p(-step.infinite))
