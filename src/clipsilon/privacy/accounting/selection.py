"""The privacy of the best of a random number of trials: what it costs to choose by a private score.

A trial is any release that carries a score, such as a private fit and its private score on held-out records. Trials are
repeated K times, independently, and only the best one is released. K is random, and secret; a fixed number of trials
would cost as much as releasing all of them. The proof is in docs/proofs.md, "The best of a random number of trials".
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import partial, reduce
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.random import Generator
from scipy.optimize import brentq

from clipsilon._core import checks
from clipsilon.privacy.accounting.profiles import Profile, worst

_TOTAL = 2.0**61  # about the sum of the weights, below 2^62
_CLOSE = 1 / 512  # relative error of the largest ratio, upwards
_LARGEST_MEAN = 1e6


class TrialCount(NamedTuple):
    """The distribution of K, the number of trials: a negative binomial one without 0, cut off where it is negligible.

    Parameters
    ----------
    gamma, eta : float
        P(K = k + 1)/P(K = k) is at most (1 − γ)(k + η)/(k + 1). η = 1 is the geometric distribution.
    weights : tuple of int
        P(K = 1), P(K = 2), …, times their sum.
    """

    gamma: float
    eta: float
    weights: tuple[int, ...]

    @property
    def mean(self) -> float:
        """E[K], rounded up."""
        total = sum(k * weight for k, weight in enumerate(self.weights, start=1))
        return float(Fraction(total, sum(self.weights))) * (1 + 2.0**-50)

    def draw(self, rng: Generator) -> int:
        """Draw K, exactly, if the generator's words are uniform and independent."""
        bounds = list(accumulate(self.weights))
        place = int(rng.integers(bounds[-1]))
        return 1 + int(np.searchsorted(np.array(bounds, dtype=np.int64), place, side="right"))


def trial_count(mean: float, eta: float = 1.0) -> TrialCount:
    """Return the distribution of the number of trials with a given mean.

    Parameters
    ----------
    mean : float
        E[K], from 1 to a million; the mean of what is returned is slightly smaller.
    eta : float, default 1.0
        Above −1. A larger η makes small K rarer, and costs more privacy.

    Returns
    -------
    TrialCount
    """
    wanted = checks.number("mean", mean)
    if not 1 <= wanted <= _LARGEST_MEAN:
        raise ValueError(f"mean must be a number between 1 and {_LARGEST_MEAN:g}, got {mean!r}.")
    if not checks.number("eta", eta) > -1:
        raise ValueError(f"eta must be a number above -1, got {eta!r}.")
    if wanted == 1:
        return TrialCount(1.0, float(eta), (1,))
    gamma = float(brentq(lambda g: math.log(_mean(g, eta) / wanted), 1e-15, 1 - 1e-12, xtol=1e-16))
    return TrialCount(gamma, float(eta), _weights(gamma, eta))


def _mean(gamma: float, eta: float) -> float:
    """Return E[K] of the whole distribution."""
    if abs(eta) < 1e-9:
        return (1 - gamma) / (gamma * -math.log(gamma))
    return (1 - gamma) / gamma * (eta / -math.expm1(eta * math.log(gamma)))


def _weights(gamma: float, eta: float) -> tuple[int, ...]:
    """Return weights whose ratios are those of the distribution, rounded down, until they reach 0."""
    first = _mean(gamma, eta) * gamma ** (1 + eta)  # P(K = 1)
    weight, stay, shift = max(1, int(_TOTAL * first)), 1 - Fraction(gamma), Fraction(eta)
    weights = []
    while weight > 0:
        weights.append(weight)
        ratio = stay * (len(weights) + shift) / (len(weights) + 1)
        weight = weight * ratio.numerator // ratio.denominator
    return tuple(weights)


def best_of(trial: Profile, count: TrialCount) -> Profile:
    """Return the profile of the best of K trials, released with its score.

    Parameters
    ----------
    trial : Profile
        The profile of one trial and its score together.
    count : TrialCount
        The distribution of K.

    Returns
    -------
    Profile
        δ'(ε) = E[K]·δ(ε − (1 + η)·log λ), with λ the least number of at least 1 with λ − 1 ≥ δ(log λ)·(1 − γ)/γ.

    Formal guarantee
    ----------------
    If each trial is (ε, `trial.delta(ε)`)-private for every ε, in both directions, and K is drawn secretly and
    independently of the data, the best trial is (ε, δ'(ε))-private, in both directions. Ties go to the first.
    """
    cost = (1 + count.eta) * _log_ratio(trial, count.gamma)
    return Profile(partial(_best_delta, trial, count.mean, cost), partial(_best_epsilon, trial, count.mean, cost))


def _best_delta(trial: Profile, mean: float, cost: float, epsilon: float) -> float:
    return 1.0 if epsilon < cost else mean * trial.delta(epsilon - cost)


def _best_epsilon(trial: Profile, mean: float, cost: float, delta: float) -> float:
    return cost + trial.epsilon(delta / mean)


def _log_ratio(trial: Profile, gamma: float) -> float:
    """Return log λ, from above: any larger number would do as well."""
    if gamma == 1:
        return 0.0

    def suffices(epsilon: float) -> bool:
        return math.expm1(epsilon) * gamma >= trial.delta(epsilon) * (1 - gamma) * (1 + 2.0**-40)

    low, high = 0.0, -math.log(gamma) * (1 + 2.0**-40)  # at which δ = 1 would do
    while high > 1e-12 and suffices(high / 2):
        high /= 2
    low = high / 2
    while high - low > _CLOSE * high:
        middle = (low + high) / 2
        low, high = (low, middle) if suffices(middle) else (middle, high)
    return high


def worst_of(parts: list[Profile]) -> Profile:
    """Return a profile that holds for each of several releases, of which one is made.

    Releases that another one dominates are left out, so that equal settings are not evaluated again and again.
    """
    kept: list[Profile] = []
    for part in parts:
        if not any(_dominates(other, part) for other in kept):
            kept = [other for other in kept if not _dominates(part, other)] + [part]
    return reduce(worst, kept)


def _dominates(one: Profile, other: Profile) -> bool:
    """Return whether two profiles are of one kind, and the shifts of the first are at least as large."""
    if one.mu is not None and other.mu is not None:
        return one.mu >= other.mu
    if one.sampled is None or other.sampled is None:
        return False
    same = one.sampled.one_steps == other.sampled.one_steps and one.sampled.q == other.sampled.q
    shifts, others = one.sampled.shifts, other.sampled.shifts
    same = same and [steps for _, steps in shifts] == [steps for _, steps in others]
    return same and all(mu >= less for (mu, _), (less, _) in zip(shifts, others, strict=True))
