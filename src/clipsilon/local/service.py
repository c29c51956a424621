"""The HTTP service around a `Server`; needs the extra `serve` (starlette and uvicorn).

    GET  /model                                    θ, the average and their version
    GET  /statement?delta=1e-5                     the summary, without names
    POST /turn    {user, token}                    θ, version, seconds: nothing has left the device yet
    POST /report  {user, token, version, mu, report}

Refusals are {"code", "error"}: 400 not understood, 413 too long, 422 numbers that will not do, 409 repeated, stale or
applied already, 503 not now. None of them changes anything. Nobody is authenticated here: that is for what stands in
front.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from threading import Thread
from typing import Any, NamedTuple

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from clipsilon.local.ledger import LedgerError
from clipsilon.local.server import RefusalError, Server

WAIT = 2.0  # seconds that a request for a turn stands in line before it is told to come back
_RETRY = {"Retry-After": "1"}
_ENVELOPE, _NUMBER = 4096, 32  # bytes: room for all but the report, and for each of its numbers

Handler = Callable[["_Desk", Request], Awaitable[Response]]


class _Desk(NamedTuple):
    """A server and those who wait for their turn with it."""

    server: Server
    limit: int  # bytes of a body
    line: asyncio.Lock  # first come, first served
    freed: asyncio.Event


def application(server: Server, closes: bool = False) -> Starlette:
    """The ASGI application of a server; `closes` says that the server is to be closed with it."""
    desk = _Desk(server, _ENVELOPE + _NUMBER * server.theta.size, asyncio.Lock(), asyncio.Event())

    @asynccontextmanager
    async def life(app: Starlette) -> AsyncIterator[None]:
        yield
        if closes:
            server.close()

    paths: list[tuple[str, Handler, str]] = [
        ("/model", _model, "GET"),
        ("/statement", _statement, "GET"),
        ("/turn", _turn, "POST"),
        ("/report", _report, "POST"),
    ]
    routes = [Route(path, partial(handler, desk), methods=[method]) for path, handler, method in paths]
    handlers = {HTTPException: _not_understood, ValueError: _not_acceptable}
    return Starlette(routes=routes, exception_handlers=handlers, lifespan=life)


async def _model(desk: _Desk, request: Request) -> Response:
    now = desk.server.state
    return JSONResponse({"version": now.version, "theta": now.theta.tolist(), "average": now.average.tolist()})


async def _statement(desk: _Desk, request: Request) -> Response:
    delta = _delta(request.query_params.get("delta"))
    return JSONResponse((await asyncio.to_thread(desk.server.statement, delta)).summary())


async def _turn(desk: _Desk, request: Request) -> Response:
    asked = await _fields(request, desk.limit, ("user", "token"))
    desk.server.admit(asked["user"])  # who took part already need not stand in line
    with suppress(TimeoutError):
        async with asyncio.timeout(WAIT), desk.line:
            while not await request.is_disconnected():
                given = desk.server.turn(**asked)
                if given is not None:
                    return JSONResponse({**given._asdict(), "theta": given.theta.tolist()})
                desk.freed.clear()
                with suppress(TimeoutError):
                    await asyncio.wait_for(desk.freed.wait(), desk.server.turn_left())
    return _refusal(503, "busy", "it is the turn of another user; ask again.", _RETRY)


async def _report(desk: _Desk, request: Request) -> Response:
    sent = await _fields(request, desk.limit, ("user", "token", "version", "mu", "report"))
    if not isinstance(sent["token"], str) or not _plain_numbers(sent["report"]):
        raise HTTPException(400, "token must be a text and report a list of numbers.")
    sequence = desk.server.apply(**sent)
    desk.freed.set()
    return JSONResponse({"sequence": sequence})


def listen(host: str, port: int) -> socket.socket:
    """A socket that takes connections already; port 0 picks a free one."""
    return socket.create_server((host, port), backlog=1024)


def address(listener: socket.socket) -> str:
    """The URL of a socket that listens."""
    host, port = listener.getsockname()[:2]
    return f"http://{host}:{port}"


def serve(server: Server, listener: socket.socket) -> None:
    """Run the service until SIGINT or SIGTERM, then close the server."""
    # Not after run(): uvicorn ends the process by the signal that stopped it.
    _web(application(server, closes=True)).run(sockets=[listener])


@contextmanager
def running(server: Server, host: str = "127.0.0.1", port: int = 0) -> Iterator[str]:
    """Run the service in a thread for the length of a `with` block; gives its URL. The server stays open."""
    listener = listen(host, port)
    web = _web(application(server))
    thread = Thread(target=web.run, args=([listener],))
    thread.start()
    try:
        yield address(listener)
    finally:
        web.should_exit = True
        thread.join()


def _web(app: Starlette) -> uvicorn.Server:
    # One process and one event loop: reports are applied one by one anyway.
    # log_config=None: to set up logging anew would close the handlers of whoever runs this.
    config = uvicorn.Config(
        app, http="h11", ws="none", loop="asyncio", log_config=None, log_level="warning", access_log=False
    )
    config.timeout_graceful_shutdown = 5  # seconds for those who are being answered
    return uvicorn.Server(config)


async def _fields(request: Request, limit: int, names: tuple[str, ...]) -> dict[str, Any]:
    """The JSON object in a body, which must have these fields and no others: what is not asked for is not taken."""
    try:
        content = json.loads(await _body(request, limit))
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict) or content.keys() != set(names):
        raise HTTPException(400, f"the body must be a JSON object of {', '.join(names)}, and nothing else.")
    return content


async def _body(request: Request, limit: int) -> bytes:
    body = b""
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > limit:
                raise HTTPException(413, f"the body must be at most {limit} bytes.", {"Connection": "close"})
    except ClientDisconnect:
        raise HTTPException(400, "the body ended early.") from None
    return body


def _plain_numbers(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) in (int, float) for item in value)


def _delta(text: str | None) -> float:
    try:
        return float(text or "")
    except ValueError:
        raise HTTPException(400, "delta must be given as a number, as in /statement?delta=1e-5.") from None


async def _not_understood(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, HTTPException)
    return _refusal(problem.status_code, "malformed", problem.detail, problem.headers)


async def _not_acceptable(request: Request, problem: Exception) -> Response:
    if isinstance(problem, LedgerError):
        return _refusal(503, "closed", str(problem), _RETRY)
    if not isinstance(problem, RefusalError):
        return _refusal(422, "invalid", str(problem))
    more = {} if problem.sequence is None else {"sequence": problem.sequence}
    return _refusal(409, problem.code, str(problem), **more)


def _refusal(status: int, code: str, error: str, headers: Any = None, **more: int) -> Response:
    return JSONResponse({"code": code, "error": error, **more}, status, headers)
