"""An intercept beside a response: nobody can move the column of ones, in the engine, in points and in estimators."""

from typing import NamedTuple

import dask.array as da
import numpy as np
import pytest
from scipy import sparse

import clipsilon as cs
import reference
from clipsilon.engine import remote
from clipsilon.engine.arrays import Models, Records
from clipsilon.engine.grid import Grid
from clipsilon.estimators import PrivateGLM, PrivateLinearRegression, PrivateLogisticRegression
from clipsilon.problems.responses import is_random, respond
from clipsilon.rules.feedback import NoFeedback
from clipsilon.rules.sampling import Full

FixedIntercept = cs.responses.FixedIntercept
X, Y = reference.data()
WITH_ONES = np.column_stack([X, np.ones(len(X))])
MOVING = cs.responses.LinearShift(0.3, [0, 1, 2, 3])  # moves every column but that of ones
NO_GRID = Grid(1.0, 0.0, np.inf, np.inf, 0.0, 0, np.inf, 0.0, None)
FIXED = FixedIntercept(cs.responses.LocationShift(0.3))  # the same in other words


def problem(response, loss=None, table=WITH_ONES):
    return cs.Problem(table, Y, loss=loss or cs.losses.Logistic(l2=0.1), response=response)


@pytest.mark.parametrize("table", [WITH_ONES, sparse.csr_array(WITH_ONES)], ids=["dense", "sparse"])
def test_a_run_is_the_reference(table):
    reacting = problem(FixedIntercept(cs.responses.BestResponse(0.5)), table=table)
    rule = cs.DPSGD(cs.schedules.Constant(0.1), clip=0.8, noise_std=0.2, batch=20)
    expected, _, _ = reference.run(problem(reacting.response), rule, 40, 0.3, seed=11)
    found = cs.run(reacting, rule, 40, 0.3, seed=11, record=range(41))
    np.testing.assert_allclose(found.theta[0], expected, **reference.allowance(reacting, rule, 40))


def test_a_run_equals_that_of_a_response_which_leaves_the_column_out():
    rule = cs.TrackedSGD(cs.schedules.Constant(0.05), 0.3, 0.2, batch=20, deploy_every=3)
    traces = [cs.run(problem(response), rule, 60, seed=4) for response in (FIXED, MOVING)]
    np.testing.assert_array_equal(traces[0].theta, traces[1].theta)


def test_points_and_bias_are_those_of_a_response_which_leaves_the_column_out():
    for find in (cs.stable_point, cs.optimal_point, lambda one: cs.clipped_point(one, 0.7)):
        found, expected = (find(problem(response)) for response in (FIXED, MOVING))
        assert found.converged
        np.testing.assert_allclose(found.theta, expected.theta, atol=1e-8)
    rows = [
        cs.bias_table(lambda beta, make=make: problem(make(beta)), [0.5, 2.0], [0.1, 0.4])
        for make in (
            lambda beta: FixedIntercept(cs.responses.LocationShift(beta)),
            lambda beta: cs.responses.LinearShift(beta, [0, 1, 2, 3]),
        )
    ]
    for one, other in zip(*rows, strict=True):
        assert one.bias == pytest.approx(other.bias, abs=1e-8)
    everything = cs.stable_point(problem(cs.responses.LocationShift(0.3)))
    assert np.abs(everything.theta - cs.stable_point(problem(FIXED)).theta).max() > 1e-3  # it does matter


def test_constants_are_those_of_the_response():
    found, expected = (problem(response).constants(2.0) for response in (FIXED, MOVING))
    assert found == expected
    assert found.estimated == ()


class Half(NamedTuple):
    """A response of the user's own, without bounds, that fails if it is shown the column of ones."""


@cs.implements(respond, Half)
def _(response, deployed, features, label, moved, rng):
    for j in range(features.size):
        moved[j] = features[j] - 0.3 * deployed[j] if deployed.size == 4 and features.size == 4 else np.nan
    return label


class Shaking(NamedTuple):
    """A random response."""

    random = True


@cs.implements(respond, Shaking)
def _(response, deployed, features, label, moved, rng):
    for j in range(features.size):
        moved[j] = features[j] + rng.standard_normal()
    return label


class WritesOne(NamedTuple):
    """Leaves what the record before has left in all columns but the first."""


@cs.implements(respond, WritesOne)
def _(response, deployed, features, label, moved, rng):
    moved[0] = features[0]
    return label


class Sometimes(NamedTuple):
    """Does the same for some records only, so that the trial on the first record does not show it."""


@cs.implements(respond, Sometimes)
def _(response, deployed, features, label, moved, rng):
    moved[0] = features[0]
    if features[0] < 5.0:
        for j in range(1, features.size):
            moved[j] = features[j]
    return label


def test_a_response_of_ones_own():
    found, expected = (cs.stable_point(problem(response)) for response in (FixedIntercept(Half()), FIXED))
    np.testing.assert_allclose(found.theta, expected.theta, atol=1e-8)
    constants = problem(FixedIntercept(Half())).constants(2.0)
    assert "sensitivity" in constants.estimated
    assert 0.25 <= constants.sensitivity <= 0.3
    assert is_random(FixedIntercept(Shaking()))
    assert not is_random(FIXED)


