"""The certificate of adaptive clipping: sum and count as one Gaussian, against other methods and by brute force."""

import inspect
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest

import clipsilon as cs
from clipsilon._core.parts import implements, traits
from clipsilon.privacy.auditing.attacks import attacks
from clipsilon.privacy.release import release
from clipsilon.rules.clipping import Adaptive, Norm, Scheduled, adapt, at_step
from clipsilon.rules.feedback import ErrorFeedback
from clipsilon.rules.noise import Gaussian, Proportional
from clipsilon.rules.sampling import Epochs, Full, Poisson, SinglePass, Uniform

STEP = cs.schedules.Constant(0.1)
RECORDS, STEPS, BATCH = 400, 30, 20
MULTIPLIER, COUNT_NOISE = 1.3, 1.1
TOGETHER = (MULTIPLIER**-2 + (2 * COUNT_NOISE) ** -2) ** -0.5
SAMPLINGS = [Poisson(BATCH), Poisson(BATCH, 0.05), Uniform(BATCH), Epochs(BATCH), SinglePass(BATCH), Full()]


def adaptive(sampling, multiplier=MULTIPLIER, count_noise=COUNT_NOISE, start=0.7):
    return cs.Rule("adaptive", STEP, Adaptive(start, 0.8, 0.2, count_noise), sampling, Proportional(multiplier))


def constant(sampling, multiplier):
    return cs.Rule("constant", STEP, Norm(3.0), sampling, Proportional(multiplier))


@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one", "add-remove"])
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_sum_and_count_are_certified_as_one_gaussian(sampling, adjacency):
    steps = 20 if isinstance(sampling, SinglePass) else STEPS
    rules = adaptive(sampling), constant(sampling, TOGETHER)
    if adjacency == "add-remove" and getattr(sampling, "rate", None) is None:
        for rule in rules:
            with pytest.raises(ValueError, match="adjacency must be"):
                cs.account(rule, RECORDS, steps, 1e-5, adjacency)
        return
    found, expected = (cs.account(rule, RECORDS, steps, 1e-5, adjacency) for rule in rules)
    assert np.isfinite(expected.certified)
    for delta in (1e-3, 1e-5, 1e-9):
        assert found.epsilon(delta) == pytest.approx(expected.epsilon(delta), rel=1e-9)
    assert found.claimed is None
    assert any("counts of ±½" in reason for reason in found.reasons)


def hockey_stick(first, second, epsilon):
    return np.maximum(first - np.exp(epsilon) * second, 0).sum()


def densities(axis, means, weights):
    """The density of a mixture of standard normals in the plane, times the area of a cell."""
    spread = np.diff(axis)[0] / np.sqrt(2 * np.pi)
    one = [np.exp(-0.5 * np.subtract.outer(axis, np.array(mean)) ** 2) * spread for mean in means]
    return sum(w * np.multiply.outer(along[:, 0], along[:, 1]) for w, along in zip(weights, one, strict=True))


@pytest.mark.parametrize("epsilon", [0.1, 1.0])
@pytest.mark.parametrize("q", [0.3, 1.0])
def test_one_step_attains_its_certificate_and_does_not_exceed_it(q, epsilon):
    """Sum and count of one Poisson step, in units of their noise, integrated in the plane."""
    axis = np.arange(-9, 10, 0.02)
    mean = (1 / MULTIPLIER, 0.5 / COUNT_NOISE)
    present, absent = densities(axis, [(0, 0), mean], [1 - q, q]), densities(axis, [(0, 0)], [1.0])
    true = max(hockey_stick(present, absent, epsilon), hockey_stick(absent, present, epsilon))
    found = cs.account(adaptive(Poisson(BATCH, q)), RECORDS, 1, 1e-5, "add-remove").delta_at(epsilon)
    assert true * (1 - 1e-4) <= found <= true * 1.01


@pytest.mark.parametrize("q", [0.3, 1.0])
def test_two_steps_attain_their_certificate_and_do_not_exceed_it(q):
    """Of four numbers, with a record that counts +½ or −½ in the second step, depending on the first count."""
    axis, epsilon = np.arange(-4.8, 6.0, 0.24), 0.5
    base = densities(axis, [(0, 0)], [1.0])
    below, above = (
        densities(axis, [(0, 0), (1 / MULTIPLIER, side * 0.5 / COUNT_NOISE)], [1 - q, q]) for side in (1, -1)
    )
    true = [0.0, 0.0]
    for chosen, columns in ((below, axis < 0), (above, axis >= 0)):  # by the count of the first step
        first, without = below[:, columns].ravel(), base[:, columns].ravel()
        present, absent = np.multiply.outer(first, chosen.ravel()), np.multiply.outer(without, base.ravel())
        true[0] += hockey_stick(present, absent, epsilon)
        true[1] += hockey_stick(absent, present, epsilon)
    found = cs.account(adaptive(Poisson(BATCH, q)), RECORDS, 2, 1e-5, "add-remove").delta_at(epsilon)
    assert max(true) * (1 - 5e-3) <= found <= max(true) * 1.02


