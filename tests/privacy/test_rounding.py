"""No setting makes an accountant fail: what rounding does to probabilities is absorbed, on the safe side."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import clipsilon as cs
from clipsilon.privacy.accounting import profiles
from clipsilon.privacy.accounting.sampled import participations

STEP = cs.schedules.Constant(1.0)


def test_chances_that_rounding_let_rise():
    """The chance of more participations must not grow; the difference of two that are all but 1 may be −1e-16."""
    rule = cs.DiceSGD(STEP, 1, 1, 1, residual_cap=2, batch=4)
    assert 0 < cs.account(rule, 6, 1829, 1e-5).certified < math.inf


@settings(max_examples=300, deadline=None, derandomize=True)
@given(records=st.integers(2, 50), batch=st.integers(1, 49), steps=st.integers(1, 5000))
def test_participations_are_probabilities(records, batch, steps):
    counts, weights = participations(min(batch, records - 1) / records, steps)
    assert weights.min() >= 0
    assert math.fsum(weights) == pytest.approx(1, abs=1e-12)
    assert (np.diff(counts) > 0).all()
    profiles.mixture(weights, np.sqrt(counts))


PRESETS = {
    "DPSGD": lambda noise, more: cs.DPSGD(STEP, 1.0, noise, **more),
    "capped": lambda noise, more: cs.DiceSGD(STEP, 1.0, 1.0, noise, residual_cap=1.5, **more),
    "uncapped": lambda noise, more: cs.DiceSGD(STEP, 1.0, 1.0, noise, **more),
    "Auto": lambda noise, more: cs.AutoDiceSGD(STEP, noise, **more),
    "Gamma": lambda noise, more: cs.GammaDPSGD(STEP, 1.0, noise, **more),
}


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    preset=st.sampled_from(sorted(PRESETS)),
    sampling=st.sampled_from(["uniform", "poisson", "epochs", "rate"]),
    adjacency=st.sampled_from(["replace-one", "zero-out", "add-remove"]),
    log_records=st.floats(0.5, 16),
    fraction=st.floats(0, 1),
    log_noise=st.floats(-7, 7),
    log_steps=st.floats(0, 9),
    log_delta=st.floats(-40, -0.5),
)
def test_every_setting_has_an_answer(
    preset, sampling, adjacency, log_records, fraction, log_noise, log_steps, log_delta
):
    """Random settings from 2 to 10⁷ records, with next to no noise and far too much of it."""
    records, steps, delta = math.ceil(math.exp(log_records)), round(math.exp(log_steps)), math.exp(log_delta)
    batch = max(1, min(records, round(records**fraction)))
    more = {"batch": batch, "sampling": sampling}
    if sampling == "rate":
        more = {"batch": batch, "sampling": "poisson", "rate": batch / records}
    elif adjacency == "add-remove":
        adjacency = "zero-out"
    rule = PRESETS[preset](math.exp(log_noise) / (1 if preset == "Gamma" else batch), more)
    statement = cs.account(rule, records, steps, delta, adjacency)
    assert statement.certified >= 0
    if math.isfinite(statement.certified):
        assert 0 <= statement.delta_at(1.02 * statement.certified + 1e-4) <= delta * (1 + 1e-6)
