"""Softmax, which for two classes is logistic regression."""

import numpy as np
import pytest

import clipsilon as cs
import reference
from clipsilon.problems.losses import gradient, value
from clipsilon.rules.clipping import PerClass
from clipsilon.theory.curl import softmax_field


def test_two_classes_are_logistic():
    rng = np.random.default_rng(0)
    for label in (0.0, 1.0):
        theta, x, out, other = rng.standard_normal(6), rng.standard_normal(3), np.empty(6), np.empty(3)
        gradient(cs.losses.Softmax(2), theta, x, label, out)
        gradient(cs.losses.Logistic(), theta[3:] - theta[:3], x, label, other)
        np.testing.assert_allclose(out, np.concatenate((-other, other)), atol=1e-15)
        plain = value(cs.losses.Logistic(), theta[3:] - theta[:3], x, label)
        assert value(cs.losses.Softmax(2), theta, x, label) == pytest.approx(plain, rel=1e-12)


def test_huge_scores_stay_finite():
    loss, out = cs.losses.Softmax(3), np.empty(3)
    for scores in ([1e4, -1e4, 0.0], [-1e4, -1e4, 1e4]):
        gradient(loss, np.array(scores), np.array([1.0]), 0.0, out)
        assert np.isfinite(out).all()
        assert np.isfinite(value(loss, np.array(scores), np.array([1.0]), 0.0))


def test_clipped_per_class_in_the_engine():
    """The engine follows the field of `theory.curl`, which is written in NumPy."""
    problem = reference.problem(cs.losses.Softmax(3), records=1)
    theta = np.linspace(-1, 1, problem.dimension)
    rule = cs.Rule("one", cs.schedules.Constant(1.0), PerClass(0.3, 3), cs.sampling.Full())
    moved = cs.run(problem, rule, steps=1, start=theta, seed=0).output[0]
    field = softmax_field(problem.features[0], int(problem.labels[0]), 3, PerClass(0.3, 3))
    np.testing.assert_allclose(theta - moved, field(theta), atol=1e-12)


def test_points():
    problem = reference.problem(cs.losses.Softmax(3, l2=0.05))
    point = cs.stable_point(problem)
    assert point.converged
    assert problem.dimension == 12


def test_wrong_input():
    x, y = reference.data("class")
    with pytest.raises(ValueError, match="labels must hold labels 0 to 3 only, got 4"):
        cs.Problem(x, np.where(y == 2, 4, y), loss=cs.losses.Softmax(4))
    with pytest.raises(ValueError, match="classes must be a whole number of at least 2"):
        cs.losses.Softmax(1)
    with pytest.raises(ValueError, match="response must be None or a part of your own for Softmax"):
        cs.Problem(x, y, loss=cs.losses.Softmax(3), response=cs.responses.LocationShift(0.1))
    with pytest.raises(ValueError, match="loss must depend on a margin"):
        cs.metrics.true_positive_rate(cs.Problem(x, y, loss=cs.losses.Softmax(3)), np.zeros(12))
