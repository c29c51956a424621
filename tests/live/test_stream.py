"""Streams: exact, durable, certified, and closed to everything else."""

import copy
import pickle
import sqlite3
import stat

import numpy as np
import pytest

import clipsilon as cs
import crowds
from clipsilon._core.parts import fingerprint
from clipsilon.engine import runner
from clipsilon.engine.streams import spawn
from clipsilon.live import RefusalError, StorageError, Stream

X, Y = crowds.population()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.db"


def shown(stream):
    """Everything that a request could have changed."""
    now = stream.model
    return now.theta.tolist(), now.average.tolist(), now.version, now.steps, stream.accepted, stream.refused


def replayed(stream, x, y, monkeypatch, steps=None):
    """The trace of `cs.run` on the same records in the same order, with the streams that the file began with."""
    streams = spawn(None, 1)[0]
    streams.restore(stream._store.load("origin").streams)
    monkeypatch.setattr(runner, "spawn", lambda seed, replicates: [streams])
    steps = -(-len(y) // stream.batch) if steps is None else steps
    return cs.run(cs.Problem(x, y, loss=cs.losses.Logistic()), stream.rule, steps, record=[steps])


def test_a_stream_that_is_opened_again_and_again_is_a_run_to_the_bit(path, monkeypatch):
    for first in range(0, 403, 75):
        with Stream(path, **crowds.settings(deploy_every=3)) as stream:
            crowds.feed(stream, X, Y, first, min(first + 75, 403))
    with Stream(path, **crowds.settings(deploy_every=3)) as stream:
        trace = replayed(stream, X, Y, monkeypatch)
        np.testing.assert_array_equal(stream._progress.state.theta, trace.theta[0, -1])
        np.testing.assert_array_equal(stream.model.average, trace.output[0])
        assert (stream.model.steps, stream.model.version, stream.is_finished) == (41, 13, True)
        deployed = stream.deployments()
        assert [(one.version, one.step) for one in deployed] == [(k, 3 * k) for k in range(14)]
        np.testing.assert_array_equal(stream.model.theta, deployed[-1].theta)
        assert sum(one.sent for one in deployed) == 403
        np.testing.assert_allclose(sum(one.total for one in deployed if one.sent), X.sum(axis=0))


def test_what_is_stated_is_the_certificate_of_the_rule(path):
    with Stream(path, **crowds.settings(adjacency="replace-one")) as stream:
        stated = stream.statement()
        own = cs.account(stream.rule, 403, 41, 1e-5, "replace-one")
        assert 0.98 < stated.certified == own.certified == stated.nominal <= 1.0
        about_seeds = [reason for reason in own.reasons if reason not in stated.reasons]
        assert [reason.split()[1] for reason in about_seeds] == ["seeded"]
        assert stated.epsilon(1e-7) == own.epsilon(1e-7)


def test_a_seed_certifies_nothing_and_is_remembered(path):
    with Stream(path, **crowds.settings(seed=1)) as stream:
        crowds.feed(stream, X, Y)
        assert stream.statement().certified == np.inf > stream.statement().nominal
        trace = cs.run(cs.Problem(X, Y, loss=cs.losses.Logistic()), stream.rule, 41, seed=1, record=[41])
        np.testing.assert_array_equal(stream.model.theta, trace.theta[0, -1])
    with pytest.raises(StorageError, match="its seeded is True, got False"):
        Stream(path, **crowds.settings())


def test_the_same_key_gets_the_same_answer_and_takes_nothing_twice(path):
    with Stream(path, **crowds.settings()) as stream:
        sent = [*crowds.records(X, Y, 0, 25), {"person": "p0", "features": X[0], "label": 1}]
        first = stream.submit(sent, version=0, key="one")
        before = shown(stream)
        assert (first.accepted, first.version, first.refused[0].code) == (25, 2, "repeated")
        assert stream.submit(sent, version=0, key="one") == first
        with pytest.raises(RefusalError, match="key 'one' belongs to another request") as caught:
            stream.submit(sent[:3], version=0, key="one")
        assert caught.value.code == "reused"
        assert shown(stream) == before
    with Stream(path, **crowds.settings()) as stream:
        assert stream.submit(sent, version=0, key="one") == first
        assert shown(stream) == before


BAD_RECORDS = {
    "length": ({"features": [1.0] * 4}, "features must be a list of 5 number"),
    "a number": ({"features": 1.0}, "features must be a list of 5 number"),
    "nan": ({"features": [1.0, 2.0, np.nan, 0.0, 0.0]}, "features must be finite"),
    "text": ({"features": ["1"] * 5}, "features must hold numbers only"),
    "label": ({"label": 2}, "label must hold labels 0 and 1 only"),
    "label nan": ({"label": np.nan}, "label must be a finite number"),
    "no person": ({"person": ""}, "person must be 1 to 200 printable characters"),
    "long person": ({"person": "p" * 201}, "person must be 1 to 200 printable characters"),
    "line": ({"person": "a\nb"}, "person must be 1 to 200 printable characters"),
    "number": ({"person": 7}, "person must be 1 to 200 printable characters"),
    "more": ({"age": 7}, "a record must have the fields features, label, person"),
}


@pytest.mark.parametrize("case", BAD_RECORDS)
def test_a_bad_record_is_refused_in_a_sentence_and_takes_no_place(path, case):
    change, reason = BAD_RECORDS[case]
    good = crowds.records(X, Y, 0, 9)
    with Stream(path, **crowds.settings()) as stream:
        receipt = stream.submit([{**good[0], "person": "x", **change}], version=0)
        assert receipt.accepted == stream.accepted == stream.model.steps == 0
        (refused,) = receipt.refused
        assert (refused.place, refused.code) == (0, "invalid")
        assert refused.reason.startswith(reason)
        assert refused.reason.endswith(".")
        assert stream.submit(good, version=0).accepted == 9


def test_requests_are_refused_as_a_whole(path):
    with Stream(path, **crowds.settings(max_lag=2)) as stream:
        crowds.feed(stream, X, Y, 0, 60)
        before, sent = shown(stream), crowds.records(X, Y, 60, 70)
        for version, code in ((3, "stale"), (7, "future")):
            with pytest.raises(RefusalError, match="version must be at most") as caught:
                stream.submit(sent, version=version)
            assert caught.value.code == code
        for bad in ({"version": -1}, {"version": 6.5}, {"version": 6, "key": ""}, {"version": 6, "key": 3}):
            with pytest.raises(ValueError, match="must be"):
                stream.submit(sent, **bad)
        for wrong in ("abc", 3, sent * 101):
            with pytest.raises(ValueError, match="records must be a list of at most 1000"):
                stream.submit(wrong, version=6)
        with pytest.raises(ValueError, match="records must hold text and numbers only"):
            stream.submit([{"person": {1}}], version=6)
        assert shown(stream) == before
        assert stream.submit(sent, version=4).accepted == 10


def test_the_horizon_is_never_passed(path):
    with Stream(path, **crowds.settings(horizon=25)) as stream:
        receipt = stream.submit(crowds.records(X, Y, 0, 40), version=0)
        assert (receipt.accepted, len(receipt.refused), receipt.version) == (25, 15, 3)
        assert {one.code for one in receipt.refused} == {"finished"}
        before = shown(stream)
        with pytest.raises(RefusalError, match="has taken all 25 records"):
            stream.submit(crowds.records(X, Y, 50, 51), version=3)
        with pytest.raises(
            RefusalError, match=r"horizon must be at most 25 for .*, got 400, which would cost ε = 1\.\d+"
        ):
            stream.extend(400)
        assert shown(stream) == before


def test_an_extension_is_charged_from_the_start_and_continues_a_longer_run(path, monkeypatch):
    about = crowds.settings(horizon=200, limit=1.2)
    with Stream(path, **about) as stream:
        crowds.feed(stream, X, Y, 0, 200)
        assert stream.is_finished
        longest = stream._learner.noise.longest
        assert stream.price(10 * longest) <= 1.2
        with pytest.raises(RefusalError, match="for the limit of ε = 1.2, got"):
            stream.extend(10 * longest + 10)
        assert stream.price(200) <= 1.0
        stated = stream.statement()
        assert stream.extend(400).certified == stated.certified  # what was released may have decided about it
        assert stated.certified == cs.account(stream.rule, 10 * longest, longest, 1e-5, "zero-out").certified
        assert 1.0 < stream.price(400) < stated.certified == stream.price(10 * longest) <= 1.2
        assert f"may be extended to {10 * longest} records" in stated.reasons[-1]
    for horizon in (200, 400):  # the first, or the present one
        with Stream(path, **{**about, "horizon": horizon}) as stream:
            assert stream.horizon == 400
    with Stream(path, **about) as stream:
        crowds.feed(stream, X, Y, 200, 400)
        # The grid is that of the longest run that the limit allows, of which this is the beginning.
        filler = np.zeros((10 * longest - 400, crowds.D)), np.zeros(10 * longest - 400)
        streams = spawn(None, 1)[0]
        streams.restore(stream._store.load("origin").streams)
        monkeypatch.setattr(runner, "spawn", lambda seed, replicates: [streams])
        problem = cs.Problem(np.vstack([X[:400], filler[0]]), np.append(Y[:400], filler[1]), loss=cs.losses.Logistic())
        trace = cs.run(problem, stream.rule, longest, record=[40])
        np.testing.assert_array_equal(stream.model.theta, trace.theta[0, 0])
        mean = np.mean([one.theta for one in stream.deployments() if one.step > 20], axis=0)
        np.testing.assert_allclose(stream.model.average, mean)


def test_a_stream_without_a_limit_is_not_extended_even_within_its_last_batch(path):
    with Stream(path, **crowds.settings()) as stream:
        with pytest.raises(RefusalError, match="horizon must be at most 403 "):
            stream.extend(410)
        assert stream.extend(403).records == stream.horizon == 403


def test_a_stream_with_a_short_last_batch_is_not_extended(path):
    with Stream(path, **crowds.settings(horizon=25, limit=2.0)) as stream:
        crowds.feed(stream, X, Y, 0, 25)
        with pytest.raises(RefusalError, match="cut short"):
            stream.extend(40)


@pytest.mark.parametrize(
    "change",
    [
        *({"dimension": 6}, {"loss": cs.losses.Logistic(0.1)}, {"epsilon": 2.0}, {"delta": 1e-6}, {"horizon": 400}),
        *({"batch": 20}, {"clip": 1.0}, {"step": cs.schedules.Constant(0.3)}, {"deploy_every": 2}, {"start": 0.5}),
        *({"adjacency": "replace-one"}, {"limit": 1.5}, {"region": cs.regions.Ball(1.0)}),
    ],
    ids=str,
)
def test_the_file_of_another_stream_is_refused(path, change, monkeypatch):
    monkeypatch.setattr("clipsilon.live.learner.advance", lambda *arguments: True)  # no kernel is needed
    Stream(path, **crowds.settings()).close()
    held = path.read_bytes()
    with pytest.raises(StorageError, match=f"{path} is the file of another stream: its {next(iter(change))} is"):
        Stream(path, **crowds.settings(**change))
    assert path.read_bytes() == held


def test_other_files_are_refused_and_left_alone(path, tmp_path):
    path.write_text("a file")
    with pytest.raises(StorageError, match="cannot be read or written"):
        Stream(path, **crowds.settings())
    assert path.read_text() == "a file"
    ledger = tmp_path / "ledger.db"
    cs.local.Server(ledger, start=[0.0], step=cs.schedules.Constant(0.1)).close()
    with pytest.raises(StorageError, match="is not the file of a stream"):
        Stream(ledger, **crowds.settings())
    foreign = tmp_path / "foreign.db"
    with sqlite3.connect(foreign) as file:
        file.execute("CREATE TABLE setting (name TEXT, value TEXT)")
    file.close()
    held = foreign.read_bytes()
    with pytest.raises(StorageError, match="is not the file of a stream; it was not modified"):
        Stream(foreign, **crowds.settings())
    assert foreign.read_bytes() == held
    with pytest.raises(StorageError, match="cannot be opened: No such file"):
        Stream(tmp_path / "none" / "run.db", **crowds.settings())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"horizon": 0}, "horizon must be a whole number of at least 1"),
        ({"limit": 0.5}, "limit must be a number of at least 1"),
        ({"adjacency": "add-remove"}, "adjacency must be 'replace-one' or 'zero-out'"),
        ({"max_lag": -1}, "max_lag must be a whole number of at least 0"),
        ({"intercept": 1}, "intercept must be True or False"),
        ({"start": [1.0, 2.0]}, "start must be a number or 5 number"),
        ({"step": 3}, "step must"),
        ({"delta": 1.0}, "delta must be a number above 0 and below 1"),
    ],
    ids=str,
)
def test_bad_settings_are_refused_before_a_file_is_made(path, change, message):
    with pytest.raises((ValueError, TypeError), match=message):
        Stream(path, **crowds.settings(**change))
    assert not path.exists()


