"""Records per second of a live stream over HTTP, beside a bare service that only parses and stores the same requests.

    python benchmarks/live.py [--quick]

Four processes keep a connection each, fetch the model, and send 50 records of 20 features per request, as soon as the
last request is answered. The bare service is what no durable one can do without: the same web server, JSON, the token,
and one synced SQLite transaction per request, with one row per record. Its requests come from the same senders.
"""

from __future__ import annotations

import json
import secrets
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np

from results import Row, ahead, cost, main
from timing import Times, ratio

TOPIC = "Live learning"
COLUMNS, SIZE, SENDERS = 20, 50, 4
LEAST = 2000.0  # records per second on two cores
FILE = Path(__file__)


def send(url: str, token: str, first: int, last: int) -> None:
    """Send the records of some people in requests of `SIZE`, over one kept connection.

    Parameters
    ----------
    url, token : str
        The service, and what it asks senders for.
    first, last : int
        The people, whose records are made before the first request.
    """
    rng = np.random.default_rng(first)
    rows = rng.standard_normal((last - first, COLUMNS)).tolist()
    labels = rng.integers(0, 2, last - first).tolist()
    made = [{"person": f"p{first + i}", "features": rows[i], "label": labels[i]} for i in range(last - first)]
    connection = HTTPConnection(urlsplit(url).netloc, timeout=60)
    headers = {"Authorization": f"Bearer {token}"}
    print("ready", flush=True)
    sys.stdin.readline()
    for k in range(0, len(made), SIZE):
        version = ask(connection, "GET", "/model", None, headers)["version"]
        body = json.dumps({"key": f"{first + k}", "version": version, "records": made[k : k + SIZE]})
        answer = ask(connection, "POST", "/records", body, headers)
        if answer["accepted"] != len(made[k : k + SIZE]):
            raise SystemExit(f"not all records were accepted: {answer}")
    connection.close()


def ask(connection: HTTPConnection, method: str, path: str, body: str | None, headers: dict[str, str]) -> dict:
    """Return the answer to one request.

    Parameters
    ----------
    connection : HTTPConnection
        A kept connection.
    method, path, body, headers
        The request.

    Returns
    -------
    dict
    """
    connection.request(method, path, body, headers)
    answer = connection.getresponse()
    content = json.loads(answer.read())
    if answer.status != 200:
        raise SystemExit(f"{path}: {content}")
    return content


def serve(kind: str, path: str, token: str, people: int) -> None:
    """Run a service until the process is stopped, and print its URL.

    Parameters
    ----------
    kind : {"stream", "bare"}
        Which service.
    path : str
        Its SQLite file.
    token : str
        What it asks senders for.
    people : int
        The number of records that are coming.
    """
    from clipsilon._core import web
    from clipsilon.live.service import serve as serve_stream

    listener = web.listen("127.0.0.1", 0)
    if kind == "bare":
        app = bare(path, token)
        print(web.address(listener), flush=True)
        web.serve(app, listener)
        return
    import clipsilon as cs

    about = {"dimension": COLUMNS, "epsilon": 1.0, "delta": 1e-5, "horizon": people}
    stream = cs.live.Stream(path, loss=cs.losses.Logistic(), max_lag=10**6, **about)  # type: ignore[arg-type]
    print(web.address(listener), flush=True)
    serve_stream(stream, token, listener)


def bare(path: str, token: str):  # type: ignore[no-untyped-def]
    """Return an application that stores what it gets, and learns nothing.

    Parameters
    ----------
    path : str
        Its SQLite file.
    token : str
        What it asks senders for.
    """
    import asyncio

    from starlette.applications import Starlette
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    base = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
    base.execute("PRAGMA journal_mode = WAL")
    base.execute("PRAGMA synchronous = FULL")
    base.execute("CREATE TABLE record (person TEXT PRIMARY KEY, features BLOB, label REAL)")
    lock = asyncio.Lock()

    async def model(request):  # type: ignore[no-untyped-def]
        return JSONResponse({"theta": [0.0] * COLUMNS, "version": 0})

    def store(records: list[dict]) -> None:
        base.execute("BEGIN IMMEDIATE")
        rows = [(one["person"], np.array(one["features"]).tobytes(), one["label"]) for one in records]
        base.executemany("INSERT INTO record VALUES (?, ?, ?)", rows)
        base.execute("COMMIT")

    async def records(request):  # type: ignore[no-untyped-def]
        assert request.headers["authorization"] == f"Bearer {token}"
        sent = json.loads(await request.body())["records"]
        async with lock:
            await asyncio.to_thread(store, sent)
        return JSONResponse({"accepted": len(sent), "refused": [], "version": 0})

    return Starlette(routes=[Route("/model", model), Route("/records", records, methods=["POST"])])


@contextmanager
def process(*words: object) -> Iterator[subprocess.Popen[str]]:
    """Run this file in a process of its own, which is ended with the block."""
    pipe = subprocess.PIPE
    child = subprocess.Popen([sys.executable, str(FILE), *map(str, words)], stdin=pipe, stdout=pipe, text=True)
    try:
        yield child
    finally:
        child.kill()
        child.wait()


def per_record(kind: str, people: int) -> float:
    """Return the seconds per record of a service, from the first request to the last answer."""
    token = secrets.token_urlsafe(16)
    with tempfile.TemporaryDirectory() as folder, process("serve", kind, f"{folder}/run.db", token, people) as service:
        assert service.stdout is not None
        url = service.stdout.readline().strip()
        share = people // SENDERS
        words = [("send", url, token, k * share, (k + 1) * share) for k in range(SENDERS)]
        with process(*words[0]) as a, process(*words[1]) as b, process(*words[2]) as c, process(*words[3]) as d:
            senders = (a, b, c, d)
            for one in senders:
                assert one.stdout is not None
                one.stdout.readline()
            began = time.perf_counter()
            for one in senders:
                assert one.stdin is not None
                one.stdin.write("go\n")
                one.stdin.flush()
            if any(one.wait() for one in senders):
                raise SystemExit("a sender failed")
            return (time.perf_counter() - began) / (share * SENDERS)


def measure(rows: list[Row], quick: bool) -> None:
    """Add the rate of a stream over the one that is wanted, and its time over that of the bare service."""
    people, repeats = (2000, 1) if quick else (20_000, 5)
    kinds: dict[str, Callable[[], float]] = {
        kind: lambda kind=kind: per_record(kind, people)  # type: ignore[misc]
        for kind in ("stream", "bare")
    }
    per_record("stream", 2000)  # compiles
    taken: Times = {kind: [] for kind in kinds}
    for _ in range(repeats):
        for kind, contender in kinds.items():
            taken[kind].append(contender())
    rates = {kind: 1.0 / float(np.median(times)) for kind, times in taken.items()}
    about = f"{SENDERS} senders, {SIZE} records of {COLUMNS} features per request, kept connections"
    how = f"{rates['stream']:,.0f} records per second; {about}"
    rows.append(ahead(TOPIC, "records per second", f"{LEAST:,.0f} per second", rates["stream"] / LEAST, how, 1.0))
    how = f"time per record; {rates['bare']:,.0f} records per second without checks and steps"
    rows.append(cost(TOPIC, "a stream", "a service that only stores", ratio(taken, "stream", "bare"), how))


if __name__ == "__main__":
    if sys.argv[1:2] == ["send"]:
        send(*sys.argv[2:4], *map(int, sys.argv[4:6]))
    elif sys.argv[1:2] == ["serve"]:
        serve(*sys.argv[2:5], int(sys.argv[5]))
    else:
        sys.exit(main("live", measure, __doc__))
