"""Batches summed without forming gradients equal the plain reference, and rounding does not break the clip."""

import dataclasses
import threading

import numpy as np
import pytest
from scipy import sparse

import clipsilon as cs
import reference
from clipsilon._core.kernel_cache import kernel
from clipsilon._core.rows import Sparse, stored
from clipsilon.engine import threads as threads_module
from clipsilon.engine.arrays import Models, RecordParts, Span, Sums, records
from clipsilon.engine.batch import add_batch, add_penalties, workspace
from clipsilon.engine.grid import Grid
from clipsilon.engine.threads import step_threads
from clipsilon.problems.responses import Identity
from clipsilon.rules.clipping import Norm, Normalise, PerClass, Unclipped
from clipsilon.rules.feedback import ErrorFeedback, NoFeedback
from clipsilon.rules.sampling import Full, Poisson
from registry import STEP

TABLES = {
    "float64": lambda x: x,
    "float32": lambda x: x.astype(np.float32),
    "sparse": sparse.csr_array,
    "sparse float32": lambda x: sparse.csr_array(x.astype(np.float32)),
}
LOSSES = {
    "logistic": cs.losses.Logistic(positive_weight=2.0),
    "penalised": cs.losses.Logistic(l2=0.3),
    "absolute": cs.losses.Absolute(),
    "softmax": cs.losses.Softmax(3, l2=0.2),
}
RULES = {
    "clipped": cs.DPSGD(STEP, clip=0.8, noise_std=0.05, batch=150),
    "plain": cs.SGD(cs.schedules.Constant(0.01), batch=7),
    "capped": cs.DiceSGD(STEP, 0.8, 1.1, 0.05, residual_cap=1.3, batch=150, sampling="poisson"),
    "fed back": cs.DiceSGD(STEP, 0.8, 1.1, 0.05, batch=9),
    "normalised": cs.AutoDiceSGD(STEP, 0.05, batch=70, sampling="epochs"),
    "full": cs.ClippedDPGD(cs.schedules.Constant(0.01), clip=0.8, noise_std=0.05),
}


def problem(loss, table=lambda x: x, weights=None, records=300, response=None):
    x, y = reference.data(getattr(loss, "labels", "real"), records=records, features=5)
    x[np.abs(x) < 0.4] = 0.0  # so that a sparse table has zeros
    return cs.Problem(table(x), y, loss=loss, weights=weights, response=response)


def close_to_reference(case, rule, steps=25):
    trace = cs.run(case, rule, steps, start=0.3, seed=5, record=range(steps + 1), n_jobs=2)
    theta, error, output = reference.run(case, rule, steps, 0.3, 5)
    close = {"rtol": 1e-9, "atol": 1e-11 + reference.allowance(case, rule, steps)["atol"]}
    np.testing.assert_allclose(trace.theta[0], theta, **close)
    np.testing.assert_allclose(trace.output[0], output, **close)
    if trace.error is not None:
        np.testing.assert_allclose(trace.error[0], error, **close)


# Each way of summing takes seconds to compile, so every loss, rule and kind of table is tested, but not every
# combination.
PAIRS = [
    ("logistic", "clipped"), ("logistic", "plain"), ("logistic", "fed back"), ("penalised", "capped"),
    ("penalised", "normalised"), ("absolute", "full"), pytest.param("softmax", "clipped", marks=pytest.mark.verify), ("softmax", "capped"),
]  # fmt: skip


@pytest.mark.parametrize(("loss", "rule"), PAIRS)
def test_every_way_of_summing_is_the_reference(loss, rule):
    close_to_reference(problem(LOSSES[loss]), RULES[rule])


KINDS = [
    ("penalised", "float32"),
    ("penalised", "sparse"),
    pytest.param("softmax", "sparse float32", marks=pytest.mark.verify),
]


@pytest.mark.parametrize(("loss", "table"), KINDS)
def test_tables_of_any_kind(loss, table):
    weights = np.random.default_rng(1).random(300)
    close_to_reference(problem(LOSSES[loss], TABLES[table], weights), RULES["capped"])


