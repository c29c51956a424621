"""What leaves a device: the gradient of one record, and noise for the user's own budget."""

import math
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2, norm

import clipsilon as cs
import reference
from clipsilon._core.parts import implements
from clipsilon.engine import exact_noise
from clipsilon.local.report import gradient_of, prepare
from clipsilon.problems.losses.base import gradient, gradient_center_of, value

LOSSES = [cs.losses.MallowsLogistic(), cs.losses.HuberRegression(c=1.2)]
RECORD = ([0.4, -1.3, 2.2], 1.0)


def theta_for(loss, seed=0):
    return np.random.default_rng(seed).standard_normal(3 + isinstance(loss, cs.losses.HuberRegression))


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: type(loss).__name__)
@pytest.mark.parametrize("response", [None, cs.responses.BestResponse(beta=0.4, floor=0.5)])
def test_report_is_gradient_and_scaled_noise(loss, response):
    theta, mu = theta_for(loss), 0.7
    sent = cs.local.report(theta, RECORD, loss, mu, response, rng=np.random.default_rng(5))
    noise = exact_noise.draw(np.random.default_rng(5), theta.size) / 2**32
    x = np.array(RECORD[0])
    moved = x if response is None else reference.respond(response, theta, x, RECORD[1], None)
    expected = reference.gradient(loss, theta, moved, RECORD[1]) + loss.sensitivity() / mu * noise
    np.testing.assert_allclose(sent, expected, atol=2 * loss.sensitivity() / mu / 2**32)  # the grid


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: type(loss).__name__)
def test_a_report_is_on_the_grid(loss):
    """Around the public centre: multiples of the spacing 2^−32·Δ/μ, and a half."""
    theta, mu = theta_for(loss), 0.7
    sent = cs.local.report(theta, RECORD, loss, mu)
    scale = np.nextafter(loss.sensitivity() / mu, np.inf)
    places = (sent - gradient_center_of(loss, theta.size)) / exact_noise.grid_of(scale) - 0.5
    np.testing.assert_allclose(places, np.rint(places), atol=1e-5)


class Overflowing(NamedTuple):
    """A loss that states too small a sensitivity: its gradient is as long as the features."""

    def sensitivity(self):
        return 1.0


implements(value, Overflowing)(lambda loss, theta, features, label: 0.0)


@implements(gradient, Overflowing)
def _(loss, theta, features, label, out):
    for j in range(features.size):
        out[j] = features[j]


def test_gradients_beyond_the_stated_sensitivity_are_clipped():
    """The report had moved by 2e6 before; now it moves by the stated sensitivity, 1, and the grid."""
    sent = [
        cs.local.report([0.0, 0.0], (x, 0.0), Overflowing(), 1.0, rng=np.random.default_rng(1))
        for x in ([1e6, 0.0], [-1e6, 0.0])
    ]
    assert 1 - 1e-8 < np.linalg.norm(sent[0] - sent[1]) <= 1 + 1e-14


class Unbounded(NamedTuple):
    """A loss whose gradient is infinite, or no number, for some records."""

    def sensitivity(self):
        return 1.0

    def gradient_center(self, dimension):
        return np.full(dimension, 0.5)


implements(value, Unbounded)(lambda loss, theta, features, label: 0.0)


@implements(gradient, Unbounded)
def _(loss, theta, features, label, out):
    for j in range(features.size):
        out[j] = np.exp(features[j] * theta[j]) - label * np.exp(features[j] * theta[j])


@pytest.mark.parametrize("record", [([1.0, 0.0], 0), ([1.0, 0.0], 1)], ids=["infinite", "no number"])
def test_whether_a_report_is_made_does_not_depend_on_the_record(record):
    """A gradient that is not finite counts as the centre; an error would tell the server that x₁·θ₁ is above 709."""
    sent = cs.local.report([1000.0, 0.0], record, Unbounded(), 1.0, rng=np.random.default_rng(1))
    noise = exact_noise.draw(np.random.default_rng(1), 2) / 2**32
    np.testing.assert_allclose(sent, 0.5 + noise, atol=2 / 2**32)


class Raising(NamedTuple):
    """A loss with functions that raise where those of NumPy return infinity or no number."""

    def sensitivity(self):
        return 1.0


implements(value, Raising)(lambda loss, theta, features, label: 0.0)


@implements(gradient, Raising)
def _(loss, theta, features, label, out):
    out[0] = math.exp(features[0] * theta[0])
    out[1] = math.log(features[1] + theta[1]) + 1.0 / label


@pytest.mark.parametrize("record", [([1.0, 1.0], 1), ([0.0, 1.0], 1), ([0.0, 9.0], 0)], ids=["exp", "log", "1/0"])
def test_an_error_in_a_gradient_counts_as_the_centre(record):
    """Otherwise the server would learn from a missing report which side of its θ a record is on."""
    sent = cs.local.report([1000.0, -5.0], record, Raising(), 1.0, rng=np.random.default_rng(1))
    noise = exact_noise.draw(np.random.default_rng(1), 2) / 2**32
    np.testing.assert_allclose(sent, noise, atol=2 / 2**32)


