"""The certificate of correlated noise: what it is made of, what is refused, and attacks that come close to it."""

import numpy as np
import pytest

import clipsilon as cs
from clipsilon.privacy.accounting import gaussian
from clipsilon.rules.correlation import coefficients, shift_norm, square_root
from clipsilon.rules.rule import Rule

STEP, DELTA = cs.schedules.Constant(0.1), 1e-5
PAIRS = np.array([[0.3, 0.2], [0.9, 0.25], [0.99, 0.1]])


def certified(rule, records, steps, adjacency="zero-out"):
    return cs.account(rule, records, steps, DELTA, adjacency).certified


@pytest.mark.parametrize(("adjacency", "change"), [("zero-out", 1.0), ("replace-one", 2.0)])
@pytest.mark.parametrize(
    ("sampling", "batch", "steps", "times", "apart"),
    [("single-pass", 4, 25, 1, 25), ("cyclic", 4, 60, 3, 25), ("cyclic", 3, 35, 2, 34), ("full", 1, 10, 10, 1)],
)
def test_the_certificate_is_one_gaussian(sampling, batch, steps, times, apart, adjacency, change):
    rule = cs.CorrelatedSGD(STEP, 0.7, 2.0, batch=batch, sampling=sampling, buffers=PAIRS)
    c, total = coefficients(PAIRS, steps), np.zeros(steps)
    for j in range(times):
        total[j * apart :] += c[: steps - j * apart]
    size = 100 if sampling == "full" else batch
    mu = change * np.linalg.norm(total) * 0.7 / (size * 2.0)
    assert certified(rule, 100, steps, adjacency) == pytest.approx(gaussian.epsilon(mu, DELTA), rel=1e-8)


def test_calibrated_noise_certifies_its_target():
    rule = cs.calibrate(cs.CorrelatedSGD(STEP, 1.0, 1.0, batch=10), 1.0, DELTA, 1000, 100, adjacency="zero-out")
    assert 0.99 < certified(rule, 1000, 100) <= 1.0
    assert rule.noise.buffers.shape == (6, 2)
    assert cs.longest_run(rule, 1.0, DELTA, 1000, "zero-out") == 100


@pytest.mark.parametrize("epsilon", [0.1, 0.02, 0.01])
@pytest.mark.parametrize(("sampling", "batch"), [("single-pass", 10), ("full", 1)])
def test_small_budgets_can_be_calibrated(epsilon, sampling, batch):
    """The search for noise must not jump over what can be certified."""
    rule = cs.CorrelatedSGD(STEP, 1.0, 1.0, batch=batch, sampling=sampling)
    rule = cs.calibrate(rule, epsilon, DELTA, 1000, 100)
    assert 0.98 * epsilon < certified(rule, 1000, 100, "replace-one") <= epsilon


def test_rounding_limits_what_more_noise_certifies():
    found = [certified(correlated(noise=cs.noise.Correlated(std, PAIRS)), 100, 20) for std in (1.0, 1e3, 1e4, 1e7)]
    assert found[0] > found[1] > 0
    assert found[2] == found[3] > 0
    rule = cs.CorrelatedSGD(STEP, 1.0, 3.0, sampling="full")
    assert cs.longest_run(rule, 1.0, DELTA, 1000) > 100  # fewer steps are certified, too


def test_no_paper_claims_anything():
    stated = cs.account(cs.CorrelatedSGD(STEP, 1.0, 1.0, batch=10), 1000, 100, DELTA)
    assert stated.claimed is None
    with pytest.raises(ValueError, match="how must be 'certified' for this rule"):
        cs.calibrate(cs.CorrelatedSGD(STEP, 1.0, 1.0, batch=10), 1.0, DELTA, 1000, 100, how="paper")


def correlated(**parts):
    """A rule with correlated noise, and parts of one's own."""
    plain = {
        "clip": cs.clipping.Norm(1.0),
        "sampling": cs.sampling.SinglePass(1),
        "noise": cs.noise.Correlated(2.0, PAIRS),
    }
    return Rule("own", STEP, **{**plain, **parts})


@pytest.mark.parametrize(
    "parts",
    [
        {"sampling": cs.sampling.Poisson(5)},  # with bands, others' code samples the whole data at every step
        {"sampling": cs.sampling.Uniform(5)},
        {"sampling": cs.sampling.Epochs(5)},  # shuffled anew: participations come closer than a pass
        {"clip": cs.clipping.Scheduled(cs.schedules.Power(1.0, 0.1))},
        {"clip": cs.clipping.Unclipped()},
        {"feedback": cs.feedback.ErrorFeedback(cs.clipping.Norm(1.0), cs.clipping.Norm(2.0))},  # it goes on afterwards
        {"noise": cs.noise.Correlated(0.0, PAIRS)},
    ],
    ids=str,
)
def test_nothing_else_is_certified(parts):
    stated = cs.account(correlated(**parts), 100, 20, DELTA)
    assert stated.certified == np.inf
    assert stated.reasons[0].startswith("Nothing can be certified")


def test_other_samplers_are_refused_by_the_preset():
    with pytest.raises(
        ValueError, match="sampling must be one of 'single-pass', 'in-order', 'cyclic', 'full', got 'poisson'"
    ):
        cs.CorrelatedSGD(STEP, 1.0, 1.0, batch=5, sampling="poisson")
    with pytest.raises(ValueError, match="add-remove"):
        cs.account(cs.CorrelatedSGD(STEP, 1.0, 1.0), 100, 20, DELTA, "add-remove")


def test_a_prefix_costs_its_own_sensitivity():
    """A length fixed beforehand, that is: the certificate of T steps is that of T, wherever the run is stopped."""
    rule = cs.CorrelatedSGD(STEP, 1.0, 1.0, batch=1, buffers=PAIRS)
    found = [certified(rule, 1000, steps) for steps in (1, 10, 100, 1000)]
    assert found == sorted(found)
    assert found[0] < found[-1]
    assert shift_norm(PAIRS, 1) == pytest.approx(1.0)


@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
def test_an_attack_comes_close_to_the_certificate(adjacency):
    """False alarms: the bound exceeds the truth with probability below 1e-6."""
    rule = cs.CorrelatedSGD(STEP, 1.0, 2.0, sampling="full", buffers=square_root(6))
    rule = cs.calibrate(rule, 2.0, DELTA, 3, 6, adjacency=adjacency)
    found = cs.audit(rule, 3, 6, DELTA, runs=4000, confidence=1 - 1e-7, seed=0, adjacency=adjacency)
    assert 0.6 * found.statement.certified < found.lower_bound <= found.statement.certified


def test_an_attack_that_takes_the_noise_for_independent_finds_less():
    """Correlated noise hides a record in the sum of all updates: the attack has to undo the correlation."""
    rule = cs.CorrelatedSGD(STEP, 1.0, 0.5, batch=1, sampling="cyclic", buffers=square_root(6))
    found = cs.audit(rule, 2, 6, DELTA, runs=2000, confidence=1 - 1e-7, seed=0, adjacency="zero-out")
    assert 0.5 < found.lower_bound <= found.statement.certified
