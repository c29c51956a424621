"""χ²-divergences against closed forms, quadrature and brute force on discrete distributions."""

import math
from itertools import pairwise

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

from clipsilon.privacy.accounting import chi_square as chi
from clipsilon.privacy.accounting import gaussian as gdp
from clipsilon.privacy.accounting import profiles


def divergence(p, q):
    """Return χ²(P‖Q) of two discrete distributions."""
    return float(np.sum((p - q) ** 2 / q))


def hockey_stick(p, q, gamma):
    return float(np.maximum(p - gamma * q, 0).sum())


def integral(curve, highest=60.0):
    """Return 2·∫ (e^ε + e^−2ε)·δ(ε) dε, the χ² of a symmetric pair with the profile δ."""
    grid = np.linspace(0, highest, 61)
    parts = [quad(lambda e: 2 * (math.exp(e) + math.exp(-2 * e)) * curve(e), a, b)[0] for a, b in pairwise(grid)]
    return sum(parts)


@pytest.mark.parametrize("seed", range(5))
def test_the_divergence_is_an_integral_of_hockey_sticks(seed):
    """χ²(P‖Q) = 2·∫_1^∞ [E_γ(P‖Q) + γ⁻³·E_γ(Q‖P)] dγ; beyond the largest ratio the integrand is 0."""
    p, q = np.random.default_rng(seed).dirichlet(np.ones(5), size=2)
    corners = np.unique(np.r_[1.0, (p / q)[p > q], (q / p)[q > p]])
    total = sum(
        quad(lambda g: 2 * hockey_stick(p, q, g) + 2 * g**-3 * hockey_stick(q, p, g), a, b)[0]
        for a, b in pairwise(corners)
    )
    assert total == pytest.approx(divergence(p, q), rel=1e-9)


@pytest.mark.parametrize("mu", [0.01, 0.3, 1.0, 2.0])
def test_the_gaussian_is_what_its_profile_integrates_to(mu):
    profile = profiles.gaussian(mu)
    assert profile.chi_square == pytest.approx(math.expm1(mu**2), rel=1e-11)
    assert profile.chi_square >= math.expm1(mu**2)
    assert profile.chi_square == pytest.approx(integral(profile.delta, 12 * mu + mu**2), rel=1e-6)


@pytest.mark.parametrize("q", [0.01, 0.3, 0.9])
@pytest.mark.parametrize("mu", [0.1, 1.0, 2.5])
def test_one_sampled_step_is_bounded_in_both_directions(q, mu):
    x = np.linspace(-14, 14 + 3 * mu, 400_001)
    base, one, two = norm.pdf(x), norm.pdf(x - mu), norm.pdf(x - 2 * mu)
    mix, far = (1 - q) * base + q * one, (1 - q) * base + q * two
    width = x[1] - x[0]
    removal, addition = (width * divergence(*pair) for pair in ((mix, base), (base, mix)))
    assert chi.poisson(q, mu) == pytest.approx(removal, rel=1e-6)
    assert addition <= removal
    ratio = mix / base
    exact = width * np.sum(base * np.maximum(ratio - 1, 0) ** 2 * (1 + 1 / ratio))
    assert exact <= chi.subset(q, mu) * (1 + 1e-6) <= 2.001 * exact
    above = width * np.sum(np.maximum(far - mix, 0) ** 2 / mix)
    below = width * np.sum(base * np.maximum(ratio - 1, 0) ** 2 / ratio)
    assert above + below <= chi.subset_zero_out(q, mu) * (1 + 1e-6)


