"""Records that are added or removed: what holds with a public rate, and what fails when the rate is B/m."""

import math

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import binom, norm

import clipsilon as cs
from clipsilon.privacy.accounting import profiles
from clipsilon.privacy.auditing.canaries import Linear

STEP = cs.schedules.Constant(1.0)
DELTA = 1e-5


def density(x, others, q, noise, own=None):
    """Return the density of the sum of a Poisson batch with noise: `others` records add 1 each, one more adds `own`."""
    drawn = np.arange(others + 1)
    weights, means = binom.pmf(drawn, others, q), drawn.astype(float)
    if own is not None:
        weights, means = np.concatenate([weights * (1 - q), weights * q]), np.concatenate([means, means + own])
    return (weights[:, None] * norm.pdf(x, means[:, None], noise)).sum(axis=0)


def epsilon(p, q, width):
    """Return the smallest ε at DELTA in both directions for two densities on one grid."""

    def excess(loss, one, other):
        return float(np.maximum(one - math.exp(loss) * other, 0).sum() * width) - DELTA

    pairs = [(p, q), (q, p)]
    return max(brentq(excess, 0, 100, args=pair) if excess(0, *pair) > 0 else 0.0 for pair in pairs)


def exact(records, noise, rate, rate_without, own):
    """Return the true ε of one step when the record that adds `own` leaves, and the rate changes with it."""
    x = np.linspace(-12 * noise - 2, records + 12 * noise + 2, 40_001)
    with_record = density(x, records - 1, rate, noise, own)
    without = density(x, records - 1, rate_without, noise)
    return epsilon(with_record, without, x[1] - x[0])


@pytest.mark.parametrize(
    ("records", "batch", "noise", "true"), [(3, 2, 2.0, 4.24), (10, 9, 2.0, 7.02), (10, 5, 3.0, 1.26)]
)
def test_with_a_batch_size_alone_the_poisson_certificate_is_broken(records, batch, noise, true):
    """The other records pull one way, and each takes part more often when one record leaves: that shows."""
    attacked = exact(records, noise, batch / records, batch / (records - 1), -1.0)
    certified = profiles.poisson(batch / records, noise, 1).epsilon(DELTA)
    assert attacked > true > 1.5 * certified
    rule = cs.DPSGD(STEP, clip=1.0, noise_std=noise / batch, batch=batch)
    with pytest.raises(
        ValueError, match="adjacency must be 'replace-one' or 'zero-out' for Poisson sampling with batch="
    ):
        cs.account(rule, records, 1, DELTA, "add-remove")


@pytest.mark.parametrize(("records", "rate", "noise"), [(3, 0.6, 2.0), (10, 0.9, 2.0), (10, 0.5, 3.0), (4, 1.0, 2.0)])
@pytest.mark.parametrize("own", [-1.0, 0.3, 1.0])
def test_with_a_public_rate_no_others_break_the_certificate(records, rate, noise, own):
    rule = cs.DPSGD(STEP, clip=1.0, noise_std=noise / 7, batch=7, rate=rate)
    certified = cs.account(rule, records, 1, DELTA, "add-remove").certified
    assert exact(records, noise, rate, rate, own) <= certified * (1 + 1e-6)
    # The others only hide the record: alone it attains the certificate.
    assert exact(1, noise, rate, rate, 1.0) == pytest.approx(certified, rel=0.005)


def test_the_certificate_does_not_depend_on_the_number_of_records():
    for rule in (
        cs.DPSGD(STEP, 1.0, 0.02, batch=100, rate=0.05),
        cs.DiceSGD(STEP, 1.0, 1.0, 2.0, batch=100, sampling="poisson", rate=0.05),
        cs.GammaDPSGD(STEP, 1.0, 2.0, batch=100, rate=0.05),
    ):
        found = {cs.account(rule, records, 50, 1e-6, "add-remove").certified for records in (3, 2000, 2001)}
        assert len(found) == 1
        assert np.isfinite(found.pop())
        calibrated = {
            cs.calibrate(rule, 1.0, 1e-6, records, 50, adjacency="add-remove").noise for records in (3, 2000, 2001)
        }
        assert len(calibrated) == 1


