"""The cache folder, and writing files atomically."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO


def cache_folder() -> Path:
    """Return the user's cache folder for clipsilon; the environment variable `CLIPSILON_CACHE` overrides it."""
    chosen = os.environ.get("CLIPSILON_CACHE")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "clipsilon"


def write_atomically(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Write a temporary file beside `path` and rename it: readers see the old or the new file, never a part of one.

    The file is readable by its owner only, and on disk, under its name, when this returns.
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
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Make a rename durable, where the system can."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def require_writable(path: Path, argument: str) -> None:
    """Raise ValueError, naming the argument, if a file could not be written at `path`; nothing is left behind.

    Folders that do not exist are taken to be created. A nameless file is created to find out, because permissions do
    not tell everything: of a network's drive, or to an administrator.
    """
    nearest = next(folder for folder in path.absolute().parents if folder.exists())
    try:
        tempfile.TemporaryFile(dir=nearest).close()
    except OSError:
        is_writable = False
    else:
        is_writable = not path.exists() or os.access(path, os.W_OK)
    if not is_writable:
        raise ValueError(f"{argument} must be where files can be written, got {path}.")