def test_counts_of_zero_and_one_would_need_twice_the_noise():
    """Priced as ±½, they certify a δ that a 0/1 count exceeds in a single step."""
    epsilon, axis = 1.0, np.arange(-9, 12, 0.02)
    fault, base = densities(axis, [(1 / MULTIPLIER, 1 / COUNT_NOISE)], [1.0]), densities(axis, [(0, 0)], [1.0])
    halves = cs.account(adaptive(Full()), RECORDS, 1, 1e-5, "zero-out").delta_at(epsilon)
    assert hockey_stick(fault, base, epsilon) > 1.3 * halves
    wholes = cs.account(adaptive(Full(), count_noise=COUNT_NOISE / 2), RECORDS, 1, 1e-5, "zero-out").delta_at(epsilon)
    assert hockey_stick(fault, base, epsilon) == pytest.approx(wholes, rel=2e-3)


def test_replacing_moves_sum_and_count_twice_as_far():
    one, two = (cs.account(adaptive(Full()), RECORDS, STEPS, 1e-5, kind) for kind in ("zero-out", "replace-one"))
    assert one.certificate.profile.mu == pytest.approx(np.sqrt(STEPS) / TOGETHER, rel=1e-12)
    assert two.certificate.profile.mu == pytest.approx(2 * np.sqrt(STEPS) / TOGETHER, rel=1e-12)


@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one", "add-remove"])
def test_calibration_finds_the_noise_on_the_sum(adjacency):
    rule = adaptive(Poisson(BATCH, 0.05), count_noise=4.0)
    found = cs.calibrate(rule, 1.0, 1e-6, 200_000, STEPS, adjacency=adjacency)
    assert found.clip == rule.clip  # the count keeps its noise
    assert 0.98 < cs.account(found, 200_000, STEPS, 1e-6, adjacency).certified <= 1.0
    assert cs.longest_run(found, 1.0, 1e-6, 200_000, adjacency) >= STEPS


def test_a_count_with_too_little_noise_cannot_be_made_up_for():
    with pytest.raises(ValueError, match="it is not certified, however large the noise is"):
        cs.calibrate(adaptive(Full(), count_noise=0.5), 1.0, 1e-5, 200_000, STEPS)


@traits(counts=1)
class Own(NamedTuple):
    """A user's clip that adapts by itself."""

    threshold: float

    def initial_state(self):
        return [self.threshold]


@implements(at_step, Own)
def _(clip, t, state):
    return Norm(state[0])


@implements(adapt, Own)
def _(clip, t, counts, state, rng):
    state[0] *= 0.9


@pytest.mark.parametrize(
    "rule",
    [
        replace(adaptive(Full()), feedback=ErrorFeedback(Norm(1.0), Norm(2.0))),
        replace(adaptive(Full()), noise=Gaussian(0.1)),
        replace(adaptive(Full()), clip=Own(1.0)),
        adaptive(Full(), multiplier=0.0),
        adaptive(Full(), start=1e85),
        adaptive(Full(), start=1e-85),
    ],
    ids=["feedback", "other noise", "own clip", "no noise", "long", "short"],
)
def test_nothing_is_certified(rule):
    found = cs.account(rule, RECORDS, STEPS, 1e-5, "zero-out")
    assert found.certified == np.inf
    assert "Nothing can be certified" in found.reasons[0]


def test_noise_in_proportion_is_certified_as_constant_noise_is():
    clip = Scheduled(cs.schedules.Piecewise([1, 11], [2.0, 0.3]))
    rule = cs.Rule("phased", STEP, clip, Poisson(BATCH), Proportional(1.1))
    plain = cs.DPSGD(STEP, clip=1.0, noise_std=1.1 / BATCH, batch=BATCH)
    expected = cs.account(plain, RECORDS, STEPS, 1e-5, "zero-out").certified
    assert cs.account(rule, RECORDS, STEPS, 1e-5, "zero-out").certified == pytest.approx(expected, rel=1e-9)


