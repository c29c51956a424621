"""Rounds of local reports: the moments of their weights, and bounds against exact moments."""

import itertools

import numpy as np
import pytest

from clipsilon.rules.schedules import Power, size
from clipsilon.theory import local
from clipsilon.theory.local import LocalConstants
from clipsilon.theory.local_rounds import round_moments, round_variance

MUS = [0.1, 1.0, 10.0]


@pytest.mark.parametrize("variance", [np.nan, 0.0, 0.3])
@pytest.mark.parametrize("batch", [2, 3, 6])
def test_moments_are_means_over_all_rounds(batch, variance):
    """Every round of b budgets from three is equally likely."""
    d, sensitivity = 4, 3.0
    v = sensitivity**2 / 4 if np.isnan(variance) else variance
    rounds = np.array([*itertools.product(MUS, repeat=batch)])
    weights = 1 / (v + d * (sensitivity / rounds) ** 2)
    weights /= weights.sum(axis=1, keepdims=True)
    share, noise = round_moments(MUS, batch, d, sensitivity, variance)
    assert share == pytest.approx((weights**2).sum(axis=1).mean(), rel=1e-9)
    assert noise == pytest.approx((weights**2 / rounds**2).sum(axis=1).mean(), rel=1e-9)


def test_weights_that_are_equal():
    inverse = np.mean(1 / np.square(MUS))
    assert round_moments(MUS, 7, 4, 3.0, np.inf) == pytest.approx((1 / 7, inverse / 7))
    assert round_moments(MUS, 1, 4, 3.0) == pytest.approx((1, inverse))
    assert round_moments(2.0, 7, 4, 3.0) == pytest.approx((1 / 7, 1 / 28))
    assert round_moments([2.0, 2.0 * (1 + 1e-12)], 7, 4, 3.0) == pytest.approx((1 / 7, 1 / 28), rel=1e-9)


@pytest.mark.parametrize("batch", [2, 10, 1000])
def test_weights_by_budget_have_the_least_variance(batch):
    """Between the harmonic mean, which many reports reach, and the arithmetic mean, both divided by b."""
    d, sensitivity, v = 20, 2.0, 0.5
    each = v + d * (sensitivity / np.array(MUS)) ** 2
    least = 1 / np.mean(1 / each) / batch
    weighted, equal = (round_variance(MUS, batch, d, sensitivity, v, how) for how in ("budget", "equal"))
    assert equal == pytest.approx(each.mean() / batch)
    assert least < weighted < equal
    assert weighted == pytest.approx(least, rel=2.0 / batch) or batch < 100
    share, noise = round_moments(MUS, batch, d, sensitivity, 5 * v)  # weights for another V
    assert share * v + d * sensitivity**2 * noise > weighted


def exact(curvatures, step, rounds, starts, batch, moments, bound):
    """Return E‖u_k‖², E‖ū_k‖² and the two losses for F = ½Σλ_j·u_j², gradient errors of variance 1 and the noise."""
    share, noise = moments
    squares, cross, total = np.array(starts, dtype=float), np.zeros(2), np.zeros(2)
    last, average = [], []
    for k in range(1, rounds + 1):
        keep = 1 - size(step, k) * curvatures
        squares = keep**2 * squares + size(step, k) ** 2 * (share + 4 * bound**2 * noise)
        cross = keep * cross
        total += 2 * cross + squares
        cross += squares
        last.append(squares)
        average.append(total / k**2)
    last, average = np.array(last), np.array(average)
    return last.sum(1), average.sum(1), 0.5 * last @ curvatures, 0.5 * average @ curvatures


