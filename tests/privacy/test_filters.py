"""Sums that hold when later releases depend on earlier ones."""

import math

import numpy as np
import pytest

from clipsilon.privacy.accounting import gaussian as gdp
from clipsilon.privacy.filters import Amount, Cost, count_release, count_spent


def gaussian(epsilon, delta=1e-6):
    return Cost(epsilon, delta, gdp.largest_mu(epsilon, delta))


def spend(costs, limit):
    """Count releases until one is refused."""
    past = []
    for cost in costs:
        counted = count_release(cost, past, limit)
        if counted is None:
            break
        past.append(counted)
    return past


def test_other_releases_add_up():
    limit = Amount(1.0, 1e-5)
    assert len(spend([Cost(0.1, 1e-7, None)] * 20, limit)) == 10
    assert len(spend([Cost(0.01, 2e-6, None)] * 20, limit)) == 5
    assert count_release(Cost(1.1, 1e-9, None), [], limit) is None


def test_sums_are_those_of_the_numbers_as_written():
    """In binary, three times 0.1 is more than 0.3."""
    for parts in range(2, 20):
        limit = Amount(float(f"{parts / 10:g}"), 1e-4)
        assert len(spend([Cost(0.1, 1e-7, None)] * 30, limit)) == parts
    assert count_release(Cost(np.nextafter(0.3, 1), 1e-7, None), [], Amount(0.3, 1e-4)) is None


def test_one_gaussian_costs_what_it_costs_and_many_about_the_root():
    one = gaussian(0.1)
    past = spend([one] * 60, Amount(10.0, 1e-4))
    assert past[0][:2] == (one.epsilon, one.delta)
    assert count_spent(past[:2]).epsilon == pytest.approx(0.2)
    assert len(past) == 60
    assert count_spent(past).epsilon == pytest.approx(1.6)  # 1 + 1 + 2 + 4 + 8 times one
    assert count_spent(past).delta == pytest.approx(5e-6)


def test_a_reserve_holds_what_it_was_charged_with():
    past = spend([gaussian(0.1)] * 200, Amount(10.0, 1e-4))
    for place, one in enumerate(past):
        if one.size is not None:
            inside = [each.mu for each in past if each.reserve == place]
            assert math.hypot(*inside) <= one.size
            assert gdp.epsilon(one.size, one.delta) <= one.epsilon * (1 + 1e-9)


def test_the_last_reserve_takes_what_is_left():
    past = spend([gaussian(0.1)] * 50, Amount(1.0, 1e-4))
    assert count_spent(past).epsilon <= 1.0
    assert len(past) >= 20  # ten would be all without reserves
    assert count_release(gaussian(0.1), past, Amount(1.0, 1e-4)) is None


@pytest.mark.parametrize("seed", range(20))
def test_the_limit_is_never_passed(seed):
    rng = np.random.default_rng(seed)
    limit, past, refused = Amount(2.0, 1e-5), [], 0
    for _ in range(200):
        epsilon, delta = float(rng.uniform(0.01, 0.4)), float(10 ** rng.uniform(-9, -6))
        cost = gaussian(epsilon, delta) if rng.random() < 0.6 else Cost(epsilon, delta, None)
        counted = count_release(cost, past, limit)
        refused += counted is None
        past += [] if counted is None else [counted]
        spent = count_spent(past)
        assert spent.epsilon <= limit.epsilon
        assert spent.delta <= limit.delta
    assert refused > 0


def test_trading_sums_for_squares_afterwards_would_be_wrong():
    """Why a reserve is fixed when it is opened (docs/proofs.md): exact, on a grid of the Gaussian loss.

    An observer sees a Gaussian output first. Then they take more of the Gaussian, or a pure ε, whichever reveals more.
    Each alone keeps to δ at ε; the better of both does not.
    """
    epsilon, first, whole = 1.0, 0.2, 0.35
    delta = gdp.delta(whole, epsilon)
    extra = epsilon - gdp.epsilon(first, delta)  # what sums would leave beside the first
    losses = np.linspace(-3, 3, 20_001)
    step = losses[1] - losses[0]
    density = np.exp(-((losses - first**2 / 2) ** 2) / (2 * first**2)) / math.sqrt(2 * math.pi * first**2) * step
    pure = np.maximum(0, 1 - np.exp(epsilon - losses - extra))
    rest = math.sqrt(whole**2 - first**2)
    more = np.array([_remaining(rest, epsilon - loss) for loss in losses])
    assert float(density @ pure) <= delta * (1 + 1e-6)
    assert float(density @ more) == pytest.approx(delta, rel=1e-4)
    assert float(density @ np.maximum(pure, more)) > 1.02 * delta


def _remaining(mu, epsilon):
    """δ_μ(ε) for any ε: E(1 − e^{ε − L})₊."""
    return (
        gdp.delta(mu, epsilon) if epsilon >= 0 else 1 - math.exp(epsilon) + math.exp(epsilon) * gdp.delta(mu, -epsilon)
    )
