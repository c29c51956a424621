"""With Dask, a fit equals the fit in memory, whatever the chunks and even if workers are lost."""

import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import cloudpickle
import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas
import pytest
from distributed import Client, LocalCluster, wait
from scipy import sparse
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score

import clipsilon as cs
from clipsilon.engine import remote as chunked
from clipsilon.engine.arrays import Models, Records
from clipsilon.engine.grid import Grid
from clipsilon.engine.progress import Progress
from clipsilon.estimators import (
    METHODS,
    PrivateGLM,
    PrivateLinearRegression,
    PrivateLogisticRegression,
    PrivateScaler,
    dask_tasks,
)
from clipsilon.rules.feedback import NoFeedback
from clipsilon.rules.sampling import Full

RNG = np.random.default_rng(11)
N = 1200
X = RNG.normal(size=(N, 3))
MARGIN = X @ [2.0, -1.0, 0.5]
BINARY = (MARGIN + RNG.logistic(size=N) > 0).astype(int)
WORDS = np.array(["high", "low", "middle"])[np.digitize(MARGIN, [-1.0, 1.0])]
REAL = 10.0 + 3.0 * MARGIN + RNG.normal(size=N)
WEIGHTS = RNG.uniform(0.0, 2.0, size=N)
STEPS = 12


@pytest.fixture(scope="module")
def cluster():
    """Two workers, each a process of one thread, with long timeouts for a busy machine."""
    patient = dask.config.set({"distributed.comm.timeouts.connect": "300s", "distributed.comm.timeouts.tcp": "300s"})
    many = {"n_workers": 2, "threads_per_worker": 1, "processes": True, "dashboard_address": ":0"}
    with patient, LocalCluster(**many) as workers:
        yield workers


@pytest.fixture
def client(cluster):
    with Client(cluster) as client:
        yield client


def logistic(**more):
    """Use all records at every step. (Each call makes a new estimator: copies of one would warn about each other.)"""
    how = {"method": "clipped-dpgd", "random_state": 3, "classes": [0, 1], "epochs": STEPS}
    return PrivateLogisticRegression(**how | more)


def poisson(**more):
    return logistic(**{"method": "dpsgd", "batch": 60, "epochs": STEPS * 60 / N} | more)


STEP = cs.schedules.Constant(0.5)


def cyclic(**more):
    """Three passes of four steps in the same order, the last of them shorter."""
    return logistic(**{"method": "correlated", "batch": 350, "epochs": STEPS * 350 / N} | more)


def tracked(**more):
    return poisson(**{"method": "tracked", "batch": 300, "epochs": STEPS * 300 / N} | more)


def split(rows, *tables):
    return [da.from_array(table, chunks=(rows, *table.shape[1:])) for table in tables]


def assert_same(found, expected):
    """Compare up to rounding: sums are added in another order."""
    np.testing.assert_allclose(found.theta_, expected.theta_, rtol=1e-9, atol=1e-12)
    assert found.n_iter_ == expected.n_iter_
    assert str(found.statement_) == str(expected.statement_)


# -- without a cluster: Dask's threads ------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [logistic, poisson])
@pytest.mark.parametrize("rows", [N, 7, (1, 0, 999, 200)], ids=str)
def test_chunks_of_any_size_give_the_fit_in_memory(make, rows):
    found = make().fit(*split(rows, X, BINARY))
    assert_same(found, make().fit(X, BINARY))
    assert found.n_iter_ == STEPS


@pytest.mark.parametrize("make", [cyclic, tracked])
@pytest.mark.parametrize("rows", [N, 7, (1, 0, 999, 200)], ids=str)
def test_orders_and_memories_are_those_in_memory_to_the_bit(make, rows):
    found, expected = make().fit(*split(rows, X, BINARY, WEIGHTS)), make().fit(X, BINARY, WEIGHTS)
    np.testing.assert_array_equal(found.theta_, expected.theta_)
    assert str(found.statement_) == str(expected.statement_)
    assert found.n_iter_ == STEPS


