"""A service that gives everyone a turn and notes each report that arrives whole, in a file; it prints its URL.

python report_recorder.py FILE
"""

import asyncio
import json
import sys
from pathlib import Path

from clipsilon._core import http_server
from clipsilon._core.http_server import Answer, HTTPServer, Limits


def main(path):
    count = 0
    with Path(path).open("a", encoding="utf-8") as log:

        def handle(request):
            nonlocal count
            if request.path == "/turn":
                turn = {"theta": [0.0, 0.5], "version": 0, "seconds": 3600, "ticket": "t"}
                return Answer(200, json.dumps(turn).encode())
            count += 1
            log.write(f"{request.body.decode()}\n")
            log.flush()
            return Answer(200, json.dumps({"sequence": count, "version": 0}).encode())

        async def work():
            listener = http_server.listen("127.0.0.1", 0)
            await HTTPServer(handle, lambda status, text, headers: Answer(status, b"{}"), Limits(10_000)).start(
                listener
            )
            print(http_server.address(listener), flush=True)
            await asyncio.Event().wait()

        asyncio.run(work())


if __name__ == "__main__":
    main(sys.argv[1])
