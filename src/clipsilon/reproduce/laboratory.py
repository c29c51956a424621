"""Where experiments are run: sweeps and other results, each computed once and kept on disk."""

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

_CHECK = 32  # bytes of the digest that a file begins with


@dataclass(frozen=True)
class Laboratory:
    """A `Lab` whose results are in a folder; None is one in the user's cache folder."""

    quick: bool = False
    folder: Path | None = None
    progress: bool | None = None
    n_jobs: int | None = None

    def sweep(self, runs: Sequence[Run]) -> list[Trace]:
        """The traces of all runs, in their order."""
        return sweep(runs, self.folder, self.n_jobs, self.progress)

    def keep(self, function: Callable[..., Any], *arguments: Any, **settings: Any) -> Any:
        """What the function of this package returns: numbers, arrays, tuples, dataclasses.

        It is computed once for each set of arguments, and again when the package's sources, or for a function of
        `clipsilon.reproduce` its module's, have changed. The arguments decide the result: pass seeds and data.
        """
        path = store_folder(self.folder) / f"{_key(function, arguments, settings)}.pickle"
        found, value = _read(path)
        if not found:
            value = function(*arguments, **settings)
            payload = pickle.dumps(value)
            write_atomically(path, lambda file: file.write(hashlib.sha256(payload).digest() + payload))
        return value


def _key(function: Callable[..., Any], arguments: tuple[Any, ...], settings: dict[str, Any]) -> str:
    module, name = function.__module__, function.__qualname__
    if module.split(".")[0] != "clipsilon" or "<" in name:
        raise ValueError(f"function must be one at the top of a module of clipsilon, got {module}.{name}.")
    content = (module, name, digest_with(module), VERSIONS, joblib.hash((arguments, sorted(settings.items()))))
    return hashlib.sha256(repr(content).encode()).hexdigest()


def _read(path: Path) -> tuple[bool, Any]:
    """Whether the file is there and whole, and what it holds."""
    try:
        content = path.read_bytes()
        check, payload = content[:_CHECK], content[_CHECK:]
        return (True, pickle.loads(payload)) if hashlib.sha256(payload).digest() == check else (False, None)
    except FileNotFoundError:
        return False, None
