"""Clipped softmax gradients are no gradient field (paper 5, Theorems 5.3 and D.5); those of margin losses are."""

import numpy as np
import pytest

import clipsilon as cs
import reference
from clipsilon.engine.means import mean_gradient
from clipsilon.rules.clipping import Norm, PerClass, Unclipped
from clipsilon.theory.curl import circulation, curl, softmax_field, witness

X = np.array([1.0, -0.5, 2.0])
CASES = [(3, 0, 0.5), (3, 2, 1.5), (5, 1, 0.2), (4, 3, 0.05)]  # classes, label, clip
cases = pytest.mark.parametrize(("classes", "label", "clip"), CASES)


def clips(kind, classes, clip):
    return Norm(clip) if kind == "joint" else PerClass(clip, classes)


def directions(size):
    return np.random.default_rng(7).standard_normal((2, size))


def exact(theta, classes, label, clip, kind):
    """Return J − Jᵀ from the derivatives in the K margins: diag(p) − p·pᵀ is the derivative of p."""
    margins = theta.reshape(classes, X.size) @ X
    p = np.exp(margins - margins.max())
    p /= p.sum()
    g, hessian = p - np.eye(classes)[label], np.diag(p) - np.outer(p, p)
    size = np.linalg.norm(X)
    if kind == "joint":
        unit = g / np.linalg.norm(g)
        inner = (np.eye(classes) - np.outer(unit, unit)) @ hessian * clip / (size * np.linalg.norm(g))
        assert np.linalg.norm(g) * size > clip
    else:
        inner = (np.abs(g) * size < clip)[:, np.newaxis] * hessian
    return np.kron(inner - inner.T, np.outer(X, X))


@cases
@pytest.mark.parametrize("kind", ["joint", "per class"])
def test_the_clipped_field_of_three_classes_has_curl(classes, label, clip, kind):
    """Far above the numerical error, by two methods, and equal to the exact derivatives."""
    field = softmax_field(X, label, classes, clips(kind, classes, clip))
    theta = witness(field, classes * X.size)
    found = curl(field, theta)
    antisymmetric = exact(theta, classes, label, clip, kind)
    assert found.value == pytest.approx(np.linalg.norm(antisymmetric), abs=found.error)
    assert found.value > 1e4 * found.error
    one, other = np.linalg.qr(directions(theta.size).T)[0].T
    small = 1e-3
    work = circulation(field, theta, small, *directions(theta.size))
    # Stokes: the work around a small loop is its area times the curl in its plane; the next term is of order radius⁴.
    assert work.value == pytest.approx(np.pi * small**2 * (other @ antisymmetric @ one), rel=1e-3)
    assert abs(work.value) > 1e3 * work.error


@cases
def test_a_loop_of_any_size_inside_the_clipped_set_takes_work(classes, label, clip):
    """In the plane of the strongest curl, the work equals the integral of the curl over the disc."""
    field = softmax_field(X, label, classes, Norm(clip))
    theta = witness(field, classes * X.size)
    plane = np.linalg.svd(exact(theta, classes, label, clip, "joint"))[0][:, :2].T
    work = circulation(field, theta, 0.05, *plane)
    assert abs(work.value) > 1e6 * work.error
    grid = [(r, a) for r in (np.arange(20) + 0.5) / 400 for a in 2 * np.pi * np.arange(16) / 16]
    one, other = np.linalg.qr(plane.T)[0].T
    total = 0.0
    for radius, angle in grid:
        place = theta + radius * (np.cos(angle) * one + np.sin(angle) * other)
        total += other @ exact(place, classes, label, clip, "joint") @ one * radius * (0.05 / 20) * (2 * np.pi / 16)
    assert work.value == pytest.approx(total, rel=1e-3)


def assert_gradient(field, theta):
    """Neither curl nor circulation at θ, beyond rounding; errors are far below the curls above, of order 0.1."""
    found = curl(field, theta)
    work = circulation(field, theta, 0.05, *directions(theta.size))
    assert found.value <= found.error < 1e-5
    assert abs(work.value) <= max(work.error, 1e-12)


@pytest.mark.parametrize("theta", 0.7 * np.random.default_rng(0).standard_normal((4, 12)))
def test_fields_that_are_gradients_have_none(theta):
    assert_gradient(softmax_field(X, 1, 4, Unclipped()), theta)  # no clipping
    assert_gradient(softmax_field(X, 1, 4, Norm(10.0)), theta)  # clipping that is never active
    assert_gradient(softmax_field(X, 1, 2, Norm(0.1)), theta[:6])  # two classes, which are logistic regression
    assert_gradient(softmax_field(X, 1, 2, PerClass(0.1, 2)), theta[:6])
    assert_gradient(softmax_field(X, 1, 4, PerClass(1e-3, 4)), theta)  # all blocks clipped: the field is constant


def test_where_the_other_classes_tie_the_joint_curl_vanishes():
    """Paper 5, proof of Theorem 5.3: the symmetric set is that of equal margins of the classes other than the label."""
    theta = np.outer([0.3, -0.2, -0.2, -0.2], X / (X @ X)).ravel()
    tied = curl(softmax_field(X, 0, 4, Norm(0.5)), theta)
    assert tied.value <= tied.error < 1e-5
    assert curl(softmax_field(X, 1, 4, Norm(0.5)), theta).value > 0.01


@pytest.mark.parametrize(
    "loss", [cs.losses.Logistic(), cs.losses.SquaredError(), cs.losses.Logistic(positive_weight=3.0)]
)
def test_clipped_margin_losses_have_none(loss):
    """Lemma 5.1: the mean of clipped gradients is a gradient, at points where it is smooth."""
    problem = reference.problem(loss, records=20)
    for theta in np.random.default_rng(1).standard_normal((5, 4)):
        assert_gradient(lambda model: mean_gradient(problem, model, model, 1, Norm(0.4)), theta)


def test_a_clipped_penalty_has_curl():
    """Why `clipped_loss` refuses l2 > 0."""
    problem = reference.problem(cs.losses.Logistic(l2=0.5), records=20)

    def field(model):
        return mean_gradient(problem, model, model, 1, Norm(0.2))

    found = curl(field, witness(field, 4, tries=20))
    assert found.value > 1e3 * found.error
    assert found.value > 0.01


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((X, 3, 3, Norm(1.0)), "label must be below the number of classes"),
        ((X, 0, 1, Norm(1.0)), "classes must be a whole number of at least 2"),
        ((X, -1, 3, Norm(1.0)), "label must be a whole number of at least 0"),
    ],
)
def test_bad_input_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        softmax_field(*arguments)
    with pytest.raises(TypeError, match="clip must be a part"):
        softmax_field(X, 0, 3, 1.0)