@pytest.mark.parametrize(
    "rule",
    [
        cs.CorrelatedSGD(STEP, 1.0, 1.0, batch=110, sampling="single-pass"),
        cs.CorrelatedSGD(STEP, 1.0, 1.0, batch=110, sampling="cyclic", deploy_every=3),
        cs.TrackedSGD(STEP, 0.3, 1.0, batch=1, sampling="full", deploy_every=3),
        cs.PCSGD(STEP, 1.0, 1.0),
        cs.DPSGD(STEP, 1.0, 1.0, batch=110, sampling="uniform"),
        cs.DPSGD(STEP, 1.0, 1.0, batch=110, sampling="epochs"),
    ],
    ids=lambda rule: f"{rule.name}, {type(rule.sampling).__name__}",
)
def test_rules_and_samplers_are_those_in_memory_to_the_bit(rule):
    how = {"method": rule, "epochs": 0.01 if rule.sampling == (1,) else 2.5, "fit_intercept": False}
    how["response"] = cs.responses.BestResponse(0.3)
    found, expected = logistic(**how).fit(*split(250, X, BINARY)), logistic(**how).fit(X, BINARY)
    np.testing.assert_array_equal(found.theta_, expected.theta_)
    assert str(found.statement_) == str(expected.statement_)


@pytest.mark.parametrize("every", [1, 3])
def test_a_reaction_with_memory_is_that_in_memory_to_the_bit(every):
    rule = cs.DPSGD(STEP, 1.0, 1.0, batch=110, deploy_every=every)
    slow = cs.responses.Slow(cs.responses.LocationShift(0.3), 0.2)
    models = [logistic(method=rule, response=one, epochs=2.5) for one in (slow, slow, slow.response)]
    found, expected = models[0].fit(*split(250, X, BINARY)), models[1].fit(X, BINARY)
    np.testing.assert_array_equal(found.theta_, expected.theta_)
    assert np.abs(models[2].fit(X, BINARY).theta_ - found.theta_).max() > 1e-6, "memory makes a difference here"


@pytest.mark.parametrize("make", [cyclic, tracked])
def test_orders_and_memories_of_sparse_tables_and_several_classes(make):
    table = sparse.csr_array(np.where(np.abs(X) < 1, 0.0, X))
    dX = da.from_array(table.toarray(), chunks=(250, 3)).map_blocks(sparse.csr_array)
    how = {"classes": ["high", "low", "middle"]}
    found, expected = make(**how).fit(dX, *split(250, WORDS)), make(**how).fit(table, WORDS)
    np.testing.assert_array_equal(found.theta_, expected.theta_)


@pytest.mark.parametrize(
    "kind", [pytest.param("float32", marks=pytest.mark.verify), "sparse", "integers", "Fortran", "columns apart"]
)
def test_tables_of_any_kind(kind):
    of_kind = {
        "float32": lambda: X.astype(np.float32),
        "sparse": lambda: sparse.csr_array(np.where(np.abs(X) < 1, 0.0, X)),
        "integers": lambda: np.rint(2 * X).astype(int),
        "Fortran": lambda: np.asfortranarray(X),
        "columns apart": lambda: X,
    }
    table = of_kind[kind]()
    dense = table.toarray() if kind == "sparse" else table
    dX = da.from_array(dense, chunks=(250, 1 if kind == "columns apart" else 3))
    if kind == "sparse":
        dX = dX.map_blocks(sparse.csr_array)
    assert_same(logistic().fit(dX, da.from_array(BINARY, chunks=400)), logistic().fit(table, BINARY))


@pytest.mark.parametrize("make", [logistic, poisson])
def test_entries_that_are_stored_twice_are_one(make):
    """Otherwise the parts of a long row would seem shorter than the row, and escape the clip."""
    entries, columns, starts = [3.0] * 40 * N, [0] * 40 * N, np.arange(0, 40 * N + 1, 40)
    twice = sparse.csr_matrix((entries, columns, starts), shape=(N, 3))
    assert not twice.has_canonical_format
    found = make().fit(da.from_array(twice, chunks=(130, 3)), *split(130, BINARY))
    assert_same(found, make().fit(twice.toarray(), BINARY))


def test_weights_of_nothing_in_a_chunk():
    weights = np.ones(N)
    weights[:300] = 0.0
    found = logistic().fit(*split((100, 0, N - 100), X, BINARY, weights))
    assert_same(found, logistic().fit(X, BINARY, weights))
    with pytest.raises(ValueError, match="at least one weight above 0"):
        logistic().fit(*split(130, X, BINARY, np.zeros(N)))
    with pytest.raises(ValueError, match="sample_weight must be at least 0, got -1"):
        logistic().fit(*split(130, X, BINARY, -np.ones(N)))


