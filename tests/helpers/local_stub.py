"""A service for local reports that keeps them in memory, and misbehaves on request."""

import asyncio
import threading

from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from clipsilon._core import web
from clipsilon.local.browser import FILES

TASK = {
    "loss": {"name": "MallowsLogistic", "parameters": {}},
    "dimension": 3,
    "features": ["Age", "Income", "Years"],
    "batch": 4,
    "round_seconds": 10,
    "enrolment": False,
    "most_budget": None,
    "repeats": "compose",
}


class Stub:
    """`bodies` are the reports that arrived, `applied` those that were applied."""

    def __init__(self, **task):
        self.task = {**TASK, **task}
        self.theta = [0.1] * self.task["dimension"]
        self.turns, self.bodies, self.applied = [], [], []
        self.garbage = 0  # so many reports are answered by nonsense
        self.silent = False  # reports are not answered at all
        self.barrier = 1  # so many requests for a turn are answered together
        self.arrived = threading.Event()

    def running(self):
        routes = [Route(path, self._file) for path in FILES]
        routes += [Route("/task", self._task)]
        routes += [Route("/turn", self._turn, methods=["POST"]), Route("/report", self._report, methods=["POST"])]
        return web.running(Starlette(routes=routes), "127.0.0.1", 0)

    async def _file(self, request):
        file = FILES[request.url.path]
        return Response(file.content, media_type=file.kind, headers=file.headers)

    async def _task(self, request):
        return JSONResponse(self.task)

    async def _turn(self, request):
        self.turns.append(await request.json())
        while len(self.turns) < self.barrier:
            await asyncio.sleep(0.01)
        return JSONResponse({"theta": self.theta, "version": 7, "seconds": 60, "ticket": f"t{len(self.turns)}"})

    async def _report(self, request):
        body = await request.body()
        self.bodies.append(body)
        self.arrived.set()
        while self.silent:
            await asyncio.sleep(0.01)
        is_new = body not in self.applied
        if is_new:
            self.applied.append(body)
        if self.garbage > 0:
            self.garbage -= 1
            return Response("<html>not what was asked for</html>")
        number = self.applied.index(body) + 1
        applied = {"code": "applied", "error": "it is in the ledger.", "sequence": number}
        return JSONResponse({"sequence": number, "version": 7}) if is_new else JSONResponse(applied, 409)
