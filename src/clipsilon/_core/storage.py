"""Where the package keeps things between runs, and how it writes a file that is never half there."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO


def cache_folder() -> Path:
    """The user's cache folder for clipsilon; `CLIPSILON_CACHE` overrides it."""
    chosen = os.environ.get("CLIPSILON_CACHE")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "clipsilon"


def write_atomically(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Write beside `path` and move into place: readers see the old file or the new one, whole.

    The file is readable by its owner only.
    """
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