@pytest.mark.parametrize("variance", [np.nan, np.inf])
@pytest.mark.parametrize("batch", [1, 10, 200])
@pytest.mark.parametrize("alpha", [0.25, 0.5, 0.75])
def test_all_bounds_hold_for_rounds(alpha, batch, variance):
    """Quadratic F with two curvatures and exact moments; C_0 = 4 is beyond the mean square gradient of all models."""
    curvatures, step, rounds, starts = np.array([1.0, 0.4]), Power(0.2, alpha), 400, [1.0, 0.2]
    case = LocalConstants(4.0, [5.0, 10.0, 40.0], 2, 1.2, 1.0, 0.4, batch=batch, variance=variance)
    last, average, loss, average_loss = exact(curvatures, step, rounds, starts, batch, case.moments, 4.0)
    assert 2 * loss.max() + 2 <= 4.0**2
    n = batch * np.arange(1, rounds + 1)
    limit = local.limit_variance(case, np.diag(curvatures), np.eye(2))
    for truth, bound in (
        (last, local.last_distance(case, step, n)),
        (average, local.average_distance(case, step, n)),
        (average, local.average_distance(case, step, n, limit)),
        (loss, local.last_loss(case, step, n)),
        (average_loss, local.average_loss(case, step, n)),
    ):
        assert (truth <= bound).all()
    alone = case._replace(batch=1)
    assert (local.last_distance(case, step, n) <= local.last_distance(alone, step, n // batch)).all()


def test_rounds_are_complete():
    case = LocalConstants(1.0, 1.0, 2, 1.0, 1.0, 0.5, batch=10)
    step = Power(0.3, 0.5)
    for bound in (local.last_distance, local.average_distance, local.last_loss, local.average_loss):
        assert bound(case, step, 59) == bound(case, step, 50) > bound(case, step, 60)
        with pytest.raises(ValueError, match=r"users must be at least the batch \(10\), got 9"):
            bound(case, step, 9)


@pytest.mark.parametrize("alpha", [0.2, 0.4, 0.6, 0.8])
def test_what_rounds_do_to_the_rates(alpha):
    """Bounds at b = 16 and 32 for the same, large n: the exponents of b."""
    last, _, last_loss, average_loss = local.rates(alpha)

    def exponent(bound, users):
        cases = (LocalConstants(2.0, 1.5, 3, 0.001, 1.0, 0.3, batch=b) for b in (16, 32))
        first, second = (float(bound(case, Power(0.5, alpha), users)) for case in cases)
        return np.log2(second / first)

    assert exponent(local.last_distance, 10**17) == pytest.approx(last.batch, abs=0.05)
    if alpha < 0.5:
        assert exponent(local.average_loss, 10**17) == pytest.approx(average_loss.batch, abs=0.05)
        assert exponent(local.last_loss, 2**24) == pytest.approx(last_loss.batch, abs=0.05)
    else:
        assert np.isnan([average_loss.batch, last_loss.batch]).all()


def test_averages_do_not_depend_on_the_size_of_rounds():
    """n·E‖θ̄_n − θ*‖² tends to the same limit with equal weights, and to a smaller one with weights by budget."""
    case = LocalConstants(2.0, [0.5, 2.0], 3, 1.0, 1.0, 1.0, variance=np.inf)
    limits = [local.limit_variance(case._replace(batch=b), np.eye(3), np.eye(3)) for b in (1, 10, 100)]
    assert limits == pytest.approx(3 * [limits[0]])
    weighted = [local.limit_variance(case._replace(batch=b, variance=4.0), np.eye(3), np.eye(3)) for b in (1, 10, 100)]
    assert limits[0] == pytest.approx(weighted[0])
    assert weighted[0] > weighted[1] > weighted[2]
    many = 10**6
    bounds = [float(local.average_distance(case._replace(batch=b), Power(0.5, 0.6), many, limits[0])) for b in (1, 10)]
    assert (many * np.array(bounds) / limits[0] < [2.0, 2.6]).all()


def test_arguments_are_checked():
    with pytest.raises(ValueError, match="weights must be one of 'budget', 'equal'"):
        round_variance(1.0, 10, 2, 1.0, 1.0, "all")
    with pytest.raises(ValueError, match="batch must be a whole number of at least 1"):
        LocalConstants(1.0, 1.0, 2, 1.0, 1.0, batch=0)
    with pytest.raises(ValueError, match="variance must be a number of at least 0"):
        round_variance(1.0, 10, 2, 1.0, -1.0)
