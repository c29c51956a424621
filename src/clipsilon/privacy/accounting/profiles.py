"""Privacy profiles: which (ε, δ) a run satisfies, for all ε and δ at once.

Every profile is an upper bound, and holds in both directions: with and without the record, or before and after
its replacement.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq
from scipy.special import gammaln, log_expit

from clipsilon._core import checks
from clipsilon.privacy.accounting import gaussian as gdp
from clipsilon.privacy.accounting.privacy_loss import Array, addition, removal, symmetrised
from clipsilon.privacy.accounting.sampled import OneStep, likely, participations, sampled_delta, sampled_epsilon


@dataclass(frozen=True)
class Profile:
    """A privacy guarantee as a curve."""

    delta_at: Callable[[float], float]
    epsilon_at: Callable[[float], float]
    mu: float | None = None  # of a profile that is Gaussian: these compose exactly

    def delta(self, epsilon: float) -> float:
        """A δ such that the run is (ε, δ)-private; at most 1."""
        return min(1.0, self.delta_at(checks.nonnegative("epsilon", epsilon)))

    def epsilon(self, delta: float) -> float:
        """The smallest certified ε ≥ 0 for this δ between 0 and 1; infinite if there is none."""
        return max(0.0, self.epsilon_at(checks.open_fraction("delta", delta)))


def gaussian(mu: float) -> Profile:
    """μ-GDP, exactly. μ = 0 reveals nothing, μ = ∞ everything."""
    if not mu >= 0:
        raise ValueError(f"mu must be at least 0, got {mu!r}.")
    return Profile(partial(gdp.delta, mu), partial(gdp.epsilon, mu), mu)


def poisson(q: float, noise_multiplier: float, steps: int) -> Profile:
    """Every record in every batch with probability q, Gaussian noise; with against without a record.

    The noise multiplier is s·B/c: noise on the sum, in units of what a record adds at most. Composed for each
    direction: removing the record tells more in every case tried, but that is no proof.
    """
    return _sampled((removal, addition), q, noise_multiplier, steps)


def subset(q: float, noise_multiplier: float, steps: int) -> Profile:
    """Batches of B = q·m of the m records, uniformly, Gaussian noise; with a record against with another.

    The noise multiplier is s·B/(2c): noise on the sum, in units of what a replacement changes at most. The worse
    direction may change from step to step, so what is composed is, at every step, the worse of the two.
    """
    return _sampled((symmetrised,), q, noise_multiplier, steps)


def gamma(q: float, scale: float, steps: int) -> Profile:
    """Poisson batches, and noise whose norm is Gamma(d, scale) on a sum to which a record adds at most norm 1.

    A step is ε0 = 1/scale private, so no better for an attacker than one randomised response with odds e^ε0, sent
    only with probability q. The sum of such losses counts the responses: a binomial distribution, so this is exact.
    """
    q = _probability("q", q)
    odds = 1 / checks.positive("scale", scale)
    if checks.integer("steps", steps, least=0) == 0 or q == 0:
        return gaussian(0.0)
    curve = partial(_response_delta, q, odds, steps)
    if odds == math.inf:
        return gaussian(math.inf)
    highest = steps * _log_ratio(q, odds) * (1 + 1e-14)
    return Profile(curve, partial(_inverse, curve, highest))


def mixture(weights: ArrayLike, mus: ArrayLike) -> Profile:
    """μ_k-GDP with probability w_k, by coins that do not depend on the data: δ(ε) = Σ_k w_k·δ_{μ_k}(ε).

    Weight that is missing from a total of 1 counts as lost: it is added to δ.
    """
    shares, shifts = np.atleast_1d(np.asarray(weights, dtype=np.float64)), np.atleast_1d(np.asarray(mus, dtype=float))
    if shares.shape != shifts.shape or shares.ndim != 1:
        raise ValueError(f"weights and mus must be as many, got shapes {shares.shape} and {shifts.shape}.")
    total = math.fsum(shares)
    if not (np.all(shares >= 0) and total <= 1 + 1e-9):
        raise ValueError(f"weights must be at least 0 and sum to at most 1, got a sum of {total:g}.")
    return _mixture(shares, shifts, max(0.0, 1 - total))


def add(profile: Profile, epsilon: float) -> Profile:
    """The profile together with another release that is ε-private, by itself (basic composition)."""
    extra = checks.nonnegative("epsilon", epsilon)
    return Profile(partial(_shifted_delta, profile, extra), partial(_shifted_epsilon, profile, extra))


def point(epsilon: float, delta: float) -> Profile:
    """(ε, δ) and nothing more: what is left of a profile once it was written down."""
    checks.nonnegative("epsilon", epsilon)
    checks.open_fraction("delta", delta)
    return Profile(partial(_from, epsilon, delta, 1.0), partial(_from, delta, epsilon, math.inf))


def worst(one: Profile, other: Profile) -> Profile:
    """What holds for a record that is in one of two runs, nobody knows which: at each point the worse."""
    if one.mu is not None and other.mu is not None:
        return gaussian(max(one.mu, other.mu))
    return Profile(partial(_larger, one.delta, other.delta), partial(_larger, one.epsilon, other.epsilon))


def _larger(one: Callable[[float], float], other: Callable[[float], float], place: float) -> float:
    return max(one(place), other(place))


def _from(border: float, value: float, below: float, place: float) -> float:
    return value if place >= border else below


def tradeoff(profile: Profile, alpha: ArrayLike, points: int = 50) -> Array:
    """The least type II error of any test for the record whose type I error is α.

    f(α) = sup_ε max{0, 1 − δ(ε) − e^ε·α, e^−ε·(1 − δ(ε) − α)}. Every ε gives a lower bound; `points` are tried.
    """
    level = checks.floats("alpha", alpha)
    if not np.all((level >= 0) & (level <= 1)):
        raise ValueError(f"alpha must be between 0 and 1, got {checks.short_repr(alpha)}.")
    ends = (profile.epsilon(delta) for delta in (1e-6, 1e-4, 1e-2, 0.1, 0.5))
    losses = np.linspace(0.0, next((end for end in ends if math.isfinite(end)), 0.0), checks.count("points", points))
    result = np.zeros_like(level)
    for loss in losses[losses < 700]:  # beyond which e^ε·α and e^−ε leave nothing
        kept = 1 - profile.delta(float(loss))
        result = np.maximum(result, np.maximum(kept - math.exp(loss) * level, math.exp(-loss) * (kept - level)))
    return result


def _sampled(one_steps: tuple[OneStep, ...], q: float, noise_multiplier: float, steps: int) -> Profile:
    q = _probability("q", q)
    mu = 1 / checks.positive("noise_multiplier", noise_multiplier)
    if checks.integer("steps", steps, least=0) == 0 or q == 0:
        return gaussian(0.0)
    if q == 1:
        return gaussian(math.sqrt(steps) * mu)
    # To say who took part only helps an attacker; where the shift is huge it tells nothing new.
    counts, weights = participations(q, steps)
    revealed = _mixture(weights, np.sqrt(counts) * mu, 0.0)
    return Profile(
        partial(_least, revealed.delta, partial(sampled_delta, one_steps, q, mu, steps)),
        partial(_least, revealed.epsilon, partial(sampled_epsilon, one_steps, q, mu, steps)),
    )


def _least(quick: Callable[[float], float], slow: Callable[[float], float], value: float) -> float:
    bound = quick(value)
    return min(bound, slow(value)) if bound > 0 else bound


def _mixture(weights: Array, mus: Array, missing: float) -> Profile:
    finite = mus < np.inf
    lost = missing + float(weights[~finite].sum())
    weights, mus = weights[finite & (weights > 0)], mus[finite & (weights > 0)]
    curve = partial(_mixed_delta, weights, mus, lost)
    return Profile(curve, partial(_mixed_epsilon, curve, float(mus.max(initial=0.0)), lost))


def _mixed_delta(weights: Array, mus: Array, lost: float, epsilon: float) -> float:
    return lost + float(np.sum(weights * gdp.delta(mus, epsilon)))


def _mixed_epsilon(curve: Callable[[float], float], largest: float, lost: float, delta: float) -> float:
    if lost >= delta:
        return math.inf
    return _inverse(curve, gdp.epsilon(largest, delta - lost), delta)


def _response_delta(q: float, odds: float, steps: int, epsilon: float) -> float:
    """δ(ε) of `steps` sampled randomised responses, the larger of the two directions."""
    rare, common = float(log_expit(-odds)), float(log_expit(odds))  # of a 1 and a 0 without the record
    up, down = _log_ratio(q, odds), _log_ratio(q, -odds)  # what the record adds to these
    # Not rare + up and common + down: where odds are huge, nothing would be left of the first but rounding.
    sent, unsent = math.log(q), _log_complement(q)
    with_record = float(np.logaddexp(sent + common, unsent + rare)), float(np.logaddexp(sent + rare, unsent + common))
    present = _binomial_delta(with_record, (up, down), steps, epsilon)
    return max(present, _binomial_delta((rare, common), (-up, -down), steps, epsilon))


def _log_ratio(q: float, odds: float) -> float:
    """log(1 + q·(e^odds − 1))."""
    if q == 1 or odds > 600:
        return float(np.logaddexp(_log_complement(q), math.log(q) + odds))
    return math.log1p(q * math.expm1(odds))


def _binomial_delta(p: tuple[float, float], loss: tuple[float, float], steps: int, epsilon: float) -> float:
    """H_{e^ε} of `steps` coins with log-probabilities p, each with its loss, from the number of ones."""
    first, last = likely(steps, math.exp(p[0]))
    ones = np.arange(first, last + 1, dtype=np.float64)
    losses = ones * loss[0] + (steps - ones) * loss[1]
    losses += 1e-15 * (ones * abs(loss[0]) + (steps - ones) * abs(loss[1]))  # rounding, upwards
    ones, losses = ones[losses > epsilon], losses[losses > epsilon]
    ways = gammaln(steps + 1) - gammaln(ones + 1) - gammaln(steps - ones + 1)
    terms = np.exp(ways + ones * p[0] + (steps - ones) * p[1]) * -np.expm1(epsilon - losses)
    # The last digit of a large gammaln is not small.
    rounding = 1e-14 * (1 + math.lgamma(steps + 1))
    return float(terms.sum()) * (1 + rounding) + 2 * math.exp(-700)


def _inverse(curve: Callable[[float], float], highest: float, delta: float) -> float:
    """The smallest ε up to `highest` with curve(ε) ≤ δ; the curve never rises, and is low enough at `highest`."""
    if highest == math.inf or curve(0.0) <= delta:
        return 0.0 if highest < math.inf else math.inf

    def above(epsilon: float) -> float:
        return math.log(max(curve(epsilon), 1e-320)) - math.log(delta)

    if above(highest) >= 0:  # by rounding only
        return highest
    root = brentq(above, 0.0, highest, xtol=1e-15 * highest, rtol=1e-12)
    return float(root) * (1 + 1e-11) + 2e-15 * highest


def _shifted_delta(profile: Profile, extra: float, epsilon: float) -> float:
    if epsilon >= extra:
        return profile.delta(epsilon - extra)
    # Weaker than (extra, δ(0)): what is (ε, δ)-private is (ε', 1 − (1−δ)(1 + e^ε')/(1 + e^ε))-private for ε' < ε.
    kept = (1 - profile.delta(0.0)) * math.exp(float(np.logaddexp(0, epsilon) - np.logaddexp(0, extra)))
    return 1 - kept


def _shifted_epsilon(profile: Profile, extra: float, delta: float) -> float:
    return profile.epsilon(delta) + extra


def _log_complement(q: float) -> float:
    return math.log1p(-q) if q < 1 else -math.inf


def _probability(name: str, value: Any) -> float:
    result = checks.number(name, value)
    if not 0 <= result <= 1:
        raise ValueError(f"{name} must be a number between 0 and 1, got {value!r}.")
    return result
