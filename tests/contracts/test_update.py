"""Every clip, region, step and preset: bounds, projections, and sensitivity on neighbouring data."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import clipsilon as cs
import reference
import registry
from clipsilon.problems.regions import project
from clipsilon.rules.clipping import Norm, Normalise, add_clipped
from clipsilon.rules.outputs import Average
from clipsilon.rules.preconditioning import Plain
from clipsilon.rules.sampling import expected_batch
from clipsilon.rules.schedules import size

vectors = arrays(np.float64, 4, elements=st.floats(-1e300, 1e300))
moderate = arrays(np.float64, 4, elements=st.floats(-1e6, 1e6))
quick = settings(max_examples=150, deadline=None, derandomize=True)


def clipped(clip, vector):
    total = np.zeros_like(vector)
    with np.errstate(over="ignore"):  # NumPy warns where compiled code does not
        add_clipped(clip, vector, 1.0, total)
    return total


@pytest.mark.parametrize("clip", registry.CLIPS, ids=registry.name)
@quick
@given(vector=vectors, weight=st.floats(0.01, 10))
def test_clip_keeps_its_bound_and_equals_the_reference(clip, vector, weight):
    result = clipped(clip, vector)
    with np.errstate(over="ignore"):
        assert np.linalg.norm(result) <= clip.bound() * (1 + 1e-12)
    # The reference squares, so it is only compared for vectors of moderate size.
    sizes = np.abs(vector[vector != 0])
    if ((sizes > 1e-100) & (sizes < 1e100)).all():
        np.testing.assert_allclose(result, reference.clip(clip, vector), rtol=1e-9)
        total = np.ones(4)
        add_clipped(clip, vector, weight, total)
        np.testing.assert_allclose(total, 1 + weight * result, rtol=1e-9, atol=1e-9)


def test_huge_gradients_are_clipped_and_not_lost():
    """Their squares overflow; the direction must be kept."""
    for clip in (Norm(2.0), Normalise(2.0)):
        np.testing.assert_allclose(clipped(clip, np.array([3e200, -4e200, 0, 0])), [1.2, -1.6, 0, 0], rtol=1e-12)
    np.testing.assert_allclose(
        clipped(Normalise(2.0), np.array([3e-200, 0, -4e-200, 0])), [1.2, 0, -1.6, 0], rtol=1e-12
    )


@pytest.mark.parametrize("clip", registry.CLIPS, ids=registry.name)
def test_clip_does_not_swallow_what_is_not_a_number(clip):
    with np.errstate(invalid="ignore"):
        assert np.isnan(clipped(clip, np.array([np.nan, 1.0, 1.0, 1.0]))).any()


@pytest.mark.parametrize("region", registry.REGIONS, ids=registry.name)
@quick
@given(first=moderate, second=moderate)
def test_projection(region, first, second):
    a, b = first.copy(), second.copy()
    project(region, a)
    project(region, b)
    np.testing.assert_allclose(a, reference.project(region, first), rtol=1e-12)
    assert np.linalg.norm(a) <= region.radius(4) * (1 + 1e-12)
    assert np.linalg.norm(a - b) <= np.linalg.norm(first - second) * (1 + 1e-9)
    again = a.copy()
    project(region, again)
    np.testing.assert_allclose(again, a, rtol=1e-12)


@pytest.mark.parametrize("step", registry.STEPS, ids=registry.name)
def test_steps_are_positive_and_equal_the_reference(step):
    for t in (1, 2, 10, 10**6):
        assert size(step, t) == pytest.approx(reference.step_size(step, t), rel=1e-14)
        assert size(step, t) > 0


PRIVATE = [preset for preset in registry.rules() if preset != "SGD"]


@pytest.mark.parametrize("preset", PRIVATE)
@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_one_step_on_neighbouring_data(preset, scale):
    """Replacing one record moves the first mean update by at most 2·bound/B, however large its gradient."""
    rule = registry.rules(noise_std=0.0, step=cs.schedules.Constant(1.0), sampling="full")[preset]
    # Only the update before preconditioning is private. (With an average, the estimators' kernels are reused.)
    rule = replace(rule, preconditioner=Plain(), output=Average())
    x, y = reference.data()
    moves = []
    for record in range(0, len(x), 5):
        features, labels = x.copy(), y.copy()
        features[record] = scale * np.array([1.0, -1.0, 1.0, -1.0])  # the gradient's length is `scale`
        labels[record] = 1.0
        runs = []
        for pair in ((x, y), (features, labels)):
            problem = cs.Problem(*pair, loss=cs.losses.Logistic())
            runs.append(cs.run(problem, rule, 1, start=0.5, seed=0).theta[0, -1])
        moves.append(np.linalg.norm(runs[0] - runs[1]))
    most = 2 * rule.clip.bound() / expected_batch(rule.sampling, len(x))
    assert 0.3 * most < max(moves) <= most * (1 + 1e-9)


def test_the_divisor_is_the_expected_batch_and_not_the_drawn_one():
    problem = cs.Problem(np.ones((40, 1)), np.zeros(40), loss=cs.losses.SquaredError())
    rule = cs.DPSGD(cs.schedules.Constant(1.0), clip=1.0, noise_std=0.0, batch=10, sampling="poisson")
    rule = replace(rule, output=Average())  # so that the estimators' kernel is reused
    thetas = [cs.run(problem, rule, 1, start=50.0, seed=seed).theta[0, -1, 0] for seed in range(30)]
    moves = 50.0 - np.array(thetas)  # each gradient is 50, and clipped to 1
    np.testing.assert_allclose(moves * 10, np.round(moves * 10), atol=1e-12)  # |drawn|/B, B = 10
    assert np.unique(moves).size > 3
