"""The HTTP service around a `Server`. It needs nothing beyond Python.

    GET  /model                                    θ, the average, their version, and the number of reports
    GET  /task                                     what a device needs to know in order to report
    GET  /statement?delta=1e-5                     the summary, without names, up to a few seconds old
    GET  /, /client.js                             a page for people, and the client in JavaScript
    POST /turn    {user, token}                    θ, version, seconds, ticket; no report has left the device yet
    POST /report  {user, token, ticket, version, mu, report}, and `lost` if it is not 0

Refusals are {"code", "error"}: 400 malformed, 401 not enrolled, 413 too long, 422 invalid or implausible, 409 repeated,
stale or already applied, 429 too many requests, 503 not now. None of them changes anything.
"""

from __future__ import annotations

import asyncio
import json
import math
import socket
import ssl
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple
from urllib.parse import parse_qs

from clipsilon._core import checks, http_server
from clipsilon._core.http_server import Answer, HTTPServer, Limits, Request
from clipsilon.local.browser import FILES
from clipsilon.local.enrolment import is_enrolled
from clipsilon.local.ledger import LedgerError
from clipsilon.local.rounds import State
from clipsilon.local.server import Accepted, RefusalError, Server, Submission, Turn
from clipsilon.local.writer import Writer

WAIT = 2.0  # seconds that a request for a turn is queued before it is answered 503
_TICK = 0.05  # seconds between looks at the clock, and at what other servers have written
_RETRY = {"Retry-After": "1"}
_ENVELOPE, _NUMBER = 4096, 32  # bytes for all fields but the report, and for each of its numbers
_MOST_WAITING = 10_000  # requests
_REOPEN = 1.0  # seconds between attempts to open a ledger that failed
_STATEMENT_AGE, _STATEMENT_SHARE = 5.0, 0.05  # a statement is kept for 5 s, and so long that it takes 5 % of the time
_REPORT = {"user", "token", "ticket", "version", "mu", "report"}
_CODES = {401: "unauthorised", 429: "limited", 500: "failed", 503: "busy"}


class Access(NamedTuple):
    """Who may use a service, and how much.

    Parameters
    ----------
    secret : bytes, optional
        The secret of the enrolment tokens; by default anyone may report.
    connections, per_address : int
        Most open connections, in total and from one address.
    rate : float
        Most requests per second from one address; infinity for no limit.
    """

    secret: bytes | None = None
    connections: int = 4096
    per_address: int = 1024
    rate: float = math.inf


ANYONE = Access()


class _RequestError(ValueError):
    """A request that is refused before the server sees it."""

    def __init__(self, status: int, message: str):
        super().__init__(message)
        self.status = status


class _Waiting(NamedTuple):
    user: str
    token: str
    end: float
    answer: asyncio.Future[Answer]


