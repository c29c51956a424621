"""Fetching rows into the processor's cache before they are needed.

One record a step in random order is a cache miss a step, which costs more than the update itself once the data is
larger than the cache (58 against 183 ns a step at 300,000 records of six columns). In a batch the next rows are asked
for while the last ones are summed, which saves a fifth at 100 columns.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, overload
from numpy.typing import NDArray

from clipsilon.engine.kernel_cache import kernel

AHEAD = 8  # steps; from 4 to 16 it makes no difference
_LINE = 8  # numbers in a cache line
_START = 16 * _LINE  # numbers of a row in a batch that are asked for; more of them would hold up the sums


def _prefetching(level: int) -> Any:
    """Asking for the cache line of a number in a contiguous array; a hint, which changes nothing else.

    The line comes into all caches (level 3), or into the second only (2): rows of a batch would crowd the first.
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
def fetch_record(features: Any, labels: NDArray[np.float64], record: int) -> None:
    """Have a record's features and label at hand soon."""
    _fetch_row(features, record)
    _into_first(labels, record)


def _fetch_row(features: Any, record: int) -> None:
    """Declared for compiled code: fetch a dense row; where a sparse one lies is not known before it is read."""


@overload(_fetch_row)
def _fetch(features, record):
    def dense(features, record):
        for column in range(0, features.shape[1], _LINE):
            _into_first(features, record * features.shape[1] + column)

    return dense if isinstance(features, types.Array) else lambda features, record: None


def fetch_start(features: Any, record: int) -> None:
    """Declared for compiled code: have the start of a dense row at hand soon; the processor guesses what follows it."""


@overload(fetch_start, jit_options={"forceinline": True})
def _fetch_start(features, record):
    def dense(features, record):
        for column in range(0, min(features.shape[1], _START), _LINE):
            _into_second(features, record * features.shape[1] + column)

    return dense if isinstance(features, types.Array) else lambda features, record: None
