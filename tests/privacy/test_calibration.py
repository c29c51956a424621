"""Calibrate, then account: within 2 % below the target, for every preset, sampling and adjacency."""

import numpy as np
import pytest

import clipsilon as cs
import registry

RECORDS, STEPS = 200, 20
TARGETS = [0.01, 0.1, 1.0, 10.0, 100.0]
SAMPLINGS = ["uniform", "poisson", "single-pass", "epochs", "full"]


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("preset", [name for name in registry.rules() if name != "SGD"])
def test_calibrated_rules_certify_just_what_was_asked(preset, sampling):
    rule = registry.rules(sampling=sampling)[preset]
    rules = {"replace-one": rule, "zero-out": rule}
    if sampling == "poisson" and preset != "AdamDiceSGD":  # whose error has a cap, so that no public rate is certified
        rules["add-remove"] = registry.rules(sampling=sampling, rate=0.02)[preset]
    for adjacency, rule in rules.items():
        for target in TARGETS:
            found = cs.calibrate(rule, target, 1e-5, RECORDS, STEPS, adjacency=adjacency)
            certified = cs.account(found, RECORDS, STEPS, 1e-5, adjacency).certified
            assert 0.98 * target <= certified <= target, (adjacency, target, certified)
            assert (found.clip, found.sampling, found.feedback) == (rule.clip, rule.sampling, rule.feedback)


@pytest.mark.parametrize("preset", ["PCSGD", "DPSGD", "DiceSGD", "AutoDiceSGD"])
def test_the_papers_noise_makes_the_papers_claim(preset):
    found = cs.calibrate(registry.rules()[preset], 0.7, 1e-5, RECORDS, STEPS, how="paper")
    assert cs.account(found, RECORDS, STEPS, 1e-5).claimed == pytest.approx(0.7)


@pytest.mark.parametrize("sampling", ["uniform", "epochs", "single-pass", "full"])
def test_longest_run(sampling):
    rule = cs.DPSGD(cs.schedules.Constant(1.0), 1.0, 0.3, batch=1 if sampling == "full" else 10, sampling=sampling)
    longest = cs.longest_run(rule, 3.0, 1e-5, RECORDS, most=1000)
    assert 0 < longest <= 1000
    assert cs.account(rule, RECORDS, longest, 1e-5).certified <= 3.0
    if longest < min(1000, rule.longest_run(RECORDS)):
        assert cs.account(rule, RECORDS, longest + 1, 1e-5).certified > 3.0
    assert cs.longest_run(rule, 1e-3, 1e-5, RECORDS, most=1000) == 0


def test_noise_falls_with_epsilon_and_rises_with_steps():
    rule = registry.rules()["DiceSGD"]
    noises = [cs.calibrate(rule, target, 1e-5, RECORDS, STEPS).noise.std for target in TARGETS]
    assert (np.diff(noises) < 0).all()
    assert cs.calibrate(rule, 1.0, 1e-5, RECORDS, 10 * STEPS).noise.std > noises[2]


@pytest.mark.parametrize("batch", [20, RECORDS])
@pytest.mark.parametrize("adjacency", ["zero-out", "add-remove"])
def test_gamma_noise_is_calibrated_too(batch, adjacency):
    rule = cs.GammaDPSGD(cs.schedules.Constant(1.0), clip=0.8, scale=1.0, batch=batch, rate=batch / RECORDS)
    for target in TARGETS:
        found = cs.calibrate(rule, target, 1e-5, RECORDS, STEPS, adjacency=adjacency)
        assert 0.98 * target <= cs.account(found, RECORDS, STEPS, 1e-5, adjacency).certified <= target
    with pytest.raises(ValueError, match="rule must be one that can be certified: .* not for replace-one"):
        cs.calibrate(rule, 1.0, 1e-5, RECORDS, STEPS, adjacency="replace-one")


def test_gamma_noise_that_nearly_vanishes_is_calibrated_without_overflow():
    rule = cs.GammaDPSGD(cs.schedules.Constant(0.1), clip=1.0, scale=1.0, batch=10, rate=0.1)
    with np.errstate(all="raise", under="ignore"):
        found = cs.calibrate(rule, 100.0, 1e-12, 100, 10**5, adjacency="add-remove")
    assert 98.0 <= cs.account(found, 100, 10**5, 1e-12, "add-remove").certified <= 100.0


@pytest.mark.parametrize("name", ["DPSGD", "GammaDPSGD"])
def test_where_no_noise_is_needed_the_right_argument_is_blamed(name):
    rule = registry.rules()[name] if name == "DPSGD" else cs.GammaDPSGD(cs.schedules.Constant(1.0), 1.0, 1.0, batch=2)
    with pytest.raises(ValueError, match=r"^epsilon must be below .*e\+\d\d here, .* got 1e\+60"):
        cs.calibrate(rule, 1e60, 1e-5, RECORDS, 1, adjacency="zero-out")
    with pytest.raises(ValueError, match="^delta must be below the chance that a record takes part at all"):
        cs.calibrate(rule, 1.0, 0.5, RECORDS, 1, adjacency="zero-out")


def test_local_budgets_are_calibrated_too():
    for target in TARGETS:
        found = cs.calibrate(cs.LDPSGD(cs.schedules.Constant(1.0), 1.0), target, 1e-5, RECORDS, RECORDS)
        assert 0.98 * target <= cs.account(found, RECORDS, RECORDS, 1e-5).certified <= target * (1 + 1e-9)
    with pytest.raises(ValueError, match="adjacency must be 'replace-one' for local noise"):
        cs.calibrate(found, 1.0, 1e-5, RECORDS, RECORDS, adjacency="zero-out")


def test_a_delta_of_one_in_the_records_is_warned_about():
    rule = cs.DPSGD(cs.schedules.Constant(1.0), 1.0, 1.0, batch=10)
    message = "δ = 0.01 is at least 1 in 100 records"
    with pytest.warns(cs.PrivacyWarning, match=message) as caught:
        found = cs.calibrate(rule, 1.0, 0.01, 100, 20)
    assert caught[0].filename == __file__
    assert any(message in reason for reason in cs.account(found, 100, 20, 0.01).reasons)
    cs.calibrate(rule, 1.0, 0.0099, 100, 20)  # no warning, which would be an error
    assert not any("at least 1 in" in reason for reason in cs.account(found, 100, 20, 0.0099).reasons)
    cs.calibrate(rule, 1.0, 0.01, 100, 20, how="paper")  # promises nothing anyway


@pytest.mark.parametrize("clip", [1e-30, 1e30, 1e80])
def test_clips_of_any_size_are_calibrated(clip):
    """Noise is first tried at the scale of the clip: noise of 1 would be too little for the largest."""
    found = [
        cs.calibrate(cs.DPSGD(cs.schedules.Constant(0.1), c, 1.0, batch=10), 1.0, 1e-5, 100, 20).noise.std
        for c in (1.0, clip)
    ]
    assert found[1] == pytest.approx(clip * found[0], rel=1e-3)