def test_data_frames_of_unknown_length():
    frame = pandas.DataFrame(X, columns=["a", "b", "c"]).assign(y=BINARY, w=WEIGHTS)
    ddf = dd.from_pandas(frame, npartitions=5)
    ddf = ddf[ddf["a"] > -1.0]
    kept = frame[frame["a"] > -1.0]
    found = logistic().fit(ddf[["a", "b", "c"]], ddf["y"], ddf["w"])
    assert_same(found, logistic().fit(kept[["a", "b", "c"]], kept["y"], kept["w"]))
    assert list(found.feature_names_in_) == ["a", "b", "c"]
    assert found.n_features_in_ == 3
    predicted = found.predict(ddf[["a", "b", "c"]])
    np.testing.assert_array_equal(predicted.compute(), found.predict(kept[["a", "b", "c"]]))
    with pytest.raises(ValueError, match="feature names should match"):
        found.predict(ddf[["a", "b", "w"]])


BY_SUMS = [name for name in METHODS if not METHODS[name].is_local]
BATCHED = [name for name in BY_SUMS if "batch" in METHODS[name].choices]


@pytest.mark.parametrize("method", ["dice", "noisy-selection"])
def test_feedback_and_selection(method):
    assert_same(logistic(method=method).fit(*split(130, X, BINARY)), logistic(method=method).fit(X, BINARY))


@pytest.mark.verify
@pytest.mark.parametrize(("method", "batch"), [*((name, None) for name in BY_SUMS), *((name, 60) for name in BATCHED)])
def test_every_method(method, batch):
    how = {"method": method, "batch": batch}
    assert_same(logistic(**how).fit(*split(130, X, BINARY)), logistic(**how).fit(X, BINARY))


def test_a_plan_of_three_phases():
    """With default settings and enough records, some steps set the length of θ, and those after them stay in a ball."""
    how = {"method": "dpsgd", "epsilon": 200.0, "epochs": 100, "batch": None}
    found = logistic(**how).fit(*split(400, X, BINARY))
    assert_same(found, logistic(**how).fit(X, BINARY))
    assert np.abs(found.theta_ - logistic(**how, clip=0.1).fit(X, BINARY).theta_).max() > 0.01, "not one phase"


@pytest.mark.verify
def test_averages():
    averaged = cs.Rule(
        "own", cs.schedules.Power(0.5, 0.5), cs.clipping.Norm(0.8), cs.sampling.Poisson(50), cs.noise.Gaussian(1.0),
        output=cs.outputs.Average(),
    )  # fmt: skip
    how = {"method": averaged, "epochs": 1}
    assert_same(logistic(**how).fit(*split(130, X, BINARY)), logistic(**how).fit(X, BINARY))


@pytest.mark.verify
def test_lazy_deployment_and_reactions():
    lazy = cs.DPSGD(cs.schedules.Constant(0.5), 1.0, 1.0, batch=1, sampling="full", deploy_every=3)
    how = {"method": lazy, "response": cs.responses.BestResponse(0.3)}
    found = logistic(fit_intercept=False, **how).fit(*split(130, X, BINARY))
    assert_same(found, logistic(fit_intercept=False, **how).fit(X, BINARY))
    how["method"] = cs.DPSGD(cs.schedules.Constant(0.5), 1.0, 1.0, batch=1, sampling="full")
    greedy = logistic(fit_intercept=False, **how).fit(X, BINARY)
    assert np.abs(greedy.theta_ - found.theta_).max() > 1e-4, "deployment makes a difference here"


def test_several_classes_weights_and_balance():
    def make():
        return logistic(classes=None, class_weight="balanced")

    # A class that no weighted record has is unknown, and so refused; here all classes have weight.
    with pytest.warns(cs.PrivacyWarning) as heard:
        found = make().fit(*split(170, X, WORDS, WEIGHTS))
    assert len(heard) == 3  # the seed, the classes and their frequencies
    with pytest.warns(cs.PrivacyWarning):
        expected = make().fit(X, WORDS, WEIGHTS)
    assert_same(found, expected)
    assert list(found.classes_) == ["high", "low", "middle"]


