"""The service under load from several processes, killed repeatedly: no report is lost or doubled."""

import hashlib
import json
import random
import re
import socket
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import clipsilon as cs
from clipsilon.local import Client

CROWD = Path(__file__).with_name("crowd.py")
COMMAND = [sys.executable, "-c", "from clipsilon.cli.main import main; main()"]
SETTINGS = ["--dimension", "3", "--step-size", "0.2", "--decay", "0.5", "--turn-seconds", "600"]
DEADLINE = 120.0  # seconds until a test fails; far more than it should take


@pytest.fixture
def start():
    """Return a function that starts processes; those still running are killed at the end."""
    processes = []

    def start_process(words):
        processes.append(subprocess.Popen(words, stdout=subprocess.PIPE, text=True))
        return processes[-1]

    yield start_process
    for process in processes:
        process.kill()
        process.wait()
        process.stdout.close()


def free_port():
    """Return a free port below the ephemeral ones: a client that connects to itself there would block the server."""
    for port in random.Random().sample(range(20000, 30000), 100):
        with socket.socket() as tried:
            try:
                tried.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("no port is free")


def serve(start, ledger, port):
    process = start([*COMMAND, "serve", str(ledger), *SETTINGS, "--port", str(port)])
    said = process.stdout.readline()
    assert re.search(rf"listening on http://127\.0\.0\.1:{port}$", said.strip()), said
    return process


def wait_for(version, client):
    end = time.monotonic() + DEADLINE
    while client.model().version < version:
        assert time.monotonic() < end, "the service does not get on"
        time.sleep(0.01)  # yield the processor to the other processes


def replayed(rows):
    """Compute θ and the average from the ledger by the equations: θ_t = θ_{t−1} − 0.2·t^(−½)·report_t."""
    reports = np.array([np.frombuffer(row[4], dtype="<f8") for row in rows])
    sizes = 0.2 / np.sqrt(np.arange(1, len(reports) + 1))
    thetas = -np.cumsum(sizes[:, None] * reports, axis=0)
    return thetas[-1], thetas.mean(axis=0)


def test_killed_in_the_middle_every_report_is_applied_once(start, tmp_path):
    crowds, each = 3, 50
    ledger, port = tmp_path / "ledger.db", free_port()
    url = f"http://127.0.0.1:{port}"
    service = serve(start, ledger, port)
    workers = [start([sys.executable, str(CROWD), url, f"crowd{k}", str(each)]) for k in range(crowds)]
    client = Client(url, patience=DEADLINE)
    for third in (1, 2):
        wait_for(third * crowds * each // 3, client)
        service.kill()  # SIGKILL
        service.wait()
        service = serve(start, ledger, port)
    told = []
    for worker in workers:
        lines = worker.communicate(timeout=DEADLINE)[0].splitlines()
        assert worker.returncode == 0
        assert lines[0] == "ready"
        told += [json.loads(line) for line in lines[1:]]
    model, statement = client.model(), client.statement(1e-5)
    service.terminate()
    service.wait(timeout=DEADLINE)

    assert [path.name for path in tmp_path.iterdir()] == ["ledger.db"]  # closed properly: its log is merged
    database = sqlite3.connect(ledger)
    rows = database.execute("SELECT sequence, user, mu, version, content FROM report ORDER BY sequence").fetchall()
    database.close()
    # The answers to the devices match the ledger one by one, to the last bit.
    digests = [hashlib.sha256(row[4]).hexdigest() for row in rows]
    held = [
        {"user": row[1], "mu": row[2], "sequence": row[0], "digest": digest}
        for row, digest in zip(rows, digests, strict=True)
    ]
    assert sorted(told, key=lambda one: one["sequence"]) == held
    assert len({one["user"] for one in told}) == len(told) == crowds * each == model.version
    # θ is a replay of the ledger: by the equations, and, to the last bit, by the server itself.
    theta, average = replayed(rows)
    np.testing.assert_allclose(model.theta, theta, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(model.average, average, rtol=1e-12, atol=1e-12)
    with cs.local.Server(ledger, start=[0.0] * 3, step=cs.schedules.Power(0.2, 0.5)) as again:
        assert again.theta.tobytes() == model.theta.tobytes()
        assert again.average.tobytes() == model.average.tobytes()
        assert again.statement(1e-5).summary() == statement


def test_killed_between_turn_and_report(start, tmp_path):
    """The user who held the turn when the server died reports after the restart; another user waits."""
    ledger, port = tmp_path / "ledger.db", free_port()
    client = Client(f"http://127.0.0.1:{port}", patience=DEADLINE)
    service = serve(start, ledger, port)
    turn, token = client._turn("ann")
    service.kill()
    service.wait()
    serve(start, ledger, port)
    impatient = Client(f"http://127.0.0.1:{port}", patience=0.01)
    with pytest.raises(cs.local.NoAnswerError, match="nothing has left the device"):
        impatient.take_part("bob", ([1.0, 2.0, 3.0], 1), cs.losses.MallowsLogistic(), mu=1.0)
    body = {"user": "ann", "token": token, "version": turn["version"], "mu": 1.0, "report": [0.1, 0.2, 0.3]}
    assert client._request("POST", "/report", json.dumps(body).encode()) == (200, {"sequence": 1})
