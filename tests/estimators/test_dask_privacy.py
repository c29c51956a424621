"""What certificates rest on where records are in Dask's chunks: bounded changes, fixed orders, and pure tasks."""

import dask.array as da
import numpy as np
import pytest

import clipsilon as cs
from clipsilon.engine import remote
from clipsilon.engine.arrays import Models
from clipsilon.engine.grid import scaling, step_grid
from clipsilon.estimators import PrivateLogisticRegression, chunks
from clipsilon.estimators.same_rows import check_fingerprint, check_rows, fingerprint, know_rows
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


@pytest.mark.parametrize("name", METHODS)
def test_rows_that_change_places_are_refused_where_it_matters(name):
    """A record would take part at other times than the certificate assumes, or enter the memory of another one."""
    reads = []

    def swapped(block):
        reads.append(len(block))
        return block if len(reads) <= 3 else block[::-1]  # the survey, the digests and the first step

    dX = da.from_array(X, chunks=(N, 3)).map_blocks(swapped, dtype=float, meta=np.empty((0, 3)))
    how = {"method": name.split(",")[0], "random_state": 3, "classes": [0, 1]} | METHODS[name]
    model = PrivateLogisticRegression(1.0, 1e-5, **how)
    if name == "correlated, full":  # all records at every step
        model.fit(dX, da.from_array(Y, chunks=N))
        return
    with pytest.raises(
        ValueError, match="X, y and sample_weight must be the same at every step, got a chunk with other"
    ):
        model.fit(dX, da.from_array(Y, chunks=N))


@pytest.mark.parametrize("change", ["rows", "labels", "weights"])
def test_digests_tell_rows_labels_and_weights_apart(change):
    weights = RNG.uniform(size=N)
    tables = {"rows": X, "labels": Y.astype(float), "weights": weights}
    known, same = (know_rows(7, tables["rows"], (tables["labels"], tables["weights"])) for _ in range(2))
    check_fingerprint(same, fingerprint(known))
    check_rows(known, slice(2, 9), X[2:9], (tables["labels"][2:9], weights[2:9]))
    swap = np.arange(N)
    first, second = np.flatnonzero(Y == 0)[0], np.flatnonzero(Y == 1)[0]
    swap[[first, second]] = second, first
    tables[change] = tables[change][swap]
    others = know_rows(7, tables["rows"], (tables["labels"], tables["weights"]))
    assert np.flatnonzero(others.digests != known.digests).tolist() == sorted([first, second])
    with pytest.raises(ValueError, match="must be the same whenever they are read"):
        check_fingerprint(others, fingerprint(known))


# -- tasks that run again ---------------------------------------------------------------------------------------------

RULE = cs.TrackedSGD(cs.schedules.Constant(1.0), CLIP, 0.01, batch=150)


def task(done, draws, before):
    """Run the task of one chunk in one step."""
    problem = remote.RemoteProblem(N, 3, loss=cs.losses.Logistic(), response=None)
    job = remote.Job(problem.loss, problem.response, RULE.feedback, RULE.sampling, N)
    grid = step_grid(scaling(problem, RULE, STEPS), CLIP, 0.01, 3)
    models = Models(HISTORY[done, :3], HISTORY[done, :3])
    common = chunks._ChunkStep(job, False, None, remote.Step(done, models, RULE.clip, grid, 0, []))
    return chunks._track_chunk(chunks._Turn(draws, b""), common, before, X, (Y.astype(float), None), None)


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
