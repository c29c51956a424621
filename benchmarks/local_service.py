"""Reports per second of the service for local reports, over HTTP, with every accepted report on disk.

    python benchmarks/local_service.py [--quick]

Devices are state machines in two processes beside the service: each keeps a connection, asks for a turn, waits for as
long as a real device would compute, sends a report, and begins again under another name. "Fast" devices do not wait.
Reports are made before the clock starts, with exact noise, at θ = 0: the service cannot tell, and has the processor.
Rounds have 100 reports of 10 numbers. PostgreSQL is started from Debian's packages, with its disk syncs on, and serves
two front ends; it is left out where it is not installed.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np

from results import Row, ahead, main

TOPIC = "Local service"
DIMENSION, BATCH = 10, 100
REPORTS = 500  # different ones, which the devices of a process send in turn
RATE = 50.0  # requests per second from one address under attack; each honest device has its own, as all attackers have
FILE = Path(__file__)


class Device(asyncio.Protocol):
    """One device after the other, over one connection; each takes part once.

    Parameters
    ----------
    names : iterator of str
        The names of the users.
    reports : iterator of str
        The numbers of their reports, as JSON.
    delay : float
        Seconds between model and report.
    counts : dict
        Counts of accepted reports and of refusals, by code.
    """

    def __init__(self, names: Iterator[str], reports: Iterator[str], delay: float, counts: dict[str, int]):
        self._names, self._reports, self._delay, self._counts = names, reports, delay, counts
        self._buffer, self._user, self._turn = b"", "", True
        self._loop = asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]
        self._ask()

    def _ask(self) -> None:
        self._user, self._turn = next(self._names), True
        self._post("turn", f'{{"user":"{self._user}","token":"t"}}')

    def _post(self, path: str, body: str) -> None:
        head = f"POST /{path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        self._transport.write((head + body).encode())

    def data_received(self, data: bytes) -> None:
        """Take the answer, if all of it is there."""
        self._buffer += data
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        place = self._buffer.find(b"Content-Length: ") + 16
        length = int(self._buffer[place : self._buffer.find(b"\r", place)])
        if len(self._buffer) < end + 4 + length:
            return
        status, body = self._buffer[9:12], self._buffer[end + 4 :]
        self._buffer = b""
        if status != b"200":
            code = json.loads(body)["code"]
            self._counts[code] = self._counts.get(code, 0) + 1
            self._loop.call_later(0.01, self._ask)
        elif self._turn:
            self._loop.call_later(self._delay, self._send, json.loads(body)) if self._delay else self._send(
                json.loads(body)
            )
        else:
            self._counts["accepted"] = self._counts.get("accepted", 0) + 1
            self._ask()

    def _send(self, turn: dict) -> None:
        self._turn = False
        about = f'{{"user":"{self._user}","token":"t","ticket":"{turn["ticket"]}","version":{turn["version"]},"mu":1.0'
        self._post("report", f'{about},"report":{next(self._reports)}}}')


def load(urls: str, prefix: str, devices: int, delay: float, seconds: float) -> None:
    """Run devices for some seconds, and print how many reports per second were accepted after the first second.

    Parameters
    ----------
    urls : str
        The front ends, separated by commas.
    prefix : str
        What the users' names begin with.
    devices : int
        Their number.
    delay : float
        Seconds between model and report.
    seconds : float
        How long.
    """
    import clipsilon as cs

    record, loss = (np.ones(DIMENSION), 1.0), cs.losses.MallowsLogistic()
    made = [cs.local.report(np.zeros(DIMENSION), record, loss, mu=1.0) for _ in range(REPORTS)]
    reports = itertools.cycle([json.dumps(one.tolist()) for one in made])
    counts: dict[str, int] = {}

    async def work() -> None:
        loop = asyncio.get_running_loop()
        names = (f"{prefix}-{k}" for k in iter(range(10**9)))
        for k in range(devices):
            place = urlsplit(urls.split(",")[k % len(urls.split(","))])
            own = (f"127.1.{k // 250}.{1 + k % 250}", 0)
            await loop.create_connection(
                lambda: Device(names, reports, delay, counts), place.hostname, place.port, local_addr=own
            )
        await asyncio.sleep(1.0)
        before, began = counts.get("accepted", 0), time.perf_counter()
        await asyncio.sleep(seconds)
        rate = (counts.get("accepted", 0) - before) / (time.perf_counter() - began)
        print(json.dumps({"rate": rate, **counts}), flush=True)

    asyncio.run(work())


class Attacker(asyncio.Protocol):
    """A connection that sends a request as soon as the last one is answered, or one byte per second."""

    def __init__(self, requests: Iterator[bytes], slow: bool):
        self._requests, self._slow = requests, slow

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]
        self.data_received(b"")

    def data_received(self, data: bytes) -> None:
        """Send the next request."""
        if not self._slow:
            self._transport.write(next(self._requests))
        elif not self._transport.is_closing():
            self._transport.write(b"G")
            asyncio.get_running_loop().call_later(1.0, self.data_received, b"")


def attack(url: str, kind: str, seconds: float) -> None:
    """Attack a service from 127.0.0.2 for some seconds; connections that it closes are opened again.

    Parameters
    ----------
    url : str
        The service.
    kind : str
        One of `ATTACKS`.
    seconds : float
        How long.
    """
    place, end = urlsplit(url), time.monotonic() + seconds

    def posts() -> Iterator[bytes]:
        for k in iter(range(10**9)):
            path, body, headers = ATTACKS[kind](k)
            method = "POST" if body else "GET"
            yield (
                f"{method} {path} HTTP/1.1\r\nHost: x\r\n{headers}Content-Length: {len(body)}\r\n\r\n{body}"
            ).encode()

    async def keep(requests: Iterator[bytes]) -> None:
        loop = asyncio.get_running_loop()
        while time.monotonic() < end:
            try:
                transport, _ = await loop.create_connection(
                    lambda: Attacker(requests, kind == "slow"), place.hostname, place.port, local_addr=("127.0.0.2", 0)
                )
                while not transport.is_closing() and time.monotonic() < end:
                    await asyncio.sleep(0.05)
            except OSError:
                await asyncio.sleep(0.05)

    async def work() -> None:
        requests = posts()
        await asyncio.gather(*(keep(requests) for _ in range(500 if kind == "slow" else 16)))

    asyncio.run(work())


def _report(k: int) -> str:
    numbers = json.dumps([1e300] * DIMENSION)
    return f'{{"user":"x{k}","token":"t","ticket":"0.0.x","version":0,"mu":1.0,"report":{numbers}}}'


ATTACKS: dict[str, Callable[[int], tuple[str, str, str]]] = {
    "renew": lambda k: ("/turn", '{"user":"mallory","token":"t"}', ""),
    "tokens": lambda k: ("/turn", f'{{"user":"m{k}","token":"t{k}"}}', ""),
    "slow": lambda k: ("/", "", ""),
    "implausible": lambda k: ("/report", _report(k), ""),
    "enrolment": lambda k: ("/turn", '{"user":"ann","token":"t"}', f"Authorization: Bearer {k}\r\n"),
    "statements": lambda k: (f"/statement?delta=1e-{5 + k % 9}", "", ""),
}


def attacked(kind: str | None, seconds: float) -> float:
    """Return the reports per second of 64 honest devices, 200 ms each, while one address attacks."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        front = stack.enter_context(process("serve", f"{folder}/ledger.db", RATE))
        url = front.stdout.readline().strip()  # type: ignore[union-attr]
        if kind is not None:
            stack.enter_context(process("attack", url, kind, seconds + 30))
        time.sleep(3.0)
        honest = stack.enter_context(process("load", url, "honest", 64, 0.2, seconds))
        return float(json.loads(honest.communicate()[0])["rate"])


