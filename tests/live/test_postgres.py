"""Streams in PostgreSQL, on a real server that the tests start; they are left out only where there is none."""

import importlib.util

import numpy as np
import pytest

import clipsilon as cs
import crowds
import postgres_server
from clipsilon.live import StorageError, Stream

if postgres_server.binaries() is None or importlib.util.find_spec("psycopg") is None:
    pytest.skip("PostgreSQL or psycopg is not installed.", allow_module_level=True)

X, Y = crowds.population()


@pytest.fixture(scope="module")
def server():
    with postgres_server.running() as one:
        yield one


@pytest.fixture
def address(server, request):
    """The address of a schema of its own."""
    import psycopg

    name = f"s{abs(hash(request.node.name))}"
    with psycopg.connect(server.address, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {name}")
    return f"{server.address}?options=-csearch_path%3D{name}"


def test_a_stream_in_postgres_is_one_in_sqlite_to_the_bit(address, tmp_path):
    with Stream(tmp_path / "run.db", **crowds.settings(seed=4)) as stream:
        crowds.feed(stream, X, Y)
        expected = stream.model
    for first in (0, 150, 300):
        with Stream(address, **crowds.settings(seed=4)) as stream:
            crowds.feed(stream, X, Y, first, min(first + 150, 403))
    with Stream(address, **crowds.settings(seed=4)) as stream:
        np.testing.assert_array_equal(stream.model.theta, expected.theta)
        np.testing.assert_array_equal(stream.model.average, expected.average)
        assert (stream.is_finished, len(stream.deployments())) == (True, 42)
        assert stream._store.known(["p5", "nobody"]) == {"p5"}
        np.testing.assert_array_equal([entry.features for entry in stream._store.entries()], X)


def test_one_process_at_a_time_and_no_other_stream(address):
    in_use = pytest.raises(StorageError, match=r"postgresql://127.0.0.1/postgres is in use")
    with Stream(address, **crowds.settings()), in_use:
        Stream(address, **crowds.settings())
    with pytest.raises(StorageError, match="is the file of another stream: its epsilon is 1.0, got 2.0"):
        Stream(address, **crowds.settings(epsilon=2.0))


def test_a_lost_lock_does_not_bring_an_older_state_back(address):
    """A connection pooler may lose the lock. The second process writes a refusal only, with the state that it read."""
    with Stream(address, **crowds.settings()) as first:
        first._store._database.run("SELECT pg_advisory_unlock_all()")
        with Stream(address, **crowds.settings()) as second:
            crowds.feed(first, X, Y, 0, 10)
            with pytest.raises(StorageError, match="was changed by another process"):
                second.submit([{}], version=0)
        assert first._store.load().streams == first._progress.streams.state()
        crowds.feed(first, X, Y, 10, 20)


def test_a_name_that_postgres_cannot_store_does_not_close_the_stream(address):
    one, two = crowds.records(X, Y, 0, 2)
    with Stream(address, **crowds.settings()) as stream:
        receipt = stream.submit([{**one, "person": "a\x00b"}, two], version=0)
        assert (receipt.accepted, receipt.refused[0].code) == (1, "invalid")
        assert stream.submit([one], version=0).accepted == 1


def test_a_secret_in_the_address_is_not_told():
    address = "postgresql://someone:a-password@127.0.0.1:1/nothing"
    with pytest.raises(StorageError, match="postgresql://127.0.0.1/nothing cannot be opened") as caught:
        Stream(address, **crowds.settings())
    assert "a-password" not in str(caught.value)


def test_a_server_that_is_killed_stops_the_stream_which_recovers(server, address):
    with Stream(address, **crowds.settings(seed=5)) as stream:
        crowds.feed(stream, X, Y, 0, 200)
        before = stream.model
        server.kill()
        with pytest.raises(StorageError, match="cannot be read or written"):
            stream.submit(crowds.records(X, Y, 200, 240), version=before.version, key="lost")
        with pytest.raises(StorageError, match="cannot be read or written"):
            stream.model  # noqa: B018
    server.start()
    with Stream(address, **crowds.settings(seed=5)) as stream:
        np.testing.assert_array_equal(stream.model.theta, before.theta)
        crowds.feed(stream, X, Y, 200, 403)
        trace = cs.run(cs.Problem(X, Y, loss=cs.losses.Logistic()), stream.rule, 41, seed=5, record=[41])
        np.testing.assert_array_equal(stream.model.theta, trace.theta[0, -1])
