"""Run experiments and store sweeps and other results on disk, so that each is computed once."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import joblib

from clipsilon._core.sources import digest_with
from clipsilon._core.storage import write_atomically
from clipsilon.engine import Trace
from clipsilon.engine.sweep import VERSIONS, Run, store_folder, sweep

__all__ = ["Laboratory"]

_DIGEST_SIZE = 32  # bytes of the digest at the beginning of each file


@dataclass(frozen=True)
class Laboratory:
    """A `Lab` that stores its results in a folder.

    Parameters
    ----------
    quick : bool, default False
        Whether experiments take fewer replicates and steps.
    folder : Path, optional
        Where results are stored; by default in the user's cache folder.
    progress : bool, optional
        Whether to show progress bars; by default only on a terminal.
    n_jobs : int, optional
        Number of runs that are made at the same time; by default one per processor.
    """

    quick: bool = False
    folder: Path | None = None
    progress: bool | None = None
    n_jobs: int | None = None

    def sweep(self, runs: Sequence[Run]) -> list[Trace]:
        """Return the traces of all runs, in their order."""
        return sweep(runs, self.folder, self.n_jobs, self.progress)

    def keep(self, function: Callable[..., Any], *arguments: object, **keywords: object) -> Any:
        """Return what a function of this package returns, from the store if possible.

        The function is called once per set of arguments, and again after the sources of the package (for a function
        of `clipsilon.reproduce`: or of its module) have changed.

        Parameters
        ----------
        function : callable
            A function at the top level of a module of clipsilon.
        *arguments, **keywords
            Its arguments. They must determine the result, so pass seeds and data.

        Returns
        -------
        object
            What the function returns; it must be possible to pickle it.
        """
        path = store_folder(self.folder) / f"{_key(function, arguments, keywords)}.pickle"
        found, value = _read(path)
        if not found:
            value = function(*arguments, **keywords)
            payload = pickle.dumps(value)
            write_atomically(path, lambda file: file.write(hashlib.sha256(payload).digest() + payload))
        return value


def _key(function: Callable[..., Any], arguments: tuple[object, ...], keywords: dict[str, object]) -> str:
    module, name = function.__module__, function.__qualname__
    if module.split(".")[0] != "clipsilon" or "<" in name:
        raise ValueError(f"function must be at the top level of a module of clipsilon, got {module}.{name}.")
    content = (module, name, digest_with(module), VERSIONS, joblib.hash((arguments, sorted(keywords.items()))))
    return hashlib.sha256(repr(content).encode()).hexdigest()


def _read(path: Path) -> tuple[bool, Any]:
    """Return whether the file exists and is complete, and its value."""
    try:
        content = path.read_bytes()
        check, payload = content[:_DIGEST_SIZE], content[_DIGEST_SIZE:]
        return (True, pickle.loads(payload)) if hashlib.sha256(payload).digest() == check else (False, None)
    except FileNotFoundError:
        return False, None