class Service:
    """The handler of requests, which runs in one event loop.

    Parameters
    ----------
    server : Server
        What is served.
    access : Access
        Who may use it.
    """

    def __init__(self, server: Server, access: Access = ANYONE):
        self.server, self._secret = server, access.secret
        self._most_bytes = _ENVELOPE + _NUMBER * server.theta.size
        limits = Limits(self._most_bytes, access.connections, access.per_address, access.rate)
        self.web = HTTPServer(self.handle, refuse, limits)
        self._paths: dict[tuple[str, str], Callable[[Request], Answer | Awaitable[Answer]]] = {
            ("GET", "/model"): self._model,
            ("GET", "/task"): self._task,
            ("GET", "/statement"): self._statement,
            ("POST", "/turn"): self._turn,
            ("POST", "/report"): self._report,
            **{("GET", path): self._file for path in FILES},
        }
        self._waiting: deque[_Waiting] = deque()
        self._texts: dict[str, tuple[State, str]] = {}
        self._statements: dict[float, tuple[float, dict[str, float]]] = {}  # by δ: until when, and what
        self._stated_until = 0.0
        self._ledger = ThreadPoolExecutor(1, "clipsilon-ledger")
        self._reader = ThreadPoolExecutor(1, "clipsilon-statement")
        self._writer = Writer(server, _answer_of, self._ledger)
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> Callable[[], Awaitable[None]]:
        """Begin to write reports, and return what ends it."""
        self._tasks = [asyncio.create_task(self._write_reports()), asyncio.create_task(self._watch_the_clock())]
        return self.stop

    async def stop(self) -> None:
        """Finish the reports that have come in."""
        while self._writer:
            await asyncio.sleep(0.01)
        for task in self._tasks:
            task.cancel()
        for executor in (self._ledger, self._reader):
            await asyncio.to_thread(executor.shutdown)

    def handle(self, request: Request) -> Answer | Awaitable[Answer]:
        """Return the answer to a request, or a future of it."""
        handler = self._paths.get((request.method, request.path))
        if handler is None:
            is_known = request.path in {path for _, path in self._paths}
            return refuse(405 if is_known else 404, "there is no such path, or it takes another method.", {})
        try:
            return handler(request)
        except ValueError as problem:
            return _refusal_of(problem)

    def _model(self, request: Request) -> Answer:
        now, reports = self.server.state, self.server.reports
        theta, average = self._text_of(now, "theta"), self._text_of(now, "average")
        text = f'{{"version": {now.version}, "theta": {theta}, "average": {average}, "reports": {reports}}}'
        return Answer(200, text.encode())

    def _text_of(self, state: State, name: str) -> str:
        """Return θ or the average as JSON, which many requests ask for."""
        if name not in self._texts or self._texts[name][0] is not state:
            self._texts[name] = (state, json.dumps(getattr(state, name).tolist()))
        return self._texts[name][1]

    def _task(self, request: Request) -> Answer:
        server = self.server
        loss = None
        if server.loss is not None:
            parameters = server.loss._asdict() if hasattr(server.loss, "_asdict") else {}
            numbers = {name: value for name, value in parameters.items() if isinstance(value, bool | int | float | str)}
            loss = {"name": type(server.loss).__name__, "parameters": numbers}
        about = {"loss": loss, "dimension": server.theta.size, "features": server.feature_names, "batch": server.batch}
        rules = {"enrolment": self._secret is not None, "most_budget": server.most_budget, "repeats": server.repeats}
        return _json({**about, "round_seconds": server.round_seconds, **rules})

    def _statement(self, request: Request) -> Answer | Awaitable[Answer]:
        try:
            delta = float(parse_qs(request.query).get("delta", [""])[-1])
        except ValueError:
            return refuse(400, "delta must be given as a number, as in /statement?delta=1e-5.", {})
        checks.open_fraction("delta", delta)
        now = time.monotonic()
        until, known = self._statements.get(delta, (0.0, {}))
        if now < until:
            return _json(known)
        if now < self._stated_until:  # for another δ
            return _busy("a statement was computed a moment ago; try again.")
        return self._compute_statement(delta)

    async def _compute_statement(self, delta: float) -> Answer:
        """Compute a statement, and keep it so long that this takes a small part of the time."""
        self._stated_until = math.inf  # one at a time
        now, kept = time.monotonic(), 0.0
        try:
            summary = await asyncio.get_running_loop().run_in_executor(self._reader, self._summary, delta)
            kept = max(_STATEMENT_AGE, (time.monotonic() - now) / _STATEMENT_SHARE)
            self._statements = {delta: (time.monotonic() + kept, summary)}
            return _json(summary)
        except ValueError as problem:
            return _refusal_of(problem)
        finally:
            self._stated_until = time.monotonic() + kept

    def _summary(self, delta: float) -> dict[str, float]:
        return self.server.statement(delta).summary()

    def _file(self, request: Request) -> Answer:
        file = FILES[request.path]
        return Answer(200, file.content, file.headers, file.kind)

    def _turn(self, request: Request) -> Answer | Awaitable[Answer]:
        fields = _fields(request.body, {"user", "token"})
        user, token = fields["user"], fields["token"]
        self._authorise(request, user)
        turn = None if self._waiting else self.server.turn(user, token)
        if turn is not None:
            return self._turn_answer(turn)
        self.server.admit(user)  # a user who has already reported need not queue
        if self.server.turn_left() == 0.0 and not self._waiting:
            return _busy("this user has another turn, or let one end; try again.")
        if len(self._waiting) >= _MOST_WAITING:
            return _busy("too many users wait for a turn; try again.")
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(user, token, time.monotonic() + WAIT, answer))
        return answer

    def _turn_answer(self, turn: Turn) -> Answer:
        state = self.server.state
        theta = self._text_of(state, "theta") if turn.theta is state.theta else json.dumps(turn.theta.tolist())
        text = (
            f'{{"theta": {theta}, "version": {turn.version}, "seconds": {turn.seconds!r}, "ticket": "{turn.ticket}"}}'
        )
        return Answer(200, text.encode())

    def _serve_waiting(self) -> None:
        """Give turns to those who wait, in their order, as long as there are places."""
        while self._waiting:
            first = self._waiting[0]
            answer = _busy("there is no place now; try again.")
            if not first.answer.done() and time.monotonic() < first.end:
                try:
                    turn = self.server.turn(first.user, first.token)
                except ValueError as problem:
                    answer = _refusal_of(problem)
                else:
                    if turn is None and self.server.turn_left() > 0.0:
                        return
                    answer = answer if turn is None else self._turn_answer(turn)
            self._waiting.popleft()
            if not first.answer.done():
                first.answer.set_result(answer)

    def _report(self, request: Request) -> Awaitable[Answer]:
        sent = _fields(request.body, _REPORT, {"lost"})
        self._authorise(request, sent["user"])
        texts = isinstance(sent["token"], str) and isinstance(sent["ticket"], str)
        if not texts or not _is_list_of_numbers(sent["report"]):
            raise _RequestError(400, "token and ticket must be strings, and report a list of numbers.")
        if len(self._writer) >= _MOST_WAITING:
            raise _RequestError(503, "too many reports wait; try again.")
        return self._writer.add(self.server.check(Submission(**sent)))

    def _authorise(self, request: Request, user: object) -> None:
        """Raise unless the service takes anyone, or the request presents the user's enrolment token."""
        if self._secret is None:
            return
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not is_enrolled(self._secret, user, token.strip()):
            raise _RequestError(401, "the enrolment token is missing, or is not this user's.")

    async def _write_reports(self) -> None:
        """Write what has come in, again and again."""
        while True:
            await self._writer.write()
            self._serve_waiting()

    async def _watch_the_clock(self) -> None:
        """Close rounds whose time is over, read what others have written, and open a ledger that failed again."""
        loop = asyncio.get_running_loop()
        next_try = 0.0
        while True:
            await asyncio.sleep(_TICK)
            if time.monotonic() >= next_try:
                is_well = await loop.run_in_executor(self._ledger, self._refresh)
                next_try = 0.0 if is_well else time.monotonic() + _REOPEN
            self._serve_waiting()

    def _refresh(self) -> bool:
        with suppress(Exception):  # the server has stopped, and tells the reason to whoever asks
            if self.server.is_stopped:
                self.server.reopen()
            self.server.refresh()
            return True
        return False