@pytest.mark.verify
def test_a_learnt_range_of_targets():
    def make(**more):
        return PrivateLinearRegression(random_state=3, epochs=STEPS, loss="huber", **more)

    with pytest.warns(cs.PrivacyWarning, match="range of the targets"):
        found = make().fit(*split(170, X, REAL))
    with pytest.warns(cs.PrivacyWarning):
        expected = make().fit(X, REAL)
    np.testing.assert_allclose(found.target_range_, expected.target_range_, rtol=1e-12)
    np.testing.assert_allclose(found.coef_, expected.coef_, rtol=1e-9)
    given = {"target_range": (0, 20)}
    assert_same(make(**given).fit(*split(170, X, REAL)), make(**given).fit(X, REAL))


@pytest.mark.verify
@pytest.mark.filterwarnings("ignore:partial_fit:clipsilon.PrivacyWarning")  # the second call has the same rows
def test_a_general_loss_and_a_second_call():
    first, second = split(170, X, BINARY), split(300, X[::-1], BINARY[::-1])

    def make():
        return PrivateGLM(cs.losses.Savage(), random_state=3, epochs=STEPS, classes=[0, 1])

    found, expected = make().partial_fit(*first), make().partial_fit(X, BINARY)
    assert_same(found, expected)
    assert_same(found.partial_fit(*second), expected.partial_fit(X[::-1], BINARY[::-1]))


def test_predictions_are_lazy_and_the_same():
    (dX,) = split(170, X)
    model = logistic().fit(X, BINARY)
    for method in ("predict", "predict_proba", "decision_function"):
        found = getattr(model, method)(dX)
        assert isinstance(found, da.Array)
        expected = getattr(model, method)(X)
        assert found.shape == expected.shape
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(found.compute(), expected, rtol=1e-12)
    with pytest.raises(NotFittedError):
        logistic().predict(dX)
    with pytest.raises(ValueError, match="features"):
        model.predict(dX[:, :2])


def test_the_scaler_is_that_in_memory_to_the_bit():
    table = np.exp(X) * [1.0, 1e4, 1e-3]
    (dX,) = split(170, table)
    found, expected = (PrivateScaler(5.0, random_state=1).fit(data) for data in (dX, table))
    np.testing.assert_array_equal(found.center_, expected.center_)
    np.testing.assert_array_equal(found.scale_, expected.scale_)
    assert str(found.statement_) == str(expected.statement_)
    scaled = found.transform(dX)
    assert isinstance(scaled, da.Array)
    np.testing.assert_array_equal(scaled.compute(), expected.transform(table))
    np.testing.assert_allclose(found.inverse_transform(scaled).compute(), table, rtol=1e-9)
    bounded = PrivateScaler(bounds=(-1, 1)).fit(dX)
    assert bounded.statement_.certified == 0


def with_one(table, row, value):
    table = table.copy()
    table[row] = value
    return table


@pytest.mark.parametrize(
    ("arguments", "more", "message"),
    [
        ((with_one(X, 900, np.nan), BINARY), {}, "NaN"),
        ((X, with_one(BINARY, 900, 7)), {}, r"y must hold the classes \[0, 1\] only, got 7"),
        ((X, 0 * BINARY), {"classes": None}, "at least two classes"),
        ((X, MARGIN), {"classes": None}, "Unknown label type"),
        ((X, BINARY[:-1]), {}, "y must have one entry for each of 1200 rows of X, got 1199"),
        ((X, BINARY, -WEIGHTS), {}, "sample_weight must be at least 0"),
        ((X.ravel(), BINARY), {}, "X must be a Dask array or data frame of two dimensions"),
        ((X, BINARY[:, np.newaxis]), {}, "y must be a Dask array or series of one dimension"),
        ((X[:0], BINARY[:0]), {}, "at least one row"),
        ((X, BINARY), {"method": "dpsgd", "batch": 5000}, "batch must be at most"),
        ((X, BINARY), {"method": "correlated", "batch": 5000}, "batch must be at most"),
    ],
)
def test_refusals(arguments, more, message):
    tables = [da.from_array(table, chunks=(250, *table.shape[1:])) for table in arguments]
    with pytest.raises(ValueError, match=message):
        logistic(**more).fit(*tables)


