"""Environments for peers whose requirements differ from ours."""

from __future__ import annotations

import subprocess
import venv
from pathlib import Path

from clipwise.storage import cache_folder

PEERS = Path(__file__).parent


def environment(peer: str) -> Path:
    """The Python of the peer's environment, which is made from `<peer>.txt` if it is missing."""
    folder = cache_folder() / "peers" / peer
    python = folder / "bin" / "python"
    if not (folder / "ready").exists():
        venv.create(folder, with_pip=True, clear=True)
        subprocess.run([python, "-m", "pip", "install", "-q", "-r", PEERS / f"{peer}.txt"], check=True)
        (folder / "ready").touch()
    return python