@pytest.mark.parametrize("table", ["float32", "sparse"])
def test_tables_of_any_kind_with_a_response(table):
    weights = np.random.default_rng(1).random(300)
    response = cs.responses.BestResponse(0.2)
    close_to_reference(problem(LOSSES["logistic"], TABLES[table], weights, response=response), RULES["clipped"])


def test_clips_that_do_more_than_scale_go_record_by_record():
    rule = cs.Rule("per class", cs.schedules.Constant(0.1), PerClass(0.5, 3), Full())
    close_to_reference(problem(LOSSES["softmax"]), rule)


@pytest.mark.parametrize(("loss", "rule"), [("logistic", "clipped"), ("softmax", "capped")])
def test_threads_do_not_change_the_result(loss, rule):
    case, how = problem(LOSSES[loss], records=2_000), RULES[rule]
    how = dataclasses.replace(how, sampling=Poisson(900))
    runs = [cs.run(case, how, 60, seed=2, n_jobs=jobs).theta for jobs in (1, 2, 3, 7)]
    for other in runs[1:]:
        np.testing.assert_array_equal(other, runs[0])


def test_threads_share_a_step_only_where_it_is_worthwhile():
    case, large = problem(LOSSES["logistic"]), problem(LOSSES["logistic"], records=5_000)
    rule = cs.DPSGD(STEP, 0.8, 0.05, batch=250)
    assert step_threads(case, rule, 8).members == 1  # 250·5 numbers are too few
    assert step_threads(large, cs.DPSGD(STEP, 0.8, 0.05, batch=2_000), 8).members == 8
    assert step_threads(large, RULES["plain"], 8).members == 1


def test_a_run_with_threads_can_be_interrupted_and_resumed(tmp_path):
    case, rule = problem(LOSSES["logistic"], records=3_000), cs.DPSGD(STEP, 0.8, 0.05, batch=2_000)
    whole = cs.run(case, rule, 400, seed=1, n_jobs=2)
    part = cs.run(case, rule, 400, seed=1, n_jobs=2, checkpoint=tmp_path / "run")
    again = cs.run(case, rule, 400, seed=1, n_jobs=1, checkpoint=tmp_path / "run")
    np.testing.assert_array_equal(part.theta, whole.theta)
    np.testing.assert_array_equal(again.theta, whole.theta)


@kernel
def one_record(table, parts, theta, into, rng):
    space = workspace(table.features, theta)
    grid = Grid(1.0, 0.0, np.inf, np.inf, 0.0, 0, np.inf, 0.0, None)
    add_batch(
        table, parts, Models(theta, theta), Span(np.zeros(1, np.int64), 0, 1), grid, into, np.empty((0, 0)), space, rng
    )
    add_penalties(parts.loss, theta, grid, into)


def contribution(x, y, loss, clip, theta, feedback=None):
    """Return what one record adds to v and to `kept`."""
    into = Sums(np.zeros(theta.size), np.zeros(0 if feedback is None else theta.size), np.zeros(2), np.zeros(0))
    rng = np.random.Generator(np.random.SFC64(0))
    parts = RecordParts(loss, Identity(), clip, feedback or NoFeedback())
    one_record(records(x[np.newaxis], np.array([y]), None), parts, theta, into, rng)
    return into.v, into.kept


@pytest.mark.parametrize("seed", range(40))
def test_a_penalty_that_nearly_cancels_the_slope_cannot_slip_past_the_clip(seed):
    # The gradient is the small difference of two long vectors, so its norm is lost to rounding.
    rng = np.random.default_rng(seed)
    theta = rng.standard_normal(6) * 10.0 ** rng.uniform(0, 12)
    loss, clip = cs.losses.SquaredError(l2=1.0), Norm(1.0)
    x = -theta / np.linalg.norm(theta) * (1 + 1e-9 * rng.standard_normal(6))
    y = x @ theta - np.linalg.norm(theta)  # slope·x is nearly −θ
    v, _ = contribution(x, y, loss, clip, theta)
    exact = np.longdouble(x) * (np.longdouble(x) @ np.longdouble(theta) - np.longdouble(y)) + np.longdouble(theta)
    allowed = 1.0 + 1e-12 * np.linalg.norm(theta)  # the rounding error of terms that cancel
    assert np.linalg.norm(v) <= allowed
    assert np.linalg.norm(exact) < np.linalg.norm(theta)


