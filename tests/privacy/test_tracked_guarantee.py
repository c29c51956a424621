"""Tracked gradients: the certificate of DP-SGD, attacked by every adaptive choice of gradients in two steps."""

from dataclasses import replace

import numpy as np
import pytest

import clipsilon as cs
from clipsilon.rules.clipping import Norm
from clipsilon.rules.feedback import Tracked
from clipsilon.rules.noise import Gaussian, Radial
from clipsilon.rules.preconditioning import Plain
from clipsilon.rules.sampling import Epochs, Poisson, SinglePass, Uniform

STEP = cs.schedules.Constant(0.1)
Y = np.linspace(-9, 9, 451)
WIDTH = Y[1] - Y[0]


def density(y, mean):
    return np.exp(-((y - mean) ** 2) / 2) / np.sqrt(2 * np.pi)


def two_steps(q, mu, first, second):
    """The density of two noisy updates about one record, deviation 1, at all pairs of `Y`.

    `first` is the record's gradient in step 1; `second` has its gradients in step 2, any number of choices for each
    first update, of shape (choices, 1 or first updates). The memory is hidden: the record's coin in step 1 is averaged.
    """
    total = 0.0
    for coin, chance in ((0, 1 - q), (1, q)):
        memory = coin * np.clip(first, -mu, mu)
        change = np.clip(second - memory, -mu, mu)[..., np.newaxis]
        after = (1 - q) * density(Y, 0.0) + q * density(Y, change)
        total = total + chance * density(Y, memory)[:, np.newaxis] * after
    return total


def largest_delta(p, other, epsilon):
    """∫(p − e^ε·other)₊ for the worst choice of gradients after each first update."""
    excess = np.maximum(p - np.exp(epsilon) * other, 0.0).sum(axis=-1)  # over the second update
    worst = excess.reshape(-1, excess.shape[-1]).max(axis=0)
    return worst.sum() * WIDTH**2


def zero_out(q, mu, epsilon):
    """The largest δ at ε in either direction, for several first gradients, over gradients that adapt to the first update."""
    choices = np.linspace(-2.2 * mu, 2.2 * mu, 23)[:, np.newaxis]
    silent = density(Y, 0.0)[:, np.newaxis] * density(Y, 0.0)
    found = []
    for first in np.linspace(-mu, mu, 9):
        p = two_steps(q, mu, first, choices)
        found.append(max(largest_delta(p, silent, epsilon), largest_delta(silent, p, epsilon)))
    return np.array(found)


def certified(q, mu, epsilon, adjacency):
    m = 1000
    sampling = {"sampling": "full", "batch": 1} if q == 1 else {"batch": round(q * m)}
    rule = cs.TrackedSGD(STEP, 1.0, 1 / (mu * q * m), **sampling)
    return cs.account(rule, m, 2, 1e-5, adjacency).delta_at(epsilon)


@pytest.mark.parametrize(("q", "mu", "epsilon"), [(0.3, 1.0, 0.3), (0.1, 2.0, 0.5), (0.6, 0.7, 0.2), (1.0, 1.0, 1.0)])
def test_the_certificate_is_attained_and_never_exceeded(q, mu, epsilon):
    """Zero-out. The rounding of the integral is below 10⁻³ of it."""
    found, most = zero_out(q, mu, epsilon), certified(q, mu, epsilon, "zero-out")
    assert found.max() <= most * 1.001
    assert found.max() >= most * 0.985  # a gradient that is always longer than its memory
    assert found.min() < 0.9 * most  # choices matter


@pytest.mark.parametrize(("q", "mu", "epsilon"), [(0.3, 0.6, 0.3), (0.6, 0.5, 0.5), (1.0, 0.5, 1.0)])
def test_replaced_records_stay_within_the_certificate(q, mu, epsilon):
    """Both records adapt, each with a memory of its own; attained in full batches."""
    choices, most = np.linspace(-2 * mu, 2 * mu, 9)[:, np.newaxis], certified(q, mu, epsilon, "replace-one")
    found = []
    for first, other in ((mu, -mu), (mu, 0.0), (mu, mu), (mu / 2, -mu), (0.0, 0.0)):
        p = two_steps(q, mu, first, choices)[:, np.newaxis]
        replaced = two_steps(q, mu, other, choices)[np.newaxis]
        found += [largest_delta(p, replaced, epsilon), largest_delta(replaced, p, epsilon)]
    assert max(found) <= most * 1.001
    opposite = [two_steps(q, mu, first, np.array([[2 * first]])) for first in (mu, -mu)]  # as without memories
    assert max(found) <= largest_delta(*opposite, epsilon) * 1.001
    if q == 1:  # for Poisson batches, the profile of replacements is loose
        assert max(found) >= most * 0.985


