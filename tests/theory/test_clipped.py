"""The clipped loss (paper 5, Lemma 5.1): its gradient is the clipped one, and it is convex."""

import pickle
from typing import NamedTuple

import numpy as np
import pytest

import clipsilon as cs
import reference
import registry
from clipsilon.engine.means import mean_gradient, mean_loss
from clipsilon.problems.losses.base import gradient, is_convex, is_margin_loss, label_kind, margin_value, slope, value
from clipsilon.rules.clipping import Norm


class Counts(NamedTuple):
    """A user's loss: Poisson regression, whose slope is bounded on one side only."""


@cs.implements(margin_value, Counts)
def _(loss, margin, label):
    return np.exp(margin) - label * margin


@cs.implements(slope, Counts)
def _(loss, margin, label):
    return np.exp(margin) - label


class Steep(NamedTuple):
    """A user's loss whose slope is at least 2: a clip may be active at every margin."""


@cs.implements(margin_value, Steep)
def _(loss, margin, label):
    return 3.0 * margin + abs(margin - label)


@cs.implements(slope, Steep)
def _(loss, margin, label):
    return 3.0 + np.sign(margin - label)


def unpenalised(loss):
    return loss._replace(l2=0.0) if "l2" in loss._fields else loss


MARGIN_LOSSES = [unpenalised(loss) for loss in filter(is_margin_loss, registry.LOSSES)]
CONVEX = [*filter(is_convex, MARGIN_LOSSES), Counts(), Steep()]
verify = pytest.mark.verify
convex = pytest.mark.parametrize("loss", CONVEX, ids=registry.name)


def points(loss, count=40, size=3):
    """Return random models and records, with labels that suit the loss."""
    rng = np.random.default_rng(0)
    least = 0.0 if isinstance(loss, Counts) or label_kind(loss) == "nonnegative" else -1.3
    labels = (0.0, 1.0) if label_kind(loss) == "binary" else (0.0, 0.8, 2.0, least)
    for _ in range(count):
        scale = 10.0 ** rng.uniform(-2, 1)
        yield rng.standard_normal(size), scale * rng.standard_normal(size), rng.choice(labels)


def gradient_of(loss, theta, x, y):
    out = np.empty_like(theta)
    gradient(loss, theta, x, y, out)
    return out


def test_the_convex_losses_are_found():
    names = {registry.name(loss) for loss in CONVEX}
    assert {"Logistic", "SquaredError", "Huber", "Absolute"} <= names
    assert not names & {"Sigmoid", "Savage", "Tangent"}


@convex
@pytest.mark.parametrize("clip", [0.05, 0.5, 3.0])
def test_its_gradient_is_the_clipped_gradient(loss, clip):
    bitten = 0
    for theta, x, y in points(loss):
        full = gradient_of(loss, theta, x, y)
        expected = reference.clip(Norm(clip), full)
        bitten += np.linalg.norm(full) > clip
        found = gradient_of(cs.losses.clipped_loss(loss, clip), theta, x, y)
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-15)
    assert bitten > 0


@convex
@pytest.mark.parametrize("clip", [0.05, 0.5, 3.0])
def test_its_gradient_is_the_derivative_of_its_value(loss, clip):
    clipped = cs.losses.clipped_loss(loss, clip)
    for theta, x, y in points(loss):
        direction = x / np.linalg.norm(x)
        h = 1e-6 / max(1.0, np.linalg.norm(x))
        ends = [theta + sign * h * direction for sign in (1, -1)]
        difference = (value(clipped, ends[0], x, y) - value(clipped, ends[1], x, y)) / (2 * h)
        scale = max(1.0, abs(value(clipped, theta, x, y)))
        assert gradient_of(clipped, theta, x, y) @ direction == pytest.approx(
            difference, rel=1e-5, abs=1e-8 * scale / h
        )


@convex
@pytest.mark.parametrize("clip", [0.05, 0.5, 3.0])
def test_it_is_convex_and_below_the_loss(loss, clip):
    rng = np.random.default_rng(1)
    clipped = cs.losses.clipped_loss(loss, clip)
    for theta, x, y in points(loss):
        other = theta + rng.standard_normal(3) * 10.0 ** rng.uniform(-2, 0.5)
        share = rng.random()
        first, second, between = (
            value(clipped, model, x, y) for model in (theta, other, share * theta + (1 - share) * other)
        )
        slack = 1e-12 * (1 + abs(first) + abs(second))
        assert between <= share * first + (1 - share) * second + slack
        straight = isinstance(loss, cs.losses.GammaDeviance) and y == 0.0
        if not (isinstance(loss, Steep) or straight):  # there the line only meets the loss at 0
            assert first <= value(loss, theta, x, y) + slack


