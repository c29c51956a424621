"""The losses of counts, amounts and quantiles: derivatives, convexity and minimisers, at any size of margin and label."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

import clipsilon as cs
from clipsilon.problems.losses.base import is_convex, margin_value, slope, unclipped_slope
from clipsilon.problems.losses.log_link import LARGEST

LOSSES = [cs.losses.PoissonDeviance(), cs.losses.GammaDeviance(), cs.losses.Pinball(0.1), cs.losses.Pinball(0.8)]
losses = pytest.mark.parametrize("loss", LOSSES, ids=str)
quick = settings(max_examples=300, deadline=None, derandomize=True)
margins = st.floats(-3 * LARGEST, 3 * LARGEST)
labels = st.one_of(st.just(0.0), st.floats(1e-3, 1e6))


@losses
@quick
@given(margin=margins, label=labels)
def test_the_slope_is_the_derivative(loss, margin, label):
    """The difference of values lies between the slopes at both ends, which are close to each other."""
    step = 1e-4
    ends = margin - step, margin + step
    difference = (margin_value(loss, ends[1], label) - margin_value(loss, ends[0], label)) / (ends[1] - ends[0])
    low, high = (slope(loss, end, label) for end in ends)
    largest = max(abs(margin_value(loss, end, label)) for end in ends)
    rounding = 1e-15 * largest / step + 1e-9 * max(abs(low), abs(high))
    assert low - rounding <= difference <= high + rounding
    assert low <= slope(loss, margin, label) <= high
    if not isinstance(loss, cs.losses.Pinball):
        assert high - low <= 3e-4 * (abs(low) + label + 1.0)


@losses
@quick
@given(first=margins, second=margins, part=st.floats(0, 1), label=labels)
def test_the_loss_is_convex(loss, first, second, part, label):
    between = part * first + (1 - part) * second
    values = [margin_value(loss, margin, label) for margin in (first, between, second)]
    assert values[1] <= part * values[0] + (1 - part) * values[2] + 1e-12 * (1 + sum(map(abs, values)))


@losses
@quick
@given(
    margin=st.floats(allow_nan=False),
    label=st.floats(0, allow_infinity=False),
)
def test_no_finite_margin_overflows_for_labels_of_moderate_size(loss, margin, label):
    found = slope(loss, margin, label)
    assert not np.isnan(found)
    if label < 1e200:
        assert abs(found) < 1e260


@losses
def test_not_a_number_is_passed_on(loss):
    assert np.isnan(slope(loss, np.nan, 1.0))
    assert np.isnan(margin_value(loss, np.nan, 1.0))


@losses
def test_the_package_knows_that_they_are_convex(loss):
    assert is_convex(loss)


@pytest.mark.parametrize(
    ("loss", "statistic"),
    [
        (cs.losses.PoissonDeviance(), lambda y: np.log(y.mean())),
        (cs.losses.GammaDeviance(), lambda y: np.log(y.mean())),
        (cs.losses.Pinball(0.8), lambda y: np.quantile(y, 0.8, method="inverted_cdf")),
        (cs.losses.Pinball(0.1), lambda y: np.quantile(y, 0.1, method="inverted_cdf")),
    ],
    ids=["counts", "amounts", "upper", "lower"],
)
def test_the_minimiser_is_what_the_loss_is_for(loss, statistic):
    y = np.random.default_rng(0).gamma(2.0, 3.0, 101)
    found = minimize_scalar(
        lambda margin: sum(margin_value(loss, margin, label) for label in y), (0.0, 3.0), tol=1e-12
    ).x
    assert found == pytest.approx(statistic(y), abs=1e-5)


def test_the_subgradient_at_the_kink_is_zero():
    assert slope(cs.losses.Pinball(0.9), 2.0, 2.0) == 0.0
    assert slope(cs.losses.Pinball(0.9), 2.0, np.nextafter(2.0, 3.0)) == -0.9
    assert slope(cs.losses.Pinball(0.9), 2.0, np.nextafter(2.0, 1.0)) == pytest.approx(0.1)


def test_the_steeper_slope_of_a_quantile_should_stay_whole():
    assert unclipped_slope(cs.losses.Pinball(0.9)) == unclipped_slope(cs.losses.Pinball(0.1)) == 0.9
    assert unclipped_slope(cs.losses.Huber()) == 0.0


@pytest.mark.parametrize("loss", [cs.losses.PoissonDeviance(), cs.losses.GammaDeviance()], ids=str)
def test_negative_targets_are_refused(loss):
    with pytest.raises(ValueError, match=r"^labels must hold numbers of at least 0, got -0\.5\.$"):
        cs.Problem([[1.0], [2.0]], [1.0, -0.5], loss=loss)
    assert cs.Problem([[1.0], [2.0]], [1.0, 0.0], loss=loss).records == 2


@pytest.mark.parametrize("quantile", [0.0, 1.0, -0.5])
def test_quantiles_lie_between_zero_and_one(quantile):
    with pytest.raises(ValueError, match="^quantile must be a number above 0 and below 1, got"):
        cs.losses.Pinball(quantile)
