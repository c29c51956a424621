"""Certificates of rules whose clip and noise change: events composed one by one, checked against other methods."""

from typing import NamedTuple

import dp_accounting
import numpy as np
import pytest
from dp_accounting import pld

import clipsilon as cs
from clipsilon._core.parts import implements
from clipsilon.privacy.accounting import profiles
from clipsilon.privacy.certificate import _multipliers, certify
from clipsilon.privacy.release import release
from clipsilon.rules.clipping import Norm, Scheduled, add_clipped
from clipsilon.rules.feedback import ErrorFeedback
from clipsilon.rules.noise import Gaussian, ScheduledGaussian
from clipsilon.rules.rule import join_phases
from clipsilon.rules.sampling import Epochs, Full, Poisson, SinglePass
from clipsilon.rules.schedules import size

CONSTANT = cs.schedules.Constant(0.1)


def phased(thresholds, stds, starts=(1, 61), sampling=None):
    clip = Scheduled(cs.schedules.Piecewise(starts, thresholds))
    noise = ScheduledGaussian(cs.schedules.Piecewise(starts, stds))
    return cs.Rule("phased", CONSTANT, clip, Poisson(50, 0.05) if sampling is None else sampling, noise)


def test_a_step_without_exact_sums_is_not_hidden_among_many():
    """More than 1,000 stretches are merged; a clip of 1e-100 among them has no exact sums, so nothing is certified."""
    starts = np.arange(1, 3_001)
    thresholds = np.where(starts == 1_500, 1e-100, 1.0)
    for changed in (thresholds, np.where(starts == 1_500, 1e100, 1.0)):
        uneven = changed * (1.0 + 1e-3 * (starts % 2))  # so that no stretches are equal
        found = cs.account(phased(uneven, uneven, starts), 1_000, 3_000, 1e-5, "zero-out")
        assert found.certified == np.inf


@pytest.mark.parametrize("adjacency", ["replace-one", "zero-out", "add-remove"])
def test_noise_in_proportion_is_certified_as_a_constant_clip(adjacency):
    plain = cs.DPSGD(CONSTANT, clip=2.0, noise_std=0.03, batch=50, rate=0.05)
    rule = phased([2.0, 0.7], [0.03, 0.0105])
    expected = cs.account(plain, 1_000, 100, 1e-5, adjacency)
    found = cs.account(rule, 1_000, 100, 1e-5, adjacency)
    assert found.certified == pytest.approx(expected.certified, rel=1e-9)
    assert found.claimed == pytest.approx(expected.claimed, rel=1e-9)


@pytest.mark.parametrize("delta", [1e-3, 1e-6])
def test_two_multipliers_agree_with_another_accountant(delta):
    rule = phased([1.0, 1.0], [0.02, 0.05])
    found = certify(release(rule, 1_000, 100), "add-remove").epsilon(delta)
    accountant = pld.PLDAccountant(value_discretization_interval=1e-3)
    for multiplier, steps in ((1.0, 60), (2.5, 40)):
        event = dp_accounting.PoissonSampledDpEvent(0.05, dp_accounting.GaussianDpEvent(multiplier))
        accountant.compose(event, steps)
    assert found == pytest.approx(accountant.get_epsilon(delta), rel=0.012)


def test_phases_lie_between_their_extremes():
    for profile in (profiles.poisson, profiles.subset):
        low, high = profile(0.05, 2.5, 100), profile(0.05, 1.0, 100)
        mixed = profile(0.05, [1.0, 2.5], [60, 40])
        for delta in (1e-3, 1e-8):
            assert low.epsilon(delta) < mixed.epsilon(delta) < high.epsilon(delta)
        for epsilon in (0.1, 1.0):
            assert low.delta(epsilon) < mixed.delta(epsilon) < high.delta(epsilon)
        split = profile(0.05, [1.0, 1.0], [60, 40])
        assert split.epsilon(1e-5) == pytest.approx(high.epsilon(1e-5), rel=1e-6)


def test_profiles_want_as_many_steps_as_multipliers():
    with pytest.raises(ValueError, match=r"steps must be one per noise_multiplier \(2\), got 1"):
        profiles.poisson(0.1, [1.0, 2.0], 10)
    assert profiles.poisson(0.1, [1.0, 2.0], [0, 0]).epsilon(1e-5) == 0


