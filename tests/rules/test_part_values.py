"""Numbers read from parts whose kind is not known beforehand."""

import pickle

import numpy as np
import pytest

import clipsilon as cs
from clipsilon.rules.clipping import Adaptive, Norm, Normalise, PerClass, Scheduled, Unclipped, bound_of
from clipsilon.rules.noise import Gaussian, Local, Radial, ScheduledGaussian, std_of

CHANGING = cs.schedules.InverseTime(1.0, 0.0)


@pytest.mark.parametrize(
    ("clip", "bound"),
    [
        (Norm(0.7), 0.7),
        (Normalise(2.0), 2.0),
        (PerClass(0.5, 4), 1.0),
        (Unclipped(), np.inf),
        (Scheduled(CHANGING), np.inf),
    ],
)
def test_the_bound_of_a_clip_holds_in_all_steps(clip, bound):
    assert bound_of(clip) == bound


def test_only_gaussian_noise_has_one_standard_deviation():
    assert std_of(Gaussian(0.3)) == 0.3
    for noise in (ScheduledGaussian(CHANGING), Radial(0.3), Local([0.3])):
        with pytest.raises(TypeError, match="noise must be Gaussian"):
            std_of(noise)


def test_parts_are_equal_to_their_copies():
    """A number that a run fills in later is None, not NaN, which is not equal to itself."""
    for part in (Adaptive(1.0, 0.5, 0.2, 3.0), Adaptive(1.0, 0.5, 0.2, 3.0).on(7), Norm(2.0), Gaussian(0.1)):
        assert pickle.loads(pickle.dumps(part)) == part