@pytest.mark.parametrize("label", [0.0, 1.0])
@pytest.mark.parametrize("theta", [[1e160, 1e160], [-1e160, -1e160], [1e160, -9e159]])
def test_a_margin_that_overflows_cannot_slip_past_the_clip(theta, label):
    # ⟨x, θ⟩ is infinite, and once made the gradient's norm seem to be next to nothing.
    x = np.array([1e150, 1e150])
    v, _ = contribution(x, label, cs.losses.Logistic(l2=0.1), Norm(1.0), np.array(theta))
    assert np.linalg.norm(v) <= 1.0 + 1e-12


@pytest.mark.parametrize("size", [1e-200, 1e-160, 1.0, 1e150, 1e200])
@pytest.mark.parametrize("clip", [Norm(0.5), Normalise(0.5)])
def test_rows_whose_squares_vanish_or_overflow(size, clip):
    x, theta = size * np.array([3.0, -4.0]), np.zeros(2)
    v, kept = contribution(x, 1.0, cs.losses.Logistic(), clip, theta, ErrorFeedback(clip, clip))
    length = 0.5 * 5 * size  # slope −½
    expected = -x / (5 * size) * (min(length, 0.5) if isinstance(clip, Norm) else 0.5)
    np.testing.assert_allclose(v, expected, rtol=1e-12)
    np.testing.assert_array_equal(v, kept)


@pytest.mark.parametrize("clip", [Norm(0.5), Normalise(0.5), Unclipped()])
def test_a_slope_that_underflows_is_passed_on(clip):
    theta = np.array([730.0, 0.0])
    v, kept = contribution(np.array([1.0, 1.0]), 1.0, cs.losses.Logistic(), clip, theta, ErrorFeedback(clip, clip))
    assert np.isfinite(v).all()
    np.testing.assert_array_equal(v, kept)


def test_non_finite_models_show():
    v, _ = contribution(np.array([1.0, 1.0]), 1.0, cs.losses.SquaredError(l2=0.1), Norm(0.5), np.array([np.nan, 0.0]))
    assert np.isnan(v).any()


def descent(step, clip):
    return cs.ClippedDPGD(cs.schedules.Constant(step), clip, noise_std=0.0)


def test_weights_count_before_the_clip():
    x, y = reference.data("binary", records=50)
    heavy = cs.Problem(x, y, loss=cs.losses.Logistic(), weights=np.full(50, 1e9))
    theta = cs.run(heavy, descent(0.5, 0.3), 5, seed=0, record=[5]).theta
    # Whatever its weight, no record moves θ by more than the clip.
    assert 0 < np.linalg.norm(theta) <= 0.3 * 0.5 * 5 * (1 + 1e-12)


def test_weights_of_zero_leave_records_out():
    x, y = reference.data("binary", records=50)
    some = cs.Problem(x, y, loss=cs.losses.Logistic(), weights=(np.arange(50) < 30).astype(float))
    alone = cs.Problem(x[:30], y[:30], loss=cs.losses.Logistic())
    pairs = (some, 0.5), (alone, 0.3)  # 0.5/50 = 0.3/30 per record
    runs = [cs.run(case, descent(step, 0.7), 20, seed=0, record=[20]).theta for case, step in pairs]
    np.testing.assert_allclose(*runs, rtol=1e-12)


@pytest.mark.parametrize("wrong", [np.ones(49), -np.ones(50), np.full(50, np.nan), "heavy"])
def test_bad_weights(wrong):
    x, y = reference.data("binary", records=50)
    with pytest.raises(ValueError, match=r"^weights must .*\.$"):
        cs.Problem(x, y, loss=cs.losses.Logistic(), weights=wrong)