@pytest.mark.parametrize("c", [0.3, 1.345, 6.0])
def test_clipping_leaves_gradients_of_our_losses_alone(c):
    """They are within half the sensitivity of the stated centre, up to rounding."""
    rng = np.random.default_rng(6)
    for loss in (cs.losses.MallowsLogistic(), cs.losses.HuberRegression(c=c)):
        for scale in (0.1, 1.0, 100.0):
            theta = scale * theta_for(loss, seed=7)
            for _ in range(50):
                found = gradient_of(prepare((scale * rng.standard_normal(3), float(rng.integers(2))), loss), theta)
                far = np.linalg.norm(found - gradient_center_of(loss, found.size))
                assert far <= loss.sensitivity() / 2 * (1 + 1e-14)


moderate = st.floats(-1e100, 1e100) | st.floats(-50, 50)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: type(loss).__name__)
@settings(deadline=None, max_examples=300)
@given(data=st.data())
def test_no_two_records_are_further_apart_than_the_sensitivity(loss, data):
    """With noise of deviation Δ/μ the report is therefore μ-GDP, at any θ and for any accepted record."""
    theta = data.draw(st.lists(moderate, min_size=3, max_size=3))[: 2 + isinstance(loss, cs.losses.HuberRegression)]
    label = st.sampled_from([0.0, 1.0]) if loss == cs.losses.MallowsLogistic() else moderate
    one, other = (data.draw(st.tuples(st.lists(moderate, min_size=2, max_size=2), label)) for _ in range(2))
    found = [gradient_of(prepare(record, loss), theta) for record in (one, other)]
    assert np.isfinite(found).all()
    assert np.linalg.norm(found[0] - found[1]) <= loss.sensitivity() * (1 + 1e-12)


def test_noise_of_a_device():
    """Without a generator: the deviation is right, and no two reports share their noise.

    False alarm: the sum of 4000 squares is chi-squared, two tails at 1e-7 each; equal draws have probability below 1e-12.
    """
    loss, mu, theta = cs.losses.MallowsLogistic(), 2.0, np.zeros(4)
    problem = prepare((np.ones(4), 0), loss)
    reports = np.array([cs.local.report(theta, (np.ones(4), 0), loss, mu) for _ in range(1000)])
    noise = (reports - gradient_of(problem, theta)) * mu / loss.sensitivity()
    assert chi2.ppf(1e-7, noise.size) < np.sum(noise**2) < chi2.isf(1e-7, noise.size)
    assert abs(noise.mean()) * np.sqrt(noise.size) < norm.isf(1e-7)
    assert np.unique(noise).size == noise.size


BAD = {
    "no sensitivity": (([0.0] * 3, RECORD, cs.losses.Logistic(), 1.0), "loss must state its sensitivity"),
    "mu of zero": (([0.0] * 3, RECORD, LOSSES[0], 0.0), "mu must be a number from 1e-06 to 1e\\+06, got 0.0"),
    "mu of nan": (([0.0] * 3, RECORD, LOSSES[0], np.nan), "mu must be a finite number, got nan"),
    "short theta": (([0.0] * 2, RECORD, LOSSES[0], 1.0), "theta must be a number or 3 number"),
    "theta without the scale": (([0.0] * 3, RECORD, LOSSES[1], 1.0), "theta must be a number or 4 number"),
    "infinite theta": (([0.0, 0.0, np.inf], RECORD, LOSSES[0], 1.0), "theta must be finite"),
    "huge theta": (([0.0, 0.0, 1e200], RECORD, LOSSES[0], 1.0), "theta must not hold numbers beyond 1e\\+100"),
    "huge features": (([0.0] * 3, ([0.0, 0.0, 1e200], 1), LOSSES[0], 1.0), "features must not hold numbers beyond"),
    "nan in features": (([0.0] * 3, ([0.0, 0.0, np.nan], 1), LOSSES[0], 1.0), "features must be finite"),
    "label": (([0.0] * 3, ([0.0, 0.0, 1.0], 2), LOSSES[0], 1.0), "labels must hold labels 0 and 1 only, got 2"),
    "not a pair": (([0.0] * 3, [0.0, 0.0, 1.0], LOSSES[0], 1.0), "record must be a pair \\(features, label\\), as in"),
    "features alone": (([0.0] * 2, [1.0, 2.0], LOSSES[0], 1.0), "record must be a pair \\(features, label\\), as in"),
    "an array": (([0.0] * 2, np.ones(2), LOSSES[0], 1.0), "record must be a pair \\(features, label\\), as in"),
    "two records": (([0.0] * 3, ([[0.0] * 3] * 2, 1), LOSSES[0], 1.0), "features must be a non-empty table"),
}


@pytest.mark.parametrize("case", BAD)
def test_wrong_input_is_refused_on_the_device(case):
    arguments, message = BAD[case]
    with pytest.raises(ValueError, match=message):
        cs.local.report(*arguments)
