"""The HTTP service around a `Server`; needs the extra `serve` (starlette and uvicorn).

    GET  /model                                    θ, the average and their version
    GET  /statement?delta=1e-5                     the summary, without names
    POST /turn    {user, token}                    θ, version, seconds; nothing has left the device yet
    POST /report  {user, token, version, mu, report}

Refusals are {"code", "error"}: 400 malformed, 413 too long, 422 invalid numbers, 409 repeated, stale or already
applied, 503 not now. None of them changes anything. The service authenticates nobody: put it behind a proxy that does.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from typing import Any, NamedTuple

from clipsilon._core.extras import needs_package

try:
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.requests import Request
    from starlette.responses import JSONResponse, Response

    from clipsilon._core import web
except ImportError:
    raise ImportError(needs_package("clipsilon.local.service", "starlette and uvicorn", "clipsilon[serve]")) from None

from clipsilon.local.ledger import LedgerError
from clipsilon.local.server import RefusalError, Server

WAIT = 2.0  # seconds that a request for a turn is queued before it is answered 503
_RETRY = {"Retry-After": "1"}
_ENVELOPE, _NUMBER = 4096, 32  # bytes for all fields but the report, and for each of its numbers


class _Context(NamedTuple):
    """A server and the requests that wait for a turn."""

    server: Server
    limit: int  # bytes of a body
    queue: asyncio.Lock  # first come, first served
    turn_ended: asyncio.Event


def application(server: Server, closes: bool = False) -> Starlette:
    """Return the ASGI application of a server; with `closes`, the server is closed when the application ends."""
    context = _Context(server, _ENVELOPE + _NUMBER * server.theta.size, asyncio.Lock(), asyncio.Event())

    paths: list[tuple[str, web.Handler, str]] = [
        ("/model", _model, "GET"),
        ("/statement", _statement, "GET"),
        ("/turn", _turn, "POST"),
        ("/report", _report, "POST"),
    ]
    refusals = {HTTPException: _refuse_malformed, ValueError: _refuse}
    return web.application(context, paths, refusals, server.close if closes else None)


async def _model(context: _Context, request: Request) -> Response:
    now = context.server.state
    return JSONResponse({"version": now.version, "theta": now.theta.tolist(), "average": now.average.tolist()})


async def _statement(context: _Context, request: Request) -> Response:
    delta = _delta(request.query_params.get("delta"))
    return JSONResponse((await asyncio.to_thread(context.server.statement, delta)).summary())


async def _turn(context: _Context, request: Request) -> Response:
    fields = await _fields(request, context.limit, ("user", "token"))
    context.server.admit(fields["user"])  # a user who has already reported need not queue
    with suppress(TimeoutError):
        async with asyncio.timeout(WAIT), context.queue:
            while not await request.is_disconnected():
                turn = context.server.turn(**fields)
                if turn is not None:
                    return JSONResponse({**turn._asdict(), "theta": turn.theta.tolist()})
                context.turn_ended.clear()
                with suppress(TimeoutError):
                    await asyncio.wait_for(context.turn_ended.wait(), context.server.turn_left())
    return _refusal(503, "busy", "another user holds the turn; try again.", _RETRY)


async def _report(context: _Context, request: Request) -> Response:
    sent = await _fields(request, context.limit, ("user", "token", "version", "mu", "report"))
    if not isinstance(sent["token"], str) or not _is_list_of_numbers(sent["report"]):
        raise HTTPException(400, "token must be a string, and report a list of numbers.")
    sequence = context.server.apply(**sent)
    context.turn_ended.set()
    return JSONResponse({"sequence": sequence})


def serve(server: Server, listener: socket.socket) -> None:
    """Run the service until SIGINT or SIGTERM, then close the server."""
    # The application closes the server, because the process may end in the next line.
    web.serve(application(server, closes=True), listener)


def running(server: Server, host: str = "127.0.0.1", port: int = 0) -> AbstractContextManager[str]:
    """Run the service in a thread for the duration of a `with` block, which gets its URL. The server stays open.

    Parameters
    ----------
    server : Server
        The server to publish.
    host : str, default "127.0.0.1"
        Address to listen on.
    port : int, default 0
        Port to listen on; 0 picks a free one.

    Returns
    -------
    context manager
        Of the URL, such as "http://127.0.0.1:8000".
    """
    return web.running(application(server), host, port)


async def _fields(request: Request, limit: int, names: tuple[str, ...]) -> dict[str, Any]:
    """Return the JSON object in a body, which must have exactly these fields."""
    try:
        content = json.loads(await web.read_body(request, limit))
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict) or content.keys() != set(names):
        raise HTTPException(400, f"the body must be a JSON object with the fields {', '.join(names)}, and no others.")
    return content


def _is_list_of_numbers(value: object) -> bool:
    return isinstance(value, list) and all(type(item) in (int, float) for item in value)


def _delta(text: str | None) -> float:
    try:
        return float(text or "")
    except ValueError:
        raise HTTPException(400, "delta must be given as a number, as in /statement?delta=1e-5.") from None


async def _refuse_malformed(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, HTTPException)
    return _refusal(problem.status_code, "malformed", problem.detail, problem.headers)


async def _refuse(request: Request, problem: Exception) -> Response:
    if isinstance(problem, LedgerError):
        return _refusal(503, "closed", str(problem), _RETRY)
    if not isinstance(problem, RefusalError):
        return _refusal(422, "invalid", str(problem))
    return _refusal(409, problem.code, str(problem), sequence=problem.sequence)


def _refusal(
    status: int, code: str, error: str, headers: Mapping[str, str] | None = None, sequence: int | None = None
) -> Response:
    number = {} if sequence is None else {"sequence": sequence}
    return JSONResponse({"code": code, "error": error, **number}, status, headers)