def test_theorems_and_constants_refuse_weights():
    case = problem(LOSSES["logistic"], weights=np.ones(300))
    for ask in (lambda: case.constants(1.0), lambda: cs.stable_point(case)):
        with pytest.raises(ValueError, match="no weights"):
            ask()
    loss = cs.losses.MallowsLogistic()
    with pytest.raises(ValueError, match="weights must be None for local privacy"):
        cs.run(problem(loss, weights=np.ones(300)), cs.LDPSGD(STEP, 1.0), 5)


def test_sparse_tables_are_not_changed_and_not_trusted():
    twice = sparse.coo_array(([1.0, 2.0, 3.0], ([0, 0, 1], [1, 1, 0])), shape=(2, 2)).tocsr()
    raw = sparse.csr_array(([1.0, 2.0, 3.0], [1, 1, 0], [0, 2, 3]), shape=(2, 2))  # one entry stored in two parts
    case = cs.Problem(raw, [0, 1], loss=cs.losses.Logistic())
    np.testing.assert_array_equal(case.features.toarray(), twice.toarray())
    assert raw.nnz == 3
    with pytest.raises(ValueError, match="features must be finite"):
        cs.Problem(sparse.csr_array([[np.inf, 0.0]]), [0], loss=cs.losses.Logistic())
    with pytest.raises(ValueError, match="features must be a non-empty table"):
        cs.Problem(sparse.csr_array((0, 2)), [], loss=cs.losses.Logistic())


def test_tables_keep_their_kind():
    x = np.eye(3, dtype=np.float32)
    assert cs.Problem(x, [0, 1, 0], loss=cs.losses.Logistic()).features.dtype == np.float32
    held = stored(cs.Problem(sparse.csr_array(x), [0, 1, 0], loss=cs.losses.Logistic()).features)
    assert isinstance(held, Sparse)
    assert held.entries.dtype == np.float32
    assert not held.entries.flags.writeable


def test_points_of_sparse_tables():
    case, full = (problem(LOSSES["penalised"], TABLES[name]) for name in ("sparse", "float64"))
    np.testing.assert_allclose(cs.stable_point(case).theta, cs.stable_point(full).theta, rtol=1e-8)
    np.testing.assert_allclose(
        cs.metrics.performative_risk(case, np.ones(5)), cs.metrics.performative_risk(full, np.ones(5)), rtol=1e-12
    )


def test_checkpoints_tell_tables_apart(tmp_path):
    moved = sparse.csr_array([[1.0, 0.0], [0.0, 2.0]])
    other = sparse.csr_array([[0.0, 1.0], [2.0, 0.0]])  # the same entries in other columns
    rule = descent(0.1, 1.0)
    cs.run(cs.Problem(moved, [0, 1], loss=cs.losses.Logistic()), rule, 5, seed=0, checkpoint=tmp_path / "run")
    with pytest.raises(cs.CheckpointError, match="another run"):
        cs.run(cs.Problem(other, [0, 1], loss=cs.losses.Logistic()), rule, 5, seed=0, checkpoint=tmp_path / "run")


def test_a_thread_that_cannot_start_leaves_no_other_waiting(monkeypatch):
    started, start = [], threading.Thread.start

    def only_one(thread):
        if getattr(thread, "_target", None) is threads_module._assist:
            if started:
                raise RuntimeError("can't start new thread")
            started.append(thread)
        start(thread)

    rng = np.random.default_rng(0)
    problem = cs.Problem(rng.normal(size=(300, 20)), rng.integers(0, 2, 300), loss=cs.losses.Logistic())
    rule = cs.SGD(cs.schedules.Constant(0.1), sampling="full")
    cs.run(problem, rule, 1, n_jobs=3, progress=False)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", only_one)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            cs.run(problem, rule, 1, n_jobs=3, progress=False)
    started[0].join(timeout=20)
    assert not started[0].is_alive()
