"""Servers and databases that are killed at random under load: each accepted report is there once, and θ is a replay."""

import contextlib
import hashlib
import importlib.util
import json
import random
import sys
import threading
import time
from pathlib import Path

import pytest

import clipsilon as cs
import postgres_server
from clipsilon.local import Client
from clipsilon.local.ledger import Entry
from processes import COMMAND, DEADLINE, free_port, starting

CROWD = Path(__file__).with_name("crowd.py")
SETTINGS = [
    *("--dimension", "3", "--step-size", "0.2", "--decay", "0.5", "--turn-seconds", "600", "--batch", "10"),
    *("--loss", "mallows-logistic", "--round-seconds", "0.5", "--staleness", "2"),
]
ABOUT = {"start": [0.0] * 3, "step": cs.schedules.Power(0.2, 0.5), "batch": 10, "loss": cs.losses.MallowsLogistic()}


@pytest.fixture
def start():
    with starting() as starter:
        yield starter


def serve(start, location, port):
    process = start([*COMMAND, "serve", str(location), *SETTINGS, "--port", str(port)])
    said = process.stdout.readline()
    assert f"listening on http://127.0.0.1:{port}" in said, said
    return process


def check_ledger(location, told, model):
    """Compare what devices were told with the ledger, one by one and to the bit, and θ with a replay."""
    with cs.local.Server(location, **ABOUT) as again:
        entries = [event for event in again._ledger.events() if isinstance(event, Entry)]
        held = [
            {
                "user": entry.user,
                "mu": entry.mu,
                "sequence": number,
                "digest": hashlib.sha256(entry.report.astype("<f8").tobytes()).hexdigest(),
            }
            for number, entry in enumerate(entries, 1)
        ]
        assert sorted(told, key=lambda one: one["sequence"]) == held
        assert again.replay().theta.tobytes() == again.theta.tobytes()
        assert model.version <= again.version  # the last round may have closed by time since
        if model.version == again.version:
            assert again.theta.tobytes() == model.theta.tobytes()


def finish(workers):
    told = []
    for worker in workers:
        lines = worker.communicate(timeout=DEADLINE)[0].splitlines()
        assert worker.returncode == 0
        told += [json.loads(line) for line in lines[1:]]
    return told


@pytest.mark.verify
def test_a_server_that_is_killed_ten_times(start, tmp_path):
    rng, ledger, port = random.Random(1), tmp_path / "ledger.db", free_port()
    url = f"http://127.0.0.1:{port}"
    service = serve(start, ledger, port)
    workers = [start([sys.executable, str(CROWD), url, f"crowd{k}", "400"]) for k in range(3)]
    for worker in workers:
        worker.stdout.readline()
    for _ in range(10):
        time.sleep(rng.uniform(0.05, 1.0))
        service.kill()
        service.wait()
        service = serve(start, ledger, port)
    told = finish([_Read(worker) for worker in workers])
    model = Client(url).model()
    service.terminate()
    service.wait()
    assert model.reports == len(told) == 1200
    check_ledger(ledger, told, model)


class _Read:
    """A worker whose first line was read."""

    def __init__(self, process):
        self._process = process

    def communicate(self, timeout):
        """Read the other lines; `Popen.communicate` would lose those that came with the first one."""
        watchdog = threading.Timer(timeout, self._process.kill)
        watchdog.start()
        rest = self._process.stdout.read()
        watchdog.cancel()
        self.returncode = self._process.wait()
        return f"ready\n{rest}", None


@pytest.mark.verify
@pytest.mark.skipif(
    postgres_server.binaries() is None or importlib.util.find_spec("psycopg") is None, reason="PostgreSQL is missing"
)
def test_two_front_ends_and_their_database_are_killed_ten_times(start):
    rng = random.Random(2)
    with postgres_server.running(syncs=True) as database:
        ports = [free_port(), free_port()]
        fronts = [serve(start, database.address, port) for port in ports]
        workers = [
            start([sys.executable, str(CROWD), f"http://127.0.0.1:{ports[k % 2]}", f"crowd{k}", "400"])
            for k in range(4)
        ]
        for worker in workers:
            worker.stdout.readline()
        for _ in range(10):
            time.sleep(rng.uniform(0.05, 1.0))
            if rng.random() < 0.5:
                database.kill()
                time.sleep(rng.uniform(0.0, 0.5))
                database.start()
            else:
                k = rng.randrange(2)
                fronts[k].kill()
                fronts[k].wait()
                fronts[k] = serve(start, database.address, ports[k])
        told = finish([_Read(worker) for worker in workers])
        assert len(told) == 1600
        model = Client(f"http://127.0.0.1:{ports[0]}").model()
        for front in fronts:
            front.terminate()
            front.wait()
        check_ledger(database.address, told, model)


def fill(server):
    for k in range(1000):
        server.apply(f"user {k}", 1.0, server.version, [0.1, 0.2, 0.3])


def test_a_full_disk_is_said_and_survived(tmp_path):
    with cs.local.Server(tmp_path / "l", **ABOUT) as server:
        database = server._ledger._database
        pages = database.run("PRAGMA page_count")[0][0]
        database.run(f"PRAGMA max_page_count = {pages + 2}")
        with pytest.raises(cs.local.LedgerError, match="database or disk is full.*open it again when the cause"):
            fill(server)
        accepted = server.reports
        assert 0 < accepted < 1000
        server.reopen()
        assert server.reports == accepted
        assert server.apply("another", 1.0, server.version, [0.1, 0.2, 0.3]) == accepted + 1
        assert server.replay().theta.tobytes() == server.theta.tobytes()
    assert sorted(path.name for path in Path(tmp_path).iterdir()) == ["l", "l-head"]


def test_a_ledger_under_a_running_server_cannot_be_exchanged(tmp_path):
    """Another process removes the log while the server writes: the next report is refused, not lost."""
    with cs.local.Server(tmp_path / "l", **ABOUT) as server:
        server.apply("ann", 1.0, 0, [0.1, 0.2, 0.3])
        (tmp_path / "l-wal").unlink()
        with pytest.raises(cs.local.LedgerError, match="was removed by another process"):
            server.apply("bob", 1.0, 0, [0.1, 0.2, 0.3])
        with contextlib.suppress(cs.local.LedgerError):
            server.reopen()
        assert server.is_stopped or server.reports >= 1
