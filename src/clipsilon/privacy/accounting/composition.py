"""The sum of the privacy losses of many steps, and the δ(ε) that it implies.

A plain Fourier transform computes every probability with an error of about 1e-16, which is useless where δ is smaller
than that. So the loss is tilted first: each probability p(ℓ) becomes p(ℓ)·e^{λℓ − K(λ)} with K(λ) = log E e^{λℓ}, so
that losses around ε become the likely ones, and δ(ε) = e^{T·K(λ) − λε}·Σ_{ℓ > ε} w(ℓ − ε)·tilted_T(ℓ) with w(u) = (1 −
e^{−u})·e^{−λu}. This holds for every λ > 0; everything that is neglected is bounded, and added. Replacing the sum by
the largest w gives the bound of Rényi accounting, which finds a good λ.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.fft import irfft, next_fast_len, rfft
from scipy.optimize import brentq, minimize_scalar

from clipsilon.privacy.accounting.privacy_loss import LARGEST_GRID, Losses, TooFineError

Array = NDArray[np.float64]
Events = Sequence[tuple[Losses, int]]  # one step's loss, and how many steps have it

_EPS = float(np.finfo(np.float64).eps)
_OUTSIDE = 1e-15  # mass of the tilted sum outside the window, on each side


def total_epsilon(events: Events, delta: float) -> float:
    """Return an upper bound on the smallest ε ≥ 0 with δ(ε) ≤ δ after all steps; infinite if there is none.

    Parameters
    ----------
    events : sequence of (Losses, int)
        The privacy loss of one step, on one grid for all, and the number of independent steps that have it.
    delta : float
        The δ at which ε is stated.

    Returns
    -------
    float
        ε, from above: everything that is neglected is bounded, and added.
    """
    rest = delta - _ever_infinite(events)
    if rest <= 0:
        return math.inf
    goal = math.log(rest)
    total = _Sum(events)

    def bound(tilt: float) -> float:
        return (total.log_moment(tilt) + _log_largest_weight(tilt) - goal) / tilt

    tilted = _compose(total, _minimiser(bound, total))
    upper = tilted.safe_epsilon(goal)
    if upper <= 0 or tilted.log_delta(0.0) <= goal:
        return 0.0
    root = brentq(lambda epsilon: tilted.log_delta(epsilon) - goal, 0.0, upper, xtol=1e-12 * upper, rtol=1e-9)
    return float(root) * (1 + 1e-8) + 2e-12 * upper


def total_delta(events: Events, epsilon: float) -> float:
    """Return an upper bound on δ(ε) after all steps.

    Parameters
    ----------
    events : sequence of (Losses, int)
        As in `total_epsilon`.
    epsilon : float
        The ε at which δ is stated.

    Returns
    -------
    float
        δ, from above: everything that is neglected is bounded, and added.
    """
    total = _Sum(events)

    def bound(tilt: float) -> float:
        return total.log_moment(tilt) + _log_largest_weight(tilt) - tilt * epsilon

    tilted = _compose(total, _minimiser(bound, total))
    return math.exp(min(0.0, tilted.log_delta(epsilon))) + _ever_infinite(events)


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


class _Sum:
    """The sum of the finite losses of all steps."""

    def __init__(self, events: Events) -> None:
        self.parts = [(_Moments(step), steps) for step, steps in events]
        self.interval = self.parts[0][0].interval
        self.steps = sum(steps for _, steps in self.parts)

    def log_moment(self, tilt: float) -> float:
        """Return Σ K(λ) over all steps."""
        return sum(steps * moments.log_moment(tilt) for moments, steps in self.parts)

    def extreme(self, sign: float) -> float:
        """Return the largest value of the sum, or the smallest if `sign` is negative."""
        return sum(steps * float(moments.values[-1 if sign > 0 else 0]) for moments, steps in self.parts)


@dataclass(frozen=True)
class _Tilted:
    """The tilted distribution of the sum, in a window."""

    values: Array
    masses: Array
    tilt: float
    log_scale: float  # Σ K(λ)
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


class _TiltedStep(NamedTuple):
    """One tilted loss; its places count from `center`, near which the phases, and so their rounding, are small."""

    masses: Array
    mean: float  # in places from the first value
    center: int

    @property
    def places(self) -> NDArray[np.int64]:
        return np.arange(self.masses.size) - self.center

    def variance(self) -> float:
        return float(np.sum(self.masses * (self.places + self.center - self.mean) ** 2))


def _tilted_step(moments: _Moments, tilt: float) -> _TiltedStep:
    masses = np.exp(moments.logs + tilt * moments.values - moments.log_moment(tilt))
    mean = float(np.sum(masses * np.arange(masses.size)))
    return _TiltedStep(masses, mean, round(mean))


def _compose(total: _Sum, tilt: float) -> _Tilted:
    """Return the tilted distribution of the sum, by one Fourier transform per kind of step."""
    ones = [(_tilted_step(moments, tilt), moments.first, steps) for moments, steps in total.parts]
    spread = max(math.sqrt(sum(steps * one.variance() for one, _, steps in ones)), 1.0) * total.interval
    middle = sum(steps * (first + one.mean) for one, first, steps in ones) * total.interval
    drift = round(sum(steps * (one.mean - one.center) for one, _, steps in ones))
    left = drift - _furthest(total, tilt, middle, -1 / spread)
    right = drift + _furthest(total, tilt, middle, 1 / spread)
    size = next_fast_len(right - left + 1, real=True)
    transformed = np.ones(1)
    for one, _, steps in ones:
        transformed = transformed * rfft(np.bincount(one.places % size, weights=one.masses, minlength=size)) ** steps
    masses = np.maximum(0.0, np.roll(irfft(transformed, size), -left))
    rounding = 4 * _EPS * (total.steps + len(ones) - 1) * math.log2(size + 1) * size * float(masses.max())
    start = sum(steps * (first + one.center) for one, first, steps in ones)
    values = (start + left + np.arange(size)) * total.interval
    return _Tilted(values, masses, tilt, total.log_moment(tilt), 2 * _OUTSIDE + rounding)


def _furthest(total: _Sum, tilt: float, middle: float, order: float) -> int:
    """Return how far the window must reach from `middle` on the side of `order`, in places.

    By Chernoff's bound, at most `_OUTSIDE` of the tilted sum lies beyond.
    """
    reached = abs(total.extreme(order) - middle)
    here = total.log_moment(tilt)
    for factor in (0.125, 0.5, 2, 4, 8, 16):
        growth = total.log_moment(tilt + factor * order) - here - factor * order * middle
        reached = min(reached, (growth - math.log(_OUTSIDE)) / (factor * abs(order)))
    if reached > LARGEST_GRID * total.interval:
        raise TooFineError
    return 1 + math.ceil(reached / total.interval)


def _minimiser(bound: Callable[[float], float], total: _Sum) -> float:
    """Return approximately the best tilt; every tilt gives a valid bound."""
    widest = max(moments.values.size for moments, _ in total.parts)
    scale = math.log((widest + 1) * total.interval)
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


def _ever_infinite(events: Events) -> float:
    """Return the probability that some step has an infinite loss."""
    return -math.expm1(sum(steps * math.log1p(-step.infinite) for step, steps in events))