def test_the_preset_has_the_noise_multiplier_it_was_given():
    rule = cs.AdaptiveDPSGD(STEP, clip=2.0, noise_multiplier=0.9, batch=BATCH, quantile=0.9)
    plain = cs.DPSGD(STEP, clip=1.0, noise_std=0.9 / BATCH, batch=BATCH)
    assert rule.clip.count_noise == 5 * 0.9
    assert 0.9 < rule.noise.multiplier < 0.9 * 1.0051
    found, expected = (cs.account(one, RECORDS, STEPS, 1e-5, "zero-out").certified for one in (rule, plain))
    assert found == pytest.approx(expected, rel=1e-9)
    with pytest.raises(ValueError, match=r"noise_multiplier must be below twice count_noise \(1\), got 2.0"):
        cs.AdaptiveDPSGD(STEP, clip=2.0, noise_multiplier=2.0, batch=BATCH, quantile=0.9, count_noise=1.0)
    with pytest.raises(ValueError, match="count_noise must be given for full batches"):
        cs.AdaptiveDPSGD(STEP, clip=2.0, noise_multiplier=0.9, batch=1, quantile=0.9, sampling="full")


def test_the_threshold_follows_noisy_counts_more_slowly():
    """0.2 as in the paper where the counts are as precise as there; 0.02·(10/100)² with noise of 100 on batches of 10."""
    about = {"clip": 2.0, "noise_multiplier": 0.9, "quantile": 0.9}
    assert cs.AdaptiveDPSGD(STEP, batch=1000, **about).clip.rate == 0.2
    assert cs.AdaptiveDPSGD(STEP, batch=10, count_noise=100.0, **about).clip.rate == pytest.approx(2e-4)
    assert cs.AdaptiveDPSGD(STEP, batch=10, count_noise=100.0, clip_rate=0.1, **about).clip.rate == 0.1
    assert cs.AdaptiveDPSGD(STEP, batch=1, count_noise=100.0, sampling="full", **about).clip.rate == 0.2


def test_no_quantile_is_chosen_by_default():
    for maker in (cs.AdaptiveDPSGD, Adaptive):
        assert inspect.signature(maker).parameters["quantile"].default is inspect.Parameter.empty


@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
def test_audits_attack_records_that_are_not_counted(adjacency):
    """Zeroed out, the canary has weight 0: with a gradient of zero it would still count +½."""
    rule = adaptive(Full(), multiplier=20.0, count_noise=10.0)
    absent, present = attacks(rule, release(rule, 40, 4), adjacency)[0].pair
    assert absent.weights[0] == (0.0 if adjacency == "zero-out" else 1.0)
    assert present.weights.all()
    found = cs.audit(rule, 40, 4, 1e-5, adjacency=adjacency, runs=400, seed=1, progress=False)
    assert found.method == "thresholds at fixed ranks"  # the noise is not Gaussian: its size is random
    assert found.lower_bound <= found.statement.certified


def test_an_audit_finds_noise_that_is_too_small():
    rule = adaptive(Full(), multiplier=0.2, count_noise=10.0)
    claimed = cs.account(adaptive(Full(), multiplier=2.0, count_noise=10.0), 40, 4, 1e-5, "zero-out").certified
    assert cs.audit(rule, 40, 4, 1e-5, adjacency="zero-out", runs=2_000, seed=1, progress=False).lower_bound > claimed
    assert cs.audit_one_run(rule, 40, 4, 1e-5, canaries=40, seed=1).lower_bound > 1.0


def test_nothing_is_certified_unless_every_threshold_has_a_grid():
    """At the largest threshold of this rule, the engine's noise is one rounding above what sums are exact for."""
    parts = (cs.sampling.Poisson(26, 0.01), cs.noise.Proportional(49.138324448733535))
    clip = cs.clipping.Adaptive(4.927800695619065e80, 0.5, 0.2, 1e3)
    assert cs.account(cs.Rule("edge", STEP, clip, *parts), 100, 10, 1e-5, "zero-out").certified == np.inf
    smaller = clip._replace(start=4.9e80)
    assert cs.account(cs.Rule("inside", STEP, smaller, *parts), 100, 10, 1e-5, "zero-out").certified < np.inf


def test_rules_that_cannot_be_certified_are_refused_by_calibrate():
    for clip, noise in (
        (cs.clipping.Adaptive(1.0, 0.5, 0.2, 10.0), cs.noise.Gaussian(1.0)),
        (cs.clipping.Adaptive(1e85, 0.5, 0.2, 10.0), cs.noise.Proportional(1.0)),
    ):
        with pytest.raises(ValueError, match="rule must be one that can be certified|epsilon must be larger"):
            cs.calibrate(cs.Rule("own", STEP, clip, cs.sampling.Poisson(10), noise), 1.0, 1e-5, 1000, 10)