@pytest.mark.parametrize("odds", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("q", [0.05, 0.5, 1.0])
def test_randomised_response_by_brute_force(odds, q):
    common = 1 / (1 + math.exp(-odds))
    base = np.array([common, 1 - common])
    mix = (1 - q) * base + q * base[::-1]
    assert chi.response(q, odds) == pytest.approx(divergence(mix, base), rel=1e-9)
    assert divergence(base, mix) <= chi.response(q, odds) * (1 + 1e-9)
    three = [np.einsum("i,j,k->ijk", *[one] * 3).ravel() for one in (mix, base)]
    assert profiles.gamma(q, 1 / odds, 3).chi_square == pytest.approx(divergence(*three), rel=1e-9)


def test_poisson_steps_are_below_the_gaussian_through_the_same_point():
    for q, multiplier, steps in ((0.01, 1.0, 1000), (0.1, 2.0, 100), (0.5, 5.0, 10)):
        profile = profiles.poisson(q, multiplier, steps)
        through = gdp.largest_mu(profile.epsilon(1e-5), 1e-5)
        assert profile.chi_square < math.expm1(through**2)


def test_poisson_steps_are_not_above_what_their_curve_integrates_to():
    """The product of the steps is exact for one direction, and the curve is the larger of both."""
    profile = profiles.poisson(0.1, 2.0, 100)
    losses = np.linspace(0, 6, 31)
    gammas, deltas = np.exp(losses), np.array([profile.delta(float(loss)) for loss in losses])
    curve = np.trapezoid(2 * (1 + gammas**-3.0) * deltas, gammas)  # chords are above a convex curve
    assert profile.chi_square <= curve <= 1.3 * profile.chi_square


def test_other_profiles():
    assert profiles.point(1.0, 1e-5).chi_square == math.inf
    assert profiles.gaussian(math.inf).chi_square == math.inf
    assert profiles.gaussian(0.0).chi_square == 0
    mixed = profiles.mixture([0.25, 0.75], [0.5, 1.0])
    assert mixed.chi_square == pytest.approx(0.25 * math.expm1(0.25) + 0.75 * math.expm1(1.0))
    assert profiles.mixture([0.25, 0.7], [0.5, 1.0]).chi_square == math.inf
    added = profiles.add(profiles.gaussian(0.5), 1.0)
    assert added.chi_square == pytest.approx(math.exp(0.25) * (1 + 4 * math.sinh(0.5) ** 2) - 1)
    assert profiles.worst(mixed, added).chi_square == max(mixed.chi_square, added.chi_square)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 0.0), (1.0, 0.1), (3.0, 1e-5)])
def test_the_discrimination_of_randomised_response(epsilon, delta):
    """The pair with the loss ±ε and, with probability δ, ±∞ has s = (1 − δ)·tanh²(ε/2) + δ, rounded up a little."""
    kept = (1 - delta) / (1 + math.exp(epsilon))
    p = np.array([delta, kept * math.exp(epsilon), kept, 0.0])
    q = p[::-1]
    inside = p + q > 0
    s = 0.5 * np.sum((p - q)[inside] ** 2 / (p + q)[inside])
    assert s == pytest.approx((1 - delta) * math.tanh(epsilon / 2) ** 2 + delta)
    bound = chi.discrimination(lambda e: hockey_stick(p, q, math.exp(e)))
    assert s <= bound <= 1.1 * s
    assert s <= chi.point_discrimination(epsilon, delta) <= s * (1 + 1e-9)
    if delta:  # the profile of the point alone is 1 up to ε; the first ε that is read after it is at most 1.33 times it
        later = (1 - delta) * math.tanh(1.33 * epsilon / 2) ** 2 + delta
        assert s <= chi.discrimination(profiles.point(epsilon, delta).delta) <= later


@pytest.mark.parametrize("mu", [1e-3, 0.1, 1.0, 4.0])
def test_the_discrimination_of_gaussians_is_rounded_up(mu):
    def density(x):
        p, q = norm.pdf(x), norm.pdf(x - mu)
        return 0.5 * (p - q) ** 2 / (p + q)

    s = quad(density, -12, 12 + mu, limit=500, epsabs=1e-14)[0]
    assert s <= chi.discrimination(profiles.gaussian(mu).delta) <= 1.03 * s
