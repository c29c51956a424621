"""Wrong input is refused at once, with one clear sentence."""

import re
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest

import clipsilon as cs
import reference

X, Y = reference.data()
Z = np.array([0.0, 1.0, 2.0])
LOGISTIC = cs.losses.Logistic()
STEP = cs.schedules.InverseTime(1, 10)
PROBLEM = cs.Problem(X, Y, loss=LOGISTIC, response=cs.responses.BestResponse(1.0))


def with_value(array, value):
    changed = array.copy()
    changed.flat[3] = value
    return changed


class Nameless(NamedTuple):
    """A part that implements nothing."""


class Forgetful(NamedTuple):
    """A response that does not return the label."""


@cs.implements(cs.responses.respond, Forgetful)
def _(response, deployed, features, label, moved, rng):
    moved[:] = features


class Secret(NamedTuple):
    """A random response that does not declare itself random."""


@cs.implements(cs.responses.respond, Secret)
def _(response, deployed, features, label, moved, rng):
    moved[:] = features + rng.standard_normal()
    return label


# fmt: off
CASES = {
    "nan in features": (
        lambda: cs.Problem(with_value(X, np.nan), Y, loss=LOGISTIC),
        "features must be finite, got 1 NaN",
    ),
    "infinite features": (
        lambda: cs.Problem(with_value(X, np.inf), Y, loss=LOGISTIC),
        "features must be finite, got 1",
    ),
    "nan in labels": (lambda: cs.Problem(X, with_value(Y, np.nan), loss=LOGISTIC), "labels must be finite, got 1 NaN"),
    "no records": (lambda: cs.Problem(X[:0], Y[:0], loss=LOGISTIC), "features must be a non-empty table of rows"),
    "no columns": (lambda: cs.Problem(X[:, :0], Y, loss=LOGISTIC), "features must be a non-empty table of rows"),
    "three axes": (lambda: cs.Problem(X[None], Y, loss=LOGISTIC), "features must be a non-empty table of rows"),
    "text": (lambda: cs.Problem([["a", "b"]], [1], loss=LOGISTIC), "features must hold numbers only, got list"),
    "lengths": (
        lambda: cs.Problem(X, Y[:-1], loss=LOGISTIC),
        "labels must hold one label for each of 60 records, got shape (59,)",
    ),
    "label -1": (lambda: cs.Problem(X, 2 * Y - 1, loss=LOGISTIC), "labels must hold labels 0 and 1 only, got -1"),
    "no labels": (lambda: cs.Problem(X, loss=LOGISTIC), "labels must be given for Logistic"),
    "too many labels": (lambda: cs.Problem(Z, Z, loss=cs.losses.Quadratic()), "labels must be left out for Quadratic"),
    "loss is a string": (lambda: cs.Problem(X, Y, loss="logistic"), "loss must be a part of clipsilon.losses such as Logistic(), got 'logistic'."),
    "loss is a class": (
        lambda: cs.Problem(X, Y, loss=cs.losses.Logistic),
        "loss must be a part, got the class Logistic: parentheses are missing, as in Logistic().",
    ),
    "loss without math": (
        lambda: cs.Problem(X, Y, loss=Nameless()),
        "loss Nameless does not implement value, gradient",
    ),
    "response without math": (
        lambda: cs.Problem(X, Y, loss=LOGISTIC, response=Nameless()),
        "does not implement respond",
    ),
    "region without math": (lambda: cs.Problem(X, Y, loss=LOGISTIC, region=Nameless()), "does not implement project"),
    "columns beyond": (
        lambda: cs.Problem(X, Y, loss=LOGISTIC, response=cs.responses.LinearShift(1.0, [4])),
        "columns of LinearShift must be below 4, got 4",
    ),
    "columns twice": (lambda: cs.responses.LinearShift(1.0, [1, 1]), "columns must be distinct column numbers"),
    "empty box": (lambda: cs.regions.Box(1, -1), "Box needs low ≤ high, got low=1.0 and high=-1.0"),
    "ball of size 0": (lambda: cs.regions.Ball(0), "size must be a number above 0, got 0"),
    "negative l2": (lambda: cs.losses.Logistic(l2=-1), "l2 must be a number of at least 0, got -1"),
    "clip 0": (lambda: cs.PCSGD(STEP, clip=0, noise_std=1), "clip must be a number above 0, got 0"),
    "clip nan": (lambda: cs.PCSGD(STEP, clip=np.nan, noise_std=1), "clip must be a finite number, got nan"),
    "clip text": (lambda: cs.PCSGD(STEP, clip="1", noise_std=1), "clip must be a finite number, got '1'"),
    "negative noise": (
        lambda: cs.PCSGD(STEP, clip=1, noise_std=-1),
        "noise_std must be a number of at least 0, got -1",
    ),
    "step 0": (lambda: cs.schedules.Constant(0), "gamma must be a number above 0, got 0"),
    "step negative": (lambda: cs.schedules.InverseTime(-1, 5), "a0 must be a number above 0, got -1"),
    "step is a number": (lambda: cs.SGD(0.1), "step must be a part of clipsilon.schedules such as Constant(0.1), got 0.1."),
    "batch 0": (
        lambda: cs.DPSGD(STEP, clip=1, noise_std=1, batch=0),
        "batch must be a whole number of at least 1, got 0",
    ),
    "batch 2.5": (
        lambda: cs.DPSGD(STEP, clip=1, noise_std=1, batch=2.5),
        "batch must be a whole number of at least 1, got 2.5",
    ),
    "full batch of 5": (lambda: cs.SGD(STEP, batch=5, sampling="full"), "batch must be left at 1 for full batches"),
    "sampling": (lambda: cs.SGD(STEP, sampling="random"), "sampling must be one of 'uniform', 'poisson'"),
    "residual cap": (
        lambda: cs.DiceSGD(STEP, clip=1, error_clip=1, noise_std=1, residual_cap=0.5),
        "residual_cap must be at least clip (1), got 0.5",
    ),
    "deploy 0": (lambda: cs.SGD(STEP, deploy_every=0), "deploy_every must be a whole number of at least 1, got 0"),
    "adam": (
        lambda: cs.AdamDiceSGD(STEP, clip=1, error_clip=1, noise_std=1, beta1=1.0),
        "beta1 must be a number in [0, 1), got 1.0",
    ),
    "batch larger than the data": (
        lambda: cs.run(PROBLEM, cs.SGD(STEP, batch=61), 5),
        "batch must be at most the number of records (60), got 61",
    ),
    "a second pass": (
        lambda: cs.run(PROBLEM, cs.SGD(STEP, batch=7, sampling="single-pass"), 10),
        "steps must be at most 9 for a single pass in batches of 7, got 10",
    ),
    "start": (
        lambda: cs.run(PROBLEM, cs.SGD(STEP), 5, start=[1, 2]),
        "start must be a number or 4 number(s), got shape (2,)",
    ),
    "start nan": (lambda: cs.run(PROBLEM, cs.SGD(STEP), 5, start=np.nan), "start must be finite"),
    "steps": (lambda: cs.run(PROBLEM, cs.SGD(STEP), 0), "steps must be a whole number of at least 1, got 0"),
    "replicates": (lambda: cs.run(PROBLEM, cs.SGD(STEP), 5, replicates=0), "replicates must be a whole number"),
    "seed": (lambda: cs.run(PROBLEM, cs.SGD(STEP), 5, seed=-1), "seed must be a whole number of at least 0, got -1"),
    "threads": (
        lambda: cs.run(PROBLEM, cs.SGD(STEP), 5, n_jobs=0),
        "n_jobs must be a whole number of at least 1, got 0",
    ),
    "record": (
        lambda: cs.run(PROBLEM, cs.SGD(STEP), 5, record=[6]),
        "record must be a number or iterations from 0 to 5",
    ),
    "record 1": (
        lambda: cs.run(PROBLEM, cs.SGD(STEP), 5, record=1),
        "record must be a whole number of at least 2, got 1",
    ),
    "checkpoint folder": (
        lambda: cs.run(PROBLEM, cs.SGD(STEP), 5, checkpoint="/nowhere/at/all"),
        "checkpoint must be a file in a folder that exists, got '/nowhere/at/all'",
    ),
    "checkpoint number": (
        lambda: cs.run(PROBLEM, cs.SGD(STEP), 5, checkpoint=5),
        "checkpoint must be a file in a folder",
    ),
    "rule is a name": (lambda: cs.run(PROBLEM, "SGD", 5), "rule must be a Rule, got <class 'str'>"),
    "rule is a preset": (lambda: cs.run(PROBLEM, cs.SGD, 5), "rule must be a Rule, got <class 'function'>"),
    "problem is an array": (
        lambda: cs.run(X, cs.SGD(STEP), 5),
        "problem must be a Problem, got <class 'numpy.ndarray'>",
    ),
    "point of an array": (lambda: cs.stable_point(X), "problem must be a Problem"),
    "metric of an array": (lambda: cs.metrics.performative_risk(X, X), "problem must be a Problem"),
    "metric of text": (lambda: cs.metrics.performative_risk(PROBLEM, "a"), "theta must hold numbers only, got str"),
    "start outside": (
        lambda: cs.run(cs.Problem(X, Y, loss=LOGISTIC, region=cs.regions.Box(-1, 1)), cs.SGD(STEP), 5, start=50),
        "start must lie in the region Box(low=-1.0, high=1.0), got 50",
    ),
    "start none": (lambda: cs.run(PROBLEM, cs.SGD(STEP), 5, start=None), "start must hold numbers only, got NoneType"),
    "endless": (lambda: cs.run(PROBLEM, cs.SGD(STEP), 10**20), "steps must be at most 4611686018427387904, got a number of 21 digits"),
    "ragged record": (
        lambda: cs.run(PROBLEM, cs.SGD(STEP), 5, record=[1, [2]]),
        "record must be a number or iterations",
    ),
    "average power -1": (lambda: cs.outputs.Average(-1), "power must be a number of at least 0, got -1"),
    "huge step": (lambda: cs.schedules.Constant(10**400), "gamma must be a finite number, got 1000"),
    "a table for a number": (
        lambda: cs.PCSGD(STEP, clip=X, noise_std=1),
        "clip must be a finite number, got ndarray of shape (60, 4)",
    ),
    "a small table for a number": (
        lambda: cs.PCSGD(STEP, clip=np.ones((2, 2)), noise_std=1),
        "clip must be a finite number, got array([[1., 1.], [1., 1.]])",
    ),
    "a long text for a number": (lambda: cs.PCSGD(STEP, clip=1, noise_std="a" * 99), "must be a finite number, got 'aaa"),
    "a table for a part": (lambda: cs.SGD(np.ones((2, 2))), "step must be a part of clipsilon.schedules such as Constant(0.1), got array"),
    "progress": (lambda: cs.run(PROBLEM, cs.SGD(STEP), 5, progress="yes"), "progress must be True or False, got 'yes'"),
    "a budget of 0": (lambda: cs.LDPSGD(STEP, budget=0), "budget must be one or more numbers above 0, got 0"),
    "an error clip that is a number": (
        lambda: cs.feedback.ErrorFeedback(1.0, cs.clipping.Unclipped()),
        "clip must be a part (a NamedTuple such as those in clipsilon), got 1.0",
    ),
    "a cap that does not clip": (
        lambda: cs.feedback.ErrorFeedback(cs.clipping.Norm(1.0), Nameless()),
        "cap Nameless does not implement add_clipped",
    ),
    "a sweep of one run": (lambda: cs.sweep(cs.Run(PROBLEM, cs.SGD(STEP), 5)), "runs must be a list of Run, got Run("),
    "a sweep of nothing": (lambda: cs.sweep(None), "runs must be a list of Run, got None"),
    "a table of biases of one problem": (
        lambda: cs.bias_table(PROBLEM, clips=[1.0], betas=[0.0]),
        "problem_at must be a function from β to a Problem, got Problem(",
    ),
    "an error as text": (
        lambda: cs.account(cs.PCSGD(STEP, 1, 1), 9, 2, 1e-5).tradeoff("a"),
        "alpha must hold numbers only, got str",
    ),
    "seed of one run": (
        lambda: cs.one_run_bound(np.arange(40.0), np.arange(40) % 2, 1e-5, 0.95, seed=-1),
        "seed must be a whole number of at least 0, got -1",
    ),
    "a trace without a name": (lambda: cs.Trace.load(None), "path must be the name of a file, got None"),
    "a model without a name": (lambda: cs.load_model(5), "path must be the name of a file, got 5"),
    "a function that is no operation": (lambda: cs.implements(len, Nameless), "op must be an operation, such as"),
    "no function": (
        lambda: cs.implements(cs.losses.slope, Nameless)(min),
        "slope of Nameless must be a function, got <built-in function min>",
    ),
    "an operation by its name": (lambda: cs.implements("slope", Nameless), "op must be an operation, such as"),
    "a part and not its class": (lambda: cs.implements(cs.losses.slope, Nameless()), "part must be a class, got Nameless()"),
    "bytes": (lambda: cs.schedules.Constant(b"1"), "gamma must be a finite number, got b'1'"),
    "numbers as text": (lambda: cs.Problem([["1", "2"]], [1], loss=LOGISTIC), "features must hold numbers only"),
    "dates": (
        lambda: cs.Problem(np.array(["2020-01-01"], "datetime64[D]"), loss=cs.losses.Quadratic()),
        "numbers only",
    ),
    "complex": (lambda: cs.Problem([1j], loss=cs.losses.Quadratic()), "features must hold numbers only, got list"),
    "masked": (
        lambda: cs.Problem(np.ma.masked_equal(Z, 1), loss=cs.losses.Quadratic()),
        "numbers only, got MaskedArray",
    ),
    "changed by replace": (
        lambda: cs.clipping.Norm(1.0)._replace(threshold=-1),
        "threshold must be a number above 0, got -1",
    ),
    "quadratic best response": (
        lambda: cs.Problem(Z, loss=cs.losses.Quadratic(), response=cs.responses.BestResponse(1.0)),
        "response must not depend on labels for Quadratic(a=1.0), which has none, got BestResponse.",
    ),
    "blocks": (
        lambda: cs.clipped_point(PROBLEM, cs.clipping.PerClass(1.0, 3)),
        "PerClass needs a dimension divisible by 3 classes, got 4",
    ),
    "forgotten label": (
        lambda: cs.Problem(X, Y, loss=LOGISTIC, response=Forgetful()),
        "must return the label, got None",
    ),
    "secret dice": (lambda: cs.Problem(X, Y, loss=LOGISTIC, response=Secret()), "Secret draws at random but lacks"),
    "trace folder": (
        lambda: cs.run(PROBLEM, cs.SGD(STEP), 5, seed=0).save("/nowhere/a"),
        "path must be in a folder that exists",
    ),
    "clip of a point": (lambda: cs.clipped_point(PROBLEM, -1), "clip must be a number above 0, got -1"),
    "rounds": (
        lambda: cs.repeated_minimization(PROBLEM, rounds=0),
        "rounds must be a whole number of at least 1, got 0",
    ),
    "reference": (
        lambda: cs.run(PROBLEM, cs.SGD(STEP), 5, seed=0).gap([1, 2]),
        "reference must be a number or 4 number(s)",
    ),
    "selection epsilon": (
        lambda: cs.NoisySelection(STEP, 1.0, 1.0, 0),
        "selection_epsilon must be a number above 0, got 0",
    ),
    "selection in batches": (
        lambda: replace(cs.DPSGD(STEP, 1.0, 1.0, batch=5), output=cs.outputs.Selected(1.0)),
        "sampling must be Full() to select an iterate, got Poisson(batch=5, rate=None)",
    ),
    "selection with feedback": (
        lambda: replace(cs.DiceSGD(STEP, 1.0, 1.0, 1.0, sampling="full"), output=cs.outputs.Selected(1.0)),
        "feedback must be NoFeedback() to select an iterate, got ErrorFeedback",
    ),
    "selection without a clip": (
        lambda: replace(cs.SGD(STEP, sampling="full"), output=cs.outputs.Selected(1.0)),
        "clip must have a bound (as Norm has) to select an iterate, got Unclipped()",
    ),
    "a selection that spends all": (
        lambda: cs.calibrate(cs.NoisySelection(STEP, 1.0, 1.0, 2.0), 2.0, 1e-5, 50, 5),
        "epsilon must be above the 2 that the selection alone spends, got 2.0",
    ),
    "a selection that spends all, as in the paper": (
        lambda: cs.calibrate(cs.NoisySelection(STEP, 1.0, 1.0, 2.0), 1.5, 1e-5, 50, 5, "paper", "zero-out"),
        "epsilon must be above the 2 that the selection alone spends, got 1.5",
    ),
    "no feedback": (lambda: cs.run(PROBLEM, cs.SGD(STEP), 5, seed=0).error_norm(), "SGD has no feedback"),
}
# fmt: on


