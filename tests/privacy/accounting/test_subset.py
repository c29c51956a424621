"""Uniform subsets when a record is zeroed out: the exact one-step profile, and attacks on its composition.

Everything here integrates densities on a fine grid of its own; nothing is shared with the accountant.
"""

import functools
import itertools
import math

import numpy as np
import pytest
from scipy.stats import norm

import clipsilon as cs
from clipsilon.privacy.accounting import profiles
from clipsilon.privacy.accounting.privacy_loss import subset_addition, subset_removal

STEP = cs.schedules.Constant(1.0)
TOLERANCE = 2e-6  # of sums over the grid


def grid(mu):
    return np.linspace(-10 - 2 * mu, 10 + 2 * mu, 12_001)


def pair(x, q, own, other):
    """Return the densities of a step with a record that adds `own` and with nothing in its place.

    When the record is not drawn, another one is, which adds `other`. All in units of the noise.
    """
    instead = (1 - q) * norm.pdf(x, other)
    return instead + q * norm.pdf(x, own), instead + q * norm.pdf(x)


def divergence(p, q, alpha, width):
    return float(np.maximum(p - alpha * q, 0).sum() * width)


@functools.cache
def densities(q, mu):
    """Return the densities of base, mix, far and near of docs/privacy.md; near is mix."""
    x = grid(mu)
    base, mix, far = (norm.pdf(x) * (1 - q) + q * norm.pdf(x, at) for at in (0.0, mu, 2 * mu))
    return base, mix, far, x[1] - x[0]


def profile(q, mu, alpha):
    """Return F(α) of docs/privacy.md by integration."""
    base, mix, far, width = densities(q, mu)
    return divergence(base, mix, alpha, width) if alpha < 1 else divergence(far, mix, alpha, width)


def grid_delta(losses, epsilon):
    values = (losses.first + np.arange(losses.masses.size)) * losses.interval
    return losses.infinite + np.sum(losses.masses * -np.expm1(np.minimum(0.0, epsilon - values)))


@pytest.mark.parametrize("q", [0.02, 0.3, 0.5, 0.95])
@pytest.mark.parametrize("mu", [0.1, 1.0, 3.0])
def test_one_step_is_exact(q, mu):
    removal, addition = (one_step(q, mu, mu / 2000, 1e-13) for one_step in (subset_removal, subset_addition))
    for step in (removal, addition):
        assert step.masses.sum() + step.infinite == pytest.approx(1, abs=1e-11)
        assert step.masses.min() >= 0
    for epsilon in (-2.0, -0.5, -0.01, 0.0, 0.01, 0.4, 1.7):
        forward = profile(q, mu, math.exp(epsilon))
        backward = 1 - math.exp(epsilon) + math.exp(epsilon) * profile(q, mu, math.exp(-epsilon))
        assert grid_delta(removal, epsilon) == pytest.approx(forward, abs=TOLERANCE)
        assert grid_delta(addition, epsilon) == pytest.approx(backward, abs=TOLERANCE)