def test_more_refusals():
    dX, dy = split(250, X, BINARY)
    with pytest.raises(ValueError, match=r"y must be a Dask array or series of one dimension, .* got ndarray"):
        logistic().fit(dX, BINARY)
    with pytest.raises(ValueError, match="y must have as many chunks as X"):
        logistic().fit(dd.from_pandas(pandas.DataFrame(X), npartitions=4), dy)
    with pytest.raises(ValueError, match="finite"):
        PrivateScaler().fit(da.from_array(with_one(X, 900, np.inf), chunks=(250, 3)))
    local = PrivateGLM(cs.losses.MallowsLogistic(), method="ldpsgd", adjacency="replace-one", classes=[0, 1])
    with pytest.raises(ValueError, match=r"noise must not be local for records in chunks, .* got Local\("):
        local.fit(dX, dy)


@pytest.mark.parametrize("large", [1e200, 1.7e308])
def test_a_target_however_large_is_treated_as_in_memory(large):
    targets = with_one(REAL, 900, large)

    def make():
        how = {"method": "clipped-dpgd", "random_state": 3, "epochs": STEPS}
        return PrivateLinearRegression(target_range=(9, 11), **how)

    if large == 1e200:
        assert_same(make().fit(*split(250, X, targets)), make().fit(X, targets))
        return
    for tables in ((X, targets), split(250, X, targets)):
        with pytest.raises(ValueError, match=r"^labels must be finite, got 1 NaN or infinite value\(s\)"):
            make().fit(*tables)


def test_random_reactions_are_refused():
    problem = chunked.RemoteProblem(100, 3, loss=cs.losses.Logistic(), response=cs.responses.Identity())
    problem.response = type("Drawing", (), {"random": True})()
    with pytest.raises(ValueError, match="response must not draw at random"):
        chunked.check_chunked(problem, cs.DPGD(cs.schedules.Constant(1.0), 1.0, 1.0))


class UnknownToWorkers(NamedTuple):
    """A loss that arrived at a worker without its functions."""


NO_GRID = Grid(1.0, 0.0, np.inf, np.inf, 0.0, 0, np.inf, 0.0, None)


def test_parts_that_workers_do_not_know_are_refused():
    job = chunked.Job(UnknownToWorkers(), cs.responses.Identity(), NoFeedback(), Full(), N)
    step = chunked.Step(0, Models(np.zeros(3), np.zeros(3)), cs.clipping.Norm(1.0), NO_GRID, 0, [])
    with pytest.raises(TypeError, match="loss UnknownToWorkers must be defined in a module that Dask's workers"):
        chunked.add_records(job, step, Records(X, MARGIN, None), chunked.no_sums(job, step))


def test_divergence_raises_an_error():
    with pytest.raises(cs.DivergenceError, match="try a smaller step"):
        logistic(clip=1e80, step=1e300).fit(*split(250, X, BINARY))


def test_ctrl_c_keeps_the_trace(monkeypatch):
    def press(self, done):
        if done == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr(Progress, "show", press)
    with pytest.raises(cs.Interrupted) as stopped:
        logistic().fit(*split(250, X, BINARY))
    assert stopped.value.trace.steps_done.tolist() == [4]


@pytest.mark.parametrize("method", ["dice", "tracked"])
def test_only_sums_come_back(monkeypatch, method):
    """A step returns d numbers to the driver, and d more with feedback, whatever the number of records."""
    received = []
    real = dask_tasks.compute
    monkeypatch.setattr(dask_tasks, "compute", lambda tasks: received.append(real(tasks)) or received[-1])
    poisson(method=method).fit(*split(20, X, BINARY))
    (survey,) = received[:-STEPS]
    assert len(survey) == N // 20
    for ((v, kept, penalties, counts),) in received[-STEPS:]:
        assert v.shape == (4,)
        assert kept.shape == ((4,) if method == "dice" else (0,))
        assert penalties.shape == (2,)
        assert counts.size == 0


def test_dask_is_imported_only_where_it_is_used():
    code = "import sys, clipsilon, clipsilon.estimators; assert not {'dask', 'distributed'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True)


