"""The HTTP server: what it understands, what it refuses, and whom it cuts off."""

import asyncio
import json
import math
import socket
from contextlib import contextmanager
from threading import Event
from urllib.parse import urlsplit

import pytest

from clipsilon._core import http_server
from clipsilon._core.http_server import Answer, HTTPServer, Limits


def refuse(status, text, headers):
    return Answer(status, json.dumps({"error": text}).encode(), headers)


@contextmanager
def running(handler, **limits):
    """Run a server in a thread, and give its place to the block."""
    listener = http_server.listen("127.0.0.1", 0)

    async def start():
        server = HTTPServer(handler, refuse, Limits(**{"body": 100, **limits}))
        await server.start(listener)
        return server.stop

    place = urlsplit(http_server.address(listener))
    with http_server.run_in_thread(start):
        yield place.hostname, place.port


def echo(request):
    told = {"method": request.method, "path": request.path, "query": request.query, "body": request.body.decode()}
    return Answer(200, json.dumps(told).encode(), {"X-Host": request.headers.get("host", "")})


def exchange(place, content, answers=1):
    """Send bytes, and return as many whole answers; fewer if the connection ends."""
    with socket.create_connection(place, timeout=60) as connection:
        connection.sendall(content)
        return read(connection, answers)


def read(connection, answers=1):
    found, buffer = [], b""
    while len(found) < answers:
        head, end, rest = buffer.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].split(b"\r")[0] or 0) if end else 0
        if end and len(rest) >= length:
            found.append((int(head[9:12]), head.decode(), rest[:length]))
            buffer = rest[length:]
            continue
        more = connection.recv(65536)
        if not more:
            break
        buffer += more
    return found


def test_requests_over_one_connection():
    with running(echo) as place:
        one = b"POST /a?x=1 HTTP/1.1\r\nHost: here\r\nContent-Length: 3\r\n\r\nabc"
        answers = exchange(place, one + b"GET /b HTTP/1.1\r\nHost: here\r\n\r\n" + one, 3)  # without waiting
        assert [json.loads(body)["path"] for _, _, body in answers] == ["/a", "/b", "/a"]
        assert json.loads(answers[0][2]) == {"method": "POST", "path": "/a", "query": "x=1", "body": "abc"}
        assert "X-Host: here" in answers[0][1]


def test_a_request_in_small_pieces():
    with running(echo) as place, socket.create_connection(place, timeout=60) as connection:
        for byte in b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc":
            connection.sendall(bytes([byte]))
        assert json.loads(read(connection)[0][2])["body"] == "abc"


MALFORMED = {
    b"nonsense\r\n\r\n": 400,
    b"GET / HTTP/2.0\r\n\r\n": 400,
    b"GET http://x/ HTTP/1.1\r\n\r\n": 400,
    b"GET / HTTP/1.1\r\nno colon\r\n\r\n": 400,
    b"GET / HTTP/1.1\r\nName : x\r\n\r\n": 400,
    b"GET / HTTP/1.1\r\nA: x\r\n folded\r\n\r\n": 400,
    b"GET / HTTP/1.1\r\nA: x\nB: y\r\n\r\n": 400,
    b"POST / HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd": 400,
    b"POST / HTTP/1.1\r\nContent-Length: +3\r\n\r\nabc": 400,
    b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n": 400,
    b"POST / HTTP/1.1\r\nContent-Length: 101\r\n\r\n" + 101 * b"x": 413,
    b"POST / HTTP/1.1\r\nContent-Length: " + 5000 * b"9" + b"\r\n\r\n": 413,
    b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\nabc": 411,
    b"GET / HTTP/1.1\r\nA: " + 20_000 * b"x": 431,
}


def test_what_is_not_understood_without_doubt_is_refused_and_closed():
    """Two servers that read one request differently could be set against each other."""
    with running(lambda request: pytest.fail("it was handled")) as place:
        for content, status in MALFORMED.items():
            answers = exchange(place, content, 2)
            assert [answer[0] for answer in answers] == [status], content[:80]


def test_a_handler_that_fails_and_one_that_takes_its_time():
    wait = Event()

    async def later():
        await asyncio.to_thread(wait.wait, 60)
        return Answer(200, b"{}")

    def handler(request):
        if request.path == "/later":
            return later()
        raise KeyError

    with running(handler) as place, socket.create_connection(place, timeout=60) as slow:
        slow.sendall(b"GET /later HTTP/1.1\r\n\r\n")
        assert exchange(place, b"GET / HTTP/1.1\r\n\r\n")[0][0] == 500  # others do not wait
        wait.set()
        assert read(slow)[0][0] == 200


def test_slow_clients_are_cut_off():
    """One that sends no whole request, and one that does not read its answers."""
    with running(lambda request: Answer(200, bytes(10**7)), seconds=0.2) as place:
        with socket.create_connection(place, timeout=60) as connection:
            connection.sendall(b"GET / HT")
            assert connection.recv(1) == b""
        with socket.create_connection(place, timeout=60) as connection, pytest.raises(OSError):  # noqa: PT011
            send_forever(connection)