@pytest.mark.parametrize("q", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("mu", [0.3, 1.0, 2.5])
def test_no_pair_of_gradients_exceeds_the_profile_of_one_step(q, mu):
    """The profile is attained at (c, −c) and at (c, c)."""
    x = grid(mu)
    width = x[1] - x[0]
    for epsilon in (-1.0, -0.1, 0.0, 0.2, 1.0, 2.0):
        alpha = math.exp(epsilon)
        bound = profile(q, mu, alpha)
        places = itertools.product(np.linspace(-mu, mu, 5), repeat=2)
        found = [divergence(*pair(x, q, own, other), alpha, width) for own, other in places]
        assert max(found) <= bound + TOLERANCE
        assert max(found) == pytest.approx(bound, abs=TOLERANCE)


@pytest.mark.parametrize("angle", [0.5, 1.5, 2.5])
def test_nor_do_gradients_in_a_plane(angle):
    q, mu = 0.5, 1.0
    plane = np.linspace(-7, 7, 1001)
    cell = (plane[1] - plane[0]) ** 2
    first, second = np.meshgrid(plane, plane)
    instead = (1 - q) * norm.pdf(first, mu * math.cos(angle)) * norm.pdf(second, mu * math.sin(angle))
    p = instead + q * norm.pdf(first, mu) * norm.pdf(second)
    r = instead + q * norm.pdf(first) * norm.pdf(second)
    for epsilon in (-1.0, 0.2, 1.0):
        assert divergence(p, r, math.exp(epsilon), cell) <= profile(q, mu, math.exp(epsilon)) + 5e-5  # a coarser grid


@functools.cache
def best_second_step(q, mu, reverse):
    """Return a table of α, and of the largest divergence of one step there."""
    table = np.exp(np.linspace(-16, 16, 3001))
    values = [profile(q, mu, 1 / a) * a + 1 - a if reverse else profile(q, mu, a) for a in table]
    return table, np.array(values)


def adaptive_attack(q, mu, alpha, own, other, reverse=False):
    """Return δ after two steps: the first with these gradients, the second with the best ones for its output.

    The best second step has the divergence F at α divided by the likelihood ratio of the first output.
    """
    x = grid(mu)
    p, r = pair(x, q, own, other)
    if reverse:
        p, r = r, p
    ratios = alpha * r / np.maximum(p, 1e-300)
    best = np.interp(ratios, *best_second_step(q, mu, reverse), left=1.0, right=0.0)
    return float((p * best).sum() * (x[1] - x[0]))


@pytest.mark.parametrize(
    ("q", "multiplier", "epsilon"), [(0.5, 0.5, 0.1), (0.5, 0.5, 1.0), (0.2, 1.0, 0.3), (0.75, 2.0, 0.2)]
)
def test_attacks_that_adapt_stay_below_the_certificate_and_come_close(q, multiplier, epsilon):
    """Exact enumeration of two steps with adaptive gradients, in both directions."""
    mu, alpha = 1 / multiplier, math.exp(epsilon)
    certified = profiles.subset_zero_out(q, multiplier, 2).delta(epsilon)
    attacks = [
        adaptive_attack(q, mu, alpha, own, other, reverse)
        for own, other in itertools.product(np.linspace(-mu, mu, 5), repeat=2)
        for reverse in (False, True)
    ]
    assert max(attacks) <= certified + 2e-5  # the table is interpolated from above
    assert max(attacks) >= 0.75 * certified
    assert certified < profiles.subset(q, multiplier / 2, 2).delta(epsilon)  # as a replacement


def test_the_two_record_example():
    """Two records, one per step, two steps: the replace-one profile certifies 0.52 where 0.28 is attained."""
    rule = cs.PCSGD(STEP, clip=1.0, noise_std=1.0)
    replaced, zeroed = (cs.account(rule, 2, 2, 1e-5, kind).delta_at(0.1) for kind in ("replace-one", "zero-out"))
    attained = max(
        adaptive_attack(0.5, 1.0, math.exp(0.1), own, other) for own, other in ((1, -1), (1, 1), (1, 0), (-1, 0.5))
    )
    assert attained == pytest.approx(0.2776, abs=1e-4)
    assert replaced == pytest.approx(0.5208, abs=2e-3)
    assert attained <= zeroed == pytest.approx(0.2866, abs=1e-3)


@pytest.mark.parametrize(
    ("q", "multiplier", "steps"), [(0.01, 1.0, 1000), (0.1, 2.0, 50), (0.3, 5.0, 200), (1e-4, 0.5, 10**4)]
)
def test_between_poisson_and_replacement(q, multiplier, steps):
    for delta in (1e-3, 1e-6, 1e-12):
        poisson = profiles.poisson(q, multiplier, steps).epsilon(delta)
        zeroed = profiles.subset_zero_out(q, multiplier, steps).epsilon(delta)
        replaced = profiles.subset(q, multiplier / 2, steps).epsilon(delta)
        assert 0.99 * poisson - 1e-5 <= zeroed <= replaced * 1.01 + 1e-5


def test_a_third_method_agrees():
    """Compose the profile by convolving its exact loss on a fine grid, without tilts or transforms."""
    q, mu, steps = 0.3, 0.8, 6
    step = subset_removal(q, mu, 2e-3, 1e-13)
    masses = np.ones(1)
    for _ in range(steps):
        masses = np.convolve(masses, step.masses)
    values = (steps * step.first + np.arange(masses.size)) * step.interval
    for epsilon in (0.2, 1.0, 2.0):
        delta = float(np.sum(masses * -np.expm1(np.minimum(0.0, epsilon - values))))
        certified = profiles.subset_zero_out(q, 1 / mu, steps).delta(epsilon)
        assert delta * (1 - 1e-4) <= certified <= 1.02 * delta
