"""The service under load from several processes, killed repeatedly: no report is lost or doubled."""

import hashlib
import json
import re
import sqlite3
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import clipsilon as cs
from clipsilon.local import Client
from processes import COMMAND, DEADLINE, free_port, starting

CROWD = Path(__file__).with_name("crowd.py")
SETTINGS = ["--dimension", "3", "--step-size", "0.2", "--decay", "0.5", "--turn-seconds", "600"]


@pytest.fixture
def start():
    with starting() as starter:
        yield starter


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
    reports = np.array([np.frombuffer(row[3], dtype="<f8") for row in rows])
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

    # Closed properly: its log is merged, and only the witness stands beside it.
    assert {path.name for path in tmp_path.iterdir()} == {"ledger.db", "ledger.db-head"}
    database = sqlite3.connect(ledger)
    rows = database.execute("SELECT sequence, sender, mu, content FROM report ORDER BY sequence").fetchall()
    database.close()
    # The answers to the devices match the ledger one by one, to the last bit.
    digests = [hashlib.sha256(row[3]).hexdigest() for row in rows]
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
    """The ticket of before is honoured after the restart."""
    ledger, port = tmp_path / "ledger.db", free_port()
    client = Client(f"http://127.0.0.1:{port}", patience=DEADLINE)
    service = serve(start, ledger, port)
    turn, token = client._turn("ann")
    service.kill()
    service.wait()
    serve(start, ledger, port)
    body = {"user": "ann", "token": token, "version": 0, "ticket": turn["ticket"], "mu": 1.0, "report": [0.1, 0.2, 0.3]}
    assert client._request("POST", "/report", json.dumps(body).encode()) == (200, {"sequence": 1, "version": 0})
