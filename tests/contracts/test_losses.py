"""Every registered loss: gradients, slopes, bounds, extremes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import reference
import registry
from clipsilon.problems.losses.base import dimension, gradient, is_margin_loss, label_kind, margin_value, slope, value

losses = pytest.mark.parametrize("loss", registry.LOSSES, ids=registry.name)
margin_losses = pytest.mark.parametrize("loss", [*filter(is_margin_loss, registry.LOSSES)], ids=registry.name)
finite = st.floats(-8, 8)


def labels_of(loss):
    known = {"binary": (0.0, 1.0), "class": (0.0, 1.0, 2.0), "nonnegative": (0.0, 0.7, 3.0)}
    return known.get(label_kind(loss), (-1.3, 0.0, 0.8))


def anticipated(loss, x, change):
    """The features after a change of θ, for a loss that anticipates the reaction."""
    return x - loss.response.beta * change if hasattr(loss, "response") else x


@losses
def test_gradient_is_the_derivative_of_the_value(loss):
    rng = np.random.default_rng(0)
    for label in labels_of(loss):
        d = dimension(loss, 5)
        theta, x, out = rng.standard_normal(d), rng.standard_normal(5), np.empty(d)
        gradient(loss, theta, x, label, out)
        h = 1e-6
        for j in range(d):
            step = h * np.eye(d)[j]
            after, before = (value(loss, theta + e, anticipated(loss, x, e), label) for e in (step, -step))
            difference = (after - before) / (2 * h)
            assert out[j] == pytest.approx(difference, rel=1e-6, abs=1e-8)


@losses
def test_gradient_equals_the_reference_and_keeps_to_its_buffer(loss):
    rng = np.random.default_rng(1)
    d = dimension(loss, 4)
    theta, x = rng.standard_normal(d), rng.standard_normal(4)
    kept = theta.copy(), x.copy()
    buffer = np.full(d + 2, 7.0)
    for label in labels_of(loss):
        gradient(loss, theta, x, label, buffer[1:-1])
        np.testing.assert_allclose(buffer[1:-1], reference.gradient(loss, theta, x, label), rtol=1e-12, atol=1e-14)
    assert buffer.dtype == np.float64
    np.testing.assert_array_equal(buffer[[0, -1]], 7.0)
    np.testing.assert_array_equal(np.concatenate((theta, x)), np.concatenate(kept))


@losses
def test_not_a_number_is_never_swallowed(loss):
    theta, out = np.ones(dimension(loss, 2)), np.zeros(dimension(loss, 2))
    theta[0] = np.nan
    gradient(loss, theta, np.array([np.nan, 1.0]), 1.0, out)
    assert np.isnan(out).any()
    assert np.isnan(value(loss, theta, np.array([1.0, 1.0]), 1.0))


@margin_losses
@pytest.mark.filterwarnings("ignore:overflow")
def test_huge_margins_stay_finite(loss):
    for margin in (-1e4, 1e4):
        for label in labels_of(loss):
            assert np.isfinite(slope(loss, margin, label))
            assert np.isfinite(margin_value(loss, margin, label))


@margin_losses
@settings(max_examples=200, deadline=None, derandomize=True)
@given(margin=finite, reach=st.floats(0, 8), which=st.integers(0, 2))
def test_bounds_hold(loss, margin, reach, which):
    label = labels_of(loss)[which % len(labels_of(loss))]
    bounds = loss.bounds(np.array([reach]), np.array([label]))
    margin = np.clip(margin, -reach, reach)
    assert abs(slope(loss, margin, label)) <= bounds.slope[0] + 1e-12
    other = np.clip(margin + 1e-3, -reach, reach)
    if other - margin > 1e-4:
        curvature = (slope(loss, other, label) - slope(loss, margin, label)) / (other - margin)
        assert bounds.low[0] - 1e-6 <= curvature <= bounds.high[0] + 1e-6


@margin_losses
def test_bounds_are_attained(loss):
    """The bounds are attained within 1 % on a fine grid, so a bound that is wrong by a factor fails."""
    grid = np.linspace(-6, 6, 24_001)
    for label in labels_of(loss):
        bounds = loss.bounds(np.array([6.0]), np.array([label]))
        slopes = np.array([slope(loss, margin, label) for margin in grid])
        assert np.abs(slopes).max() >= 0.99 * bounds.slope[0]
        curvature = np.diff(slopes) / np.diff(grid)
        if np.isfinite(bounds.high[0]):
            assert np.abs(curvature).max() >= 0.99 * bounds.high[0]
        assert curvature.min() <= bounds.low[0] + 0.01 * max(1.0, abs(bounds.low[0]))


bounded_losses = pytest.mark.parametrize(
    "loss", [loss for loss in registry.LOSSES if hasattr(loss, "sensitivity")], ids=registry.name
)


@bounded_losses
@settings(max_examples=300, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32 - 1), sizes=st.tuples(*[st.floats(-3, 3)] * 4))
def test_sensitivity_bounds_what_one_record_changes(loss, seed, sizes):
    """For any θ and any two records, of any size."""
    rng = np.random.default_rng(seed)
    theta = 10 ** sizes[0] * rng.standard_normal(dimension(loss, 3))
    found = []
    for size in sizes[1:3]:
        label = float(rng.integers(2)) if label_kind(loss) == "binary" else 10 ** sizes[3] * rng.standard_normal()
        out = np.empty(theta.size)
        gradient(loss, theta, 10**size * rng.standard_normal(3), label, out)
        found.append(out)
    assert np.linalg.norm(found[0] - found[1]) <= loss.sensitivity() * (1 + 1e-12)


@bounded_losses
def test_sensitivity_is_nearly_attained(loss):
    """Two records with the largest errors, in nearly opposite directions, attain at least 0.97 of it."""
    theta, pair = np.zeros(dimension(loss, 2)), []
    if label_kind(loss) == "binary":  # both are predicted with certainty, and wrongly: ⟨x, θ⟩ is ±100
        theta[0] = 1e5
        records = (([1e-3, np.sqrt(2.0)], 0.0), ([-1e-3, np.sqrt(2.0)], 1.0))
    else:
        records = (([0.0, np.sqrt(2.0)], 1e6), ([0.0, -np.sqrt(2.0)], 1e6))
    for x, label in records:
        pair.append(np.empty(theta.size))
        gradient(loss, theta, np.array(x), label, pair[-1])
    assert np.linalg.norm(pair[0] - pair[1]) >= 0.97 * loss.sensitivity()