@convex
def test_a_clip_beyond_all_gradients_changes_nothing(loss):
    """But for the last bits, which depend on the processor."""
    for theta, x, y in points(loss):
        clipped = cs.losses.clipped_loss(loss, 1e9)
        assert value(clipped, theta, x, y) == pytest.approx(value(loss, theta, x, y), rel=1e-14)
        np.testing.assert_allclose(gradient_of(clipped, theta, x, y), gradient_of(loss, theta, x, y), rtol=1e-14)


@convex
def test_compiled_and_interpreted_agree(loss):
    problem = reference.problem(cs.losses.clipped_loss(loss, 0.5), records=30)
    theta = np.array([0.7, -0.4, 0.2, 0.1])
    rows = list(zip(problem.features, problem.labels, strict=True))
    expected = np.mean([value(problem.loss, theta, x, y) for x, y in rows])
    assert mean_loss(problem, theta, theta, 1) == pytest.approx(expected, rel=1e-12)
    expected = np.mean([gradient_of(problem.loss, theta, x, y) for x, y in rows], axis=0)
    np.testing.assert_allclose(mean_gradient(problem, theta, theta, 1), expected, rtol=1e-11, atol=1e-14)


def test_closed_forms():
    """The absolute loss becomes a flatter absolute loss, the squared error Huber's loss; the kink may be anywhere."""
    for label in (0.0, 1e-9, -3.7, 1e6):
        for theta in (np.array([-2.0]), np.array([5.0]), np.array([0.0])):
            x = np.array([4.0])
            flatter = value(cs.losses.clipped_loss(cs.losses.Absolute(), 0.8), theta, x, label)
            assert flatter == pytest.approx(0.2 * abs(4.0 * theta[0] - label), rel=1e-12, abs=1e-15)
            huber = value(cs.losses.clipped_loss(cs.losses.SquaredError(), 0.8), theta, x, label)
            assert huber == pytest.approx(value(cs.losses.Huber(c=0.2), theta, x, label), rel=1e-12, abs=1e-15)


def test_logistic_closed_form():
    """Paper 5, App. D.2: beyond 2·log(1/(2B) − 1) on the left the loss of (½, +1) is −B·θ + const."""
    clipped = cs.losses.clipped_loss(cs.losses.Logistic(), 0.1)
    for theta in (-9.0, 0.0, 2.0, 3.0):
        turn = 2 * np.log(1 / 0.2 - 1)
        line = -0.1 * theta + 2 * 0.1 * np.log(1 / 0.2 - 1) + np.log(1 / (1 - 0.2))
        expected = line if theta < turn else np.log1p(np.exp(-theta / 2))
        assert value(clipped, np.array([theta]), np.array([0.5]), 1.0) == pytest.approx(expected, rel=1e-12)


def test_a_slope_that_exceeds_the_level_at_every_margin():
    """The line of slope B/‖x‖ meets the loss at margin 0."""
    clipped = cs.losses.clipped_loss(Steep(), 1.0)
    for theta in (-3.0, 0.0, 4.0):
        assert value(clipped, np.array([theta]), np.array([2.0]), 1.5) == pytest.approx(1.5 + 0.5 * (2.0 * theta))


@convex
def test_a_row_of_zeros_is_left_alone(loss):
    clipped = cs.losses.clipped_loss(loss, 0.1)
    theta, x = np.array([1.0, -2.0]), np.zeros(2)
    for label in (0.0, 1.0):
        assert value(clipped, theta, x, label) == margin_value(loss, 0.0, label)
        np.testing.assert_array_equal(gradient_of(clipped, theta, x, label), 0.0)


@pytest.mark.parametrize("clip", [0.1, 1.0])
@pytest.mark.parametrize(
    ("loss", "response"),
    [
        (cs.losses.Logistic(positive_weight=2.0), None),
        (cs.losses.Logistic(positive_weight=2.0), cs.responses.BestResponse(0.3)),
        pytest.param(cs.losses.Logistic(positive_weight=2.0), cs.responses.LocationShift(0.01), marks=verify),
        (cs.losses.SquaredError(), None),
        (cs.losses.SquaredError(), cs.responses.LocationShift(0.01)),
        pytest.param(cs.losses.SquaredError(), cs.responses.LinearShift(0.02, [1, 2]), marks=verify),
        (cs.losses.Huber(c=0.9), None),
        (cs.losses.Huber(c=0.9), cs.responses.LinearShift(0.02, [1, 2])),
        pytest.param(cs.losses.Huber(c=0.9), cs.responses.LocationShift(0.01), marks=verify),
    ],
    ids=registry.name,
)
def test_its_minimum_is_where_clipped_descent_stops(loss, response, clip):
    rng = np.random.default_rng(5)
    x, y = reference.data(label_kind(loss), records=80)
    if label_kind(loss) == "binary":
        y = np.where(rng.random(80) < 0.15, 1 - y, y)  # not separable
    original = cs.Problem(x, y, loss=loss, response=response)
    clipped = cs.Problem(x, y, loss=cs.losses.clipped_loss(loss, clip), response=response)
    stop, minimum = cs.clipped_point(original, clip), cs.stable_point(clipped)
    assert stop.converged
    assert minimum.converged
    np.testing.assert_allclose(minimum.theta, stop.theta, atol=1e-7)
    assert np.linalg.norm(minimum.theta - cs.stable_point(original).theta) > 1e-3  # clipping is active