# -- draws ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [5, None])
@pytest.mark.parametrize(
    "sampling",
    [
        *(cs.sampling.Poisson(30), cs.sampling.Poisson(200), cs.sampling.Poisson(30, 0.07), cs.sampling.Full()),
        *(cs.sampling.Cyclic(30), cs.sampling.SinglePass(30), cs.sampling.Epochs(30), cs.sampling.Uniform(30)),
    ],
    ids=lambda sampling: f"{type(sampling).__name__}{tuple(sampling)}",
)
@pytest.mark.parametrize("sizes", [[200], [1, 0, 150, 49], [2] * 100], ids=lambda sizes: str(len(sizes)))
def test_chunks_draw_what_one_table_would(seed, sampling, sizes):
    (streams,) = cs.engine.streams.spawn(seed, 1)
    copy = streams.copy()
    copy.restore(streams.state())
    job = chunked.Job(None, None, None, sampling, 200)
    firsts = [0, *np.cumsum(sizes)[:-1].tolist()]
    replicate, order = SimpleNamespace(streams=streams, order=np.arange(200)), np.arange(200)
    for t in range(20):
        draws = chunked._draw_chunks(sampling, t, 200, firsts, replicate)
        found = [chunked.drawn_rows(job, own, size) for own, size in zip(draws, sizes, strict=True)]
        assert all((rows < size).all() for rows, size in zip(found, sizes, strict=True))
        drawn = np.empty(200, dtype=np.int64)
        count = cs.sampling.draw(sampling, t, 200, order, copy.records, drawn)
        whole = [first + rows for first, rows in zip(firsts, found, strict=True)]
        np.testing.assert_array_equal(np.concatenate(whole), np.sort(drawn[:count]))


@pytest.mark.parametrize("make", [logistic, poisson])
@pytest.mark.parametrize("seed", [3, None])
def test_tasks_that_run_again_draw_nothing_anew(monkeypatch, make, seed):
    """Each task is computed three times, as if its results had been lost, and sent as to another process each time."""
    once, compared = dask_tasks.compute, []

    def thrice(tasks):
        results = [once(cloudpickle.loads(cloudpickle.dumps(tasks))) for _ in range(3)]
        compared.append(len({pickle.dumps(result) for result in results}))
        return results[-1]

    tables = split(150, X, BINARY)
    monkeypatch.setattr(dask_tasks, "compute", thrice)
    found = make(random_state=seed).fit(*tables)
    monkeypatch.undo()
    assert len(compared) > STEPS
    assert set(compared) == {1}  # the same coins and the same sums, and no noise in any of them
    if seed is not None:
        np.testing.assert_array_equal(found.theta_, make(random_state=seed).fit(*tables).theta_)


# -- on a cluster ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [logistic, poisson, cyclic, tracked])
@pytest.mark.parametrize("persisted", [True, False])
def test_two_workers_give_the_fit_in_memory(client, make, persisted):
    tables = split(150, X, BINARY, WEIGHTS)
    if persisted:
        tables = dask.persist(*tables)
        wait(tables)
    found = make().fit(*tables)
    assert_same(found, make().fit(X, BINARY, WEIGHTS))
    np.testing.assert_array_equal(found.predict(tables[0]).compute(), found.predict(X))


def test_the_number_of_workers_does_not_matter_to_the_bit(client):
    tables = split(150, X, BINARY)
    found = poisson(method="dice").fit(*tables)
    with dask.config.set(scheduler="synchronous"):
        alone = poisson(method="dice").fit(*tables)
    np.testing.assert_array_equal(found.theta_, alone.theta_)


def killing(monkeypatch, victim, after, delay):
    """Send SIGKILL to a worker from a thread after a number of steps; return a list of the steps at which it was sent."""
    steps = []

    def show(self, done):
        steps.append(done)
        if done == after:
            threading.Timer(delay, kill).start()

    def kill():
        os.kill(victim, signal.SIGKILL)
        killed.append(steps[-1])

    killed = []
    monkeypatch.setattr(Progress, "show", show)
    return killed


def await_both_workers(client):
    """Wait until there are two workers again; start one if Dask has given up restarting another, as it may if busy."""
    try:
        client.wait_for_workers(2, timeout=60)
    except TimeoutError:
        client.cluster.scale(len(client.cluster.workers) + 1)
        client.wait_for_workers(2, timeout=600)


@pytest.mark.parametrize(
    ("make", "persisted"), [(logistic, True), (poisson, False), (cyclic, False), (tracked, True), (tracked, False)]
)
def test_a_killed_worker_changes_no_bit(client, monkeypatch, make, persisted):
    undisturbed = make().fit(*split(150, X, BINARY))

    def slowly(block):  # a function of this function, so that it is sent along
        time.sleep(0.02)
        return block

    dX, dy = split(150, X, BINARY)
    if persisted:
        dX, dy = dask.persist(dX, dy)
    dX = dX.map_blocks(slowly, dtype=dX.dtype)
    before = client.run(os.getpid)
    killed = killing(monkeypatch, next(iter(before.values())), after=3, delay=0.05)
    found = make().fit(dX, dy)
    assert killed, "a worker was killed"
    assert 3 <= killed[0] < STEPS, "in the middle of the fit"
    np.testing.assert_array_equal(found.theta_, undisturbed.theta_)
    await_both_workers(client)
    assert set(client.run(os.getpid).values()) != set(before.values())