def test_full_batches_add_the_squares_of_their_phases():
    rule = phased([1.0, 3.0], [0.1, 0.2], sampling=Full())
    mu = np.sqrt(60 * (1.0 / 0.1) ** 2 + 40 * (3.0 / 0.2) ** 2) / 500
    assert cs.account(rule, 500, 100, 1e-5, "zero-out").certificate.profile.mu == pytest.approx(mu, rel=1e-12)
    assert cs.account(rule, 500, 100, 1e-5).certificate.profile.mu == pytest.approx(2 * mu, rel=1e-12)


def test_a_record_in_few_steps_may_be_in_the_least_noisy_ones():
    once = phased([1.0, 3.0], [0.1, 0.2], sampling=SinglePass(10))
    assert cs.account(once, 1_000, 100, 1e-5, "zero-out").certificate.profile.mu == pytest.approx(15 / 10, rel=1e-12)
    epochs = phased([1.0, 3.0], [0.1, 0.2], starts=(1, 100), sampling=Epochs(10))
    k = 2  # of 101 steps over 100 batches; one least noisy step, and one of the others
    mu = np.sqrt((3.0 / 0.2) ** 2 + (1.0 / 0.1) ** 2) / 10
    assert release(epochs, 1_000, 100).participations == 1
    assert release(epochs, 1_000, 101).participations == k
    both = phased([1.0, 3.0], [0.1, 0.2], starts=(1, 101), sampling=Epochs(10))
    assert cs.account(both, 1_000, 101, 1e-5, "zero-out").certificate.profile.mu == pytest.approx(mu, rel=1e-12)


def test_very_many_steps_are_merged_and_never_gain():
    clip = Scheduled(cs.schedules.Power(1.0, 0.25))
    rule = cs.Rule("shrinking", CONSTANT, clip, Poisson(50), ScheduledGaussian(cs.schedules.Power(0.02, 0.25)))
    plain = cs.DPSGD(CONSTANT, clip=1.0, noise_std=0.02, batch=50)
    released = release(rule, 1_000, 5_000)
    assert released.steps == 5_000
    assert len(released.events) <= 1_000
    expected = cs.account(plain, 1_000, 5_000, 1e-5, "zero-out").certified
    assert cs.account(rule, 1_000, 5_000, 1e-5, "zero-out").certified == pytest.approx(expected, rel=1e-6)
    uneven = cs.Rule("uneven", CONSTANT, Norm(1.0), Poisson(50), ScheduledGaussian(cs.schedules.Power(0.2, 0.25)))
    found = cs.account(uneven, 1_000, 5_000, 1e-5, "zero-out").certified
    exact = profiles.poisson(0.05, [0.2 * 50 * t**-0.25 for t in (1, 625, 5000)], [1, 624, 4375]).epsilon(1e-5)
    worst = cs.DPSGD(CONSTANT, clip=1.0, noise_std=0.2 * 5_000**-0.25, batch=50)
    most = cs.account(worst, 1_000, 5_000, 1e-5, "zero-out").certified
    assert found <= most * (1 + 1e-9)
    assert found >= 0.5 * exact


@pytest.mark.parametrize("adjacency", ["replace-one", "add-remove"])
def test_calibration_scales_a_schedule(adjacency):
    rule = phased([1.0, 2.0], [0.01, 0.05])
    found = cs.calibrate(rule, 1.0, 1e-5, 1_000, 100, adjacency=adjacency)
    values = found.noise.std.values
    assert values[1] / values[0] == pytest.approx(5.0, rel=1e-12)
    assert 0.98 <= cs.account(found, 1_000, 100, 1e-5, adjacency).certified <= 1.0


def test_joined_phases_are_accounted_for_step_by_step():
    first = cs.DPSGD(CONSTANT, clip=1.0, noise_std=0.02, batch=50)
    quiet = cs.DPSGD(CONSTANT, clip=1.0, noise_std=0.01, batch=50)
    alone = cs.account(first, 1_000, 100, 1e-5).certified
    joined = cs.account(join_phases([(first, 90), (quiet, 10)]), 1_000, 100, 1e-5).certified
    assert alone < joined < cs.account(quiet, 1_000, 100, 1e-5).certified


