"""Environments for peers whose requirements differ from ours, and peers that obey in them."""

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
    """A peer could not be installed, or failed."""


def environment(peer: str) -> Path:
    """The Python of the peer's environment, which is made from `<peer>.txt` if it is missing or from another file."""
    folder = cache_folder() / "peers" / peer
    python, ready = folder / "bin" / "python", folder / "ready"
    wanted = _requirements(peer)
    if not (ready.exists() and ready.read_text(encoding="utf-8") == wanted):
        print(f"Making an environment for {peer} …", file=sys.stderr, flush=True)
        try:
            venv.create(folder, with_pip=True, clear=True)
            subprocess.run([python, "-m", "pip", "install", "-q", "-r", PEERS / f"{peer}.txt"], check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise PeerError("could not be installed") from error
        ready.write_text(wanted, encoding="utf-8")
    return python


def pins(peer: str) -> dict[str, str]:
    """The versions that a peer's environment is made of."""
    lines = [line for line in _requirements(peer).splitlines() if line and not line.startswith("#")]
    return dict(line.split("==") for line in lines)


def _requirements(peer: str) -> str:
    return (PEERS / f"{peer}.txt").read_text(encoding="utf-8")


class Peer:
    """A peer's script in its environment, which obeys one line at a time."""

    def __init__(self, name: str, script: str):
        command = [environment(name), PEERS / script]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, command: Any) -> Any:
        """What the script answers: how many seconds the command took, or what it found."""
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
