"""Functions that compiled code calls without containing them: each is compiled once, for all kernels.

They are needed rarely, or are long. Inlined into a loop, their branches and arrays would keep the compiler from
removing the loop's reference counting, which takes longer than most steps; and compiled with every kernel, they would
be a quarter of the time that compiling takes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, overload

from clipsilon._core.kernel_cache import kernel, symbol_of
from clipsilon._core.options import INLINE


def call_apart(function: Callable[..., Any], result: Any, on_error: float) -> Callable[..., Any]:
    """Return a function that does the same, and that compiled code calls by the symbol of a kernel of its own.

    Parameters
    ----------
    function : callable
        A function of one argument that Numba can compile. If the argument is an array, it is not written to.
    result : numba type
        The type of what it returns.
    on_error : number
        What compiled code gets if it raises, as when memory is exhausted.
    """
    kernel(function)

    @intrinsic  # type: ignore[untyped-decorator]
    def call(typing: Any, argument: Any) -> Any:
        # Arrays that may be written to and others look alike in memory: one kernel serves both.
        taken = argument.copy(readonly=False) if isinstance(argument, types.Array) else argument

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            kind = context.call_conv.get_function_type(result, (taken,))
            called = cgutils.get_or_insert_function(builder.module, kind, symbol_of(function, taken))
            status, found = context.call_conv.call_function(builder, called, result, (taken,), arguments)
            return builder.select(status.is_ok, found, ir.Constant(found.type, on_error))

        return result(argument), generate

    def apart(argument: Any) -> Any:
        return function(argument)

    @overload(apart, strict=False, jit_options=INLINE)
    def _(argument: Any) -> Any:
        return lambda argument: call(argument)

    return apart
