"""Processes of tests: started, and killed at the end whatever happens; and ports for them."""

import random
import socket
import subprocess
import sys
from contextlib import contextmanager

COMMAND = [sys.executable, "-c", "from clipsilon.cli.main import main; main()"]
DEADLINE = 300.0  # seconds until a test fails; far more than it should take


def free_port():
    """Return a free port below the ephemeral ones: a client that connects to itself there would block the server."""
    for port in random.Random().sample(range(20000, 30000), 100):
        with socket.socket() as tried:
            try:
                tried.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("no port is free")


@contextmanager
def starting():
    """Give the block a function that starts processes; those still running are killed at its end."""
    processes = []

    def start_process(words):
        processes.append(subprocess.Popen(list(map(str, words)), stdout=subprocess.PIPE, text=True))
        return processes[-1]

    try:
        yield start_process
    finally:
        for process in processes:
            process.kill()
            process.wait()
            process.stdout.close()
