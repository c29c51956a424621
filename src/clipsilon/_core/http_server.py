"""A small HTTP/1.1 server for many short requests, with limits on what a client may cost.

It needs nothing beyond Python. It cuts off clients that are slow, that hold many connections or that ask too often,
takes bodies with a Content-Length only, and answers the requests of a connection one after the other.
"""

from __future__ import annotations

import asyncio
import logging
import math
import signal
import socket
import ssl
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from threading import Event, Thread
from typing import Any, NamedTuple

try:
    import resource
except ImportError:  # on Windows, where sockets are no files
    resource = None  # type: ignore[assignment]

_LONGEST_HEAD = 16_384
_MOST_ADDRESSES = 50_000  # whose rates are remembered
_STATUS = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}
_FAREWELL = 5.0  # seconds to finish open requests
_REST = 1.0  # seconds that a connection rests after too many requests
_OTHER_FILES = 160  # that the process may open besides connections, and connections that are not registered yet
_ACCEPTED_TOGETHER = 16  # connections; more, before any is registered, could use up all files
_BACKLOG = 1024  # connections that wait to be accepted
_LOG = logging.getLogger("clipsilon")


class Limits(NamedTuple):
    """What clients may cost.

    Parameters
    ----------
    body : int
        Most bytes of a body.
    connections, per_address : int
        Most open connections, in total and from one address. At the total, the one that is idle longest is closed. The
        system's limit on open files bounds the total, too.
    rate : float
        Most requests per second from one address; infinity for no limit. After that a connection rests for a second.
    seconds : float
        For one request to arrive, or one answer to be read.
    idle : float
        Seconds that a connection may wait for its next request.
    """

    body: int
    connections: int = 4096
    per_address: int = 1024
    rate: float = math.inf
    seconds: float = 10.0
    idle: float = 60.0


class Request(NamedTuple):
    """One request; the names of headers are in lower case."""

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    body: bytes


class Answer(NamedTuple):
    """What a request is answered."""

    status: int
    body: bytes
    headers: Mapping[str, str] = {}
    kind: str = "application/json"


Handler = Callable[[Request], Answer | Awaitable[Answer]]
Refuse = Callable[[int, str, Mapping[str, str]], Answer]


class _MalformedError(ValueError):
    """A request that is not understood; the connection is closed after the answer."""

    def __init__(self, status: int, message: str):
        super().__init__(message)
        self.status = status


class _Head(NamedTuple):
    method: str
    path: str
    query: str
    headers: dict[str, str]
    length: int
    keeps: bool


