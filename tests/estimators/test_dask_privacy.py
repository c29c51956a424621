"""What certificates rest on where records are in Dask's chunks: bounded changes, fixed orders, and pure tasks."""

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas
import pytest
from distributed import Client, LocalCluster
from scipy import sparse

import clipsilon as cs
from clipsilon.engine import machines, remote, tracking
from clipsilon.engine.arrays import Models
from clipsilon.engine.grid import scaling, step_grid
from clipsilon.engine.machines import this_machine
from clipsilon.engine.projection import project
from clipsilon.estimators import (
    PrivateLogisticRegression,
    PrivateScaler,
    chunk_runner,
    chunks,
    dask_tasks,
)
from clipsilon.estimators.same_rows import features_fingerprint, know_rows, require_rows, targets_fingerprint
from clipsilon.privacy.accounting.gaussian import largest_mu
from clipsilon.rules.correlation import coefficients, shift_norm, square_root

N, STEPS, RECORD, CLIP = 300, 12, 170, 0.5
RNG = np.random.default_rng(2)
X = RNG.normal(size=(N, 3)) * [1.0, 5.0, 0.1]
Y = RNG.integers(0, 2, N)
X[RECORD], Y[RECORD] = [4.0, -3.0, 2.0], 1
HISTORY = 0.5 * RNG.normal(size=(STEPS, 4))  # of models: anything that an attacker might have seen
ROWS = (70, 0, 101, 129)

METHODS = {
    "correlated": {"batch": 75, "epochs": STEPS / 4},  # three passes of four steps
    "correlated, full": {"batch": None, "epochs": STEPS},
    "tracked": {"batch": 150, "epochs": STEPS / 2},
    "tracked, full": {"batch": None, "epochs": STEPS},
}


def fit(name, adjacency, x, y, weights):
    """Fit on chunks. A small ε and a large δ: all steps are certified as one Gaussian mechanism, or as DP-SGD."""
    how = {"method": name.split(",")[0], "clip": CLIP, "step": 1.0, "random_state": 3, "classes": [0, 1]} | METHODS[
        name
    ]
    model = PrivateLogisticRegression(1.0, 1e-5, adjacency=adjacency, **how)
    tables = (da.from_array(table, chunks=(ROWS, *table.shape[1:])) for table in (x, y, weights))
    return model.fit(*tables)


def sums_of(monkeypatch, *arguments):
    """Fit with the models of HISTORY in place of those that the noise would lead to; return all sums, and the grid."""
    found = []

    def follow(update, loss, region, grid, total, state, rng):
        assert grid.rounding > 0
        assert not total.penalties.any()
        found.append((total.v.copy(), grid))
        state.theta[:] = HISTORY[state.clock[0]]
        state.clock[0] += 1
        return True

    with monkeypatch.context() as patch:
        patch.setattr(remote, "_finish_step", follow)
        fit(*arguments)
    assert len(found) == STEPS
    assert len({grid for _, grid in found}) == 1
    return np.array([v for v, _ in found]), found[0][1]


def neighbours(adjacency):
    """Two data sets that differ in one record."""
    weights, x, y = np.ones(N), X.copy(), Y.copy()
    if adjacency == "zero-out":
        weights[RECORD] = 0.0
    else:
        x[RECORD], y[RECORD] = [5.0, -4.0, 2.0], 0  # the opposite direction
    return (X, Y, np.ones(N)), (x, y, weights)


