"""The compiled engine equals the plain-Python reference, draw by draw."""

from typing import NamedTuple

import numpy as np
import pytest
from scipy import sparse
from scipy.special import poch

import clipsilon as cs
import reference
import registry
from clipsilon.problems.responses import respond
from clipsilon.rules.clipping import PerClass
from clipsilon.rules.outputs import Average
from clipsilon.rules.rule import Rule
from clipsilon.rules.sampling import Uniform

STEPS = 150


def running_means(output, thetas):
    """What an output that averages would release after each step."""
    if isinstance(output, cs.outputs.TailAverage):
        begin = len(thetas) // 2
        return np.array([thetas[min(t, begin) : t + 1].mean(axis=0) for t in range(len(thetas))])
    weights = poch(np.arange(1, len(thetas) + 1), output.power)[:, np.newaxis]
    return np.cumsum(weights * thetas, axis=0) / np.cumsum(weights, axis=0)


def assert_same(problem, rule, steps=STEPS, start=0.3):
    thetas, errors, output = reference.run(problem, rule, steps, start, seed=11)
    trace = cs.run(problem, rule, steps, start, seed=11, record=range(steps + 1))
    close = reference.allowance(problem, rule, steps)
    np.testing.assert_allclose(trace.theta[0], thetas, **close)
    np.testing.assert_allclose(trace.output[0], output, **close)
    if trace.average is not None:
        means = running_means(rule.output, thetas[1:])
        np.testing.assert_allclose(trace.average[0], np.vstack((thetas[:1], means)), **close)
    if trace.error is None:
        assert not errors.any()
    else:
        assert errors.any()
        np.testing.assert_allclose(trace.error[0], errors, **close)


PROBLEMS = {
    "quadratic": reference.problem(cs.losses.Quadratic(1.5), cs.responses.LocationShift(0.2), cs.regions.Box(-2, 2)),
    "logistic": reference.problem(cs.losses.Logistic(0.1, 2.0), cs.responses.BestResponse(0.3, 0.2)),
    "huber": reference.problem(cs.losses.Huber(0.7, 0.05), cs.responses.LinearShift(0.2, [0, 2]), cs.regions.Ball(0.9)),
    "savage": reference.problem(cs.losses.Savage()),
}


PRESETS = registry.rules() | registry.other_rules()
# Each pair takes seconds to compile. Without reacting records ("savage") no gradients are formed, and only clip and
# feedback matter (test_every_loss covers a clip without feedback). Every preset runs with records that react, and every
# output in each region.
QUICK = {
    "savage": {"SGD", "DiceSGD", "AdamDiceSGD", "AutoDiceSGD", "AdaptiveDPSGD"},
    "logistic": {
        *("SGD", "PCSGD", "DiceSGD", "AdamDiceSGD", "NoisySelection", "AdaptiveDPSGD", "TrackedSGD", "CorrelatedSGD")
    },
    "quadratic": {"DPSGD", "AutoDiceSGD", "DPGD", "ClippedDPGD", "NoisySelection", "TrackedSGD"},
    "huber": {"GammaDPSGD", "DiceSGD", "DPGD", "ClippedDPGD", "NoisySelection"},
}
PAIRS = [
    pytest.param(preset, problem, marks=[] if preset in QUICK[problem] else pytest.mark.verify)
    for problem in PROBLEMS
    for preset in PRESETS
]


@pytest.mark.parametrize(("preset", "problem"), PAIRS)
def test_every_preset(preset, problem):
    assert_same(PROBLEMS[problem], PRESETS[preset])


def test_every_preset_meets_records_that_react_without_asking():
    assert QUICK["logistic"] | QUICK["quadratic"] | QUICK["huber"] == set(PRESETS)


LOCAL = {
    "mallows": reference.problem(cs.losses.MallowsLogistic(), cs.responses.BestResponse(0.3, 0.2), records=STEPS + 3),
    "huber": reference.problem(cs.losses.HuberRegression(), cs.responses.BestResponse(0.3, 0.2), records=STEPS + 3),
}
LOCAL_PAIRS = [
    ("LDPSGD", "mallows"),
    ("LDPASGD", "huber"),
    pytest.param("LDPSGD", "huber", marks=pytest.mark.verify),
    pytest.param("LDPASGD", "mallows", marks=pytest.mark.verify),
]


