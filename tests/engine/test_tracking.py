"""Tracked gradients: memories of the records, their fixed point, exact sums, checkpoints and threads."""

import threading
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit

import clipsilon as cs
import reference
from clipsilon.engine import remote
from clipsilon.engine.arrays import Models, RecordParts, Span, Sums, records
from clipsilon.engine.batch import add_batch, workspace
from clipsilon.engine.grid import scaling, step_grid
from clipsilon.engine.loop import empty_recording, initial_state
from clipsilon.engine.replicate import Pace, Replicate
from clipsilon.engine.streams import spawn
from clipsilon.engine.threads import step_threads
from clipsilon.engine.tracking import MOST_BYTES, check_memory
from clipsilon.privacy.auditing.canaries import Linear
from clipsilon.rules.clipping import Norm, PerClass, Scheduled
from clipsilon.rules.feedback import Tracked
from clipsilon.rules.noise import Gaussian, ScheduledGaussian
from clipsilon.rules.preconditioning import Accumulated, Plain
from clipsilon.rules.sampling import Full, Poisson

STEP = cs.schedules.Constant(0.05)


def quadratic():
    """A skewed quadratic problem with reaction: long gradients on one side, which clipping cuts off."""
    rng = np.random.default_rng(4)
    x = rng.standard_normal((200, 2)) * 0.3 + (rng.random((200, 1)) < 0.1) * np.array([[12.0, -6.0]])
    return cs.Problem(x, loss=cs.losses.Quadratic(1.0), response=cs.responses.LocationShift(0.3))


@pytest.mark.parametrize("more", [{"batch": 40}, {"sampling": "full", "batch": 1}], ids=str)
def test_without_noise_the_limit_is_the_stable_point_whatever_the_clip(more):
    problem = quadratic()
    stable, clip = cs.stable_point(problem).theta, 0.05
    tracked = cs.run(problem, cs.TrackedSGD(STEP, clip, 0.0, **more), 6000, seed=0).theta[0, -1]
    np.testing.assert_allclose(tracked, stable, rtol=1e-9)
    plain = cs.run(problem, cs.DPSGD(STEP, clip, 0.0, **more), 6000, seed=0).theta[0, -1]
    assert np.linalg.norm(plain - stable) > 0.5  # clipping moves it


def test_with_noise_the_mean_is_the_stable_point():
    """The mean of 400 independent runs, per coordinate within 6 standard errors: a false alarm has odds of 4e-9."""
    problem = quadratic()
    rule = cs.TrackedSGD(STEP, 0.2, 0.002, batch=40)
    last = cs.run(problem, rule, 2000, replicates=400, seed=1, record=[2000]).theta[:, 0]
    errors = last.mean(axis=0) - cs.stable_point(problem).theta
    standard = last.std(axis=0, ddof=1) / 20
    assert (np.abs(errors) <= 6 * standard).all()
    assert (standard < 0.01).all()


def test_the_sum_of_the_updates_is_the_sum_of_the_memories():
    """G without noise is the mean memory; the memories have found the gradients."""
    problem, rule = quadratic(), cs.TrackedSGD(STEP, 0.3, 1e-6, batch=40)
    state = finished(problem, rule, 3000)
    weight = reference.grid(problem, rule, 1, 3000).weight
    assert np.array_equal(state.memory, np.rint(state.memory))
    features = problem.features - 0.3 * state.theta
    np.testing.assert_allclose(state.memory / weight, features + state.theta, atol=1e-3)
    np.testing.assert_allclose(state.moments[0], (state.memory / weight).mean(axis=0), atol=1e-4)


def finished(problem, rule, steps):
    """The state of a replicate after a run."""
    rule = rule.on(problem, 1)
    recording = empty_recording(problem, rule, np.array([0]))
    one = Replicate(initial_state(problem, rule, np.zeros(problem.dimension)), recording, spawn(0, 1)[0])
    one.advance_to(problem, rule, scaling(problem, rule, steps), steps, 1, Pace(), threading.Event())
    return one.state


def test_a_record_of_weight_zero_remembers_nothing():
    x, y = reference.data()
    weights = np.ones(60)
    weights[7] = 0.0
    problem = cs.Problem(x, y, loss=cs.losses.SquaredError(), weights=weights)
    memory = finished(problem, cs.TrackedSGD(STEP, 0.3, 0.1, batch=30), 50).memory
    assert not memory[7].any()
    assert np.delete(memory, 7, axis=0).any(axis=1).all()


# -- exact sums -------------------------------------------------------------------------------------------------------


