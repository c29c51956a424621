"""Sums of people's rows block by block: each person adds the same whole numbers as alone, wherever blocks end."""

from itertools import pairwise

import numpy as np
import pytest

import clipsilon as cs
import reference
from clipsilon._core.rows import ROWS_AT_A_TIME, at_a_time
from clipsilon.engine import remote
from clipsilon.engine.arrays import Records
from clipsilon.engine.batch import workspace
from clipsilon.engine.grid import scaling, step_grid
from clipsilon.rules.clipping import Norm
from clipsilon.rules.feedback import ErrorFeedback, NoFeedback
from clipsilon.rules.noise import Gaussian
from clipsilon.rules.sampling import Full
from registry import STEP

STD, CLIP = 0.05, Norm(0.6)
SUMMED = {
    "plain": (cs.losses.Logistic(), NoFeedback(), np.float64),
    "penalised, capped, float32": (cs.losses.Logistic(l2=0.3), ErrorFeedback(Norm(0.9), Norm(1.1)), np.float32),
}
RNG = np.random.default_rng(4)
NUMBERS_OF_ROWS = {
    **{f"{n} people": RNG.integers(1, 5, n) for n in (1, 7, 8, 9, 15, 16, 17, 55, 56, 57, 63, 64, 65, 200)},
    **{f"{n} people with one row": np.ones(n, int) for n in (1, 7, 8, 9, 56, 57, 63, 64, 65, 113)},
    **{f"{n} people with two rows": np.full(n, 2) for n in (7, 8, 28, 29, 36, 150)},
    "one with 1,000 rows": np.array([1000]),
    "one with 1,000 rows among others": np.array([1, 3, 1, 1, 1000, 1, 1, 2, 1]),
    "many alone, few with more": np.where(np.arange(180) % 45 == 44, 60, 1),
}


def added(loss, feedback, table, labels, weights, starts, theta, grid):
    """What a full batch adds: v, kept and the factors of the penalty, in units."""
    people = len(labels) if starts is None else len(starts) - 1
    job = remote.Job(loss, cs.responses.Identity(), feedback, Full(), people)
    step = remote.Step(0, remote.Models(theta, theta), CLIP, grid, 0, [])
    sums = remote.no_sums(job, step)
    remote.add_records(job, step, Records(table, labels, weights, starts), sums)
    return np.concatenate((sums.v, sums.kept, sums.penalties))


def expected(loss, feedback, table, labels, weights, starts, theta, grid):
    """The same by the plain reference, up to rounding to whole units; without the factors of the penalty."""
    bare = cs.losses.Logistic()
    v, kept = np.zeros(theta.size), np.zeros(theta.size)
    for begin, end in pairwise(starts):
        rows = [weights[i] * reference.gradient(bare, theta, table[i], labels[i]) for i in range(begin, end)]
        mean = np.mean(rows, axis=0)
        length = np.linalg.norm(mean + weights[begin:end].mean() * getattr(loss, "l2", 0.0) * theta)
        v += grid.weight * min(1.0, CLIP.bound() / max(length, 1e-300)) * mean
        if isinstance(feedback, ErrorFeedback):
            kept += grid.weight * min(1.0, feedback.cap.bound() / max(length, 1e-300)) * mean
    return np.append(v, kept) if isinstance(feedback, ErrorFeedback) else v


