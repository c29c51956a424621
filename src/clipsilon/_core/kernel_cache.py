"""A disk cache for compiled kernels that cannot serve stale code.

Numba's own cache only checks the file that contains the kernel, so it would run old code after a change in
`losses/`. Here every kernel is stored under a digest of *all* definitions that compiled code can depend on
(`kernel_sources.py`) and of the signature of the kernel. There is no index file, so processes that compile at the same
time cannot mix up each other's entries. Kernels that use a part that is not of the package are never stored, because
there is no way to detect that its source, or something that it calls, has changed.

A kernel may call another by a *symbol* instead of containing it (`apart.py`). The other must then be in the process
before the first is loaded, so a stored kernel comes with a list of those that it calls.
"""

from __future__ import annotations

import gc
import hashlib
import os
import pickle
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache, wraps
from pathlib import Path
from typing import Any, cast

import llvmlite.binding
import numba
from numba import types
from numba.core import caching
from numba.core.compiler import CompileResult

from clipsilon._core.options import KERNEL
from clipsilon._core.parts import is_ours
from clipsilon._core.sources import kernel_digest
from clipsilon._core.storage import cache_folder, write_atomically

_KEEP_DAYS = 30
_KERNELS: dict[str, Any] = {}  # by their names
_SYMBOLS: dict[str, tuple[str, Any]] = {}  # the kernel and the type of its argument that a symbol stands for


def kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function with Numba and cache the result on disk (a decorator)."""
    dispatcher: Any = numba.njit(**KERNEL)(function)
    name = _name(function)
    dispatcher._cache = _KernelCache(name)
    dispatcher.compile = _without_collecting(dispatcher.compile)
    _KERNELS[name] = dispatcher
    return cast(Callable[..., Any], dispatcher)


def _without_collecting(build: Callable[..., Any]) -> Callable[..., Any]:
    """Pause the garbage collector while a kernel is compiled.

    Compiling makes millions of objects that stay until its end; going through them again and again took a fifth of the
    time.
    """

    @wraps(build)
    def paused(signature: Any) -> Any:
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            return build(signature)
        finally:
            if was_enabled:
                gc.enable()

    return paused


def symbol_of(function: Callable[..., Any], argument: Any) -> str:
    """Return the symbol of a kernel of one argument of a type, by which others can call it in this process."""
    return _define(_name(function), argument)


def kernel_folder() -> Path:
    """Return the folder in which the kernels of these sources are stored."""
    return cache_folder() / "kernels" / kernel_digest()[:24]


def _define(name: str, argument: Any) -> str:
    symbol = f"{name}({argument})"
    if symbol not in _SYMBOLS:
        dispatcher = _KERNELS[name]
        dispatcher.compile((argument,))
        compiled = dispatcher.overloads[(argument,)]
        address = compiled.library.get_pointer_to_function(compiled.fndesc.llvm_func_name)
        llvmlite.binding.add_symbol(symbol, address)
        _SYMBOLS[symbol] = name, argument
    return symbol


def _called(library: Any) -> list[tuple[str, Any]]:
    """Return the kernels that a compiled library calls by their symbols, with the types of their arguments."""
    declared = (function.name for function in library._final_module.functions if function.is_declaration)
    return [_SYMBOLS[symbol] for symbol in declared if symbol in _SYMBOLS]


def _name(function: Callable[..., Any]) -> str:
    return f"{function.__module__}.{function.__qualname__}"


class _KernelCache(caching._Cache):
    """Numba's cache interface, with one folder per digest of the sources and one file per signature."""

    def __init__(self, name: str):
        self._name = name

    @property
    def cache_path(self) -> str:
        return str(kernel_folder())

    def load_overload(self, sig: Any, target_context: Any) -> CompileResult | None:
        found = self._stored(sig, target_context) if _is_stable(sig) else None
        if found is None:
            _tell()
        return found

    def _stored(self, sig: Any, target_context: Any) -> CompileResult | None:
        target_context.refresh()
        key = self._key(sig, target_context.codegen())
        try:
            stored, called, payload = pickle.loads(self._path(key).read_bytes())
            os.utime(kernel_folder())  # marks the folder as used, see _prepare
        except Exception:  # missing or unreadable: compile
            return None
        if stored != key:
            return None
        for name, argument in called:
            _define(name, argument)
        return cast(CompileResult, CompileResult._rebuild(target_context, *payload))

    def save_overload(self, sig: Any, data: CompileResult) -> None:
        if not _is_stable(sig) or data.library.has_dynamic_globals:
            return
        key = self._key(sig, data.codegen)
        payload = caching.dumps((key, _called(data.library), data._reduce()))
        # If the cache cannot be written, the kernel is compiled again next time.
        with suppress(OSError):
            _prepare(kernel_folder())
            write_atomically(self._path(key), lambda file: file.write(payload))

    def _key(self, sig: Any, codegen: Any) -> tuple[str, ...]:
        return (self._name, numba.__version__, kernel_digest(), repr(sig), repr(codegen.magic_tuple()))

    def _path(self, key: tuple[str, ...]) -> Path:
        return kernel_folder() / f"{hashlib.sha256(repr(key).encode()).hexdigest()[:32]}.kernel"

    def enable(self) -> None: ...

    def disable(self) -> None: ...

    def flush(self) -> None: ...


@cache
def _tell() -> None:
    """Say on a terminal, once per process, why it takes so long."""
    if sys.stderr.isatty():
        print("clipsilon: compiling; each kind of model takes some seconds once.", file=sys.stderr)


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