def send_forever(connection):
    while True:
        connection.sendall(b"GET / HTTP/1.1\r\n\r\n")


def test_idle_connections_are_closed():
    with running(echo, idle=0.2, seconds=0.2) as place, socket.create_connection(place, timeout=60) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert read(connection)[0][0] == 200
        assert connection.recv(1) == b""


def test_limits_on_connections():
    with running(echo, connections=3, per_address=2) as place:
        with socket.create_connection(place) as one, socket.create_connection(place) as two:
            for connection in (one, two):
                connection.sendall(b"GET / HTTP/1.1\r\n\r\n")
                assert read(connection)[0][0] == 200
            assert exchange_or_nothing(place) == []  # the third from this address
        source = [("127.0.0.2", 0), ("127.0.0.3", 0), ("127.0.0.4", 0), ("127.0.0.5", 0)]
        opened = [socket.create_connection(place, timeout=60, source_address=address) for address in source]
        for connection in opened:  # the one that is idle longest has made room
            connection.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert len([1 for connection in opened[-3:] if read_or_nothing(connection)]) >= 2
        for connection in opened:
            connection.close()


def read_or_nothing(connection):
    try:
        return read(connection)
    except OSError:
        return []


def exchange_or_nothing(place):
    try:
        return exchange(place, b"GET / HTTP/1.1\r\n\r\n")
    except OSError:
        return []


def test_an_address_that_asks_too_often_is_refused_and_rests():
    with running(echo, rate=2.0) as place:
        answers = exchange(place, 5 * b"GET / HTTP/1.1\r\n\r\n", 3)
        assert [status for status, _, _ in answers] == [200, 200, 429]
        assert "Retry-After: 1" in answers[2][1]
        with socket.create_connection(place, timeout=60, source_address=("127.0.0.2", 0)) as other:
            other.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert read(other)[0][0] == 200


class Unread:
    """A transport whose client does not read: it is full from the first answer on, and says so once."""

    def __init__(self):
        self.written, self.connection = 0, None

    def get_extra_info(self, name):
        return ("127.0.0.1", 1)

    def write(self, data):
        self.written += 1
        if self.written == 1:
            self.connection.pause_writing()


def test_a_client_that_rests_and_does_not_read_stays_blocked(monkeypatch):
    """After the rest, answers to all that it sends would pile up in memory."""
    monkeypatch.setattr(http_server, "_REST", 0.0)

    async def work():
        server = HTTPServer(echo, refuse, Limits(100, rate=1e-9))
        transport, connection = Unread(), http_server._Connection(server)
        transport.connection = connection
        assert server.allows("127.0.0.1")  # the only one for long
        connection.connection_made(transport)
        connection.data_received(3 * b"GET / HTTP/1.1\r\n\r\n")
        before = connection.deadline
        monkeypatch.setattr(server, "allows", lambda address: True)
        for _ in range(10):
            await asyncio.sleep(0)
        assert transport.written == 1
        assert connection.deadline == before  # and is cut off in time
        connection.resume_writing()  # it has read
        assert transport.written == 3

    asyncio.run(work())


def test_open_files_bound_the_connections(monkeypatch):
    """Where the system allows few, connections are closed before nobody can connect any more."""
    monkeypatch.setattr(http_server.resource, "getrlimit", lambda kind: (http_server._OTHER_FILES + 5, 10**6))
    assert 8 * http_server._ACCEPTED_TOGETHER < http_server._OTHER_FILES  # asyncio takes some turns to register them
    with running(echo) as place:
        sources = [(f"127.0.0.{2 + k}", 0) for k in range(8)]
        opened = [socket.create_connection(place, timeout=60, source_address=source) for source in sources]
        assert exchange(place, b"GET / HTTP/1.1\r\n\r\n")[0][0] == 200
        gone = 0
        for connection in opened[:4]:
            try:
                gone += connection.recv(1) == b""
            except ConnectionResetError:
                gone += 1
        assert gone == 4
        for connection in opened:
            connection.close()


def test_files_are_allowed_as_far_as_the_system_permits(monkeypatch):
    others, asked = http_server._OTHER_FILES, []
    monkeypatch.setattr(http_server.resource, "setrlimit", lambda kind, limits: asked.append(limits))
    for limits in [(1024, 10**6), (1024, 2048), (1024, -1), (-1, -1), (10**5, 10**6)]:
        monkeypatch.setattr(http_server.resource, "getrlimit", lambda kind, limits=limits: limits)
        http_server.allow_open_files(4096)
    assert http_server.resource.RLIM_INFINITY == -1
    assert asked == [(4096 + others, 10**6), (2048, 2048), (4096 + others, -1)]


def test_rates_are_remembered_for_a_bounded_number_of_addresses(monkeypatch):
    monkeypatch.setattr(http_server, "_MOST_ADDRESSES", 10)
    server = HTTPServer(echo, refuse, Limits(100, rate=1.0))
    assert [server.allows("a"), server.allows("a")] == [True, False]
    assert all(server.allows(str(k)) for k in range(100))
    assert len(server._buckets) == 10
    assert HTTPServer(echo, refuse, Limits(100)).limits.rate == math.inf
