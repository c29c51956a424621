"""A release that has a fault certifies nothing, wherever its number is read."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

import clipsilon as cs
from clipsilon.privacy.accounting import profiles
from clipsilon.privacy.certificate import Certificate
from clipsilon.privacy.statement import INEXACT, about_noise, fail_closed
from clipsilon.rules.noise import Gaussian

STEP = cs.schedules.Constant(1.0)
RULES = {
    "Gaussian": cs.DPSGD(STEP, 1.0, 0.5, batch=1, sampling="full"),
    "Poisson": cs.DPSGD(STEP, 1.0, 0.1, batch=10),
    "selection": cs.NoisySelection(STEP, 1.0, 0.5, 0.5),
}


def stated(kind="Gaussian"):
    return cs.account(RULES[kind], 100, 20, 1e-5)


@pytest.mark.parametrize("kind", RULES)
def test_every_number_follows_the_closed_value(kind):
    whole = stated(kind)
    closed = fail_closed(whole, "The lock was open.")
    assert math.isfinite(whole.certified)
    assert closed.certified == closed.epsilon(1e-5) == closed.epsilon(0.5) == closed.gaussian_mu == math.inf
    assert [closed.delta_at(epsilon) for epsilon in (0.0, 1.0, 100.0)] == [1.0, 1.0, 1.0]
    np.testing.assert_array_equal(closed.tradeoff([0.0, 0.1, 1.0]), 0.0)
    assert closed.nominal == whole.certified == whole.nominal
    assert closed.mended is whole
    assert not closed.claim_holds
    content = json.loads(closed.to_json())
    assert (content["certified_epsilon"], content["nominal_epsilon"]) == (None, whole.certified)
    assert content["faults"] == ["The lock was open."]


def test_people_read_both_numbers_and_the_reason_first():
    closed = fail_closed(stated(), "The lock was open.")
    assert closed.reasons[0] == closed.certificate.reasons[0] == "The lock was open."
    assert closed.reasons[1:] == stated().reasons
    number = f"{closed.nominal:.4g}"
    assert f"certified: ε = ∞ at δ = 1e-05, nominal: ε = {number} with this mended\n" in str(closed)
    assert "| certified ε | ∞ |\n" in closed.to_markdown()
    assert f"| nominal ε | {number} with this mended: The lock was open. |\n" in closed.to_markdown()
    assert "nominal" not in str(stated()) + stated().to_markdown()


def test_closing_twice_keeps_the_first_nominal():
    once = fail_closed(stated(), "The lock was open.")
    twice = fail_closed(once, "The key was lost.")
    assert (twice.nominal, twice.certified) == (once.nominal, math.inf)
    assert twice.reasons[:2] == twice.faults == ("The key was lost.", "The lock was open.")
    again = fail_closed(twice, "The lock was open.")
    assert again.reasons[:2] == again.faults == ("The lock was open.", "The key was lost.")
    assert again.reasons[2:] == stated().reasons


def test_what_cost_nothing_stays_zero():
    free = replace(stated(), certified=0.0, certificate=Certificate(profiles.gaussian(0.0), ()))
    assert fail_closed(free, "The lock was open.") is free
    # An ε of 0 at a large δ is not free: at a smaller δ it is above 0.
    rare = cs.account(cs.DPSGD(STEP, 1.0, 1.0, batch=1), 1000, 2, 0.5)
    assert rare.certified == 0.0
    assert fail_closed(rare, "The lock was open.").certified == math.inf


def test_nothing_certified_has_no_nominal_value_to_show():
    none = cs.account(cs.DPSGD(STEP, 1.0, 0.0, batch=10), 100, 20, 1e-5)
    closed = fail_closed(none, "The lock was open.")
    assert closed.nominal == math.inf
    assert "nominal" not in str(closed) + closed.to_markdown()
    assert json.loads(closed.to_json())["nominal_epsilon"] is None


def test_account_releases_nothing_and_stays_open():
    for kind in RULES:
        assert stated(kind).faults == ()
        assert stated(kind).mended is None
        assert stated(kind).to_dict()["nominal_epsilon"] == stated(kind).certified


def test_noise_that_is_not_exact_closes_a_release(monkeypatch):
    """Noise parts state that they are exact; Gamma noise and the Laplace noise of a selection do not."""
    gamma = cs.GammaDPSGD(STEP, 1.0, 0.5, batch=10)
    rules = {"Gaussian": RULES["Gaussian"], "Radial": gamma, "Selected": RULES["selection"]}
    monkeypatch.setattr(Gaussian, "exact", True, raising=False)
    for part, rule in rules.items():
        whole = cs.account(rule, 100, 20, 1e-5, "zero-out")
        found = about_noise(whole, rule)
        exact = getattr(type(rule.noise), "exact", False) and getattr(type(rule.output), "exact", part != "Selected")
        assert found.faults == (() if exact else (f"{part}: {INEXACT}",))
        assert (found.certified, found.nominal) == (whole.certified if exact else math.inf, whole.certified)
