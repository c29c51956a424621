"""A PostgreSQL server of our own for tests: in a temporary folder, on a free port of 127.0.0.1."""

import atexit
import os
import shutil
import socket
import subprocess
import tempfile
import time
from contextlib import contextmanager
from functools import cache
from pathlib import Path


def binaries():
    """Return the folder of Debian's binaries, None if there is none."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    return found[-1].parent if found else None


def as_user(*words):
    """Return a command for the user postgres if this is root, for which PostgreSQL does not start."""
    return ["runuser", "-u", "postgres", "--", *map(str, words)] if os.geteuid() == 0 else list(map(str, words))


class Server:
    """The server, which can be killed and started again. `address` is that of its only database."""

    def __init__(self, folder, port, syncs):
        self._folder, self._port, self._process = folder, port, None
        self._more = [] if syncs else ["-F"]
        self.address = f"postgresql://postgres@127.0.0.1:{port}/postgres"

    def start(self):
        options = ["-p", self._port, "-h", "127.0.0.1", "-k", self._folder, *self._more]
        command = as_user(binaries() / "postgres", "-D", self._folder / "data", *options)
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(600):
            ready = as_user(binaries() / "pg_isready", "-q", "-h", "127.0.0.1", "-p", self._port)
            if subprocess.run(ready, check=False).returncode == 0:
                return
            time.sleep(0.1)
        raise AssertionError("the server does not start")

    def kill(self):
        """Stop at once, as after a crash."""
        stop = as_user(binaries() / "pg_ctl", "-D", self._folder / "data", "-m", "immediate", "-w", "stop")
        subprocess.run(stop, check=True, stdout=subprocess.DEVNULL)
        self._process.wait()

    def is_running(self):
        return self._process is not None and self._process.poll() is None


@contextmanager
def running(syncs=False):
    """Run a server for the duration of the block; unless `syncs`, it does not wait for the disk."""
    folder = Path(tempfile.mkdtemp(prefix="clipsilon-postgres-"))
    try:
        if os.geteuid() == 0:
            shutil.chown(folder, "postgres")
        setup = as_user(
            binaries() / "initdb", "-D", folder / "data", "-U", "postgres", "-A", "trust", "-E", "UTF8", "-N"
        )
        subprocess.run(setup, check=True, stdout=subprocess.DEVNULL, cwd="/")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        server = Server(folder, port, syncs)
        server.start()
        try:
            yield server
        finally:
            if server.is_running():
                server.kill()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@cache
def shared():
    """Return a server that runs until the tests end."""
    context = running()
    server = context.__enter__()
    atexit.register(context.__exit__, None, None, None)
    return server


def schema(name):
    """Return the address of a new schema on the shared server."""
    import psycopg

    with psycopg.connect(shared().address, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {name}")
    return f"{shared().address}?options=-csearch_path%3D{name}"