@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
@pytest.mark.parametrize("name", METHODS)
def test_one_record_moves_the_sums_by_no_more_than_is_certified(monkeypatch, name, adjacency):
    """On the same history of models and with the same draws, exactly, in units of the grid."""
    (sums, grid), (others, _) = (sums_of(monkeypatch, name, adjacency, *tables) for tables in neighbours(adjacency))
    np.testing.assert_array_equal(sums, np.rint(sums))
    change, most = sums - others, 2 if adjacency == "replace-one" else 1
    batch = METHODS[name]["batch"] or N
    bound = CLIP / batch / grid.unit
    lengths = np.linalg.norm(change, axis=1)
    assert (lengths <= most * bound).all()
    assert lengths.max() > 0.9 * most * bound, "the attack has an effect"
    noise = 2.0 ** (32 - grid.shift)
    if name == "tracked":
        assert 0 < np.count_nonzero(lengths) < STEPS, "the record is not in every batch"
        return
    places = np.flatnonzero(lengths)
    apart = 4 if name == "correlated" else 1
    assert (np.diff(places) % apart == 0).all(), "a record takes part once in each pass, at the same place"
    if name.startswith("correlated"):
        assert places.size == STEPS // apart
        buffers = square_root(10**6, 6)
        c = coefficients(buffers, STEPS)
        change = np.array([sum(c[t - s] * change[s] for s in range(t + 1)) for t in range(STEPS)])
        assert np.linalg.norm(change) <= most * bound * shift_norm(buffers, STEPS, STEPS // apart, apart)
    assert np.linalg.norm(change) / noise <= largest_mu(1.0, 1e-5), "the whole run, as one Gaussian mechanism"


@pytest.mark.parametrize("name", METHODS)
def test_the_draws_do_not_depend_on_the_data(monkeypatch, name):
    drawn = []
    real = remote._draw_chunks

    def spy(*arguments):
        draws = real(*arguments)
        job = remote.Job(None, None, None, arguments[0], N)
        drawn[-1].append([remote.drawn_rows(job, own, size).tolist() for own, size in zip(draws, ROWS, strict=True)])
        return draws

    monkeypatch.setattr(remote, "_draw_chunks", spy)
    for tables in ((X, Y, np.ones(N)), (np.zeros((N, 3)), 1 - Y, RNG.uniform(size=N))):
        drawn.append([])
        fit(name, "zero-out", *tables)
    assert drawn[0] == drawn[1]


# -- rows that must stay where they are -------------------------------------------------------------------------------

POISSON = {"method": "dpsgd", "batch": 150, "epochs": STEPS / 2}
FULL = {"method": "clipped-dpgd", "epochs": STEPS}
CYCLIC = {"method": "correlated", "batch": 75, "epochs": STEPS / 4}
TRACKED = {"method": "tracked", "batch": 150, "epochs": STEPS / 2}


def logistic(how=POISSON):
    return PrivateLogisticRegression(1.0, 1e-5, random_state=3, classes=[0, 1], **how)


def changing(table, reads, change):
    """Return a Dask array of one chunk that is `table` in the first reads, and changed in all later ones."""
    seen = []

    def read(block):
        seen.append(1)
        return block if len(seen) <= reads else change(block)

    columns = table.shape[1:]
    return da.from_array(table, chunks=(N, *columns)).map_blocks(read, dtype=table.dtype, meta=np.empty((0, *columns)))


def constant(table):
    return da.from_array(table, chunks=(N, *table.shape[1:]))


@pytest.mark.parametrize("reads", [1, 2, 5])  # the survey, the digests, and a few steps
@pytest.mark.parametrize("how", [POISSON, FULL, CYCLIC, TRACKED], ids=lambda how: how["method"])
def test_rows_that_change_places_are_refused(how, reads):
    """The features of one record would meet the label of another, and a record would enter two terms of a sum."""
    with pytest.raises(ValueError, match=r"must be the same .* got a chunk with other rows, or in another order"):
        logistic(how).fit(changing(X, reads, lambda block: block[::-1]), constant(Y))


@pytest.mark.parametrize("name", ["y", "weights", "groups"])
def test_labels_that_change_places_are_refused(name):
    """Labels are read twice, by the survey and when they are encoded."""
    tables = {"y": Y, "weights": np.linspace(0.5, 1.5, N), "groups": np.arange(N) // 2}
    read = {key: (changing(own, 1, np.flip) if key == name else constant(own)) for key, own in tables.items()}
    with pytest.raises(ValueError, match="X, y, sample_weight and groups must be the same whenever they are read"):
        logistic().fit(constant(X), read["y"], read["weights"], groups=read["groups"])


@pytest.mark.parametrize("change", [lambda block: block[:-1], lambda block: np.concatenate([block, block[:9]])])
def test_chunks_that_change_their_length_are_refused(change):
    """A longer chunk would use the coins of the next one: records of both would be drawn together."""
    x, y = (da.concatenate([changing(table, 1, change), constant(table)]) for table in (X, Y))
    with pytest.raises(ValueError, match="must be the same whenever they are read"):
        logistic().fit(x, y)
    x = da.concatenate([changing(X, 3, change), constant(X)])
    with pytest.raises(
        ValueError, match="X must be the same at every step, got a chunk of (299|309) rows and 3 columns"
    ):
        logistic().fit(x, da.concatenate([constant(Y)] * 2))


@pytest.mark.parametrize("columns", [2, 4])
@pytest.mark.parametrize("as_table", [np.array, sparse.csr_array])
def test_chunks_of_another_width_are_refused(columns, as_table):
    """Compiled code would take the numbers of the next record, or of other memory, for those of a row."""
    block = dask.delayed(as_table)(np.ones((N, columns)))
    x = da.concatenate([constant(X).map_blocks(as_table), da.from_delayed(block, (N, 3), float)])
    with pytest.raises(ValueError, match=f"X must have 3 columns in every chunk, got a chunk with {columns}"):
        logistic().fit(x, da.concatenate([constant(Y)] * 2))
    if as_table is np.array:  # scalers take dense tables only
        with pytest.raises(ValueError, match="X must have 3 columns in every chunk"):
            PrivateScaler(random_state=0).fit(x)


def test_sparse_chunks_with_wrong_columns_are_refused():
    table = sparse.csr_array(X)
    table.indices[7] = 10**6
    x = da.from_delayed(dask.delayed(table, traverse=False), (N, 3), float)
    with pytest.raises(ValueError, match="indices must be < 3"):
        logistic().fit(x, constant(Y))


def test_columns_of_a_frame_that_were_shuffled_apart_are_refused():
    """Two shuffles of one data frame order its rows differently; the index tells."""
    frame = pandas.DataFrame(X, columns=list("abc")).assign(y=Y, w=1.0)
    other = frame.sample(frac=1.0, random_state=0)
    tables = {"X": frame[["a", "b", "c"]], "y": frame["y"], "w": frame["w"]}
    for name, wrong in (("y", other["y"]), ("w", other["w"])):
        parts = [dd.from_delayed([dask.delayed(own)]) for own in (tables | {name: wrong}).values()]
        with pytest.raises(ValueError, match="must have its rows in the order of X, got an index that is that of X"):
            logistic().fit(*parts)
    apart = frame["y"].set_axis(np.arange(N) + 10**6)  # an index of its own
    logistic().fit(*(dd.from_delayed([dask.delayed(own)]) for own in (tables | {"y": apart}).values()))


def test_a_scaler_refuses_rows_that_change():
    with pytest.raises(ValueError, match="must be the same whenever they are read"):
        PrivateScaler(5.0, random_state=0).fit(changing(X, 4, lambda block: block[::-1]))


def test_digests_and_fingerprints_tell_rows_labels_and_weights_apart():
    known, same = know_rows(7, X), know_rows(7, sparse.csr_array(X))
    np.testing.assert_array_equal(known.digests, same.digests)
    assert features_fingerprint(known) == features_fingerprint(same)
    require_rows(known, slice(2, 9), X[2:9])
    swapped = X.copy()
    swapped[[3, 5]] = X[[5, 3]]
    others = know_rows(7, swapped)
    assert np.flatnonzero(others.digests != known.digests).tolist() == [3, 5]
    assert features_fingerprint(others) != features_fingerprint(known)
    wider = know_rows(7, np.column_stack([X, np.zeros(N)]))  # zeros add nothing to a digest
    assert features_fingerprint(wider) != features_fingerprint(known)
    with pytest.raises(ValueError, match="X must be the same at every step"):
        require_rows(known, slice(2, 9), swapped[2:9])
    words = np.array(["no", "yes"], dtype=object)[Y]
    found = {
        targets_fingerprint(*columns)
        for columns in (
            (Y, None, None),
            (Y[::-1], None, None),
            (Y, Y, None),
            (Y, Y, Y),
            (words, None, None),
            (words[::-1], None, None),
            (words.astype(str), None, None),
        )
    }
    assert len(found) == 7
    copies = np.array(words.tolist(), dtype=object), Y.copy(), None
    assert targets_fingerprint(words, Y, None) == targets_fingerprint(*copies)


# -- records that must not change each other ----------------------------------------------------------------------------


@pytest.mark.parametrize("as_table", [np.array, np.float32, np.asfortranarray, sparse.csr_array])
@pytest.mark.parametrize("columns", [1, 3, 50])
def test_a_projection_does_not_depend_on_the_other_rows(columns, as_table):
    """On Dask the records that are drawn are projected: a record must not change the last bits of the others."""
    table, directions = as_table(RNG.normal(size=(67, columns))), RNG.normal(size=(columns, 2))
    whole = project(table, directions)
    dense = table.toarray() if sparse.issparse(table) else table.astype(float)
    np.testing.assert_allclose(whole, dense @ directions, rtol=1e-12, atol=1e-12)
    for rows in ([5], [4, 5], [5, 66], list(range(66)), list(range(1, 67))):
        np.testing.assert_array_equal(project(table[rows], directions), whole[rows])


def test_rescaling_steps_are_those_in_memory_to_the_bit():
    how = {"method": "dpsgd", "epochs": 20, "batch": 2}  # chunks of which one record is drawn, or none
    found, expected = (
        PrivateLogisticRegression(1000.0, 1e-5, random_state=3, classes=[0, 1], **how).fit(*tables)
        for tables in ([da.from_array(own, chunks=(50, *own.shape[1:])) for own in (X, Y)], (X, Y))
    )
    np.testing.assert_array_equal(found.theta_, expected.theta_)


# -- workers that must compute the same bits ----------------------------------------------------------------------------


@pytest.mark.parametrize("field", this_machine()._fields)
def test_workers_of_different_kinds_are_refused(monkeypatch, field):
    here, other = this_machine(), this_machine()._replace(**{field: "another"})
    tables = [da.from_array(table, chunks=(150, *table.shape[1:])) for table in (X, Y)]
    kinds = iter([here, other])
    monkeypatch.setattr(chunks, "this_machine", lambda: next(kinds))
    with pytest.raises(ValueError, match="got 2 different kinds"):
        logistic().fit(*tables)
    kinds = iter([here] * 4 + [other] * 100)  # the survey, a step, and the next one
    monkeypatch.setattr(chunks, "this_machine", lambda: here)
    monkeypatch.setattr(machines, "this_machine", lambda: next(kinds))
    with pytest.raises(ValueError, match="like those at the beginning of the fit, got one that is not"):
        logistic().fit(*tables)


def test_workers_with_another_version_than_the_driver_are_refused(monkeypatch):
    monkeypatch.setattr(chunks, "this_machine", lambda: machines.Machine("older", "", ""))
    with pytest.raises(ValueError, match="must have the same version of clipsilon as this process"):
        logistic().fit(constant(X), constant(Y))


# -- limits -----------------------------------------------------------------------------------------------------------


def test_memories_that_are_too_large_are_refused(monkeypatch):
    monkeypatch.setattr(tracking, "MOST_BYTES", 8 * N * 4 - 1)
    with pytest.raises(ValueError, match=r"the memory of tracked gradients must be at most .* on 1 worker\(s\)"):
        logistic(TRACKED).fit(constant(X), constant(Y))
    monkeypatch.setattr(dask_tasks, "count_workers", lambda: 2)
    logistic(TRACKED).fit(constant(X), constant(Y))


def test_workers_are_those_of_the_cluster_that_computes():
    assert dask_tasks.count_workers() == 1
    here = {"n_workers": 3, "threads_per_worker": 1, "processes": False, "dashboard_address": ":0"}
    with LocalCluster(**here) as workers, Client(workers):
        assert dask_tasks.count_workers() == 3
        with dask.config.set(scheduler="threads"):
            assert dask_tasks.count_workers() == 1


def test_more_records_than_a_hidden_number_may_have_are_refused():
    """The units of the grid would be too small for exact sums."""
    rule = cs.DPSGD(cs.schedules.Constant(1.0), 1.0, 1.0, batch=100, rate=1e-6)
    problem = remote.RemoteProblem(2**31 + 1, 3, loss=cs.losses.Logistic(), response=None)
    with pytest.raises(ValueError, match=r"problem must have at most 2\*\*31 records"):
        scaling(problem, rule, STEPS)
    scaling(remote.RemoteProblem(2**31, 3, loss=cs.losses.Logistic(), response=None), rule, STEPS)


# -- tasks that run again ---------------------------------------------------------------------------------------------

RULE = cs.TrackedSGD(cs.schedules.Constant(1.0), CLIP, 0.01, batch=150)


def task(done, draws, before):
    """Run the task of one chunk in one step."""
    problem = remote.RemoteProblem(N, 3, loss=cs.losses.Logistic(), response=None)
    job = remote.Job(problem.loss, problem.response, RULE.feedback, RULE.sampling, N)
    grid = step_grid(scaling(problem, RULE, STEPS), CLIP, 0.01, 3)
    models = Models(HISTORY[done, :3], HISTORY[done, :3])
    common = chunk_runner._ChunkStep(
        job, False, None, remote.Step(done, models, RULE.clip, grid, 0, []), this_machine()
    )
    own = chunk_runner._Targets(Y.astype(float), None, None)
    return chunk_runner._track_chunk(draws, common, before, X, own, know_rows(7, X))


def assert_equal(found, expected):
    assert found.done == expected.done
    np.testing.assert_array_equal(found.memory, expected.memory)
    for one, other in zip(found.sums, expected.sums, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_task_that_runs_again_returns_the_same_and_changes_nothing():
    draws = [np.sort(RNG.choice(N, 150, replace=False)) for _ in range(3)]
    before, kept = None, []
    for done, rows in enumerate(draws):
        before = task(done, rows, before)
        before.memory.flags.writeable = False  # as Dask's workers may hand it over
        kept.append((before, before.memory.copy()))
    assert np.any(kept[0][1] != kept[1][1])
    assert not kept[0][1][np.setdiff1d(np.arange(N), draws[0])].any(), "only who takes part remembers"
    again = None
    for done, rows in enumerate(draws):
        again = task(done, rows, kept[done - 1][0] if done else None)
        assert_equal(again, kept[done][0])
    for chunk, memory in kept:
        np.testing.assert_array_equal(chunk.memory, memory)


def test_memories_of_another_step_are_refused():
    rows = np.arange(5)
    first = task(0, rows, None)
    with pytest.raises(RuntimeError, match="must be of step 2, got those of step 1"):
        task(2, rows, first)
    with pytest.raises(RuntimeError, match="must be of step 1, got those of step 0"):
        task(1, rows, None)  # never zeros in the place of what was lost