@pytest.mark.parametrize("adjacency", ["add-remove", "zero-out", "replace-one"])
def test_a_capped_error_and_a_public_rate_certify_nothing(adjacency):
    """The engine's sums are too coarse there: its noise covers the rounding of e in a few dozen steps only."""
    rule = cs.DiceSGD(STEP, 1.0, 1.0, 2.0, residual_cap=1.5, batch=100, sampling="poisson", rate=0.05)
    stated = cs.account(rule, 2000, 50, 1e-6, adjacency)
    assert stated.certified == math.inf
    assert "leave out the rate, or the feedback" in str(stated)
    without = cs.DiceSGD(STEP, 1.0, 1.0, 2.0, residual_cap=1.5, batch=100, sampling="poisson")
    if adjacency != "add-remove":
        assert cs.account(without, 2000, 50, 1e-6, adjacency).certified < math.inf


def test_a_rate_of_batch_over_records_certifies_what_the_batch_does():
    for kind in ("zero-out", "replace-one"):
        found = [
            cs.account(cs.DPSGD(STEP, 1.0, 0.02, batch=100, **more), 2000, 500, 1e-6, kind)
            for more in ({}, {"rate": 0.05})
        ]
        assert found[0].certified == found[1].certified
        assert found[0].claimed == pytest.approx(found[1].claimed)


def test_the_statement_names_the_rate_and_what_must_not_be_known():
    rule = cs.DPSGD(STEP, 1.0, 0.02, batch=100, rate=0.05)
    text = str(cs.account(rule, 2000, 500, 1e-6, "add-remove"))
    assert "with a public rate of 0.05 for every number of records" in text
    assert "The number of records is not public" in text
    assert "The number of records is not public" not in str(cs.account(rule, 2000, 500, 1e-6, "zero-out"))


def test_an_audit_of_records_that_leave_stays_below():
    """False alarms: the bound exceeds the truth with probability below 1e-6."""
    rule = cs.DPSGD(STEP, clip=1.0, noise_std=0.5, batch=2, rate=0.4)
    found = cs.audit(rule, 5, 4, DELTA, runs=2000, confidence=1 - 1e-7, seed=0, adjacency="add-remove")
    assert 0.3 < found.lower_bound <= found.statement.certified


@pytest.mark.parametrize("sampling", ["uniform", "epochs", "full", "single-pass"])
def test_other_samplers_are_refused_with_what_to_do(sampling):
    rule = cs.DPSGD(STEP, 1.0, 1.0, batch=1, sampling=sampling)
    for attempt in (
        lambda: cs.account(rule, 50, 20, DELTA, "add-remove"),
        lambda: cs.calibrate(rule, 1.0, DELTA, 50, 20, adjacency="add-remove"),
        lambda: cs.longest_run(rule, 1.0, DELTA, 50, adjacency="add-remove"),
    ):
        with pytest.raises(ValueError, match="a public rate, such as sampling='poisson', rate=0.01"):
            attempt()


def test_what_is_tuned_for_add_remove_has_a_rate_of_its_own():
    problem = cs.Problem(np.random.default_rng(1).standard_normal((400, 2)), loss=cs.losses.Quadratic(1.0))
    found = cs.tune(problem, 1.0, 1e-5, 100, preset="PCSGD", batch=20, start=2.0, adjacency="add-remove")
    assert found.rule.sampling == (20, 0.05)
    assert cs.account(found.rule, 399, 100, 1e-5, "add-remove").certified == found.statement.certified
    with pytest.raises(ValueError, match="batch must be at most the number of records"):
        cs.tune(problem, 1.0, 1e-5, 100, batch=500, adjacency="add-remove")


def test_zeroing_out_and_leaving_are_the_same_with_a_public_rate():
    """A two-step attack with gradients that adapt, by brute force over a grid of first outputs."""
    q, noise, alpha = 0.4, 1.3, math.exp(0.5)
    x = np.linspace(-12, 13, 2001)
    width = x[1] - x[0]
    base, mix = norm.pdf(x, 0, noise), (1 - q) * norm.pdf(x, 0, noise) + q * norm.pdf(x, 1, noise)
    joint = np.maximum(np.outer(mix, mix) - alpha * np.outer(base, base), 0).sum() * width**2
    certified = cs.account(cs.DPSGD(STEP, 1.0, noise / 3, batch=3, rate=q), 10, 2, DELTA, "add-remove").delta_at(0.5)
    assert joint <= certified <= 1.02 * joint


def test_the_linear_loss_of_the_audits_adds_the_record_itself():
    problem = cs.Problem(np.array([[0.5], [0.0]]), loss=Linear())
    rule = cs.DPSGD(STEP, 1.0, 0.0, batch=4, rate=1.0)
    with np.errstate(divide="ignore"):
        assert cs.run(problem, rule, 1).theta[0, -1, 0] == -0.125