def serve(location: str, rate: float = math.inf) -> None:
    """Run a front end, and print its URL; at the end, its seconds of processor time."""
    import clipsilon as cs
    from clipsilon._core import http_server
    from clipsilon.local.service import Access
    from clipsilon.local.service import serve as serve_reports

    about = {"start": [0.0] * DIMENSION, "step": cs.schedules.Power(0.2, 0.5), "batch": BATCH, "round_seconds": 10.0}
    server = cs.local.Server(location, loss=cs.losses.MallowsLogistic(), **about)  # type: ignore[arg-type]
    listener = http_server.listen("127.0.0.1", 0)
    print(http_server.address(listener), flush=True)
    before = time.process_time()
    try:
        serve_reports(server, listener, access=Access(rate=rate))
    except KeyboardInterrupt:
        print(time.process_time() - before, flush=True)


@contextmanager
def process(*words: object) -> Iterator[subprocess.Popen[str]]:
    """Run this file in a process of its own, which is ended with the block."""
    child = subprocess.Popen([sys.executable, str(FILE), *map(str, words)], stdout=subprocess.PIPE, text=True)
    try:
        yield child
    finally:
        child.kill()
        child.wait()


def rate(location: str, front_ends: int, devices: int, delay: float, seconds: float) -> tuple[float, float]:
    """Return the accepted reports per second, and the seconds of the front ends' processor time per report.

    Parameters
    ----------
    location : str
        The ledger.
    front_ends, devices : int
        How many of them.
    delay : float
        Seconds between model and report.
    seconds : float
        How long to count.

    Returns
    -------
    tuple of float
    """
    with ExitStack() as stack:
        fronts = [stack.enter_context(process("serve", location)) for _ in range(front_ends)]
        urls = ",".join(one.stdout.readline().strip() for one in fronts)  # type: ignore[union-attr]
        halves = [
            stack.enter_context(process("load", urls, f"p{k}-{time.time_ns()}", devices // 2, delay, seconds))
            for k in range(2)
        ]
        told = [json.loads(one.communicate()[0]) for one in halves]
        spent = 0.0
        for one in fronts:
            one.send_signal(2)
            spent += float(one.communicate()[0])
        refused = {k: v for t in told for k, v in t.items() if k not in ("rate", "accepted")}
        if refused:
            print("refused", refused)
        return sum(one["rate"] for one in told), spent / sum(one["accepted"] for one in told)


def measure(rows: list[Row], quick: bool) -> None:
    """Add a row for each number of devices, on SQLite and on PostgreSQL."""
    seconds = 3.0 if quick else 15.0
    cases = [(64, 0.2, 250.0), (256, 0.2, 900.0), (16, 0.0, 2000.0)]
    for devices, delay, least in cases:
        with tempfile.TemporaryDirectory() as folder:
            add(rows, "SQLite", devices, delay, least, rate(f"{folder}/ledger.db", 1, devices, delay, seconds))
    alone = attacked(None, seconds)
    for kind in ATTACKS:
        how = f"{alone:,.0f} reports per second of 64 devices, 200 ms each, without the attack"
        rows.append(
            ahead(TOPIC, f"under attack: {kind}", "half the rate", attacked(kind, seconds) / alone * 2, how, 1.0)
        )
    sys.path.insert(0, str(FILE.parents[1] / "tests" / "helpers"))
    import postgres_server

    if postgres_server.binaries() is not None:
        with postgres_server.running(syncs=True) as database:
            found = rate(database.address, 2, 16, 0.0, seconds)
            add(rows, "PostgreSQL, two front ends", 16, 0.0, 1500.0, found)


def add(rows: list[Row], where: str, devices: int, delay: float, least: float, found: tuple[float, float]) -> None:
    """Add one row.

    Parameters
    ----------
    rows : list of Row
        The table.
    where : str
        The database.
    devices : int
        Their number.
    delay : float
        Seconds between model and report.
    least : float
        The reports per second that are wanted.
    found : tuple of float
        Reports per second, and seconds of processor time per report.
    """
    kind = f"{devices} fast devices" if delay == 0.0 else f"{devices} devices, {1000 * delay:.0f} ms each"
    how = f"{found[0]:,.0f} reports per second, {1e6 * found[1]:.0f} µs each"
    rows.append(ahead(TOPIC, f"{kind}, {where}", f"{least:,.0f} per second", found[0] / least, how, 1.0))


if __name__ == "__main__":
    if sys.argv[1:2] == ["load"]:
        load(*sys.argv[2:4], int(sys.argv[4]), float(sys.argv[5]), float(sys.argv[6]))
    elif sys.argv[1:2] == ["serve"]:
        serve(sys.argv[2], float(sys.argv[3]) if sys.argv[3:] else math.inf)
    elif sys.argv[1:2] == ["attack"]:
        attack(*sys.argv[2:4], float(sys.argv[4]))
    else:
        sys.exit(main("local_service", measure, __doc__))