@njit
def _sum(table, parts, theta, span, grid, into, memory, rng):
    space = workspace(table.features, theta)
    add_batch(table, parts, Models(theta, theta), span, grid, into, memory, space, rng)


def _replay(clip, std, batch, histories):
    """Sums in units of all steps, with gradients histories[t] of all records and batches drawn[t], and the memory."""
    m, d = histories[0][0].shape
    rule = cs.Rule("tracked", STEP, clip, Poisson(batch), Gaussian(std), Tracked(), Accumulated())
    problem = cs.Problem(np.zeros((m, d)), loss=Linear())
    grid = step_grid(scaling(problem, rule, len(histories)), clip.bound(), std, d)
    assert grid.rounding > 0
    memory, sums, parts = np.zeros((m, d)), [], RecordParts(Linear(), problem.response, clip, Tracked())
    for gradients, drawn in histories:
        into = Sums(np.zeros(d), np.zeros(0), np.zeros(2), np.zeros(0))
        span = Span(drawn, 0, drawn.size)
        table = records(gradients, np.zeros(m), None)
        _sum(table, parts, np.zeros(d), span, grid, into, memory, np.random.Generator(np.random.SFC64(0)))
        sums.append(into.v)
    bound = Fraction(clip.bound()) / batch / Fraction(std) * 2 ** (32 - int(grid.shift))
    return sums, memory, bound


_SIZES = st.sampled_from([0.0, 5e-324, 1e-300, 1e-20, 1e-3, 0.3, 1.0, 7.0, 1e5, 1e20, 1e160, 1e308, np.inf, np.nan])
_NUMBERS = st.builds(lambda size, part: size * part, _SIZES, st.floats(-1, 1))


@settings(max_examples=300, deadline=None, derandomize=True)
@given(data=st.data())
def test_one_record_moves_no_sum_by_more_than_its_bound(data):
    """Any gradients, any coins: on the same history, step by step, exactly, and the memories hold what was summed."""
    m, d, steps = 3, 2, data.draw(st.integers(1, 6))
    clip = data.draw(st.sampled_from([Norm(1.0), Norm(1e-3), PerClass(0.5, 2)]))
    std, kind = data.draw(st.sampled_from([1e-4, 0.1, 30.0])), data.draw(st.sampled_from(["zero", "replace"]))
    rows = st.lists(_NUMBERS, min_size=d, max_size=d).map(np.array)
    with np.errstate(all="ignore"):
        first = [np.array([data.draw(rows) for _ in range(m)]) for _ in range(steps)]
        other = [gradients.copy() for gradients in first]
        for gradients in other:
            gradients[0] = 0.0 if kind == "zero" else data.draw(rows)
    coins = [np.flatnonzero(data.draw(st.lists(st.booleans(), min_size=m, max_size=m))) for _ in range(steps)]
    (sums, memory, bound), (changed, without, _) = (
        _replay(clip, std, 2, list(zip(all_gradients, coins, strict=True))) for all_gradients in (first, other)
    )
    most = bound if kind == "zero" else 2 * bound
    for whole, rest, drawn in zip(sums, changed, coins, strict=True):
        assert np.array_equal(whole, np.rint(whole))
        change = sum(Fraction(int(a) - int(b)) ** 2 for a, b in zip(whole.tolist(), rest.tolist(), strict=True))
        assert change <= (most**2 if 0 in drawn else 0)
    np.testing.assert_array_equal(memory[1:], without[1:])  # no memory depends on another record
    np.testing.assert_array_equal(memory.sum(axis=0), np.sum(sums, axis=0))


def test_a_record_may_reach_its_bound_in_every_step_and_then_stops():
    drawn = np.array([0])
    gradients = np.array([[3.0, 4.0], [0.0, 0.0]])
    sums, _, bound = _replay(Norm(1.0), 0.1, 2, [(gradients, drawn)] * 8)
    lengths = [float(np.linalg.norm(whole)) / float(bound) for whole in sums]
    np.testing.assert_allclose(lengths[:5], 1.0, rtol=1e-7)
    assert max(lengths[5:]) < 1e-6  # what the limits of whole numbers left over, and nothing


def test_a_memory_stops_growing_where_whole_numbers_end():
    gradients, drawn = np.array([[1e300, 0.0]]), np.array([0])
    rule = cs.Rule("tracked", STEP, Norm(1.0), Poisson(1), Gaussian(1e-6), Tracked(), Accumulated())
    problem = cs.Problem(np.zeros((1, 2)), loss=Linear())
    grid = step_grid(scaling(problem, rule, 1), 1.0, 1e-6, 2)
    memory = np.zeros((1, 2))
    parts, table = RecordParts(Linear(), problem.response, Norm(1.0), Tracked()), records(gradients, np.zeros(1), None)
    total = 0
    for _ in range(20):
        into = Sums(np.zeros(2), np.zeros(0), np.zeros(2), np.zeros(0))
        _sum(table, parts, np.zeros(2), Span(drawn, 0, 1), grid, into, memory, np.random.Generator(np.random.SFC64(0)))
        total += int(into.v[0])
        assert int(memory[0, 0]) == total <= 2**52
    assert into.v[0] == 0.0


