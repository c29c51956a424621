"""Group commit: reports that come in while others are written are written together, with one sync.

With several servers, what comes in until the turn to write has come is written, too.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from clipsilon._core.http_server import Answer
from clipsilon.local.server import Accepted, Checked, Server

_MOST_TOGETHER = 1000  # reports per write

Describe = Callable[[Accepted | Exception], Answer]
_Pending = tuple[Checked, asyncio.Future[Answer]]


class Writer:
    """Write the reports of a service, in one thread.

    Parameters
    ----------
    server : Server
        Accepts or refuses them.
    describe : callable
        Returns the answer to an accepted report, and to one that an error has stopped.
    thread : ThreadPoolExecutor
        The thread.
    """

    def __init__(self, server: Server, describe: Describe, thread: ThreadPoolExecutor):
        self._server, self._describe, self._thread = server, describe, thread
        self._pending: deque[_Pending] = deque()  # the event loop appends, the thread takes
        self._is_due = asyncio.Event()

    def __len__(self) -> int:
        return len(self._pending)

    def add(self, report: Checked) -> asyncio.Future[Answer]:
        """Return a future of the answer to a report."""
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._pending.append((report, answer))
        self._is_due.set()
        return answer

    async def write(self) -> None:
        """Write the next group, and answer it."""
        loop = asyncio.get_running_loop()
        await self._is_due.wait()
        group, answers = await loop.run_in_executor(self._thread, self._write)
        if not self._pending:  # what came in meanwhile may be in the group
            self._is_due.clear()
        for (_, future), answer in zip(group, answers, strict=True):
            if not future.done():
                future.set_result(answer)

    def _write(self) -> tuple[list[_Pending], list[Answer]]:
        """Write what is there when the turn to write has come: with several servers, more comes in until then."""
        group: list[_Pending] = []

        def take() -> list[Checked]:
            group.extend(self._take())
            return [report for report, _ in group]

        results: list[Accepted | Exception]
        try:
            results = [*self._server.apply_checked(take)]
        except Exception as problem:
            group = group or self._take()
            results = [problem] * len(group)
        return group, [self._describe(one) for one in results]

    def _take(self) -> list[_Pending]:
        return [self._pending.popleft() for _ in range(min(len(self._pending), _MOST_TOGETHER))]