def test_it_runs_like_the_clipped_rule():
    x, y = reference.data()
    rule, free = reference.descent(0.3, 0.05, clip=0.4), reference.descent(0.3, 0.05)
    original = cs.Problem(x, y, loss=cs.losses.Logistic())
    clipped = cs.Problem(x, y, loss=cs.losses.clipped_loss(cs.losses.Logistic(), 0.4))
    first, second = cs.run(original, rule, 200, seed=3), cs.run(clipped, free, 200, seed=3)
    close = reference.allowance(original, rule, 200)  # the clipped rule runs on a grid
    np.testing.assert_allclose(first.theta, second.theta, rtol=1e-9, atol=close["atol"])
    theta = first.theta[0, -1]
    assert cs.metrics.true_positive_rate(clipped, theta) == cs.metrics.true_positive_rate(original, theta)
    assert cs.metrics.performative_risk(clipped, theta) < cs.metrics.performative_risk(original, theta)


def test_constants_are_bounds_where_those_of_the_loss_are():
    x, y = reference.data("real")
    inner = cs.Problem(x, y, loss=cs.losses.SquaredError()).constants(2.0)
    bitten = cs.Problem(x, y, loss=cs.losses.clipped_loss(cs.losses.SquaredError(), 0.5)).constants(2.0)
    assert bitten.estimated == ()
    assert bitten.gradient_bound == 0.5
    assert bitten.strong_convexity == 0.0
    assert bitten.smoothness == inner.smoothness
    never = cs.Problem(x, y, loss=cs.losses.clipped_loss(cs.losses.SquaredError(), 1e6)).constants(2.0)
    assert never == inner
    homemade = cs.Problem(x, np.abs(y), loss=cs.losses.clipped_loss(Counts(), 0.5)).constants(2.0)
    assert "gradient_bound" in homemade.estimated


def test_it_takes_the_labels_of_its_loss():
    x, y = reference.data("real")
    with pytest.raises(ValueError, match="labels 0 and 1 only"):
        cs.Problem(x, y, loss=cs.losses.clipped_loss(cs.losses.Logistic(), 1.0))
    assert label_kind(cs.losses.clipped_loss(cs.losses.Huber(), 1.0)) == "real"


def test_it_can_be_pickled_and_replaced():
    clipped = cs.losses.clipped_loss(cs.losses.Huber(c=2.0), 0.5)
    assert pickle.loads(pickle.dumps(clipped)) == clipped
    assert clipped._replace(clip=2).clip == 2.0
    with pytest.raises(ValueError, match="clip must be a number above 0"):
        clipped._replace(clip=-1)


@pytest.mark.parametrize(
    ("loss", "clip", "error", "message"),
    [
        (cs.losses.Logistic(l2=0.1), 1.0, ValueError, "loss must have l2 = 0, got Logistic"),
        (cs.losses.Sigmoid(), 1.0, ValueError, "loss must be convex in the margin, got Sigmoid"),
        (cs.losses.Savage(), 1.0, ValueError, "loss must be convex in the margin, got Savage"),
        (cs.losses.Tangent(), 1.0, ValueError, "loss must be convex in the margin, got Tangent"),
        (cs.losses.Quadratic(), 1.0, TypeError, "loss Quadratic does not implement margin_value, slope"),
        (cs.losses.clipped_loss(cs.losses.Huber(), 1.0), 1.0, TypeError, "loss Clipped does not implement"),
        ("logistic", 1.0, TypeError, "loss must be a part"),
        (cs.losses.Logistic(), 0.0, ValueError, "clip must be a number above 0, got 0.0"),
        (cs.losses.Logistic(), np.inf, ValueError, "clip must be a finite number, got inf"),
    ],
)  # fmt: skip
def test_what_cannot_be_clipped_is_refused(loss, clip, error, message):
    with pytest.raises(error, match=message):
        cs.losses.clipped_loss(loss, clip)
