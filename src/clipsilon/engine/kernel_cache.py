"""A disk cache for compiled kernels that cannot serve stale code.

Numba's own cache only checks the file that contains the kernel, so it would run old code after a change in
`losses/`. Here every kernel is stored under a digest of *all* sources that are compiled and of the signature of
the kernel. There is no index file, so processes that compile at the same time cannot mix up each other's entries.
Kernels that use a part that is not of the package are never stored, because there is no way to detect that its
source, or something that it calls, has changed.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import numba
from numba import types
from numba.core import caching
from numba.core.compiler import CompileResult

from clipsilon._core.parts import is_ours
from clipsilon._core.sources import kernel_digest
from clipsilon._core.storage import cache_folder, write_atomically

_KEEP_DAYS = 30

# No fast-math flags: with them, the last bits of what a record adds to a step could depend on its place in the batch.
OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy"}

INNER: dict[str, Any] = {"error_model": "numpy", "forceinline": True}


def kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function with Numba and cache the result on disk (a decorator)."""
    dispatcher: Any = numba.njit(**OPTIONS)(function)
    dispatcher._cache = _KernelCache(function)
    return cast(Callable[..., Any], dispatcher)


class _KernelCache(caching._Cache):
    """Numba's cache interface, with one folder per digest of the sources and one file per signature."""

    def __init__(self, function: Callable[..., Any]):
        self._name = f"{function.__module__}.{function.__qualname__}"

    @property
    def cache_path(self) -> str:
        return str(cache_folder() / "kernels" / kernel_digest()[:24])

    def load_overload(self, sig: Any, target_context: Any) -> CompileResult | None:
        if not _is_stable(sig):
            return None
        target_context.refresh()
        key = self._key(sig, target_context.codegen())
        try:
            stored, payload = pickle.loads(self._path(key).read_bytes())
            os.utime(self.cache_path)  # marks the folder as used, see _prepare
        except Exception:  # missing or unreadable: compile
            return None
        return CompileResult._rebuild(target_context, *payload) if stored == key else None

    def save_overload(self, sig: Any, data: CompileResult) -> None:
        if not _is_stable(sig) or data.library.has_dynamic_globals:
            return
        key = self._key(sig, data.codegen)
        payload = caching.dumps((key, data._reduce()))
        # If the cache cannot be written, the kernel is compiled again next time.
        with suppress(OSError):
            _prepare(Path(self.cache_path))
            write_atomically(self._path(key), lambda file: file.write(payload))

    def _key(self, sig: Any, codegen: Any) -> tuple[str, ...]:
        return (self._name, numba.__version__, kernel_digest(), repr(sig), repr(codegen.magic_tuple()))

    def _path(self, key: tuple[str, ...]) -> Path:
        return Path(self.cache_path) / f"{hashlib.sha256(repr(key).encode()).hexdigest()[:32]}.kernel"

    def enable(self) -> None: ...

    def disable(self) -> None: ...

    def flush(self) -> None: ...


def _is_stable(sig: Any) -> bool:
    """Return whether all parts in a signature belong to the package."""

    def stable(kind: Any) -> bool:
        if isinstance(kind, types.BaseNamedTuple) and not is_ours(kind.instance_class):
            return False
        return all(stable(item) for item in kind) if isinstance(kind, types.BaseTuple) else True

    return all(stable(argument) for argument in (sig if isinstance(sig, tuple) else sig.args))


def _prepare(folder: Path) -> None:
    """Create the folder of the current digest, and delete folders that no process has used for a month."""
    if folder.exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    for other in folder.parent.iterdir():
        if time.time() - other.stat().st_mtime > _KEEP_DAYS * 86400:
            shutil.rmtree(other, ignore_errors=True)