@pytest.mark.parametrize("gradient", [np.nan, np.inf, 1e308])
def test_a_record_that_is_not_finite_adds_nothing_and_spoils_nothing(gradient):
    x = np.array([[0.5, 0.2], [gradient, 1.0]])
    sums, memory, _ = _replay(Norm(1.0), 0.1, 2, [(x, np.array([0, 1]))] * 3)
    alone, rest, _ = _replay(Norm(1.0), 0.1, 2, [(x, np.array([0]))] * 3)
    np.testing.assert_array_equal(memory[0], rest[0])
    if not np.isfinite(gradient):
        np.testing.assert_array_equal(sums, alone)
        assert not memory[1].any()


def test_a_run_diverges_as_others_do():
    problem = cs.Problem([[1.0], [2.0]], loss=cs.losses.Quadratic(1.0))
    with pytest.raises(cs.DivergenceError):
        cs.run(problem, cs.TrackedSGD(cs.schedules.Constant(1e305), 1e10, 0.1, batch=1), 50, seed=0)


def test_the_order_of_the_records_does_not_show():
    x, y = reference.data()
    rule = replace(cs.TrackedSGD(STEP, 0.3, 0.05, batch=1, sampling="full"), preconditioner=Plain())
    runs = [
        cs.run(cs.Problem(x[order], y[order], loss=cs.losses.Logistic(0.1)), rule, 30, seed=1).theta
        for order in (slice(None), slice(None, None, -1))
    ]
    np.testing.assert_array_equal(runs[1], runs[0])


# -- threads and limits ----------------------------------------------------------------------------------------------


def test_threads_do_not_change_the_result():
    problem = reference.problem(cs.losses.Logistic(0.1), records=2_000)
    rule = cs.TrackedSGD(STEP, 0.1, 0.01, batch=900)
    assert step_threads(problem, rule, 7).members == 7
    runs = [cs.run(problem, rule, 60, seed=2, n_jobs=jobs).theta for jobs in (1, 2, 3, 7)]
    for other in runs[1:]:
        np.testing.assert_array_equal(other, runs[0])


def test_a_memory_that_is_too_large_is_refused():
    problem = remote.RemoteProblem(10**7, 40, loss=cs.losses.Logistic(), response=None)
    rule = cs.TrackedSGD(STEP, 0.1, 0.01, batch=900)
    with pytest.raises(
        ValueError, match=r"at most 2 GiB, got 2\.98 GiB: 8 bytes .* 40 coordinates of 10000000 records"
    ):
        check_memory(problem, rule, 1)
    small = remote.RemoteProblem(MOST_BYTES // 800, 10, loss=cs.losses.Logistic(), response=None)
    check_memory(small, rule, 10)
    with pytest.raises(ValueError, match="11 replicate"):
        check_memory(small, rule, 11)
    check_memory(problem, cs.DPSGD(STEP, 0.1, 0.01, batch=900), 1000)


def test_where_the_records_are_not_there_are_no_memories():
    problem = remote.RemoteProblem(10**15, 4, loss=cs.losses.Logistic(), response=None)
    state = initial_state(problem, cs.TrackedSGD(STEP, 0.1, 0.01, batch=10), np.zeros(4))
    assert state.memory.shape == (1, 4)


@pytest.mark.parametrize("sampling", ["uniform", "single-pass", "epochs"])
def test_other_samplers_are_refused(sampling):
    with pytest.raises(ValueError, match="sampling must be 'poisson' or 'full' for TrackedSGD"):
        cs.TrackedSGD(STEP, 0.1, 0.01, batch=10, sampling=sampling)


def test_a_clip_or_noise_that_changes_is_refused():
    falling = cs.schedules.Power(0.1, 0.5)
    with pytest.raises(ValueError, match="clip must be the same in all steps"):
        cs.Rule("tracked", STEP, Scheduled(falling), Full(), Gaussian(0.1), Tracked())
    with pytest.raises(ValueError, match="noise must be the same in all steps"):
        cs.Rule("tracked", STEP, Norm(1.0), Full(), ScheduledGaussian(falling), Tracked())
