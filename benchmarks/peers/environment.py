"""Environments for peers whose requirements differ from ours, and processes that run in them."""

from __future__ import annotations

import json
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

from clipsilon._core.storage import cache_folder

PEERS = Path(__file__).parent


class PeerError(RuntimeError):
    """Raised if a peer cannot be installed or fails."""


def environment(peer: str) -> Path:
    """Return the Python of a peer's environment; create it from `<peer>.txt` if it is missing or outdated."""
    folder = cache_folder() / "peers" / peer
    python, ready = folder / "bin" / "python", folder / "ready"
    wanted = _requirements(peer)
    if not (ready.exists() and ready.read_text(encoding="utf-8") == wanted):
        print(f"Creating an environment for {peer} …", file=sys.stderr, flush=True)
        try:
            venv.create(folder, with_pip=True, clear=True)
            subprocess.run([python, "-m", "pip", "install", "-q", "-r", PEERS / f"{peer}.txt"], check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise PeerError("could not be installed") from error
        ready.write_text(wanted, encoding="utf-8")
    return python


def pins(peer: str) -> dict[str, str]:
    """Return the pinned versions of a peer's environment."""
    lines = [line for line in _requirements(peer).splitlines() if line and not line.startswith("#")]
    return dict(line.split("==") for line in lines)


def _requirements(peer: str) -> str:
    return (PEERS / f"{peer}.txt").read_text(encoding="utf-8")


class Peer:
    """A peer's script, which runs in its environment and answers one command per line."""

    def __init__(self, name: str, script: str):
        command = [environment(name), PEERS / script]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, command: Any) -> Any:
        """Send a command and return the answer: the seconds that it took, or its result."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            print(json.dumps(command), file=self._process.stdin, flush=True)
        except BrokenPipeError:
            raise PeerError("its script ended early") from None
        answer = self._process.stdout.readline()
        if not answer:
            raise PeerError("its script ended early")
        return json.loads(answer)

    def close(self) -> None:
        """End the script."""
        self._process.communicate()