def test_the_file_is_private_and_locked(path):
    with Stream(path, **crowds.settings()) as stream:
        for one in path.parent.iterdir():
            assert stat.S_IMODE(one.stat().st_mode) == 0o600
        with pytest.raises(StorageError, match="is in use: only one process"):
            Stream(path, **crowds.settings())
        for leak in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(TypeError, match="holds the key of its noise"):
                leak(stream)
        key = stream._store.load().streams[1]["s"]["seed"]["items"]
        told = f"{stream!r} {stream.statement()} {stream.statement().to_json()} {stream.model}"
        assert not [number for number in key if str(number) in told]


def test_a_full_disk_stops_the_stream_which_recovers_when_opened_again(path, monkeypatch):
    with Stream(path, **crowds.settings()) as stream:
        crowds.feed(stream, X, Y, 0, 100)
        database = stream._store._database
        database.run("PRAGMA wal_checkpoint(TRUNCATE)")
        pages = database.run("PRAGMA page_count")[0][0]
        database.run(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(StorageError, match=r"run.db cannot be read or written \(.*full\), so it was closed"):
            crowds.feed(stream, X, Y, 100, 403)
        for door in (lambda: stream.model, lambda: stream.submit([], version=0), stream.deployments):
            with pytest.raises(StorageError, match="full"):
                door()
    with Stream(path, **crowds.settings()) as stream:
        assert 100 <= stream.accepted < 403
        crowds.feed(stream, X, Y, stream.accepted, 403)
        assert stream.is_finished
        np.testing.assert_array_equal(
            stream.model.theta, replayed(stream, X, Y, monkeypatch).theta[0, -1]
        )  # no noise was used twice


def test_a_step_that_failed_before_it_was_written_leaves_the_same_noise(path, monkeypatch):
    """Nothing was released, so the same records, sent again, get the same noise, and others fresh places."""
    with Stream(path, **crowds.settings()) as stream:
        crowds.feed(stream, X, Y, 0, 40)

        def broken(*arguments):
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(stream._store, "_insert_models", broken)
            with pytest.raises(KeyboardInterrupt):
                stream.submit(crowds.records(X, Y, 40, 80), version=4, key="lost")
    with Stream(path, **crowds.settings()) as stream:
        assert stream.model.steps == 4
        crowds.feed(stream, X, Y, 40, 403)
        np.testing.assert_array_equal(stream.model.theta, replayed(stream, X, Y, monkeypatch).theta[0, -1])


def test_an_intercept_is_a_column_of_ones(path, tmp_path):
    with Stream(path, **crowds.settings(intercept=True, seed=3)) as stream:
        crowds.feed(stream, X, Y)
        theta = stream.model.theta
    ones = np.column_stack([X, np.ones(403)])
    with Stream(tmp_path / "other.db", **crowds.settings(dimension=6, seed=3)) as stream:
        crowds.feed(stream, ones, Y)
        np.testing.assert_array_equal(stream.model.theta, theta)


def test_the_noise_of_the_average_is_that_of_a_flat_loss(path):
    """50 runs on records of zeros: the standard deviation over 250 entries, within 5 of its standard errors (6e-7)."""
    with Stream(path, **crowds.settings()) as stream:
        expected, rule = stream.noise_of_average(), stream.rule
    flat = cs.Problem(np.zeros((403, 5)), np.zeros(403), loss=cs.losses.Logistic())
    found = cs.run(flat, rule, 41, replicates=50, seed=0, n_jobs=1).output
    assert abs(np.mean(found**2) / expected**2 - 1) < 5 * np.sqrt(2 / 250)


def test_a_missing_record_is_noticed(path):
    with Stream(path, **crowds.settings()) as stream:
        crowds.feed(stream, X, Y, 0, 55)
    with sqlite3.connect(path) as file:
        file.execute("DELETE FROM record WHERE place = 51")
    file.close()
    with pytest.raises(StorageError, match="damaged: record 51 is missing"):
        Stream(path, **crowds.settings())


def test_a_rule_of_a_stream_is_a_preset(path):
    with Stream(path, **crowds.settings()) as stream:
        own = stream.rule
        made = cs.CorrelatedSGD(own.step, own.clip.threshold, own.noise.std, 10, "in-order")
        assert fingerprint(own.update()) == fingerprint(made.update())