@pytest.mark.parametrize(("preset", "problem"), LOCAL_PAIRS)
def test_local_noise(preset, problem):
    budgets, step = np.random.default_rng(5).uniform(0.5, 3.0, LOCAL[problem].records), cs.schedules.Power(0.2, 0.5)
    assert_same(LOCAL[problem], registry.local_rules(2.0, step)[preset])
    assert_same(LOCAL[problem], registry.local_rules(budgets, step, deploy_every=4)[preset])


@pytest.mark.parametrize("weights", [{}, {"weights": "equal"}, {"variance": 0.1}], ids=str)
@pytest.mark.parametrize(("preset", "problem"), LOCAL_PAIRS)
def test_rounds_of_local_reports(preset, problem, weights):
    """The last round has fewer reports, as 7 does not divide their number."""
    budgets, step = (
        np.random.default_rng(5).choice([0.1, 1.0, 10.0], LOCAL[problem].records),
        cs.schedules.Constant(0.1),
    )
    rule = registry.local_rules(budgets, step, batch=7, deploy_every=3, **weights)[preset]
    assert LOCAL[problem].records % 7
    assert_same(LOCAL[problem], rule, steps=-(-LOCAL[problem].records // 7))


@pytest.mark.parametrize("sampling", registry.SAMPLINGS, ids=registry.name)
def test_every_sampling(sampling):
    steps = 9 if registry.name(sampling) in ("SinglePass", "InOrder") else 40
    rule = registry.rules()["DiceSGD"]
    other = Rule("DiceSGD", rule.step, rule.clip, sampling, rule.noise, rule.feedback)
    assert_same(PROBLEMS["logistic"], other, steps)


@pytest.mark.parametrize("loss", registry.LOSSES, ids=registry.name)
def test_every_loss(loss):
    """Use all records in every step, as estimators do by default: they need the same kernels."""
    assert_same(reference.problem(loss), cs.ClippedDPGD(cs.schedules.Constant(0.1), clip=0.8, noise_std=0.2), steps=40)


@pytest.mark.parametrize("more", [{"sampling": "full", "batch": 1}, {"batch": 20, "deploy_every": 3}], ids=str)
def test_tracked_gradients_of_full_batches_and_lazy_deployment_are_the_reference(more):
    assert_same(PROBLEMS["logistic"], cs.TrackedSGD(cs.schedules.Constant(0.05), 0.3, 0.05, **more))


@pytest.mark.parametrize("noise_std", [0.0, 0.05])
def test_tracked_gradients_of_weighted_and_sparse_records_are_the_reference(noise_std):
    x, y = reference.data()
    x[np.abs(x) < 0.5] = 0.0
    weights = np.where(np.arange(60) % 7 == 0, 0.0, np.linspace(0.3, 2, 60))
    problem = cs.Problem(sparse.csr_array(x), y, loss=cs.losses.Logistic(0.1), weights=weights)
    assert_same(problem, cs.TrackedSGD(cs.schedules.Constant(0.05), 0.2, noise_std, batch=25))


def test_lazy_deployment():
    rule = registry.rules(deploy_every=7)["DiceSGD"]
    assert_same(PROBLEMS["logistic"], rule)
    greedy = cs.run(PROBLEMS["logistic"], registry.rules()["DiceSGD"], STEPS, seed=11)
    lazy = cs.run(PROBLEMS["logistic"], rule, STEPS, seed=11)
    assert not np.allclose(greedy.theta, lazy.theta, atol=1e-9)


@pytest.mark.parametrize("power", [0.0, 3.0, 0.5])
def test_per_class_clipping_averaging_and_a_constant_step(power):
    rule = Rule("averaged", cs.schedules.Constant(0.05), PerClass(0.4, 2), Uniform(4), output=Average(power))
    assert_same(PROBLEMS["logistic"], rule)


class Shaken(NamedTuple):
    """A response that moves each record at random, independently of the model."""

    scale: float

    random = True


@cs.implements(respond, Shaken)
def _(response, deployed, features, label, moved, rng):
    for j in range(features.size):
        moved[j] = features[j] + response.scale * rng.standard_normal()
    return label


def test_random_response():
    problem = reference.problem(cs.losses.Logistic(0.1), Shaken(0.5))
    rule = cs.PCSGD(cs.schedules.Power(0.1, 0.5), clip=0.8, noise_std=0.2)
    assert_same(problem, rule)