def test_memories_are_computed_again_from_the_models_of_their_steps(monkeypatch):
    """Workers in this process share the driver's arrays, also those that the next step overwrites."""
    table = RNG.normal(size=(60, 4000))  # long enough for θ not to be copied on its way
    labels = (table[:, 0] > 0).astype(int)
    expected = logistic(method="tracked").fit(table, labels)
    here = {"n_workers": 2, "threads_per_worker": 1, "processes": False, "dashboard_address": ":0"}
    closed = []

    def show(self, done):
        if done == 8:
            worker = next(iter(workers.workers.values()))
            closed.append(len(worker.data))
            client.sync(worker.close)

    with LocalCluster(**here) as workers, Client(workers) as client:
        monkeypatch.setattr(Progress, "show", show)
        found = logistic(method="tracked").fit(*split(10, table, labels))
    assert closed[0] > 0, "a worker with data was lost"
    np.testing.assert_array_equal(found.theta_, expected.theta_)


@pytest.mark.parametrize("method", ["clipped-dpgd", "tracked"])
def test_ctrl_c_cancels_the_tasks(client, monkeypatch, method):
    def slowly(block):
        time.sleep(0.5)
        return block

    def show(self, done):
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()  # during the second step

    dX, dy = split(600, X, BINARY)
    monkeypatch.setattr(Progress, "show", show)
    with pytest.raises(cs.Interrupted) as stopped:
        logistic(method=method).fit(dX.map_blocks(slowly, dtype=dX.dtype), dy)
    assert stopped.value.trace.steps_done.tolist() == [1]
    time.sleep(1.0)  # what has begun is not stopped
    assert not any(client.processing().values())


def test_searches_run_on_the_cluster_unchanged(client):
    """Through joblib's Dask backend, which leaves scores unchanged."""
    from joblib import parallel_backend

    def scores():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", cs.PrivacyWarning)
            search = GridSearchCV(logistic(), {"clip": [0.5, 1.0]}, cv=2).fit(X, BINARY)
            return [*search.cv_results_["mean_test_score"], *cross_val_score(poisson(), X, BINARY, cv=3)]

    expected = scores()
    with parallel_backend("dask"):
        found = scores()
    assert found == expected


@pytest.mark.verify
@pytest.mark.parametrize("batch", [None, 20_000])
def test_data_larger_than_memory(batch):
    """Fit 1.6 GB from a file on two workers of at most 700 MB each, 340 MB of it code: each step reads the file again."""
    rows, columns, size = 2_000_000, 100, 20_000
    with tempfile.TemporaryDirectory() as folder:  # and not pytest's, which would keep the file
        path = Path(folder) / "x.npy"
        table = np.lib.format.open_memmap(path, "w+", np.float64, (rows, columns))
        for first in range(0, rows, size):
            table[first : first + size] = np.random.default_rng(first).standard_normal((size, columns))
        table.flush()

        def read(place):
            first = place[0] * size
            return np.array(np.load(path, mmap_mode="r")[first : first + size])

        blocks = da.arange(rows // size, chunks=1)
        dX = blocks.map_blocks(read, dtype=float, chunks=((size,) * (rows // size), (columns,)), new_axis=1)
        dy = blocks.map_blocks(lambda place: (read(place)[:, 0] > 0).astype(int), dtype=int, chunks=(dX.chunks[0],))
        how = {"epochs": 3 * (batch or rows) / rows, "batch": batch, "clip": 1.0, "random_state": 0, "classes": [0, 1]}
        how["delta"] = 1e-7
        how["method"] = "clipped-dpgd" if batch is None else "dpsgd"
        limit = {"memory_limit": "700MB", "n_workers": 2, "threads_per_worker": 1, "dashboard_address": ":0"}
        with LocalCluster(processes=True, **limit) as workers, Client(workers):
            found = PrivateLogisticRegression(**how).fit(dX, dy)
        assert_same(found, PrivateLogisticRegression(**how).fit(table, (table[:, 0] > 0).astype(int)))
