"""Attacks on a stream: noise used twice, locks broken, names that databases cannot store, records of the worst kind."""

import os
import subprocess
import sys
import warnings
from contextlib import suppress

import numpy as np
import pytest
from scipy.linalg import toeplitz
from scipy.optimize import brentq
from scipy.stats import norm

import clipsilon as cs
import crowds
from clipsilon.live import StorageError, Stream
from clipsilon.rules import correlation

X, Y = crowds.population()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.db"


def test_names_that_a_database_cannot_store_are_refused_alone(path):
    good = crowds.records(X, Y, 0, 4)
    names = ["\ud800", "a\x00b", "p3"]
    with Stream(path, **crowds.settings()) as stream:
        sent = [{**one, "person": name} for one, name in zip(good, names, strict=False)]
        receipt = stream.submit(sent, version=0, key="k")
        assert [(one.place, one.person, one.code) for one in receipt.refused] == [
            (0, None, "invalid"),
            (1, None, "invalid"),
        ]
        assert receipt.accepted == stream.accepted == 1


def test_a_name_in_another_form_of_unicode_is_the_same_person(path):
    one, two = crowds.records(X, Y, 0, 2)
    with Stream(path, **crowds.settings()) as stream:
        stream.submit([{**one, "person": "Jos\u00e9"}], version=0)
        receipt = stream.submit([{**two, "person": "Jose\u0301"}], version=0)
        assert [one.code for one in receipt.refused] == ["repeated"]


def test_the_order_of_records_is_a_term_of_the_statement():
    rule = cs.DPSGD(cs.schedules.Constant(0.1), 1.0, 0.3, 10, "in-order")
    reasons = cs.account(rule, 100, 10, 1e-5).reasons
    assert "The order of the records must not depend on what they hold, as that of a sorted table does." in reasons


def test_deeply_nested_records_are_refused(path):
    deep: object = 1
    for _ in range(10_000):
        deep = [deep]
    with Stream(path, **crowds.settings()) as stream, pytest.raises(ValueError, match="records must hold text and"):
        stream.submit([{"person": "ann", "features": deep, "label": 1}], version=0)


CHILD = """
import sys
from contextlib import suppress
import crowds
from clipsilon.live import Stream
Stream(sys.argv[1], **crowds.settings())
"""


def test_reading_the_file_does_not_let_another_process_in(path):
    """Closing any handle of a file releases SQLite's own lock of the whole process."""
    with Stream(path, **crowds.settings()):
        path.read_bytes()
        paths = os.pathsep.join(one for one in sys.path if one)
        other = subprocess.run(
            [sys.executable, "-c", CHILD, path],
            env={**os.environ, "PYTHONPATH": paths},
            capture_output=True,
            text=True,
            check=False,
        )
        assert "run.db is in use: only one process" in other.stderr
        with pytest.raises(StorageError, match="is in use: only one process"):
            Stream(path, **crowds.settings())
    Stream(path, **crowds.settings()).close()


def fork():
    with warnings.catch_warnings():  # of threads, which later Pythons warn of
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def test_a_fork_cannot_use_the_stream(path):
    """It would draw the noise that its parent draws, for other records."""
    with Stream(path, **crowds.settings()) as stream:
        crowds.feed(stream, X, Y, 0, 10)
        child = fork()
        if child == 0:
            with suppress(StorageError):
                stream.submit(crowds.records(X, Y, 100, 110), version=1)
                os._exit(1)
            stream.close()
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        crowds.feed(stream, X, Y, 10, 20)
        assert stream.model.steps == 2


def test_a_fork_that_lives_on_does_not_keep_the_file_locked(path):
    reader, writer = os.pipe()
    with Stream(path, **crowds.settings()):
        child = fork()
        if child == 0:
            os.read(reader, 1)
            os._exit(0)
    try:
        Stream(path, **crowds.settings()).close()
    finally:
        os.write(writer, b".")
        os.waitpid(child, 0)
        os.close(reader)
        os.close(writer)


def test_a_fork_that_ends_does_not_take_away_what_is_shown(path):
    """Closing the connection in a fork removes the log that the parent writes to, so that what it writes may be lost."""
    with Stream(path, **crowds.settings()) as stream:
        crowds.feed(stream, X, Y, 0, 10)
        child = fork()
        if child == 0:
            stream._store._database._connection.close()  # as an interpreter does when it ends
            os._exit(0)
        os.waitpid(child, 0)
        with pytest.raises(StorageError, match="run.db-wal was removed by another process"):
            stream.submit(crowds.records(X, Y, 10, 20), version=1)
        with pytest.raises(StorageError, match="was removed"):
            stream.model  # noqa: B018
    with Stream(path, **crowds.settings()) as stream:
        assert stream.accepted == 10 * stream.model.steps


def test_memory_is_the_name_of_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with Stream(":memory:", **crowds.settings()) as stream:
        crowds.feed(stream, X, Y, 0, 10)
    with Stream(":memory:", **crowds.settings()) as stream:
        assert stream.accepted == 10


