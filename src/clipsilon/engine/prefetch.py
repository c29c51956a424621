"""Fetching rows into the processor's cache before they are needed.

With one record per step in random order, every step is a cache miss, which costs more than the update itself once the
data is larger than the cache (183 ns per step, against 58 ns with prefetching, at 300,000 records of six columns). In a
batch, the next rows are fetched while the previous ones are summed, which saves a fifth of the time at 100 columns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, overload, register_jitable
from numpy.typing import NDArray

from clipsilon._core.kernel_cache import kernel
from clipsilon._core.options import INLINE
from clipsilon._core.rows import Rows

AHEAD = 8  # steps; from 4 to 16 it makes no difference
_LINE = 8  # numbers per cache line
_START = 16 * _LINE  # numbers fetched per row of a batch; more would delay the sums


def _prefetching(level: int) -> Callable[..., Any]:
    """Return a function that prefetches the cache line of an entry of a contiguous array.

    It is a hint and has no other effect. The line is loaded into all caches (level 3) or into the second only
    (level 2), since the rows of a batch would fill up the first.
    """

    @intrinsic  # type: ignore[untyped-decorator]
    def prefetch(typing: Any, array: Any, position: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            view = context.make_array(signature.args[0])(context, builder, arguments[0])
            address = builder.bitcast(builder.gep(view.data, [arguments[1]]), cgutils.voidptr_t)
            word = ir.IntType(32)
            kind = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, word, word, word])
            function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
            builder.call(function, [address, word(0), word(level), word(1)])  # 0: to read, 1: data
            return context.get_dummy_value()

        return types.void(array, types.intp), generate

    return prefetch


_into_first, _into_second = _prefetching(3), _prefetching(2)


@kernel
def fetch_record(features: Rows, labels: NDArray[np.float64], record: int) -> None:
    """Prefetch the features and the label of a record.

    Parameters
    ----------
    features : ndarray or Sparse
        The table. Sparse rows are not prefetched.
    labels : ndarray
        One label per record.
    record : int
        The index of the record.
    """
    _fetch_row(features, record)
    _into_first(labels, record)


def _fetch_row(features: Rows, record: int) -> None:
    """Prefetch a dense row (for compiled code); the address of a sparse one is not known before it is read."""


@overload(_fetch_row)
def _fetch(features, record):
    def dense(features, record):
        for column in range(0, features.shape[1], _LINE):
            _into_first(features, record * features.shape[1] + column)

    return dense if isinstance(features, types.Array) else lambda features, record: None


def fetch_start(features: Rows, record: int) -> None:
    """Prefetch the start of a dense row (for compiled code); the processor itself prefetches what follows."""


@overload(fetch_start, jit_options=INLINE)
def _fetch_start(features, record):
    def dense(features, record):
        for column in range(0, min(features.shape[1], _START), _LINE):
            _into_second(features, record * features.shape[1] + column)

    return dense if isinstance(features, types.Array) else lambda features, record: None


@register_jitable(forceinline=True)  # type: ignore[untyped-decorator]
def fetch_entry(array: NDArray[Any], position: int) -> None:
    """Prefetch one entry of a contiguous array (for compiled code)."""
    _into_first(array, position)
