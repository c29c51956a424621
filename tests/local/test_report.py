"""What leaves a device: the gradient of one record, and noise for the user's own budget."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2, norm

import clipsilon as cs
import reference
from clipsilon.local.report import gradient_of, prepare

LOSSES = [cs.losses.MallowsLogistic(), cs.losses.HuberRegression(c=1.2)]
RECORD = ([0.4, -1.3, 2.2], 1.0)


def theta_for(loss, seed=0):
    return np.random.default_rng(seed).standard_normal(3 + isinstance(loss, cs.losses.HuberRegression))


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: type(loss).__name__)
@pytest.mark.parametrize("response", [None, cs.responses.BestResponse(beta=0.4, floor=0.5)])
def test_report_is_gradient_and_scaled_noise(loss, response):
    theta, mu = theta_for(loss), 0.7
    sent = cs.local.report(theta, RECORD, loss, mu, response, rng=np.random.default_rng(5))
    noise = np.random.default_rng(5).standard_normal(theta.size)
    x = np.array(RECORD[0])
    moved = x if response is None else reference.respond(response, theta, x, RECORD[1], None)
    expected = reference.gradient(loss, theta, moved, RECORD[1]) + loss.sensitivity() / mu * noise
    np.testing.assert_allclose(sent, expected, rtol=1e-12)


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
