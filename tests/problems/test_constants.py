"""The constants of a problem are true bounds, checked by brute force on the data."""

from typing import NamedTuple

import numpy as np
import pytest

import clipsilon as cs
import reference
import registry
from clipsilon.problems.responses import respond

RADIUS = 1.5


def gradients(loss, theta, x, y):
    return np.array([reference.gradient(loss, theta, row, label) for row, label in zip(x, y, strict=True)])


def models(rng, close):
    first, second = rng.standard_normal((2, 3))
    first *= RADIUS * rng.random() ** 0.2 / np.linalg.norm(first)
    second *= RADIUS * rng.random() ** 0.2 / np.linalg.norm(second)
    return first, first + (1e-3 if close else 1.0) * (second - first)


@pytest.mark.parametrize("response", registry.RESPONSES, ids=registry.name)
@pytest.mark.parametrize("loss", registry.LOSSES, ids=registry.name)
def test_bounds_hold_whatever_is_deployed(loss, response):
    if getattr(response, "needs_labels", False) and getattr(loss, "labels", "real") == "none":
        with pytest.raises(ValueError, match="response must not depend on labels"):
            reference.problem(loss, response)
        return
    if getattr(loss, "labels", "real") == "class" and not isinstance(response, cs.responses.Identity):
        with pytest.raises(ValueError, match="moves records along one vector"):
            reference.problem(loss, response)
        return
    if isinstance(response, cs.responses.MatrixShift):  # whose size is that of the records
        response = response._replace(strengths=response.strengths[:, :3, :3])
    problem = reference.problem(loss, response, records=40, features=3)
    constants = problem.constants(RADIUS)
    if not (hasattr(loss, "bounds") or registry.name(loss) in ("Quadratic", "Clipped")):
        assert "gradient_bound" in constants.estimated
        return
    assert constants.estimated == ()
    rng = np.random.default_rng(0)
    slack = 1 + 1e-6
    for trial in range(60):
        first, second = models(rng, close=trial % 2)
        deployed = models(rng, close=False)[0]
        x = np.array([reference.respond(response, deployed, row, label, rng)
                      for row, label in zip(problem.features, problem.labels, strict=True)])  # fmt: skip
        g1, g2 = (gradients(loss, theta, x, problem.labels) for theta in (first, second))
        gap = first - second
        assert np.linalg.norm(g1, axis=1).max() <= constants.gradient_bound * slack
        assert np.linalg.norm(g1 - g2, axis=1).max() <= constants.smoothness * np.linalg.norm(gap) * slack
        change = (g1 - g2).mean(axis=0) @ gap
        assert change >= constants.strong_convexity * (gap @ gap) - 1e-9
        nudge = 1e-4 * rng.standard_normal(x.shape)
        moved = gradients(loss, first, x + nudge, problem.labels)
        size = np.linalg.norm(nudge, axis=1)
        if np.isfinite(constants.data_smoothness):
            assert (np.linalg.norm(moved - g1, axis=1) <= 1.02 * constants.data_smoothness * size + 1e-9).all()


def test_the_quadratic_problem_has_paper_1s_constants():
    problem = cs.Problem([0.0, 1.0], loss=cs.losses.Quadratic(10.0), response=cs.responses.LocationShift(0.05),
                         region=cs.regions.Box(-10, 10))  # fmt: skip
    constants = problem.constants()
    assert constants.strong_convexity == 1.0
    assert constants.lipschitz == 10.0
    assert constants.sensitivity == 0.05
    assert constants.contraction == 0.5
    assert constants.radius == 10.0
    assert constants.gradient_bound == 10 + 10 * (1 + 0.5)


def test_strong_convexity_uses_the_data_where_it_can():
    x, y = reference.data("real")
    problem = cs.Problem(x, y, loss=cs.losses.SquaredError(0.1))
    expected = 0.1 + np.linalg.eigvalsh(x.T @ x / len(x))[0]
    assert problem.constants(1.0).strong_convexity == pytest.approx(expected)


class Homemade(NamedTuple):
    """A user's response that moves records by rate·tanh(θ) and states no bounds."""

    rate: float


@cs.implements(respond, Homemade)
def _(response, deployed, features, label, moved, rng):
    for j in range(features.size):
        moved[j] = features[j] - response.rate * np.tanh(deployed[j])
    return label


class Cosh(NamedTuple):
    """A user's loss without bounds, log cosh of the residual."""


@cs.implements(cs.losses.margin_value, Cosh)
def _(loss, margin, label):
    return np.log(np.cosh(margin - label))


@cs.implements(cs.losses.slope, Cosh)
def _(loss, margin, label):
    return np.tanh(margin - label)


def test_parts_without_bounds_are_estimated_and_the_result_says_so():
    x, y = reference.data("real")
    problem = cs.Problem(x, y, loss=cs.losses.SquaredError(), response=Homemade(0.4))
    constants = problem.constants(1.0)
    assert "sensitivity" in constants.estimated
    assert "gradient_bound" in constants.estimated  # it depends on how far records move
    assert 0.3 < constants.sensitivity <= 0.4  # tanh is 1-Lipschitz, attained at 0
    other = cs.Problem(x, y, loss=Cosh()).constants(1.0)
    assert set(other.estimated) == {"strong_convexity", "smoothness", "data_smoothness", "gradient_bound"}
    assert other.gradient_bound <= np.linalg.norm(x, axis=1).max()
    assert other.gradient_bound > 0.5 * np.linalg.norm(x, axis=1).max()
    assert 0 <= other.strong_convexity < other.smoothness <= (x**2).sum(axis=1).max()
    # The users' parts run in the engine like any other.
    assert np.isfinite(cs.run(problem, cs.SGD(cs.schedules.Constant(0.01)), 100, seed=0).theta).all()


def test_a_radius_is_needed_where_there_is_no_region():
    with pytest.raises(ValueError, match="radius must be given"):
        reference.problem(cs.losses.Logistic()).constants()
