"""What HTTP services share: sockets, the web server and the bodies of requests. Needs starlette and uvicorn."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from threading import Thread
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from clipsilon._core.http_server import address, listen

__all__ = ["Handler", "address", "application", "listen", "read_body", "running", "serve"]

Handler = Callable[[Any, Request], Awaitable[Response]]
Refusal = Callable[[Request, Exception], Awaitable[Response]]


def application(
    context: object,
    paths: Sequence[tuple[str, Handler, str]],
    refusals: Mapping[Any, Refusal],
    close: Callable[[], object] | None = None,
) -> Starlette:
    """Return an ASGI application.

    Parameters
    ----------
    context : object
        What each handler receives before the request.
    paths : sequence of tuple
        The path, the handler and the method of each route.
    refusals : mapping
        From a type of exception to what answers it.
    close : callable, optional
        Called when the application ends.

    Returns
    -------
    Starlette
    """

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        if close is not None:
            close()

    routes = [Route(path, partial(handler, context), methods=[method]) for path, handler, method in paths]
    return Starlette(routes=routes, exception_handlers=refusals, lifespan=lifespan)  # type: ignore[arg-type]


def serve(app: Starlette, listener: socket.socket) -> None:
    """Run an application until SIGINT or SIGTERM; afterwards uvicorn ends the process by the same signal."""
    _web_server(app).run(sockets=[listener])


@contextmanager
def running(app: Starlette, host: str, port: int) -> Iterator[str]:
    """Run an application in a thread for the duration of a `with` block, which gets its URL.

    Parameters
    ----------
    app : Starlette
        The application.
    host : str
        Address to listen on.
    port : int
        Port to listen on; 0 picks a free one.

    Yields
    ------
    str
        The URL, such as "http://127.0.0.1:8000".
    """
    listener = listen(host, port)
    web = _web_server(app)
    thread = Thread(target=web.run, args=([listener],))
    thread.start()
    try:
        yield address(listener)
    finally:
        web.should_exit = True
        thread.join()


def _web_server(app: Starlette) -> uvicorn.Server:
    """Return the web server of an application: one process and one event loop, without logs of requests."""
    # Requests that change something are taken one by one anyway.
    # log_config=None: configuring logging again would close the handlers of the process that runs this.
    config = uvicorn.Config(
        app, http="h11", ws="none", loop="asyncio", log_config=None, log_level="warning", access_log=False
    )
    config.timeout_graceful_shutdown = 5  # seconds to finish open requests
    return uvicorn.Server(config)


async def read_body(request: Request, limit: int) -> bytes:
    """Return the body of a request; raise HTTPException if it has more than `limit` bytes, or ends early."""
    body = bytearray()  # to which chunks are added without copying what came before
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > limit:
                raise HTTPException(413, f"the body must be at most {limit} bytes.", {"Connection": "close"})
    except ClientDisconnect:
        raise HTTPException(400, "the body ended early.") from None
    return bytes(body)