class HTTPServer:
    """Accept connections, and answer their requests by a handler.

    Parameters
    ----------
    handler : callable
        From a Request to an Answer, or to something that can be awaited for one.
    refuse : callable
        From a status, a sentence and headers to an Answer: what the server itself refuses.
    limits : Limits
        What clients may cost.
    """

    def __init__(self, handler: Handler, refuse: Refuse, limits: Limits):
        self.handler, self.refuse, self.limits = handler, refuse, limits
        self.tls: ssl.SSLContext | None = None
        self._most_connections = limits.connections
        self._connections: dict[_Connection, None] = {}
        self._per_address: dict[str, int] = {}
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._listening: asyncio.Server | None = None
        self._sweeper: asyncio.Task[None] | None = None

    async def start(self, listener: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        """Begin to accept connections."""
        loop = asyncio.get_running_loop()
        self.tls, self._most_connections = tls, _within_open_files(self.limits.connections)
        # Connections start TLS themselves: asyncio does not tell of those that never finish their handshake.
        self._listening = await loop.create_server(lambda: _Connection(self), sock=listener, backlog=_ACCEPTED_TOGETHER)
        listener.listen(_BACKLOG)  # asyncio has used its backlog for both
        self._sweeper = loop.create_task(self._sweep())

    async def stop(self) -> None:
        """Accept no more connections, finish open requests, and close."""
        assert self._listening is not None
        assert self._sweeper is not None
        self._listening.close()
        end = time.monotonic() + _FAREWELL
        while any(one.is_busy for one in self._connections) and time.monotonic() < end:
            await asyncio.sleep(0.01)
        self._sweeper.cancel()
        for connection in list(self._connections):
            connection.abort()

    async def _sweep(self) -> None:
        """Close connections whose time is over, once per second."""
        while True:
            await asyncio.sleep(min(1.0, self.limits.seconds / 2))
            now = time.monotonic()
            for connection in [one for one in self._connections if one.deadline < now]:
                connection.abort()

    def register(self, connection: _Connection, address: str) -> bool:
        """Return whether a new connection is within the limits; at the total, close one that is idle."""
        count = self._per_address.get(address, 0)
        if count >= self.limits.per_address:
            return False
        if len(self._connections) >= self._most_connections:
            idle = [one for one in self._connections if not one.is_busy]
            if not idle:
                return False
            min(idle, key=lambda one: one.deadline).abort()
        self._connections[connection] = None
        self._per_address[address] = count + 1
        return True

    def forget(self, connection: _Connection, address: str) -> None:
        """Forget a connection that was registered."""
        if connection in self._connections:
            del self._connections[connection]
            left = self._per_address[address] - 1
            if left:
                self._per_address[address] = left
            else:
                del self._per_address[address]

    def allows(self, address: str) -> bool:
        """Return whether an address may ask once more, and count it."""
        rate = self.limits.rate
        if rate == math.inf:
            return True
        now = time.monotonic()
        most = max(1.0, rate)
        left, since = self._buckets.pop(address, (most, now))
        left = min(most, left + rate * (now - since))
        self._buckets[address] = (left - 1.0, now) if left >= 1.0 else (left, now)
        if len(self._buckets) > _MOST_ADDRESSES:
            self._buckets.popitem(last=False)
        return left >= 1.0


class _Connection(asyncio.Protocol):
    """One connection: its bytes so far, and until when the next thing must have happened."""

    def __init__(self, server: HTTPServer):
        self._server, self._limits = server, server.limits
        self._buffer = bytearray()
        self._head: _Head | None = None
        self._address = ""
        self._transport: Any = None
        self._is_blocked = False  # the client does not read
        self._is_resting = False  # before TLS, and after too many requests
        self._is_refused = False  # what still comes is not read
        self.is_busy = False
        self.deadline = math.inf

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        peer = transport.get_extra_info("peername")
        self._address = str(peer[0]) if peer else ""
        if not self._server.register(self, self._address):
            self._transport.abort()
            return
        self.deadline = time.monotonic() + self._limits.seconds
        if self._server.tls is not None:
            self._is_resting = True
            self._encrypting = asyncio.ensure_future(self._encrypt(self._server.tls))

    async def _encrypt(self, tls: ssl.SSLContext) -> None:
        """Start TLS, within the time of one request."""
        if self._transport is None:
            return
        try:
            encrypted = await asyncio.get_running_loop().start_tls(self._transport, self, tls, server_side=True)
        except OSError:
            self.abort()
            return
        if self._transport is not None:  # the deadline has not passed
            self._transport = encrypted
            self._end_rest()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._server.forget(self, self._address)

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._server.forget(self, self._address)
            self._transport.abort()
            self._transport = None

    def pause_writing(self) -> None:
        self._is_blocked, self.deadline = True, time.monotonic() + self._limits.seconds

    def resume_writing(self) -> None:
        self._is_blocked, self.deadline = False, time.monotonic() + self._limits.idle
        self._proceed()

    def data_received(self, data: bytes) -> None:
        if self._transport is None or self._is_refused:
            return
        if not self._buffer and not self._is_waiting:
            self.deadline = time.monotonic() + self._limits.seconds  # a request begins; its time is not extended
        self._buffer += data
        if self._is_waiting:
            if len(self._buffer) > _LONGEST_HEAD + self._limits.body:
                self.abort()
            return
        self._proceed()

    @property
    def _is_waiting(self) -> bool:
        """Whether the next request is to be answered later."""
        return self.is_busy or self._is_blocked or self._is_resting

    def _proceed(self) -> None:
        """Answer the next request if all of it is there."""
        while self._buffer and not (self._is_waiting or self._is_refused or self._transport is None):
            try:
                request, keeps = self._next_request()
            except _MalformedError as problem:
                self._refuse(problem)
                return
            if request is None:
                return
            if not self._server.allows(self._address):
                self._throttle(keeps)
                return
            self.is_busy, self.deadline = True, math.inf
            self._handle(request, keeps)

    def _refuse(self, problem: _MalformedError) -> None:
        """Answer, and let the client close the connection: closing it first could destroy the answer on its way."""
        self._send(self._server.refuse(problem.status, str(problem), {"Connection": "close"}), keeps=True)
        if self._transport is not None and self._transport.can_write_eof():
            self._transport.write_eof()
        self._is_refused, self.deadline = True, time.monotonic() + min(2.0, self._limits.seconds)
        self._buffer.clear()

    def _throttle(self, keeps: bool) -> None:
        """Refuse, and do not read on for a second; a client that does not read its answers stays blocked."""
        self._is_resting = True
        self._send(self._server.refuse(429, "too many requests; try again later.", {"Retry-After": "1"}), keeps)
        asyncio.get_running_loop().call_later(_REST, self._end_rest)

    def _end_rest(self) -> None:
        self._is_resting = False
        if not self._is_waiting:
            self.deadline = time.monotonic() + self._limits.seconds
        self._proceed()

    def _next_request(self) -> tuple[Request | None, bool]:
        if self._head is None:
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0 or end > _LONGEST_HEAD:
                if len(self._buffer) > _LONGEST_HEAD:
                    raise _MalformedError(431, f"the head must be at most {_LONGEST_HEAD} bytes.")
                return None, True
            self._head = _parse_head(self._buffer[:end].decode("latin-1"), self._limits.body)
            del self._buffer[: end + 4]
            if self._head.headers.get("expect", "").lower() == "100-continue" and not self._buffer:
                self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        head = self._head
        if len(self._buffer) < head.length:
            return None, True
        body = bytes(self._buffer[: head.length])
        del self._buffer[: head.length]
        self._head = None
        return Request(head.method, head.path, head.query, head.headers, body), head.keeps

    def _handle(self, request: Request, keeps: bool) -> None:
        try:
            answer = self._server.handler(request)
        except Exception:
            _LOG.exception("A request could not be answered.")
            answer = self._server.refuse(500, "the request could not be answered.", {})
        if isinstance(answer, Answer):
            self._finish(answer, keeps)
        else:
            asyncio.ensure_future(answer).add_done_callback(lambda done: self._finish_later(done, keeps))

    def _finish_later(self, done: asyncio.Future[Answer], keeps: bool) -> None:
        if done.cancelled():
            self.abort()
            return
        problem = done.exception()
        if problem is not None:
            _LOG.error("A request could not be answered.", exc_info=problem)
            self._finish(self._server.refuse(500, "the request could not be answered.", {}), keeps)
        else:
            self._finish(done.result(), keeps)
        self._proceed()

    def _finish(self, answer: Answer, keeps: bool) -> None:
        self.is_busy = False
        self.deadline = time.monotonic() + (self._limits.seconds if self._buffer else self._limits.idle)
        self._send(answer, keeps)

    def _send(self, answer: Answer, keeps: bool) -> None:
        if self._transport is None:
            return
        more = "".join([f"{name}: {value}\r\n" for name, value in answer.headers.items()])
        last = "" if keeps or "Connection" in answer.headers else "Connection: close\r\n"
        about = f"Content-Type: {answer.kind}\r\nContent-Length: {len(answer.body)}\r\n{more}{last}\r\n"
        self._transport.write(_STATUS[answer.status] + about.encode("latin-1") + answer.body)
        if not keeps:
            self._transport.close()
            self.deadline = time.monotonic() + self._limits.seconds


def _parse_head(head: str, limit: int) -> _Head:
    """Return the head of a request; raise _MalformedError unless it is one that is understood without doubt."""
    try:
        first, *lines = head.split("\r\n")
        method, target, protocol = first.split(" ")
    except ValueError:
        raise _MalformedError(400, "the request line is malformed.") from None
    if protocol not in ("HTTP/1.1", "HTTP/1.0") or not target.startswith("/") or not method.isalpha():
        raise _MalformedError(400, "the request line is malformed.")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        name = name.lower()
        is_second = name in headers and name in _SINGLE
        if not colon or not name or name.strip() != name or "\n" in line or is_second:
            raise _MalformedError(400, "a header is malformed, or there twice.")
        headers[name] = value.strip(" \t")
    if "transfer-encoding" in headers:
        raise _MalformedError(411, "the body must come with a Content-Length, not in pieces.")
    length = headers.get("content-length", "0")
    if not (length.isascii() and length.isdigit()):
        raise _MalformedError(400, "Content-Length must be a whole number.")
    if len(length) > 18 or int(length) > limit:
        raise _MalformedError(413, f"the body must be at most {limit} bytes.")
    path, _, query = target.partition("?")
    wanted = headers.get("connection", "").lower()
    keeps = "close" not in wanted if protocol == "HTTP/1.1" else "keep-alive" in wanted
    return _Head(method, path, query, headers, int(length), keeps)


_SINGLE = {"content-length", "host", "authorization", "transfer-encoding"}


def _within_open_files(connections: int) -> int:
    """Return how many connections can be open at once: when no file can be opened, nobody can connect."""
    if resource is None:
        return connections
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return connections if files == resource.RLIM_INFINITY else max(1, min(connections, files - _OTHER_FILES))


def allow_open_files(connections: int) -> None:
    """Let this process keep so many connections open, as far as the system permits."""
    if resource is None or _within_open_files(connections) == connections:
        return
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    wanted = connections + _OTHER_FILES
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted if most == resource.RLIM_INFINITY else min(wanted, most), most))


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that accepts connections; port 0 picks a free one."""
    listener = socket.create_server((host, port), backlog=_BACKLOG)
    # Connections inherit it. asyncio sets it only for sockets that name their protocol, which this one does not.
    # Without it, each answer over a kept connection waits 40 ms for the acknowledgement of its first packet.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def address(listener: socket.socket, tls: bool = False) -> str:
    """Return the URL of a listening socket."""
    host, port = listener.getsockname()[:2]
    return f"{'https' if tls else 'http'}://{host}:{port}"


Start = Callable[[], Awaitable[Callable[[], Awaitable[None]]]]
"""Begin something within a running event loop, and return what ends it."""


def run_until_signal(start: Start) -> None:
    """Run a service until SIGINT or SIGTERM, end it, and then end as the signal asks."""
    received: list[int] = []

    async def work() -> None:
        loop, ended = asyncio.get_running_loop(), asyncio.Event()

        def note(number: int, frame: object) -> None:
            received.append(number)
            loop.call_soon_threadsafe(ended.set)

        before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            stop = await start()
            await ended.wait()
            await stop()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    asyncio.run(work())
    for number in received[:1]:
        signal.raise_signal(number)


@contextmanager
def run_in_thread(start: Start) -> Iterator[None]:
    """Run a service in a thread for the duration of a `with` block."""
    ready, problems, handles = Event(), list[BaseException](), dict[str, Any]()

    async def work() -> None:
        handles.update(loop=asyncio.get_running_loop(), ended=asyncio.Event())
        stop = await start()
        ready.set()
        await handles["ended"].wait()
        await stop()

    def run() -> None:
        try:
            asyncio.run(work())
        except BaseException as problem:
            problems.append(problem)
            ready.set()

    thread = Thread(target=run)
    thread.start()
    ready.wait()
    try:
        if problems:
            raise problems[0]
        yield
    finally:
        if not problems:
            handles["loop"].call_soon_threadsafe(handles["ended"].set)
        thread.join()
    if problems:
        raise problems[0]