def test_nothing_is_certified_by_a_schedule_of_the_users_own():
    class Mine(NamedTuple):
        value: float

    @implements(size, Mine)
    def _(step, t):
        return step.value

    rule = cs.Rule("mine", CONSTANT, Scheduled(Mine(1.0)), Poisson(50), Gaussian(0.1))
    assert cs.account(rule, 1_000, 100, 1e-5).certified == np.inf
    rule = cs.Rule("mine", CONSTANT, Norm(1.0), Poisson(50), ScheduledGaussian(Mine(1.0)))
    assert cs.account(rule, 1_000, 100, 1e-5).certified == np.inf


def test_step_sizes_of_the_users_own_do_not_affect_the_certificate():
    class WarmUp(NamedTuple):
        gamma: float
        length: int

    @implements(size, WarmUp)
    def _(step, t):
        return step.gamma * min(1.0, t / step.length)

    assert [size(WarmUp(0.5, 4), t) for t in (1, 2, 8)] == [0.125, 0.25, 0.5]
    parts = Norm(1.0), Poisson(50), Gaussian(0.1)
    own, constant = (cs.account(cs.Rule("mine", step, *parts), 1_000, 100, 1e-5) for step in (WarmUp(0.5, 4), CONSTANT))
    assert own.certified == constant.certified < np.inf


def test_nothing_is_certified_by_a_clip_that_counts_records():
    class Counting(NamedTuple):
        threshold: float
        counts = 1

        def bound(self):
            return self.threshold

    @implements(add_clipped, Counting)
    def _(clip, vector, weight, total):
        add_clipped(Norm(clip.threshold), vector, weight, total)

    rule = cs.Rule("counting", CONSTANT, Counting(1.0), Poisson(50), Gaussian(0.1))
    assert cs.account(rule, 1_000, 100, 1e-5).certified == np.inf


def test_feedback_with_changing_parts_is_not_certified():
    feedback = ErrorFeedback(Norm(1.0), Norm(2.0))
    rule = cs.Rule("fed back", CONSTANT, Norm(1.0), Poisson(50), phased([1, 1], [0.1, 0.2]).noise, feedback)
    found = cs.account(rule, 1_000, 100, 1e-5)
    assert found.certified == np.inf
    assert "constant clip and constant noise" in found.reasons[0]


def test_a_clip_that_vanishes_is_not_certified():
    # Its threshold underflows to 0 in step 7, where nothing can be measured in units of it.
    for sampling in (Full(), Poisson(4)):
        clip = Scheduled(cs.schedules.Power(1.0, 400.0))
        found = cs.account(cs.Rule("vanishing", CONSTANT, clip, sampling, Gaussian(1.0)), 8, 12, 1e-5, "zero-out")
        assert found.certified == np.inf
        assert "clip and noise must be between 1e-90 and 1e90" in found.reasons[0]


def test_starts_that_overflow_are_refused():
    with pytest.raises(ValueError, match="starts must be increasing"):
        cs.schedules.Piecewise([1, 2**62 + 1, -(2**62), 200], [1.0, 1.0, 1e-6, 1.0])


@pytest.mark.parametrize("sampling", ["epochs", "single-pass"])
def test_phases_of_shuffled_passes_are_refused(sampling):
    rule = cs.DPSGD(CONSTANT, 1.0, 0.1, batch=10, sampling=sampling)
    with pytest.raises(ValueError, match="phases must sample anew at every step"):
        join_phases([(rule, 5), (rule, 5)])


def test_phases_with_other_samplers_of_equal_fields_are_refused():
    uniform, epochs = (cs.DPSGD(CONSTANT, 1.0, 0.1, batch=10, sampling=name) for name in ("uniform", "epochs"))
    assert uniform == epochs  # as NamedTuples are
    with pytest.raises(ValueError, match="phases must differ in constant step, clip and noise only"):
        join_phases([(uniform, 5), (epochs, 5)])


def test_kinds_of_steps_do_not_depend_on_the_size_of_the_noise():
    levels = np.geomspace(0.05, 0.2, 33)  # on the boundaries of the groups
    starts, counts = np.arange(1, 34), set()
    for factor in (1.0, 1.1, 0.37, 3e-3):
        noise = ScheduledGaussian(cs.schedules.Piecewise(starts, levels * factor))
        released = release(cs.Rule("many", CONSTANT, Norm(1.0), Poisson(50), noise), 1_000, 40)
        multipliers, steps = _multipliers(released)
        counts.add(tuple(steps))
        assert sum(steps) == 40
        assert min(multipliers) == pytest.approx(50 * levels[0] * factor)
    assert len(counts) == 1
