"""Privacy profiles: which (ε, δ) a run satisfies, for all ε and δ at once.

Every profile is an upper bound, and holds in both directions: with and without the record, or before and after its
replacement.
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
from clipsilon.privacy.accounting import chi_square as chi
from clipsilon.privacy.accounting import gaussian as gdp
from clipsilon.privacy.accounting.privacy_loss import (
    Array,
    addition,
    removal,
    subset_addition,
    subset_removal,
    symmetrised,
)
from clipsilon.privacy.accounting.sampled import (
    OneStep,
    SampledSteps,
    likely,
    participations,
    sampled_delta,
    sampled_epsilon,
)


@dataclass(frozen=True)
class Profile:
    """A privacy guarantee as a curve.

    Attributes
    ----------
    delta_at, epsilon_at : callable
        The curve δ(ε) and its inverse, without checks; use `delta` and `epsilon`.
    mu : float or None
        μ, if the profile is Gaussian: such profiles compose exactly.
    sampled : SampledSteps or None
        The steps, if the profile is that of random batches: `joint_epsilon` composes them one by one.
    chi_square : float
        A bound on the χ²-divergence of the outputs on any two neighbours; infinite if none is known.

    Formal guarantee
    ----------------
    For every ε ≥ 0, what the profile describes is (ε, `delta(ε)`)-differentially private.
    """

    delta_at: Callable[[float], float]
    epsilon_at: Callable[[float], float]
    mu: float | None = None
    sampled: SampledSteps | None = None
    chi_square: float = math.inf

    def delta(self, epsilon: float) -> float:
        """Return a δ such that the run is (ε, δ)-private; at most 1."""
        return min(1.0, self.delta_at(checks.nonnegative("epsilon", epsilon)))

    def epsilon(self, delta: float) -> float:
        """Return the smallest certified ε ≥ 0 for this δ between 0 and 1; infinite if there is none."""
        return max(0.0, self.epsilon_at(checks.open_fraction("delta", delta)))


def gaussian(mu: float) -> Profile:
    """Return the profile of μ-GDP, exactly; μ = 0 reveals nothing, μ = ∞ everything."""
    if not mu >= 0:
        raise ValueError(f"mu must be at least 0, got {mu!r}.")
    return Profile(partial(gdp.delta, mu), partial(gdp.epsilon, mu), mu, chi_square=chi.gaussian(mu))


def poisson(q: float, noise_multiplier: ArrayLike, steps: ArrayLike) -> Profile:
    """Return the profile of Poisson-subsampled Gaussian steps, with against without a record.

    Parameters
    ----------
    q : float
        The probability with which each record is in each batch, in [0, 1], the same on both data sets.
    noise_multiplier : float, or one per phase
        s·B/c: the noise on the sum, in units of the most that one record adds.
    steps : int, or one per phase
        The number of steps.

    Returns
    -------
    Profile
        The larger of the two directions at each point.

    Notes
    -----
    Each direction is composed. Removing the record revealed more in every case tried, but that is no proof.

    Formal guarantee
    ----------------
    If one record adds at most c to each sum, releasing the noisy sums of all steps is (ε, `delta(ε)`)-private when one
    record is added or removed, and when its contributions are replaced by zero.
    """
    return _sampled((removal, addition), chi.poisson, q, noise_multiplier, steps)


def subset(q: float, noise_multiplier: ArrayLike, steps: ArrayLike) -> Profile:
    """Return the profile of Gaussian steps on uniform batches of B = q·m of m records, with a record against another.

    Parameters
    ----------
    q : float
        B/m, in [0, 1].
    noise_multiplier : float, or one per phase
        s·B/(2c): the noise on the sum, in units of the most that a replacement changes.
    steps : int, or one per phase
        The number of steps.

    Returns
    -------
    Profile
        The profile. The worse direction may change from step to step, so at each step the worse of the two is composed.

    Formal guarantee
    ----------------
    If one record adds at most c to each sum, releasing the noisy sums of all steps is (ε, `delta(ε)`)-private when one
    record is replaced by another.
    """
    return _sampled((symmetrised,), chi.subset, q, noise_multiplier, steps)


def subset_zero_out(q: float, noise_multiplier: ArrayLike, steps: ArrayLike) -> Profile:
    """Return the profile of Gaussian steps on uniform batches of B = q·m of m records, with against without a record.

    The record is drawn in both cases, but adds nothing in one of them. When it is not drawn, another record is, which
    may pull the other way, so that this is more than the Poisson profile.

    Parameters
    ----------
    q : float
        B/m, in [0, 1].
    noise_multiplier : float, or one per phase
        s·B/c: the noise on the sum, in units of the most that one record adds.
    steps : int, or one per phase
        The number of steps.

    Returns
    -------
    Profile
        The larger of the two directions at each point.

    Formal guarantee
    ----------------
    If one record adds at most c to each sum, releasing the noisy sums of all steps is (ε, `delta(ε)`)-private when the
    contributions of one record are replaced by zero.
    """
    return _sampled((subset_removal, subset_addition), chi.subset_zero_out, q, noise_multiplier, steps)


def gamma(q: float, scale: float, steps: int) -> Profile:
    """Return the profile of Poisson batches with noise whose norm is Gamma(d, scale), with against without a record.

    A step is ε0-private with ε0 = 1/scale, so an attacker learns no more from it than from one randomised response with
    odds e^ε0, sent only with probability q. The sum of such losses counts the responses, which is a binomial
    distribution: the composition is exact.

    Parameters
    ----------
    q : float
        The probability with which each record is in each batch, in [0, 1].
    scale : float
        The scale of the noise on a sum to which one record adds at most norm 1.
    steps : int
        The number of steps.

    Returns
    -------
    Profile
        The larger of the two directions at each point.
    """
    q = _probability("q", q)
    odds = 1 / checks.positive("scale", scale)
    if checks.integer("steps", steps, least=0) == 0 or q == 0:
        return gaussian(0.0)
    curve = partial(_response_delta, q, odds, steps)
    if odds == math.inf:
        return gaussian(math.inf)
    highest = steps * _log_ratio(q, odds) * (1 + 1e-14)
    total = chi.composed([(chi.response(q, odds), steps)])
    return Profile(curve, partial(_inverse, curve, highest), chi_square=total)


def mixture(weights: ArrayLike, mus: ArrayLike) -> Profile:
    """Return the profile of μ_k-GDP with probability w_k: δ(ε) = Σ_k w_k·δ_{μ_k}(ε).

    The coins that select k must not depend on the data. Weight that is missing from a total of 1 is added to δ.
    """
    probabilities = np.atleast_1d(np.asarray(weights, dtype=np.float64))
    shifts = np.atleast_1d(np.asarray(mus, dtype=np.float64))
    if probabilities.shape != shifts.shape or probabilities.ndim != 1:
        shapes = f"{probabilities.shape} and {shifts.shape}"
        raise ValueError(f"weights and mus must be vectors of the same length, got shapes {shapes}.")
    total = math.fsum(probabilities)
    if not (np.all(probabilities >= 0) and total <= 1 + 1e-9):
        raise ValueError(f"weights must be at least 0 and sum to at most 1, got a sum of {total:g}.")
    return _mixture(probabilities, shifts, max(0.0, 1 - total))


def add(profile: Profile, epsilon: float) -> Profile:
    """Return the profile together with another release that is ε-private by itself (basic composition)."""
    extra = checks.nonnegative("epsilon", epsilon)
    total = chi.composed([(profile.chi_square, 1), (chi.response(1.0, extra), 1)])
    return Profile(partial(_shifted_delta, profile, extra), partial(_shifted_epsilon, profile, extra), chi_square=total)


def gaussian_or(mu: float, extra: float) -> Profile:
    """Return the profile δ_μ(ε) + `extra` of a release that is μ-GDP but for events of this probability in total."""
    checks.open_fraction("extra", extra)
    return Profile(partial(_delta_beside, mu, extra), partial(_epsilon_beside, mu, extra))


def _delta_beside(mu: float, extra: float, epsilon: float) -> float:
    return gdp.delta(mu, epsilon) + extra


def _epsilon_beside(mu: float, extra: float, delta: float) -> float:
    return gdp.epsilon(mu, delta - extra) if delta > extra else math.inf


def point(epsilon: float, delta: float) -> Profile:
    """Return the profile of (ε, δ) alone: what remains of a profile that was written down at one point."""
    checks.nonnegative("epsilon", epsilon)
    checks.open_fraction("delta", delta)
    return Profile(partial(_from, epsilon, delta, 1.0), partial(_from, delta, epsilon, math.inf))


def worst(one: Profile, other: Profile) -> Profile:
    """Return the guarantee for a record that is in one of two runs, unknown which: at each point the worse one."""
    if one.mu is not None and other.mu is not None:
        return gaussian(max(one.mu, other.mu))
    larger = max(one.chi_square, other.chi_square)
    return Profile(
        partial(_larger, one.delta, other.delta), partial(_larger, one.epsilon, other.epsilon), chi_square=larger
    )


def _larger(one: Callable[[float], float], other: Callable[[float], float], place: float) -> float:
    """Return the larger of two curves at one place."""
    return max(one(place), other(place))


def _from(border: float, value: float, below: float, place: float) -> float:
    """Return `value` from `border` on, and `below` before it."""
    return value if place >= border else below


def tradeoff(profile: Profile, alpha: ArrayLike, points: int = 50) -> Array:
    """Return a lower bound on the type II error of any test for the record whose type I error is α.

    f(α) = sup_ε max{0, 1 − δ(ε) − e^ε·α, e^−ε·(1 − δ(ε) − α)}. Every ε gives a lower bound.

    Parameters
    ----------
    profile : Profile
        The profile.
    alpha : array_like of float
        Type I errors, between 0 and 1.
    points : int, default 50
        The number of ε that are tried.

    Returns
    -------
    array of float
        The bound at each α.
    """
    level = checks.floats("alpha", alpha)
    if not np.all((level >= 0) & (level <= 1)):
        raise ValueError(f"alpha must be between 0 and 1, got {checks.short_repr(alpha)}.")
    ends = (profile.epsilon(delta) for delta in (1e-6, 1e-4, 1e-2, 0.1, 0.5))
    losses = np.linspace(0.0, next((end for end in ends if math.isfinite(end)), 0.0), checks.count("points", points))
    result = np.zeros_like(level)
    for loss in losses[losses < 700]:  # beyond 700, e^ε·α and e^−ε leave nothing
        kept = 1 - profile.delta(float(loss))
        result = np.maximum(result, np.maximum(kept - math.exp(loss) * level, math.exp(-loss) * (kept - level)))
    return result


def _sampled(
    one_steps: tuple[OneStep, ...],
    one_chi_square: Callable[[float, float], float],
    q: float,
    noise_multiplier: ArrayLike,
    steps: ArrayLike,
) -> Profile:
    """Return the profile of sampled Gaussian steps, each direction of `one_steps` composed."""
    q = _probability("q", q)
    shifts = _shifts(noise_multiplier, steps)
    if not shifts or q == 0:
        return gaussian(0.0)
    if q == 1:
        largest = max(mu for mu, _ in shifts)  # squares of very large shifts would overflow
        return gaussian(largest * math.sqrt(sum(count * (mu / largest) ** 2 for mu, count in shifts)))
    # Revealing who took part only helps an attacker; where the shift is huge it adds nothing.
    counts, weights = participations(q, sum(count for _, count in shifts))
    revealed = _mixture(weights, np.sqrt(counts) * max(mu for mu, _ in shifts), 0.0)
    return Profile(
        partial(_least, revealed.delta, partial(sampled_delta, one_steps, q, shifts)),
        partial(_least, revealed.epsilon, partial(sampled_epsilon, one_steps, q, shifts)),
        sampled=SampledSteps(one_steps, q, shifts),
        chi_square=chi.composed([(one_chi_square(q, mu), count) for mu, count in shifts]),
    )


def _shifts(noise_multiplier: ArrayLike, steps: ArrayLike) -> list[tuple[float, int]]:
    """Return 1/multiplier and the number of steps of each phase that has any."""
    multipliers = [checks.positive("noise_multiplier", z) for z in np.ravel(noise_multiplier).tolist()]
    counts = [checks.integer("steps", count, least=0) for count in np.ravel(steps).tolist()]
    if len(multipliers) != len(counts):
        raise ValueError(f"steps must be one per noise_multiplier ({len(multipliers)}), got {len(counts)}.")
    return [(1 / z, count) for z, count in zip(multipliers, counts, strict=True) if count]


def _least(quick: Callable[[float], float], slow: Callable[[float], float], value: float) -> float:
    """Return the smaller of two bounds, computing the slow one only if the quick one is above 0."""
    bound = quick(value)
    return min(bound, slow(value)) if bound > 0 else bound


def _mixture(weights: Array, mus: Array, missing: float) -> Profile:
    """Return the profile of a mixture, in which `missing` weight counts as lost."""
    finite = mus < np.inf
    lost = missing + float(weights[~finite].sum())
    weights, mus = weights[finite & (weights > 0)], mus[finite & (weights > 0)]
    curve = partial(_mixed_delta, weights, mus, lost)
    total = math.inf if lost else _mixed_chi_square(weights, mus)
    return Profile(curve, partial(_mixed_epsilon, curve, float(mus.max(initial=0.0)), lost), chi_square=total)


def _mixed_chi_square(weights: Array, mus: Array) -> float:
    """Return χ² of a mixture of which nothing is lost."""
    return math.fsum(weight * chi.gaussian(mu) for weight, mu in zip(weights.tolist(), mus.tolist(), strict=True))


def _mixed_delta(weights: Array, mus: Array, lost: float, epsilon: float) -> float:
    """Return δ(ε) of a mixture."""
    return lost + float(np.sum(weights * gdp.delta(mus, epsilon)))


def _mixed_epsilon(curve: Callable[[float], float], largest: float, lost: float, delta: float) -> float:
    """Return the smallest ε of a mixture at δ; infinite if at least δ is lost."""
    if lost >= delta:
        return math.inf
    return _inverse(curve, gdp.epsilon(largest, delta - lost), delta)


def _response_delta(q: float, odds: float, steps: int, epsilon: float) -> float:
    """Return δ(ε) of `steps` sampled randomised responses, the larger of the two directions."""
    rare, common = (
        float(log_expit(-odds)),
        float(log_expit(odds)),
    )  # logs, for a 1 and a 0 without the record
    up, down = _log_ratio(q, odds), _log_ratio(q, -odds)  # what the record adds to these
    # Not rare + up and common + down: for huge odds the first would be nothing but rounding.
    sent, unsent = math.log(q), _log_complement(q)
    with_record = float(np.logaddexp(sent + common, unsent + rare)), float(np.logaddexp(sent + rare, unsent + common))
    present = _binomial_delta(with_record, (up, down), steps, epsilon)
    return max(present, _binomial_delta((rare, common), (-up, -down), steps, epsilon))


def _log_ratio(q: float, odds: float) -> float:
    """Return log(1 + q·(e^odds − 1))."""
    if q == 1 or odds > 600:
        return float(np.logaddexp(_log_complement(q), math.log(q) + odds))
    return math.log1p(q * math.expm1(odds))


def _binomial_delta(p: tuple[float, float], loss: tuple[float, float], steps: int, epsilon: float) -> float:
    """Return H_{e^ε} of `steps` coins with log-probabilities p, each with its own loss, from the number of ones."""
    first, last = likely(steps, math.exp(p[0]))
    ones = np.arange(first, last + 1, dtype=np.float64)
    losses = ones * loss[0] + (steps - ones) * loss[1]
    losses += 1e-15 * (ones * abs(loss[0]) + (steps - ones) * abs(loss[1]))  # rounding, upwards
    ones, losses = ones[losses > epsilon], losses[losses > epsilon]
    ways = gammaln(steps + 1) - gammaln(ones + 1) - gammaln(steps - ones + 1)
    terms = np.exp(ways + ones * p[0] + (steps - ones) * p[1]) * -np.expm1(epsilon - losses)
    # The last digit of a large gammaln matters.
    rounding = 1e-14 * (1 + math.lgamma(steps + 1))
    return float(terms.sum()) * (1 + rounding) + 2 * math.exp(-700)


def _inverse(curve: Callable[[float], float], highest: float, delta: float) -> float:
    """Return the smallest ε up to `highest` with curve(ε) ≤ δ, for a curve that never rises and ends low enough."""
    if highest == math.inf or curve(0.0) <= delta:
        return 0.0 if highest < math.inf else math.inf

    def above(epsilon: float) -> float:
        return math.log(max(curve(epsilon), 1e-320)) - math.log(delta)

    if above(highest) >= 0:  # only by rounding
        return highest
    root = brentq(above, 0.0, highest, xtol=1e-15 * highest, rtol=1e-12)
    return float(root) * (1 + 1e-11) + 2e-15 * highest


def _shifted_delta(profile: Profile, extra: float, epsilon: float) -> float:
    """Return δ(ε) of a profile to which ε = `extra` was added."""
    if epsilon >= extra:
        return profile.delta(epsilon - extra)
    # Weaker than (extra, δ(0)): what is (ε, δ)-private is (ε', 1 − (1−δ)(1 + e^ε')/(1 + e^ε))-private for ε' < ε.
    kept = (1 - profile.delta(0.0)) * math.exp(float(np.logaddexp(0, epsilon) - np.logaddexp(0, extra)))
    return 1 - kept


def _shifted_epsilon(profile: Profile, extra: float, delta: float) -> float:
    """Return ε at δ of a profile to which ε = `extra` was added."""
    return profile.epsilon(delta) + extra


def _log_complement(q: float) -> float:
    """Return log(1 − q), −∞ for q = 1."""
    return math.log1p(-q) if q < 1 else -math.inf


def _probability(name: str, value: Any) -> float:
    """Return a number between 0 and 1; raise ValueError for others."""
    result = checks.number(name, value)
    if not 0 <= result <= 1:
        raise ValueError(f"{name} must be a number between 0 and 1, got {value!r}.")
    return result