def serve(
    server: Server,
    listener: socket.socket,
    *,
    access: Access = ANYONE,
    tls: ssl.SSLContext | None = None,
) -> None:
    """Run the service until SIGINT or SIGTERM, then close the server.

    Parameters
    ----------
    server : Server
        The server to publish.
    listener : socket
        A listening socket.
    access : Access
        Who may use it, and how much; by default anyone, without a limit on requests.
    tls : SSLContext, optional
        Encrypts; by default nothing is encrypted.
    """
    http_server.allow_open_files(access.connections)
    # The server is closed before the process ends by the signal.
    http_server.run_until_signal(_starter(server, listener, access, tls, closes=True))


@contextmanager
def running(
    server: Server,
    host: str = "127.0.0.1",
    port: int = 0,
    *,
    access: Access = ANYONE,
    tls: ssl.SSLContext | None = None,
) -> Iterator[str]:
    """Run the service in a thread for the duration of a `with` block, which gets its URL. The server stays open.

    Parameters
    ----------
    server : Server
        The server to publish.
    host : str, default "127.0.0.1"
        Address to listen on.
    port : int, default 0
        Port to listen on; 0 picks a free one.
    access : Access
        Who may use it, and how much; by default anyone, without a limit on requests.
    tls : SSLContext, optional
        Encrypts; by default nothing is encrypted.

    Yields
    ------
    str
        The URL, such as "http://127.0.0.1:8000".
    """
    listener = http_server.listen(host, port)
    url = http_server.address(listener, tls is not None)
    with http_server.run_in_thread(_starter(server, listener, access, tls)):
        yield url


def _starter(
    server: Server, listener: socket.socket, access: Access, tls: ssl.SSLContext | None, closes: bool = False
) -> http_server.Start:
    async def start() -> Callable[[], Awaitable[None]]:
        service = Service(server, access)
        await service.start()
        await service.web.start(listener, tls)

        async def stop() -> None:
            await service.web.stop()
            await service.stop()
            if closes:
                server.close()

        return stop

    return start


def refuse(status: int, error: str, headers: Mapping[str, str]) -> Answer:
    """Return the answer to a request that is refused, as JSON.

    Parameters
    ----------
    status : int
        The status.
    error : str
        The reason, in one sentence.
    headers : mapping
        Further headers.

    Returns
    -------
    Answer
    """
    return _json({"code": _CODES.get(status, "malformed"), "error": error}, status, headers)


def _busy(error: str) -> Answer:
    return refuse(503, error, _RETRY)


def _json(content: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None) -> Answer:
    return Answer(
        status, json.dumps(content, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace"), headers or {}
    )


def _fields(body: bytes, names: set[str], optional: set[str] = frozenset()) -> dict[str, Any]:  # type: ignore[assignment]
    """Return the JSON object in a body, which must have these fields, and perhaps the optional ones."""
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict) or content.keys() - optional != names:
        wanted = ", ".join(sorted(names))
        raise _RequestError(400, f"the body must be a JSON object with the fields {wanted}, and no others.")
    return content


def _is_list_of_numbers(value: object) -> bool:
    return isinstance(value, list) and all(type(item) in (int, float) for item in value)


def _answer_of(result: Accepted | Exception) -> Answer:
    if isinstance(result, ValueError):
        return _refusal_of(result)
    if isinstance(result, Exception):  # the server has stopped, and is opened again
        return refuse(500, f"the server failed: {result!r}.", {})
    return Answer(200, b'{"sequence": %d, "version": %d}' % result)


def _refusal_of(problem: ValueError) -> Answer:
    if isinstance(problem, _RequestError):
        headers = {401: {"WWW-Authenticate": "Bearer"}, 503: _RETRY}.get(problem.status, {})
        return refuse(problem.status, str(problem), headers)
    if isinstance(problem, LedgerError):
        return _json({"code": "closed", "error": str(problem)}, 503, _RETRY)
    if not isinstance(problem, RefusalError):
        return _json({"code": "invalid", "error": str(problem)}, 422)
    number = {} if problem.sequence is None else {"sequence": problem.sequence}
    return _json({"code": problem.code, "error": str(problem), **number}, 409)
