"""An audit of single reports stays below the budget and reaches three quarters of it."""

import importlib

import numpy as np
import pytest

import clipsilon as cs
from clipsilon.local import report as make_report
from clipsilon.local.audit import extremes
from clipsilon.local.report import prepare, release

LOSSES = [cs.losses.MallowsLogistic(), cs.losses.HuberRegression()]


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: type(loss).__name__)
@pytest.mark.parametrize("mu", [1.0, 2.0, 4.0])
def test_audit_is_below_the_budget_and_near_it(loss, mu):
    """20,000 reports of each record.

    False alarm: each of the six audits exceeds the budget with probability at most 1e-7, one minus its confidence.
    To fall below 0.75 of ε, `lower_mu` would have to be below 0.78·μ. It is 5.2 standard errors, of 0.014 at μ = 1 and
    0.03 at μ = 4, below an estimate of at least 0.97·μ: that leaves 8 standard errors.
    """
    found = cs.local.audit(loss, mu, delta=1e-5, runs=20_000, confidence=1 - 1e-7, seed=7)
    assert 0.75 * found.epsilon < found.lower_bound < found.epsilon
    assert found.lower_mu < mu
    assert found.distance > 0.97


def test_audit_detects_too_little_noise(monkeypatch):
    """A device that adds half of the noise is caught.

    False alarm: 2μ is estimated with a standard error of 0.05, and 1.5μ is more than 7 of them below the limit's mean.
    """
    device = importlib.import_module("clipsilon.local.report")
    right = device.check_budget
    monkeypatch.setattr(device, "check_budget", lambda name, value: 2 * right(name, value))
    found = cs.local.audit(LOSSES[0], 1.0, delta=1e-5, runs=4000, confidence=0.95, seed=9)
    assert found.lower_mu > 1.5
    assert found.lower_bound > found.epsilon


def test_audit_makes_reports_as_a_device_does():
    (record, _), theta = extremes(LOSSES[0])
    one = make_report(theta, record, LOSSES[0], 2.0, rng=np.random.default_rng(1))
    other = release(prepare(record, LOSSES[0]), theta, 2.0, np.random.default_rng(1))
    assert np.array_equal(one, other)
    assert cs.local.audit(LOSSES[0], 1.0, 1e-5, runs=20).runs == 20  # without a seed: the device's own generators


def test_audit_of_given_records():
    records = ([1.0, 0.0], 1.0), ([-1.0, 0.0], 1.0)
    found = cs.local.audit(LOSSES[0], 2.0, 1e-5, runs=50, seed=0, records=records, theta=[0.0, 0.0])
    assert found.distance == pytest.approx(1 / np.sqrt(8))  # gradients ∓½·x, of length ½
    assert "the probability that an audit shows more is at most 0.05" in str(found)
    with pytest.raises(ValueError, match="records and theta must be given together"):
        cs.local.audit(LOSSES[0], 2.0, 1e-5, records=records)
