"""A population behind HTTP: 20,000 people, four processes, and a service that is killed three times."""

import json
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import clipsilon as cs
import crowds
from clipsilon.engine import runner
from clipsilon.engine.streams import spawn
from clipsilon.live import Stream
from processes import COMMAND, free_port, starting

SENDER = Path(__file__).with_name("sender.py")
PEOPLE, D, BETA = 20_000, 5, 0.1
LIVE = [
    *(*COMMAND, "live"),
    *("--dimension", str(D), "--loss", "logistic", "--epsilon", "1", "--delta", "1e-5", "--horizon", str(PEOPLE)),
]
DEADLINE = 600.0  # seconds until the test fails; far more than it should take


@pytest.fixture
def start():
    with starting() as start_process:
        yield start_process


def serve(start, path, port):
    process = start([*LIVE, path, "--port", port])
    assert f"listening on http://127.0.0.1:{port}" in process.stdout.readline()
    return process


@pytest.mark.verify
def test_every_record_is_in_one_step_whatever_is_killed(start, tmp_path, monkeypatch):
    path, port = tmp_path / "run.db", free_port()
    service = serve(start, path, port)
    token = Path(f"{path}.token").read_text().strip()
    share = PEOPLE // 4
    senders = [
        start([sys.executable, SENDER, f"http://127.0.0.1:{port}", token, k * share, (k + 1) * share, 50, BETA])
        for k in range(4)
    ]
    watcher = crowds.Caller(f"http://127.0.0.1:{port}", token)
    end = time.monotonic() + DEADLINE
    for steps in (60, 150, 290):
        while watcher.ask("GET", "/model")[1]["steps"] < steps:
            assert time.monotonic() < end
            time.sleep(0.01)
        watcher.close()
        os.kill(service.pid, signal.SIGKILL)
        service.wait()
        service = serve(start, path, port)
    told = [json.loads(sender.communicate(timeout=DEADLINE)[0]) for sender in senders]
    assert [one["accepted"] for one in told] == [share] * 4
    _, model = watcher.ask("GET", "/model")
    _, stated = watcher.ask("GET", "/statement")
    watcher.close()
    service.terminate()
    service.wait()
    about = {"dimension": D, "loss": cs.losses.Logistic(), "epsilon": 1.0, "delta": 1e-5, "horizon": PEOPLE}
    with Stream(path, **about) as stream:
        entries = list(stream._store.entries())
        assert sorted(entry.person for entry in entries) == sorted(f"p{i}" for i in range(PEOPLE))
        assert stream.model.steps == model["steps"] == PEOPLE // 50
        streams = spawn(None, 1)[0]
        streams.restore(stream._store.load("origin").streams)
        monkeypatch.setattr(runner, "spawn", lambda seed, replicates: [streams])
        x, y = np.array([entry.features for entry in entries]), np.array([entry.label for entry in entries])
        trace = cs.run(cs.Problem(x, y, loss=cs.losses.Logistic()), stream.rule, 400, record=[400])
        np.testing.assert_array_equal(model["theta"], trace.theta[0, -1])
        np.testing.assert_array_equal(model["average"], trace.output[0])
        own = cs.account(stream.rule, PEOPLE, 400, 1e-5, "zero-out").certified
        assert stated["certified_epsilon"] == stream.statement().certified == own <= 1.0


def reacting(stream, x, y, size):
    """Send everyone in order, in requests of `size`, each reacting to the deployed model; return the average."""
    for k in range(0, len(y), size):
        stream.submit(
            crowds.records(x - BETA * stream.model.theta, y, k, min(k + size, len(y))), version=stream.model.version
        )
    return stream.model.average


@pytest.mark.verify
def test_a_stream_of_people_who_react_ends_where_a_run_does(tmp_path):
    """Requests of one batch are `cs.run` with the same seed, to rounding. Requests of five batches lag behind by up to
    four versions; their mean gap over 20 seeds is within 5.5 standard errors of the difference, for which the
    probability of a false alarm is 4e-8 for normal means. (Seeds are fixed.)
    """
    x, y = crowds.population(2000, seed=3)
    problem = cs.Problem(x, y, loss=cs.losses.Logistic(), response=cs.responses.LocationShift(BETA))
    target, about = cs.stable_point(problem).theta, crowds.settings(horizon=2000)
    gaps = []
    for seed in range(20):
        with Stream(tmp_path / f"{seed}.db", **about, seed=seed) as stream:
            gaps.append(np.sum((reacting(stream, x, y, 50) - target) ** 2))
            rule = stream.rule
    with Stream(tmp_path / "greedy.db", **about, seed=0) as stream:
        greedy = reacting(stream, x, y, 10)
    runs = np.array([cs.run(problem, rule, 200, seed=seed, n_jobs=1).output[0] for seed in range(20)])
    np.testing.assert_allclose(greedy, runs[0], rtol=1e-7, atol=1e-9)
    others = np.sum((runs - target) ** 2, axis=1)
    error = np.sqrt((np.var(gaps, ddof=1) + np.var(others, ddof=1)) / 20)
    print(f"gaps {np.mean(gaps):.4g} and {np.mean(others):.4g}, standard error {error:.2g}")
    assert abs(np.mean(gaps) - np.mean(others)) < 5.5 * error
