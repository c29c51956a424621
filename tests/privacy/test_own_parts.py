"""Losses and responses of the user's own that mix records, keep something, write to θ, or state bounds that are wrong.

A certificate holds if what a record adds to a step depends on that record and on released models alone. No accountant
reads the user's code, so the engine must not let it do anything else.
"""

from typing import NamedTuple

import numba
import numpy as np
import pytest
from numba.typed import List

import clipsilon as cs
from clipsilon.engine.arrays import problem_arrays
from clipsilon.engine.remote import Job, Models, Records, Step, add_records, no_sums
from clipsilon.privacy.auditing.canaries import Linear
from clipsilon.rules.clipping import Norm
from clipsilon.rules.feedback import NoFeedback
from clipsilon.rules.sampling import Full

STEP, CLIP, OTHERS = cs.schedules.Constant(1.0), 0.5, 9
RULES = {  # the two ways in which gradients are summed
    "summed": cs.DPSGD(STEP, CLIP, 0.1, batch=1, sampling="full"),
    "tracked": cs.TrackedSGD(STEP, CLIP, 0.1, batch=1, sampling="full"),
}
rules = pytest.mark.parametrize("rule", RULES.values(), ids=RULES)


people = pytest.mark.parametrize("rows", [None, 2], ids=["records", "people"])


def moved_by_the_first_record(rule, loss, response=None, rows=None):
    """By how much the first step of a run changes in units of the clip over B if the first record is replaced.

    All other records begin with a number that is not positive. With `rows`, each record is a person with so many rows.
    """
    others = -np.arange(OTHERS * 3.0).reshape(OTHERS, 3)
    thetas = []
    for own in ([1.0, 5.0, 5.0], [1.0, -5.0, -5.0]):
        table, groups = np.vstack([own, others]), None
        if rows is not None:
            table, groups = np.repeat(table, rows, axis=0), np.repeat(np.arange(OTHERS + 1), rows)
        problem = cs.Problem(table, loss=loss, response=response, groups=groups)
        thetas.append(cs.run(problem, rule, 1, seed=0, record=[1]).theta[0, 0])
    return np.linalg.norm(thetas[0] - thetas[1]) * (OTHERS + 1) / CLIP


# -- entries that are not written hold another record's numbers --------------------------------------------------------


@cs._core.parts.traits(labels="none")
class Sometimes(NamedTuple):
    """Writes a gradient only for records that begin with a positive number."""


@cs.implements(cs.losses.value, Sometimes)
def _(loss, theta, features, label):
    return 0.0


@cs.implements(cs.losses.gradient, Sometimes)
def _(loss, theta, features, label, out):
    if features[0] > 0.0:
        for j in range(theta.size):
            out[j] = features[j]


class Seldom(NamedTuple):
    """Writes the record after its reaction only if it begins with a positive number."""


@cs.implements(cs.responses.respond, Seldom)
def _(response, deployed, features, label, moved, rng):
    if features[0] > 0.0:
        for j in range(features.size):
            moved[j] = features[j]
    return label


@people
@rules
def test_a_gradient_that_is_not_written_is_not_that_of_another_record(rule, rows):
    assert moved_by_the_first_record(rule, Sometimes(), rows=rows) <= 2 * (1 + 1e-9)


@people
@rules
def test_a_reaction_that_is_not_written_is_not_that_of_another_record(rule, rows):
    assert moved_by_the_first_record(rule, Linear(), Seldom(), rows) <= 2 * (1 + 1e-9)


def test_records_in_chunks_are_not_mixed_either():
    job = Job(Sometimes(), cs.responses.Identity(), NoFeedback(), Full(), 3)
    theta, grid = np.zeros(2), cs.engine.grid.Grid(1.0, 0.0, np.inf, np.inf, 0.0, 0, np.inf, 0.0, None)
    step = Step(0, Models(theta, theta), Norm(1.0), grid, 0, [])
    into = no_sums(job, step)
    add_records(job, step, Records(np.array([[1.0, 0.0], [0.0, 3.0]]), np.zeros(2), None), into)
    assert np.isnan(into.v).all()  # without noise there is no grid, and a run diverges


@cs._core.parts.traits(labels="none")
class Adding(NamedTuple):
    """Adds to the gradient of the record before."""


@cs.implements(cs.losses.value, Adding)
def _(loss, theta, features, label):
    return 0.0


@cs.implements(cs.losses.gradient, Adding)
def _(loss, theta, features, label, out):
    for j in range(theta.size):
        out[j] += features[j]


@cs._core.parts.traits(labels="none")
class Partial(NamedTuple):
    """Writes the first entry."""


@cs.implements(cs.losses.value, Partial)
def _(loss, theta, features, label):
    return 0.0


@cs.implements(cs.losses.gradient, Partial)
def _(loss, theta, features, label, out):
    out[0] = features[0]


@pytest.mark.parametrize(("loss", "missing"), [(Adding(), r"\[0, 1, 2\]"), (Partial(), r"\[1, 2\]")])
def test_a_loss_that_does_not_fill_its_gradient_is_refused(loss, missing):
    with pytest.raises(TypeError, match=rf"^gradient of {type(loss).__name__} must write a number .* {missing}\.$"):
        cs.Problem(np.ones((4, 3)), loss=loss)


def test_a_gradient_that_is_not_a_number_is_not_taken_for_a_missing_one():
    problem = cs.Problem(np.full((2, 2), 1e308), [0.0, 1.0], loss=cs.losses.SquaredError())
    assert problem.dimension == 2


# -- parts that remember -----------------------------------------------------------------------------------------------