@pytest.mark.parametrize("way", SUMMED.values(), ids=SUMMED)
def test_a_batch_adds_what_its_people_add_alone(way):
    """Exactly: a person with several rows, and one with a single row even as a record without groups."""
    loss, feedback, dtype = way
    rule = cs.Rule("full", STEP, CLIP, Full(), Gaussian(STD), feedback=feedback)
    for columns in (1, 5, 40, 128, 5_000):
        for name, counts in NUMBERS_OF_ROWS.items():
            if columns == 5_000 and counts.sum() > 200:
                continue
            rng = np.random.default_rng(columns + len(name))
            starts, rows = np.append(0, np.cumsum(counts)), int(counts.sum())
            table = (rng.standard_normal((rows, columns)) / np.sqrt(columns)).astype(dtype)
            labels, weights = rng.integers(0, 2, rows).astype(float), rng.choice([0.0, 0.5, 1.0, 3.0], rows)
            theta = 0.3 * rng.standard_normal(columns)
            case = remote.RemoteProblem(len(counts), columns, loss=loss, response=None)
            grid = step_grid(scaling(case, rule, 1), CLIP.bound(), STD, columns)
            assert grid.rounding > 0
            together = added(loss, feedback, table, labels, weights, starts, theta, grid)
            alone = np.zeros_like(together)
            for begin, end in pairwise(starts):
                one = (table[begin:end], labels[begin:end], weights[begin:end])
                own = None if end - begin == 1 else np.array([0, end - begin])
                alone += added(loss, feedback, *one, own, theta, grid)
            np.testing.assert_array_equal(together, alone, err_msg=f"{name}, {columns} columns")
            close = expected(loss, feedback, table, labels, weights, starts, theta, grid)
            np.testing.assert_allclose(together[: close.size], close, rtol=1e-9, atol=len(counts) + 1e-9 * grid.weight)


def test_there_is_room_for_what_waits():
    """A block has at least eight rows, and with seven people who wait and eight to come no place is used twice."""
    for columns in (*range(1, 300), 1_000, 5_000, 10_000):
        space = workspace(np.empty((1, columns)), np.zeros(columns))
        places, block = space.moved_rows.shape[0], space.moved_rows.shape[0] - 8
        assert at_a_time(columns) <= places
        assert 8 <= block <= min(at_a_time(columns), ROWS_AT_A_TIME - 8)
        assert space.numbers.tolist() == [*range(places), *range(places)]


def test_a_person_who_overflows_leaves_the_others_of_eight_alone():
    """Multiplied by a factor of 0 together with seven others, an infinite sum would make the update NaN."""
    loss, theta, starts = cs.losses.SquaredError(), np.full(5, 0.2), np.arange(0, 41, 2)
    table = np.random.default_rng(0).standard_normal((40, 5))
    case = remote.RemoteProblem(20, 5, loss=loss, response=None)
    grid = step_grid(scaling(case, cs.Rule("full", STEP, CLIP, Full(), Gaussian(STD)), 1), CLIP.bound(), STD, 5)
    labels, weights = np.where(np.arange(40) == 10, 1e307, 0.5), np.where(np.arange(40) // 2 == 5, 1e9, 1.0)
    zeroed = np.where(weights == 1.0, 1.0, 0.0)
    with np.errstate(all="ignore"):
        found = [added(loss, NoFeedback(), table, labels, own, starts, theta, grid) for own in (weights, zeroed)]
    assert np.isfinite(found[0]).all()
    assert found[0].any()
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("last", [1, 3])
def test_an_infinite_row_leaves_the_other_people_of_eight_alone(last):
    """Whether or not everybody has one row."""
    loss, theta, starts = cs.losses.Logistic(), np.full(5, 0.2), np.append(np.arange(20), 19 + last)
    rows = int(starts[-1])
    table, labels = np.random.default_rng(0).standard_normal((rows, 5)), np.arange(rows) % 2.0
    case = remote.RemoteProblem(20, 5, loss=loss, response=None)
    grid = step_grid(scaling(case, cs.Rule("full", STEP, CLIP, Full(), Gaussian(STD)), 1), CLIP.bound(), STD, 5)
    strange = np.where(np.arange(rows)[:, None] == 5, np.inf, table)
    weights = np.where(np.arange(rows) == 5, 0.0, 1.0)
    found = added(loss, NoFeedback(), strange, labels, np.ones(rows), starts, theta, grid)
    assert found.any()
    np.testing.assert_array_equal(found, added(loss, NoFeedback(), table, labels, weights, starts, theta, grid))