def test_records_are_not_mixed():
    """What a response does not write is NaN, as without the intercept, and such a record adds nothing."""
    with pytest.raises(
        TypeError, match=r"^respond of WritesOne must write a number into every entry .* \[1, 2, 3\]\.$"
    ):
        problem(FixedIntercept(WritesOne()))
    job, grid = remote.Job(cs.losses.Logistic(), FixedIntercept(Sometimes()), NoFeedback(), Full(), 2), NO_GRID
    step = remote.Step(0, Models(np.full(5, 0.1), np.full(5, 0.1)), cs.clipping.Norm(1.0), grid, 0, [])
    sums = remote.no_sums(job, step)
    table = np.array([[1.0, 2.0, 3.0, 4.0, 1.0], [9.0, 9.0, 9.0, 9.0, 1.0]])  # the second one is not written in full
    remote.add_records(job, step, Records(table, np.array([0.0, 1.0]), None), sums)
    assert np.isnan(sums.v).any()  # and so would add nothing on a grid, instead of the first one's numbers


def test_refusals():
    with pytest.raises(TypeError, match=r"^response must be a part of clipsilon\.responses"):
        FixedIntercept(0.5)
    with pytest.raises(TypeError, match="parentheses are missing"):
        FixedIntercept(Half)
    with pytest.raises(ValueError, match="features must have a column besides that of ones"):
        cs.Problem(np.ones((4, 1)), [0, 1, 0, 1], loss=cs.losses.Logistic(), response=FIXED)
    with pytest.raises(ValueError, match="columns of LinearShift must be below 4, got 4"):
        problem(FixedIntercept(cs.responses.LinearShift(0.1, [4])))
    with pytest.raises(ValueError, match="response must not depend on labels"):
        cs.Problem(X, loss=cs.losses.Quadratic(), response=FixedIntercept(cs.responses.BestResponse(0.1)))


class Unknown(NamedTuple):
    """A response that arrived at a worker without its functions."""


def test_responses_that_workers_do_not_know_are_refused():
    fixed = FIXED._replace(response=cs.responses.Identity())
    job = remote.Job(cs.losses.Logistic(), tuple.__new__(type(fixed), (Unknown(),)), NoFeedback(), Full(), 60)
    step = remote.Step(0, Models(np.zeros(5), np.zeros(5)), cs.clipping.Norm(1.0), NO_GRID, 0, [])
    with pytest.raises(TypeError, match="response Unknown must be defined in a module that Dask's workers"):
        remote.add_records(job, step, Records(WITH_ONES, Y, None), remote.no_sums(job, step))


# -- estimators -------------------------------------------------------------------------------------------------------


def logistic(**more):
    how = {"random_state": 3, "classes": [0, 1], "method": "clipped-dpgd", "epochs": 20}
    return PrivateLogisticRegression(**how | {"response": cs.responses.BestResponse(0.5)} | more)


def test_dask_gives_the_fit_in_memory_to_the_bit():
    tables = [da.from_array(table, chunks=(17, *table.shape[1:])) for table in (X, Y)]
    found, expected = logistic().fit(*tables), logistic().fit(X, Y)
    np.testing.assert_array_equal(found.theta_, expected.theta_)
    assert found.intercept_[0] != 0


def test_the_certificate_does_not_depend_on_the_response():
    statements = [
        logistic(response=response).fit(X, Y).statement_ for response in (cs.responses.BestResponse(0.5), None)
    ]
    assert statements[0].nominal == pytest.approx(statements[1].nominal, rel=1e-9)
    assert 0.98 <= statements[0].nominal <= 1.0


def test_more_than_two_classes_are_refused():
    model = logistic(classes=[0, 1, 2], response=Half())
    with pytest.raises(ValueError, match="^fit_intercept must be False with a response and more than two classes"):
        model.fit(X, np.digitize(X[:, 0], [-0.3, 0.3]))


@pytest.mark.parametrize("make", [PrivateLinearRegression, PrivateGLM])
def test_other_estimators_take_a_response_beside_an_intercept(make):
    how = {"target_range": (-4, 4)} if make is PrivateLinearRegression else {}
    model = make(random_state=0, response=FIXED.response, **how).fit(X, X[:, 0] + 1.0)
    assert model.theta_.size == 5


def test_rare_defaults_keep_their_mean_probability():
    """Without an intercept the mean probability is 0.50 at 12 % of defaults.

    One run at a fixed seed, so there is no chance in it.
    """
    rng = np.random.default_rng(5)
    x = rng.normal(size=(8000, 4))
    y = (rng.random(8000) < 1 / (1 + np.exp(2.3 - x @ [0.8, -0.4, 0.3, 0.0]))).astype(int)
    assert 0.11 < y.mean() < 0.14
    response = cs.responses.LocationShift(0.2)
    means = []
    for has_intercept in (False, True):
        model = PrivateLogisticRegression(
            random_state=0, classes=[0, 1], response=response, fit_intercept=has_intercept
        )
        model.fit(x, y)
        means.append(model.predict_proba(x - 0.2 * model.coef_)[:, 1].mean())
    assert abs(means[0] - 0.5) < 0.1
    assert abs(means[1] - y.mean()) < 0.02