# -- statements -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
@pytest.mark.parametrize("more", [{"batch": 50}, {"batch": 1, "sampling": "full"}, {"batch": 1000}], ids=str)
def test_the_certificate_is_that_of_dpsgd(more, adjacency):
    tracked, plain = (
        cs.account(preset(STEP, 0.7, 0.03, **more), 1000, 200, 1e-5, adjacency) for preset in (cs.TrackedSGD, cs.DPSGD)
    )
    assert tracked.certified == plain.certified < np.inf
    assert any("change of its own gradient" in reason for reason in tracked.reasons)
    assert any("memories are hidden state" in reason for reason in tracked.reasons)
    assert tracked.claimed is None  # no paper has it


def test_calibration_is_that_of_dpsgd():
    about = {"epsilon": 2.0, "delta": 1e-6, "records": 5000, "steps": 300, "adjacency": "zero-out"}
    tracked, plain = (cs.calibrate(preset(STEP, 0.5, 1.0, batch=100), **about) for preset in (cs.TrackedSGD, cs.DPSGD))
    assert tracked.noise == plain.noise
    assert tracked.name == "TrackedSGD"
    with pytest.raises(ValueError, match="how must be 'certified'"):
        cs.calibrate(tracked, **{**about, "how": "paper"})
    assert cs.longest_run(tracked, 2.0, 1e-6, 5000, "zero-out") >= 300


def parts(sampling, noise=None):
    return cs.Rule("own", STEP, Norm(1.0), sampling, noise or Gaussian(0.1), Tracked(), Plain())


@pytest.mark.parametrize("sampling", [Uniform(50), Epochs(50), SinglePass(50), Poisson(50, 0.05), Uniform(1000)])
@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
def test_nothing_is_certified_for_other_samplers(sampling, adjacency):
    steps = 1 if sampling == Uniform(1000) else 10
    statement = cs.account(parts(sampling), 1000, steps, 1e-5, adjacency)
    assert statement.certified == np.inf
    assert statement.reasons[0].startswith("Nothing can be certified: tracked gradients are for Poisson batches")


def test_nothing_is_certified_without_clip_or_with_other_noise():
    assert cs.account(parts(Poisson(50), Radial(0.1)), 1000, 10, 1e-5, "zero-out").certified == np.inf
    unclipped = replace(parts(Poisson(50)), clip=cs.clipping.Unclipped())
    assert cs.account(unclipped, 1000, 10, 1e-5, "zero-out").certified == np.inf


@pytest.mark.parametrize("rule", [cs.TrackedSGD(STEP, 1.0, 0.1, batch=50), parts(Poisson(50, 0.05))])
def test_add_remove_is_refused(rule):
    with pytest.raises(ValueError, match="for tracked gradients, which are certified for a public number"):
        cs.account(rule, 1000, 10, 1e-5, "add-remove")


# -- audits -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
@pytest.mark.parametrize("more", [{"batch": 8}, {"batch": 1, "sampling": "full"}], ids=str)
def test_audits_find_something_and_stay_below_the_certificate(more, adjacency):
    """At a confidence of 1 − 10⁻⁸ each, a false alarm has a probability below 10⁻⁷."""
    rule = cs.TrackedSGD(STEP, 1.0, 0.25, **more)
    found = cs.audit(rule, 10, 6, 1e-3, runs=2000, confidence=1 - 1e-8, seed=3, adjacency=adjacency)
    certified = found.statement.certified
    assert 0.05 * certified < found.lower_bound <= certified


def test_one_run_audits_use_canaries_that_last():
    rule = cs.TrackedSGD(STEP, 1.0, 0.002, batch=1, sampling="full")
    found = cs.audit_one_run(rule, 500, 10, 1e-5, canaries=500, seed=0)
    assert 0.5 < found.lower_bound <= cs.account(rule, 500, 10, 1e-5, "zero-out").certified


def test_accumulated_updates_do_not_reveal_the_number_of_records():
    """Add-remove is certified without memories, so records that add nothing must leave no trace: same noise, same θ."""
    parts = (cs.clipping.Norm(1.0), cs.sampling.Poisson(50, 0.05), cs.noise.Gaussian(1.0))
    rule = cs.Rule("own", cs.schedules.Constant(1.0), *parts, preconditioner=cs.preconditioning.Accumulated())
    assert cs.account(rule, 1000, 3, 1e-5, "add-remove").certified < np.inf
    problems = [cs.Problem(np.zeros((records, 2)), loss=cs.losses.Quadratic()) for records in (1000, 999)]
    np.testing.assert_array_equal(*[cs.run(problem, rule, 3, seed=0).output for problem in problems])
