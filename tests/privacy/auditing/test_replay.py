"""Sensitivity by replay: the same draws on neighbouring data, and the shift of every noisy update measured.

With all draws and the released outputs fixed, the updates of two neighbouring data sets differ by vectors whose total
squared norm over s² must not exceed μ². Outputs are held fixed by a loss whose gradient does not depend on θ, so that
what is compared is just what the certificate bounds; gradients are adversarial: any size, any direction, chosen anew
for every step and record.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import reference
import registry
from clipsilon.engine.streams import spawn
from clipsilon.privacy.certificate import certify, dice_shift
from clipsilon.privacy.release import release
from clipsilon.rules.feedback import NoFeedback

RECORDS, STEPS, DIMENSION = 12, 10, 2


def updates(rule, gradients, seed):
    """Return the updates v_t before noise, from gradients (steps, records, d), and how often record 0 took part."""
    sampler = reference.Sampler(rule.sampling, RECORDS, spawn(seed, 1)[0].records)
    batch = getattr(rule.sampling, "batch", RECORDS)
    e = np.zeros(DIMENSION)
    found, count = [], 0
    for t in range(len(gradients)):
        drawn = list(sampler.batch(t))
        count += 0 in drawn
        zero = np.zeros(DIMENSION)
        v = sum((reference.clip(rule.clip, gradients[t, i]) for i in drawn), zero) / batch
        if not isinstance(rule.feedback, NoFeedback):
            v = v + reference.clip(rule.feedback.clip, e)
            e = e + sum((reference.clip(rule.feedback.cap, gradients[t, i]) for i in drawn), zero) / batch - v
        found.append(v)
    return np.array(found), count


def largest_shift(rule, released, count, adjacency):
    """Return μ·s, the total by which updates may differ according to the certificate after `count` participations."""
    if released.feedback is None:
        change = 2.0 if adjacency == "replace-one" else 1.0
        return np.sqrt(count) * change * released.bound / released.batch
    return dice_shift(released, released.feedback, adjacency)(count) * released.noise_std


@pytest.mark.parametrize("sampling", ["uniform", "poisson", "epochs", "full"])
@pytest.mark.parametrize("preset", [name for name in registry.rules() if name != "SGD"])
@settings(max_examples=60, deadline=None, derandomize=True)
@given(data=st.integers(0, 2**32 - 1), scale=st.floats(-2, 4), adjacency=st.sampled_from(["replace-one", "zero-out"]))
def test_no_run_moves_more_than_is_certified(preset, sampling, data, scale, adjacency):
    rule = registry.rules(sampling=sampling, batch=3)[preset]
    released = release(rule, RECORDS, STEPS)
    certify(released, adjacency)
    rng = np.random.default_rng(data)
    gradients = (
        rng.standard_normal((STEPS, RECORDS, DIMENSION)) * 10**scale * rng.choice([0, 0.1, 1], (STEPS, RECORDS, 1))
    )
    other = gradients.copy()
    if rng.random() < 0.5:  # a steady push in one direction is what feedback remembers best
        gradients[:, 0] = 10**scale * np.array([1.0, 0.0])
    other[:, 0] = -gradients[:, 0] if adjacency == "replace-one" else 0.0
    first, count = updates(rule, gradients, data)
    second, _ = updates(rule, other, data)
    total = np.sqrt(((first - second) ** 2).sum())
    assert total <= largest_shift(rule, released, count, adjacency) * (1 + 1e-9) + 1e-12


@pytest.mark.parametrize("preset", ["PCSGD", "DiceSGD"])
def test_the_bound_is_nearly_attained(preset):
    """Otherwise the test above could pass with a certificate that is far too large."""
    rule = registry.rules(sampling="full")[preset]
    released = release(rule, RECORDS, STEPS)
    gradients = np.zeros((STEPS, RECORDS, DIMENSION))
    gradients[:, 0] = [1e6, 0.0]
    first, count = updates(rule, gradients, 0)
    second, _ = updates(rule, -gradients, 0)
    assert np.sqrt(((first - second) ** 2).sum()) > 0.6 * largest_shift(rule, released, count, "replace-one")
