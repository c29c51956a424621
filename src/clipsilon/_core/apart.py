"""Calls that the compiler must not inline, for code that is rarely needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.extending import intrinsic, overload


def call_apart(function: Callable[..., Any], result: Any, on_error: float) -> Callable[..., Any]:
    """Return a function that does the same, and that compiled code calls without inlining it.

    Inlined into a loop, branches and arrays of its own would keep the compiler from removing the loop's reference
    counting, which takes longer than most steps.

    Parameters
    ----------
    function : callable
        A function of one argument that Numba can compile.
    result : numba type
        The type of what it returns.
    on_error : number
        What compiled code gets if it raises, as when memory is exhausted.
    """

    @intrinsic  # type: ignore[untyped-decorator]
    def call(typing: Any, argument: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            compiled = context.compile_subroutine(builder, function, signature)
            status, found = context.call_internal_no_propagate(builder, compiled.fndesc, signature, arguments)
            _mark_calls(builder.function, compiled.fndesc.mangled_name)
            return builder.select(status.is_ok, found, ir.Constant(found.type, on_error))

        return result(argument), generate

    def apart(argument: Any) -> Any:
        return function(argument)

    @overload(apart, strict=False, jit_options={"forceinline": True})
    def _(argument: Any) -> Any:
        return lambda argument: call(argument)

    return apart


def _mark_calls(caller: Any, name: str) -> None:
    """Forbid inlining the calls of a function that another function makes."""
    for block in caller.blocks:
        for instruction in block.instructions:
            if isinstance(instruction, ir.CallInstr) and instruction.callee.name == name:
                instruction.attributes.add("noinline")