@cs._core.parts.traits(labels="none")
class Remembering(NamedTuple):
    """Takes the longest record seen so far for the gradient of every record; `since` hides that from a trial."""

    seen: np.ndarray
    since: float


@cs.implements(cs.losses.value, Remembering)
def _(loss, theta, features, label):
    return 0.0


@cs.implements(cs.losses.gradient, Remembering)
def _(loss, theta, features, label, out):
    if features[0] < loss.since:
        loss.seen[0] = max(loss.seen[0], abs(features[1]))
    for j in range(theta.size):
        out[j] = loss.seen[0]


class Listing(NamedTuple):
    """Remembers in a list."""

    seen: List


@cs.implements(cs.responses.respond, Listing)
def _(response, deployed, features, label, moved, rng):
    response.seen.append(features[0])
    for j in range(features.size):
        moved[j] = response.seen[0]
    return label


def test_a_loss_that_keeps_something_of_a_record_is_refused():
    with pytest.raises(
        TypeError, match="loss Remembering .* must not write to θ, to the record or to their own arrays"
    ):
        cs.Problem(np.ones((4, 3)), loss=Remembering(np.zeros(1), since=2.0))


@rules
def test_what_a_trial_does_not_show_cannot_be_compiled(rule):
    loss = Remembering(np.zeros(1), since=0.5)
    problem = cs.Problem(np.vstack([np.ones(3), np.zeros((OTHERS, 3))]), loss=loss)
    with pytest.raises(numba.TypingError, match=r"(?i)read.?only"):
        cs.run(problem, rule, 1, seed=0)
    assert loss.seen.tolist() == [0.0]


def test_arrays_that_were_pickled_are_read_only_again():
    problem = cs.Problem(np.ones((4, 3)), loss=Remembering(np.zeros(1), since=0.5))
    problem.loss = Remembering(np.zeros(1), since=0.5)
    assert not problem_arrays(problem).loss.seen.flags.writeable


def test_a_part_with_a_list_is_refused():
    seen = List()
    seen.append(0.0)
    with pytest.raises(TypeError, match="^response Listing must hold numbers, arrays and parts, got seen="):
        cs.Problem(np.ones((4, 3)), loss=Linear(), response=Listing(seen))


# -- parts that write to θ ---------------------------------------------------------------------------------------------


@cs._core.parts.traits(labels="none")
class Publishing(NamedTuple):
    """Writes a record into the model, where no noise hides it; `since` hides that from a trial."""

    since: float


@cs.implements(cs.losses.value, Publishing)
def _(loss, theta, features, label):
    return 0.0


@cs.implements(cs.losses.gradient, Publishing)
def _(loss, theta, features, label, out):
    for j in range(theta.size):
        if features[0] < loss.since:
            theta[j] = features[j]
        out[j] = 0.0


class Deploying(NamedTuple):
    """Writes a record into the deployed model."""

    since: float


@cs.implements(cs.responses.respond, Deploying)
def _(response, deployed, features, label, moved, rng):
    for j in range(features.size):
        if features[0] < response.since:
            deployed[j] = features[j]
        moved[j] = features[j]
    return label


@pytest.mark.parametrize(("loss", "response"), [(Publishing, None), (Linear, Deploying)])
def test_a_part_that_writes_to_the_model_is_refused(loss, response):
    def parts(since):
        return {"loss": loss(since) if response is None else loss(), "response": response and response(since)}

    with pytest.raises(TypeError, match="must not write to θ"):
        cs.Problem(np.ones((4, 3)), **parts(since=2.0))
    problem = cs.Problem(np.vstack([np.ones(3), np.zeros((OTHERS, 3))]), **parts(since=0.5))
    for rule in (RULES["summed"], cs.DPSGD(STEP, CLIP, 0.1, batch=1, sampling="full", deploy_every=2)):
        with pytest.raises(numba.TypingError, match=r"(?i)read.?only"):
            cs.run(problem, rule, 1, seed=0)


# -- bounds that are wrong ---------------------------------------------------------------------------------------------


@cs._core.parts.traits(labels="none")
class Lying(NamedTuple):
    """Says that its gradients are at most 1 apart; they are the records times a million."""

    def sensitivity(self):
        return 1.0

    def bounds(self, reach, label):
        return cs.problems.losses.base.MarginBounds(*np.zeros((3, reach.size)))


@cs.implements(cs.losses.value, Lying)
def _(loss, theta, features, label):
    return 0.0


@cs.implements(cs.losses.gradient, Lying)
def _(loss, theta, features, label, out):
    for j in range(theta.size):
        out[j] = 1e6 * features[j]


def test_a_wrong_sensitivity_moves_no_report_by_more():
    moves = []
    for sign in (1.0, -1.0):
        problem = cs.Problem(sign * np.array([[3.0, 4.0]]), loss=Lying())
        moves.append(cs.run(problem, cs.LDPSGD(STEP, 0.5), 1, seed=0, record=[1]).theta[0, 0])
    assert 0.99 <= np.linalg.norm(moves[0] - moves[1]) <= 1 + 1e-9


def test_a_wrong_sensitivity_moves_no_local_report_by_more():
    def sent(sign):
        return cs.local.report(np.zeros(2), (sign * np.array([3.0, 4.0]), None), Lying(), 0.5, rng=generator())

    def generator():
        return np.random.Generator(np.random.SFC64(1))

    assert 0.99 <= np.linalg.norm(sent(1.0) - sent(-1.0)) <= 1 + 1e-9


def test_a_wrong_lipschitz_constant_moves_no_update_by_more():
    rule = cs.DPGD(STEP, lipschitz=CLIP, noise_std=0.1)
    assert moved_by_the_first_record(rule, Lying()) <= 2 * (1 + 1e-9)
