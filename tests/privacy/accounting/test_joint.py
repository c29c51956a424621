"""Several releases on one curve: against closed forms, another library, and the sum of their ε."""

import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution

from clipsilon.privacy.accounting import gaussian, profiles
from clipsilon.privacy.accounting.joint import _losses, joint_epsilon
from clipsilon.privacy.accounting.profiles import Profile

DELTA = 1e-5


def hidden(mu):
    """Return the profile of μ-GDP without telling that it is one."""
    known = profiles.gaussian(mu)
    return Profile(known.delta_at, known.epsilon_at)


def test_gaussians_compose_exactly():
    found = joint_epsilon([profiles.gaussian(mu) for mu in (0.3, 0.0, 0.4)], DELTA)
    assert found == gaussian.epsilon(math.hypot(0.3, 0.4), DELTA)
    assert joint_epsilon([profiles.gaussian(math.inf), hidden(1.0)], DELTA) == math.inf


@pytest.mark.parametrize("mus", [(0.3, 0.4), (1.0, 2.0, 0.1), (0.01, 0.02), (4.0, 3.0), (0.5,) * 6])
@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-10])
def test_curves_alone_suffice(mus, delta):
    """From values of δ(ε) alone, a little more than the truth, never less."""
    exact = gaussian.epsilon(math.hypot(*mus), delta)
    found = joint_epsilon([profiles.gaussian(mus[0]), *map(hidden, mus[1:])], delta)
    assert exact * (1 - 1e-9) <= found <= 1.01 * exact
    assert exact * (1 - 1e-9) <= joint_epsilon(list(map(hidden, mus)), delta) <= 1.01 * exact


@pytest.mark.parametrize(
    ("q", "noise", "steps", "mu"), [(0.05, 1.0, 200, 0.5), (0.004, 0.8, 2000, 0.2), (0.2, 5.0, 50, 1.0)]
)
def test_sampled_steps_with_a_gaussian(q, noise, steps, mu):
    found = joint_epsilon([profiles.poisson(q, noise, steps), profiles.gaussian(mu)], DELTA)
    about = {"value_discretization_interval": 1e-4}
    other = privacy_loss_distribution.from_gaussian_mechanism(noise, sampling_prob=q, **about).self_compose(steps)
    other = other.compose(privacy_loss_distribution.from_gaussian_mechanism(1 / mu, **about))
    assert found == pytest.approx(other.get_epsilon_for_delta(DELTA), rel=0.005)
    alone = [profiles.poisson(q, noise, steps).epsilon(DELTA / 2), gaussian.epsilon(mu, DELTA / 2)]
    assert max(alone) * 0.9 < found < sum(alone)


def test_sampled_steps_twice_are_twice_as_many():
    for make in (profiles.poisson, profiles.subset):
        found = joint_epsilon([make(0.05, 1.0, 100), make(0.05, 1.0, 50)], DELTA)
        assert found == pytest.approx(make(0.05, 1.0, 150).epsilon(DELTA), rel=0.01)


def randomised_response(epsilon, delta):
    return profiles.point(epsilon, delta)


def test_points_compose_as_randomised_responses():
    """k releases of which (ε, 0) is known reveal as much as k coins with odds e^ε (Kairouz, Oh and Viswanath, 2015)."""
    epsilon, k, delta = 0.2, 8, 1e-3
    tiny = 1e-12
    heads = 1 / (1 + math.exp(-epsilon))
    counts = np.arange(k + 1)
    ways = np.array([math.comb(k, int(count)) for count in counts])
    present = ways * heads**counts * (1 - heads) ** (k - counts)
    absent = present[::-1]
    grid = np.linspace(0, k * epsilon, 20_001)
    deltas = np.array([np.maximum(0, present - math.exp(one) * absent).sum() for one in grid])
    exact = grid[np.argmax(deltas <= delta)]
    found = joint_epsilon([randomised_response(epsilon, tiny)] * k, delta)
    assert exact * 0.999 <= found <= 1.02 * exact
    assert found < 0.95 * k * epsilon


def test_a_point_that_is_missed_certifies_nothing():
    parts = [profiles.point(1.0, 1e-5), profiles.gaussian(0.1)]
    assert joint_epsilon(parts, 0.9e-5) == math.inf
    assert 1.0 < joint_epsilon(parts, 2e-5) < 1.0 + gaussian.epsilon(0.1, 1e-5) * 1.1


POINT = profiles.point(0.5, 1e-4)


def implied(epsilon):
    """Return the δ at ε that follows from (0.5, 1e-4), the only point that is known."""
    return 1e-4 if epsilon >= 0.5 else 1 - (1 - 1e-4) * (1 + math.exp(epsilon)) / (1 + math.exp(0.5))


@pytest.mark.parametrize(
    "part",
    [
        profiles.gaussian(0.7),
        profiles.mixture([0.5, 0.3, 0.2], [0.1, 1.0, 3.0]),
        profiles.gamma(0.1, 0.5, 20),
        profiles.add(profiles.gaussian(0.5), 0.3),
        POINT,
        profiles.worst(profiles.gaussian(0.5), profiles.gamma(0.1, 0.5, 20)),
    ],
)
@pytest.mark.parametrize("interval", [0.01, 0.0007])
def test_losses_dominate_their_profile(part, interval):
    """At every ε, also between the points that were evaluated, but not by much."""
    top = 0.5 if part is POINT else part.epsilon(1e-9)
    found = _losses(part, top, interval)
    values = (found.first + np.arange(found.masses.size)) * interval
    assert found.masses.min() >= 0
    assert found.masses.sum() + found.infinite == pytest.approx(1.0, abs=1e-9)
    for epsilon in np.linspace(0, 1.2 * top, 57):
        beyond = values > epsilon
        delta = np.sum(found.masses[beyond] * -np.expm1(epsilon - values[beyond])) + found.infinite
        known = implied(epsilon) if part is POINT else part.delta(epsilon)
        room = interval if part is POINT else interval**2  # 0.5 need not be on the grid
        assert known * (1 - 1e-9) <= delta <= 1.02 * known + room + found.infinite