@pytest.mark.parametrize("case", CASES)
def test_one_clear_sentence(case):
    attempt, message = CASES[case]
    with pytest.raises((ValueError, TypeError), match=re.escape(message)) as caught:
        attempt()
    text = str(caught.value)
    assert "\n" not in text
    assert text.endswith(".")


def test_a_small_error_clip_is_allowed_with_a_warning():
    with pytest.warns(UserWarning, match=r"error_clip=0.5 is below clip=1.0: .* the fixed point may be biased"):
        rule = cs.DiceSGD(STEP, clip=1.0, error_clip=0.5, noise_std=0.0)
    assert rule.feedback.clip.threshold == 0.5


@pytest.mark.parametrize(
    ("function", "given"),
    [
        (lambda loss, margin: 0.0, "(loss, margin)"),
        (lambda loss, margin, label, weight=1.0: 0.0, "(loss, margin, label, weight=1.0)"),
        (lambda loss, margin, *, label: 0.0, "(loss, margin, *, label)"),
        (lambda *arguments: 0.0, "(*arguments)"),
    ],
)
def test_an_operation_is_refused_with_other_arguments(function, given):
    with pytest.raises(TypeError) as caught:
        cs.implements(cs.losses.slope, Nameless)(function)
    assert str(caught.value) == f"slope of Nameless must take (loss, margin, label), got {given}."


def test_an_operation_is_implemented_once():
    class Part(NamedTuple):
        pass

    cs.implements(cs.losses.slope, Part)(lambda loss, margin, label: 0.0)
    with pytest.raises(TypeError, match="Part implements slope already"):
        cs.implements(cs.losses.slope, Part)(lambda loss, margin, label: 1.0)


def test_a_part_of_the_package_keeps_its_math():
    with pytest.raises(TypeError, match="Logistic belongs to clipsilon"):
        cs.implements(cs.losses.gradient, cs.losses.Logistic)(lambda loss, theta, features, label, out: None)


def test_data_is_never_written_to():
    x = X.copy()
    problem = PROBLEM.on(x, Y)
    cs.run(problem, cs.SGD(STEP), 50, seed=0)
    cs.stable_point(problem)
    np.testing.assert_array_equal(x, X)
    assert x.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        problem.features[0, 0] = 1.0
