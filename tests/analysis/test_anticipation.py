"""Descent to the performative optimum: with a known reaction, an estimated one, or values alone."""

from typing import NamedTuple

import numpy as np
import pytest

import clipsilon as cs
from clipsilon._core.parts import implements
from clipsilon.analysis.zeros import differences
from clipsilon.engine.means import record_gradients
from clipsilon.problems.losses.base import feature_gradient, gradient, value
from clipsilon.rules.clipping import Norm, Unclipped

X = np.random.default_rng(0).standard_normal((200, 2))
Y = X @ [1.0, -0.5] + 0.3 * np.random.default_rng(1).standard_normal(200)
RESPONSE = cs.responses.LocationShift(0.3)
PLAIN = cs.Problem(X, Y, loss=cs.losses.SquaredError(), response=RESPONSE)
AWARE = cs.Problem(X, Y, loss=cs.losses.Anticipating(PLAIN.loss, RESPONSE), response=RESPONSE)


def risk(theta):
    return cs.metrics.performative_risk(PLAIN, theta)


def test_papers_quadratic_has_its_optimum_at_the_stable_point():
    """½E((1 − aβ)θ + a·z̄)² is least where (1 − aβ)θ + a·E z̄ = 0, which is the equation of the stable point: −2."""
    problem = cs.Problem([0.0] * 9 + [1.0], loss=cs.losses.Quadratic(10.0), response=cs.responses.LocationShift(0.05))
    assert cs.stable_point(problem).theta[0] == pytest.approx(-2.0, abs=1e-9)
    assert cs.optimal_point(problem).theta[0] == pytest.approx(-2.0, abs=1e-6)
    aware = cs.losses.Anticipating(problem.loss, problem.response)
    both = cs.Problem(problem.features, loss=aware, response=problem.response)
    assert cs.stable_point(both).theta[0] == pytest.approx(-2.0, abs=1e-9)


def test_the_stable_point_of_an_anticipating_loss_is_the_optimum():
    best = cs.optimal_point(PLAIN)
    assert risk(best.theta) < 0.99 * risk(cs.stable_point(PLAIN).theta)
    np.testing.assert_allclose(cs.stable_point(AWARE).theta, best.theta, atol=1e-7)


def test_a_clip_bounds_the_anticipating_gradient_of_each_record():
    """So certificates, which follow from the clip, stand: the added term is there before clipping."""
    theta = np.array([3.0, -2.0])
    long = record_gradients(AWARE, theta, Unclipped())
    np.testing.assert_allclose(long.mean(axis=0), differences(risk, theta), rtol=1e-6)
    short = record_gradients(AWARE, theta, Norm(0.5))
    assert np.linalg.norm(long, axis=1).max() > 1.0
    assert np.linalg.norm(short, axis=1).max() <= 0.5 * (1 + 1e-12)


def test_an_estimated_reaction_along_the_way_leads_to_the_optimum():
    best, stable = cs.optimal_point(PLAIN).theta, cs.stable_point(PLAIN).theta
    path = cs.performative_gradient(PLAIN, 0.1, 200, wander=1e-3)
    assert np.linalg.norm(path[-1] - best) < 0.1 * np.linalg.norm(stable - best)
    first = cs.repeated_gradient(PLAIN, 0.1, 1)[1]
    np.testing.assert_allclose(cs.performative_gradient(PLAIN, 0.1, 1)[1], first)  # nothing is known yet


@pytest.mark.parametrize(("points", "tolerance"), [(2, 0.02), (1, 0.5)])
def test_values_alone_lead_to_the_optimum(points, tolerance):
    """With a fixed seed; one point per round is far noisier."""
    path = cs.derivative_free(PLAIN, 0.02, 1500, points=points, radius=0.1)
    assert risk(path[-300:].mean(axis=0)) < risk(np.zeros(2)) * tolerance + risk(cs.optimal_point(PLAIN).theta)
    with pytest.raises(ValueError, match=r"^points must be 1 or 2, got 3\.$"):
        cs.derivative_free(PLAIN, 0.1, 1, points=3)


def test_losses_and_responses_that_cannot_be_anticipated_are_refused():
    with pytest.raises(TypeError, match=r"^loss Softmax does not implement feature_gradient\.$"):
        cs.losses.Anticipating(cs.losses.Softmax(3), RESPONSE)
    with pytest.raises(TypeError, match=r"^response must be a part of clipsilon.responses"):
        cs.losses.Anticipating(cs.losses.Logistic(), 0.3)


class Forgetful(NamedTuple):
    """A squared norm whose derivative in the features is not written where a feature is negative."""


@implements(value, Forgetful)
def _(loss, theta, features, label):
    return 0.5 * np.sum((theta - features) ** 2)


@implements(gradient, Forgetful)
def _(loss, theta, features, label, out):
    for j in range(theta.size):
        out[j] = theta[j] - features[j]


@implements(feature_gradient, Forgetful)
def _(loss, theta, features, label, out):
    for j in range(theta.size):
        if features[j] >= 0.0:
            out[j] = features[j] - theta[j]


def test_nothing_of_the_record_before_is_anticipated():
    """Compiled code reuses memory: an entry that was not written would be that of the record before."""
    problem = cs.Problem([[1.0, 1e6], [1.0, -1.0]], [0, 1], loss=cs.losses.Anticipating(Forgetful(), RESPONSE))
    first, second = record_gradients(problem, np.zeros(2), Unclipped())
    np.testing.assert_allclose(first, [-1.3, -1.3e6])
    np.testing.assert_array_equal(second, [-1.3, np.nan])


def test_a_reaction_that_does_not_fit_the_data_is_refused():
    """The engine would read and write beyond its arrays, or use a part of the matrix."""
    for response in (cs.responses.MatrixShift(np.eye(3)), cs.responses.MatrixShift([[1.0]])):
        with pytest.raises(ValueError, match=r"^strengths of MatrixShift must be matrices of 2 rows, got [13]\.$"):
            cs.Problem(X, Y, loss=cs.losses.Anticipating(cs.losses.SquaredError(), response))
    with pytest.raises(ValueError, match=r"^columns of LinearShift must be below 2, got 7\.$"):
        cs.Problem(X, Y, loss=cs.losses.Anticipating(cs.losses.SquaredError(), cs.responses.LinearShift(0.5, [7])))
    with pytest.raises(ValueError, match=r"^response must not depend on labels for Quadratic\(a=1\.0\), which has"):
        cs.losses.Anticipating(cs.losses.Quadratic(1.0), cs.responses.BestResponse(0.5))
