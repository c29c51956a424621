"""The HTTP service around a `Stream`; needs the extra `serve` (starlette and uvicorn).

    GET  /            a page for people
    GET  /model       theta, average, version, steps
    GET  /statement   what is certified, and the public numbers
    GET  /history     the deployed models, thinned
    POST /records     {key, version, records: [{person, features, label}]} → {accepted, refused, version}
    GET  /inside      counts of refusals, means of what was sent under each model, and the expected gap

The last two need the token, as `Authorization: Bearer …`; what the others answer is covered by the statement. Refusals
are {"code", "error"}: 400 malformed, 401 without the token, 413 too long, 422 invalid, 409 stale, future, reused or
finished, 503 when the file cannot be written. None of them changes anything.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import socket
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import numpy as np

from clipsilon._core.extras import needs_package

try:
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.requests import Request
    from starlette.responses import HTMLResponse, JSONResponse, Response

    from clipsilon._core import web
except ImportError:
    raise ImportError(needs_package("clipsilon.live.service", "starlette and uvicorn", "clipsilon[serve]")) from None

from clipsilon._core import checks
from clipsilon._core.database import StorageError
from clipsilon.live.page import PAGE, POLICY
from clipsilon.live.store import Deployment
from clipsilon.live.stream import MOST_RECORDS, Receipt, RefusalError, Stream

_FIELDS = ("key", "version", "records")
_ENVELOPE, _RECORD, _NUMBER = 4096, 1024, 32  # bytes: around the records, per record, and for each of its numbers
_LARGEST_BODY = 2**25
_POINTS = 200  # models that a page draws
_BLOCKS = 40  # of models, whose means a page draws
_MOST_MODELS = 4000  # that these means are taken over
_SHOWN = 50  # entries of θ that a page draws


class _Context(NamedTuple):
    """A stream, and the token of those who may send records."""

    stream: Stream
    token: bytes
    limit: int  # bytes of a body


def application(stream: Stream, token: str, closes: bool = False) -> Starlette:
    """Return the ASGI application of a stream.

    Parameters
    ----------
    stream : Stream
        The stream to serve.
    token : str
        What senders must present, at least 16 characters.
    closes : bool, default False
        Whether the stream is closed when the application ends.
    """
    most = _ENVELOPE + MOST_RECORDS * (_RECORD + _NUMBER * stream.dimension)
    context = _Context(stream, checks.token("token", token).encode(), min(most, _LARGEST_BODY))

    paths: list[tuple[str, web.Handler, str]] = [
        ("/", _page, "GET"),
        ("/model", _model, "GET"),
        ("/statement", _statement, "GET"),
        ("/history", _history, "GET"),
        ("/inside", _inside, "GET"),
        ("/records", _records, "POST"),
    ]
    refusals = {HTTPException: _refuse_malformed, ValueError: _refuse, RecursionError: _refuse}
    return web.application(context, paths, refusals, stream.close if closes else None)


async def _page(context: _Context, request: Request) -> Response:
    context.stream.model  # noqa: B018  (raises if the file cannot be used)
    return HTMLResponse(PAGE, headers={"Content-Security-Policy": POLICY, "Cache-Control": "no-store"})


async def _model(context: _Context, request: Request) -> Response:
    now = context.stream.model
    answer = {"version": now.version, "steps": now.steps, "theta": now.theta.tolist(), "average": now.average.tolist()}
    return JSONResponse(answer)


async def _statement(context: _Context, request: Request) -> Response:
    return JSONResponse(await asyncio.to_thread(_stated, context.stream))


def _stated(stream: Stream) -> dict[str, Any]:
    now = stream.model
    return {
        **stream.statement().to_dict(),
        "limit": stream.limit,
        "horizon": stream.horizon,
        "batch": stream.batch,
        "steps_done": now.steps,
        "noise_of_average": stream.noise_of_average(),
    }


async def _history(context: _Context, request: Request) -> Response:
    models = await asyncio.to_thread(context.stream.deployments, _POINTS)
    rows = [{"version": m.version, "step": m.step, "theta": m.theta[:_SHOWN].tolist()} for m in models]
    return JSONResponse({"versions": rows, "entries": context.stream.model.theta.size})


async def _inside(context: _Context, request: Request) -> Response:
    _authorise(context, request)
    stream = context.stream
    models = await asyncio.to_thread(stream.deployments, _MOST_MODELS)
    size = -(-len(models) // _BLOCKS)
    blocks = [_block(models[k : k + size]) for k in range(0, len(models), size)]
    reaction = [block for block in blocks if block is not None]
    gap = await asyncio.to_thread(stream.expected_gap)
    expected = None if gap is None else {"gap": gap.gap, **gap._asdict()}
    counts = {"accepted": stream.accepted, "refused": stream.refused}
    return JSONResponse({**counts, "reaction": reaction, "expected_gap": expected})


def _block(models: Sequence[Deployment]) -> dict[str, Any] | None:
    """Return the means of what was sent under some models; None if nothing was, or if they are not finite."""
    used = [model for model in models if model.sent]
    with np.errstate(over="ignore", invalid="ignore"):
        means = np.sum([model.total for model in used], axis=0) / max(1, sum(model.sent for model in used))
    if not used or not np.isfinite(means).all():
        return None
    about = {"version": used[0].version, "last": used[-1].version, "records": sum(model.sent for model in used)}
    return {**about, "means": means[:_SHOWN].tolist()}


async def _records(context: _Context, request: Request) -> Response:
    _authorise(context, request)
    body = await web.read_body(request, context.limit)
    receipt = await asyncio.to_thread(_submit, context.stream, body)
    return JSONResponse({**receipt._asdict(), "refused": [one._asdict() for one in receipt.refused]})


def _submit(stream: Stream, body: bytes) -> Receipt:
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict) or content.keys() != set(_FIELDS) or not isinstance(content["records"], list):
        raise HTTPException(400, f"the body must be a JSON object with the fields {', '.join(_FIELDS)}, and no others.")
    if content["key"] is None:
        raise HTTPException(400, "key must be text, got None.")
    return stream.submit(content["records"], version=content["version"], key=content["key"])


def _authorise(context: _Context, request: Request) -> None:
    """Raise HTTPException unless the request presents the token; the comparison takes the same time for all."""
    given = request.headers.get("authorization", "")
    scheme, _, token = given.partition(" ")
    if scheme.lower() != "bearer" or not hmac.compare_digest(token.strip().encode(), context.token):
        raise HTTPException(401, "the token is missing or wrong.", {"WWW-Authenticate": "Bearer"})


def serve(stream: Stream, token: str, listener: socket.socket) -> None:
    """Run the service until SIGINT or SIGTERM, then close the stream.

    Parameters
    ----------
    stream : Stream
        The stream to serve.
    token : str
        What senders must present, at least 16 characters.
    listener : socket
        A listening socket.
    """
    web.serve(application(stream, token, closes=True), listener)


def running(stream: Stream, token: str, port: int = 0) -> AbstractContextManager[str]:
    """Run the service in a thread for the duration of a `with` block, which gets its URL. The stream stays open.

    Parameters
    ----------
    stream : Stream
        The stream to serve.
    token : str
        What senders must present, at least 16 characters.
    port : int, default 0
        Port to listen on; 0 picks a free one.

    Returns
    -------
    context manager
        Of the URL, such as "http://127.0.0.1:8000".
    """
    return web.running(application(stream, token), "127.0.0.1", port)


async def _refuse_malformed(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, HTTPException)
    code = "unauthorised" if problem.status_code == 401 else "malformed"
    return _refusal(problem.status_code, code, problem.detail, dict(problem.headers or {}))


async def _refuse(request: Request, problem: Exception) -> Response:
    if isinstance(problem, StorageError):
        return _refusal(503, "closed", str(problem))
    if isinstance(problem, RefusalError):
        return _refusal(409, problem.code, str(problem))
    return _refusal(422, "invalid", str(problem))


def _refusal(status: int, code: str, error: str, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse({"code": code, "error": error}, status, headers)
