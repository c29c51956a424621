"""Every registered response: shape, label, sensitivity and reach."""

import re
from typing import NamedTuple

import numpy as np
import pytest

import clipsilon as cs
import reference
import registry
from clipsilon.engine.remote import RemoteProblem
from clipsilon.problems.constants import estimate_sensitivity
from clipsilon.problems.responses import is_random, pull_back, respond

responses = pytest.mark.parametrize("response", registry.RESPONSES, ids=registry.name)


def moved(response, theta, x, y, seed=0):
    out = np.full((x.shape[0], x.shape[1] + 2), 7.0)
    rng = np.random.default_rng(seed)
    labels = [
        respond(response, theta, row, label, out[i, 1:-1], rng) for i, (row, label) in enumerate(zip(x, y, strict=True))
    ]
    np.testing.assert_array_equal(out[:, [0, -1]], 7.0)  # nothing outside the buffer
    np.testing.assert_array_equal(labels, y)
    return out[:, 1:-1]


@responses
def test_equals_the_reference_and_does_not_change_its_input(response):
    x, y = reference.data()
    kept = x.copy()
    for scale in (0.01, 1.0, 30.0):
        theta = scale * np.array([1.0, -2.0, 0.5, 3.0])
        rows = moved(response, theta, x, y)
        rng = np.random.default_rng(0)
        expected = [reference.respond(response, theta, row, label, rng) for row, label in zip(x, y, strict=True)]
        np.testing.assert_allclose(rows, expected, rtol=1e-12)
    np.testing.assert_array_equal(x, kept)


@responses
def test_sensitivity_and_reach_are_bounds(response):
    x, y = reference.data()
    rng = np.random.default_rng(2)
    for _ in range(200):
        first, second = rng.standard_normal((2, 4)) * rng.choice([0.01, 0.3, 3.0])
        a, b = moved(response, first, x, y), moved(response, second, x, y)
        mean_move = np.linalg.norm(a - b, axis=1).mean()
        assert mean_move <= response.sensitivity(y) * np.linalg.norm(first - second) + 1e-12
        assert np.linalg.norm(a - x, axis=1).max() <= response.reach(np.linalg.norm(first), y) + 1e-12


@responses
def test_the_estimate_is_close_to_the_bound_from_below(response):
    x, y = reference.data()
    estimate = estimate_sensitivity(response, x, y, radius=2.0, dimension=4)
    exact = response.sensitivity(y)
    assert 0.8 * exact <= estimate <= exact + 1e-9


@responses
def test_pull_back_is_the_transposed_derivative(response):
    """By central differences, for models on both sides of where moves stop growing."""
    x, y = np.ones((1, 4)), np.ones(1)
    for scale in (0.1, 1.0, 5.0):
        theta, direction, h = scale * np.array([1.0, -2.0, 0.5, 3.0]), np.array([0.3, -1.0, 2.0, 0.7]), 1e-6
        out = np.full(4, 7.0)
        pull_back(response, theta, 1.0, direction, out)
        steps = h * np.eye(4)
        rows = [(moved(response, theta + e, x, y) - moved(response, theta - e, x, y))[0] / (2 * h) for e in steps]
        np.testing.assert_allclose(out - 7.0, np.array(rows) @ direction, atol=1e-8)


@responses
def test_not_a_number_is_never_swallowed(response):
    x = np.full((1, 4), np.nan)
    assert np.isnan(moved(response, np.ones(4), x, np.ones(1))).all()


def test_no_response_of_the_package_is_random():
    assert not any(is_random(response) for response in registry.RESPONSES)


class FirstOnly(NamedTuple):
    """Writes one feature, and leaves those of the record before in the others."""


class OnesOnly(NamedTuple):
    """Writes for records with label 1 only."""


class Adding(NamedTuple):
    """Adds to what the record before left."""


@cs.implements(cs.responses.respond, FirstOnly)
def _(response, deployed, features, label, moved, rng):
    moved[0] = features[0]
    return label


@cs.implements(cs.responses.respond, OnesOnly)
def _(response, deployed, features, label, moved, rng):
    if label == 1.0:
        for j in range(features.size):
            moved[j] = features[j] - deployed[j]
    return label


@cs.implements(cs.responses.respond, Adding)
def _(response, deployed, features, label, moved, rng):
    for j in range(features.size):
        moved[j] += features[j]
    return label


@pytest.mark.parametrize(
    ("response", "missing"), [(FirstOnly(), "[1, 2]"), (OnesOnly(), "[0, 1, 2]"), (Adding(), "[0, 1, 2]")]
)
@pytest.mark.parametrize("first", [0, 1])
def test_a_response_that_does_not_fill_its_output_is_refused(response, missing, first):
    """It would mix records: a certificate assumes that each gradient depends on one record."""
    with pytest.raises(
        TypeError, match=rf"^respond of {type(response).__name__} must write a number .* {re.escape(missing)}\.$"
    ):
        cs.Problem(np.ones((4, 3)), [first, 1, 0, 1], loss=cs.losses.Logistic(), response=response)
    with pytest.raises(TypeError, match="must write a number into every entry of `moved`"):
        RemoteProblem(4, 3, loss=cs.losses.Logistic(), response=response)