@pytest.mark.parametrize("is_written", [True, False])
def test_an_interrupted_write_closes_the_stream(path, monkeypatch, is_written):
    """Else an extension would put the state from before the write back, and the same noise be drawn again."""
    about = crowds.settings(horizon=200, limit=1.2)
    with Stream(path, **about) as stream:
        write = stream._store.write

        def interrupted(*arguments):
            if is_written:
                write(*arguments)
            raise KeyboardInterrupt

        monkeypatch.setattr(stream._store, "write", interrupted)
        with pytest.raises(KeyboardInterrupt):
            stream.submit(crowds.records(X, Y, 0, 10), version=0)
        with pytest.raises(StorageError, match="was interrupted while it was written"):
            stream.extend(300)
    with Stream(path, **about) as stream:
        assert (stream.accepted, stream.model.steps) == ((10, 1) if is_written else (0, 0))


def test_a_step_that_diverged_ends_the_stream_for_good(path):
    """Its noise has met its records, and an outsider has seen that it failed: no other records may meet it."""
    about = crowds.settings(step=cs.schedules.Constant(1e308))
    with Stream(path, **about) as stream:
        with pytest.raises(StorageError, match="run.db has ended: θ is not finite after step"):
            crowds.feed(stream, X, Y)
        with pytest.raises(StorageError, match="has ended"):
            stream.submit(crowds.records(X, Y, 300, 310), version=0)
    with pytest.raises(StorageError, match="run.db has ended: θ is not finite after step"):
        Stream(path, **about)


def test_the_matrix_of_the_noise_is_kept_in_the_file(path, monkeypatch):
    """It is found by least squares, and another version of SciPy may find another one."""
    with Stream(path, **crowds.settings()) as stream:
        crowds.feed(stream, X, Y, 0, 100)
        matrix, certified = stream.rule.noise.buffers, stream.statement().certified
    monkeypatch.setattr(correlation, "square_root", lambda steps, count: matrix * [1.0, 0.9])
    with Stream(path, **crowds.settings()) as stream:
        np.testing.assert_array_equal(stream.rule.noise.buffers, matrix)
        np.testing.assert_array_equal(stream._learner.rule.noise.buffers, matrix)
        assert stream.statement().certified == certified


STEP = 1e-9  # so small that gradients do not depend on noise: then the same seed has the same noise on neighbours


def released_updates(path, x, y, **more):
    """The noisy updates of all steps, from the deployed models; and the stream's rule and statement."""
    about = crowds.settings(step=cs.schedules.Constant(STEP), seed=7, **more)
    with Stream(path, **about) as stream:
        crowds.feed(stream, x, y)
        thetas = [one.theta for one in stream.deployments(1000)]
        return -np.diff(thetas, axis=0) / STEP, stream.rule, stream.statement()


def gaussian_epsilon(mu, delta):
    def excess(epsilon):
        return norm.cdf(mu / 2 - epsilon / mu) - np.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu) - delta

    return brentq(excess, 0.0, 50.0)


@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
@pytest.mark.parametrize("place", [0, 200, 402])  # the last one is in a batch of 3
def test_one_record_moves_the_updates_by_no_more_than_is_certified(tmp_path, adjacency, place):
    """The worst records that are known, at the first place, attain the certified ε within 1 %."""
    found = []
    for name, row in (("one", np.full(5, 1e6)), ("other", np.full(5, 0.0 if adjacency == "zero-out" else -1e6))):
        x = X.copy()
        x[place] = row
        found.append(released_updates(tmp_path / name, x, Y, adjacency=adjacency))
    (one, rule, stated), (other, _, _) = found
    difference = one - other
    assert np.flatnonzero(np.linalg.norm(difference, axis=1) > 1e-6).tolist() == [place // 10]
    matrix = toeplitz(correlation.coefficients(rule.noise.buffers, 41), np.zeros(41))
    mu = float(np.linalg.norm(matrix @ difference)) / rule.noise.std
    attained = gaussian_epsilon(mu, 1e-5)
    assert attained <= stated.nominal * (1 + 1e-6)
    assert (attained > 0.99 * stated.nominal) == (place == 0)


def test_no_content_of_a_record_moves_an_update_farther(tmp_path):
    rng = np.random.default_rng(0)
    x, y = np.zeros((400, 5)), np.zeros(400)
    x[::10] = rng.choice([-1.0, 1.0], (40, 5)) * 10.0 ** rng.uniform(-320, 308.2, (40, 5))  # one in each batch
    x[0], x[10], x[20] = 1.7e308, 5e-324, 1.0
    y[::10] = rng.choice([0.0, 1.0], 40)
    one, rule, _ = released_updates(tmp_path / "one", x, y, horizon=400)
    other, _, _ = released_updates(tmp_path / "other", np.zeros((400, 5)), y, horizon=400)
    lengths = np.linalg.norm(one - other, axis=1) / (rule.clip.threshold / 10)
    assert lengths.max() <= 1 + 1e-6
    assert np.count_nonzero(lengths > 0.99) > 5
