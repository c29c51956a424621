"""Sums of products whose result depends on the numbers alone, for compiled code.

What a record adds to a step must not depend on its place in the batch, not even in the last bit: a record that is
absent would otherwise change what the others add (docs/proofs.md, "Exact sums in the engine"). Compilers are free to
reorder a sum only under fast-math flags, and may then do so differently at every place that the sum is inlined. So the
sums are written here in a fixed order, four numbers at a time, and compiled without such flags.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, overload
from numpy.typing import NDArray

from clipsilon._core.options import INLINE

Array = NDArray[np.float64]

_LANES = 4
_WORD, _DOUBLE = ir.IntType(64), ir.DoubleType()
_VECTOR = ir.VectorType(_DOUBLE, _LANES)


def fused(a: float, b: float, c: float) -> float:
    """Return a·b + c, rounded once in compiled code."""
    return a * b + c


@intrinsic  # type: ignore[untyped-decorator]
def _fma(typing: Any, a: Any, b: Any, c: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.call(_fma_function(builder.module, _DOUBLE), arguments)

    return types.float64(types.float64, types.float64, types.float64), generate


@overload(fused, jit_options=INLINE)
def _fused_of(a, b, c):
    return lambda a, b, c: _fma(np.float64(a), np.float64(b), c)


@intrinsic  # type: ignore[untyped-decorator]
def bits_of(typing: Any, number: Any) -> Any:
    """Return the 64 bits of a float as an integer; of compiled code only."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], _WORD)

    return types.int64(types.float64), generate


@intrinsic  # type: ignore[untyped-decorator]
def from_bits(typing: Any, bits: Any) -> Any:
    """Return the float that has these 64 bits; of compiled code only."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], _DOUBLE)

    return types.float64(types.int64), generate


@intrinsic  # type: ignore[untyped-decorator]
def sum_of_words(typing: Any, words: Any, offset: Any) -> Any:
    """Return the sum of eight 64-bit integers minus seven times another, modulo 2^64; of compiled code only.

    In Numba's own integer arithmetic an overflow is undefined, also where the final result fits.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        parts = [builder.extract_value(arguments[0], k) for k in range(8)]
        while len(parts) > 1:
            parts = [builder.add(a, b) for a, b in zip(parts[::2], parts[1::2], strict=True)]
        return builder.sub(parts[0], builder.mul(_WORD(7), arguments[1]))

    return types.int64(types.UniTuple(types.int64, 8), types.int64), generate


def dot(x: NDArray[Any], y: NDArray[Any]) -> float:
    """Return Σ x_j·y_j over the entries of x; y may be longer."""
    return float(np.dot(x.astype(np.float64), y[: x.size].astype(np.float64)))


@overload(dot, jit_options=INLINE)
def _dot_of(x, y):
    if not (_is_contiguous(x) and _is_contiguous(y)):
        return _dot_strided
    return lambda x, y: _dot_from(x, 0, y, 0, x.size)


def _dot_strided(x, y):  # type: ignore[no-untyped-def]
    total = 0.0
    for j in range(x.size):
        total += x[j] * y[j]
    return total


def dot_from(x: NDArray[Any], first: int, y: NDArray[Any], second: int, size: int) -> float:
    """Return Σ x[first + j]·y[second + j] for j < size, counting entries of tables row by row.

    The sum is made as `dot` makes it; compiled code saves the time that it takes to make a view.
    """
    return dot(x.ravel()[first : first + size], y.ravel()[second : second + size])


@overload(dot_from, jit_options=INLINE)
def _dot_from_of(x, first, y, second, size):
    return lambda x, first, y, second, size: _dot_from(x, first, y, second, size)


def measure_row(table: NDArray[Any], i: int, theta: Array) -> tuple[float, float]:
    """Return ⟨x_i, θ⟩ and ‖x_i‖² for a row of a table; each sum is made as `dot` makes it."""
    return dot(table[i], theta), dot(table[i], table[i])


@overload(measure_row, jit_options=INLINE)
def _measure_row_of(table, i, theta):
    return lambda table, i, theta: _measure(table, (i,), theta)


def measure_eight(table: NDArray[Any], rows: tuple[int, ...], theta: Array) -> tuple[float, ...]:
    """Return ⟨x_i, θ⟩ for eight rows i of a table, then ‖x_i‖² for each; each sum is made as `dot` makes it."""
    picked = [table[i] for i in rows]
    return tuple([dot(x, theta) for x in picked] + [dot(x, x) for x in picked])


@overload(measure_eight, jit_options=INLINE)
def _measure_eight_of(table, rows, theta):
    return lambda table, rows, theta: _measure(table, rows, theta)


def begin_or_add(
    rate: float, table: NDArray[Any], i: int, is_first: bool, zeros: Array, sums: Array, place: int
) -> None:
    """Write rate·x_i to a row of `sums`, or add it to what is there; without a branch, unlike a loop with a condition.

    Parameters
    ----------
    rate : float
        The factor.
    table : array of shape (n, d)
        The table.
    i : int
        The row of it.
    is_first : bool
        Whether a sum begins.
    zeros : array of shape (d,)
        Zeros, with which it begins.
    sums : array of shape (k, d)
        Updated in place.
    place : int
        The row of it.
    """
    sums[place] = rate * table[i] + (zeros if is_first else sums[place])


@overload(begin_or_add, jit_options=INLINE)
def _begin_or_add_of(rate, table, i, is_first, zeros, sums, place):
    return lambda rate, table, i, is_first, zeros, sums, place: _add_multiple(
        rate, table, i, is_first, zeros, sums, place
    )


def _is_contiguous(array: Any) -> bool:
    return isinstance(array, types.Array) and array.layout == "C" and array.dtype in (types.float64, types.float32)


@intrinsic  # type: ignore[untyped-decorator]
def _dot_from(typing: Any, x: Any, first: Any, y: Any, second: Any, size: Any) -> Any:
    """Sum products of entries of two contiguous arrays, from given places on."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pair = []
        for kind, array, start in zip(signature.args[:4:2], arguments[:4:2], arguments[1:4:2], strict=True):
            pair.append(builder.gep(context.make_array(kind)(context, builder, array).data, [start]))
        return builder.call(_function(builder.module, "dot", pair, [(0, 1)]), [*pair, arguments[4]])

    return types.float64(x, types.int64, y, types.int64, types.int64), generate


@intrinsic  # type: ignore[untyped-decorator]
def _measure(typing: Any, table: Any, rows: Any, theta: Any) -> Any:
    """Multiply rows of a contiguous table by θ, and then by themselves."""
    count = len(rows)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind, _, other = signature.args
        features = context.make_array(kind)(context, builder, arguments[0])
        model = context.make_array(other)(context, builder, arguments[2])
        width = cgutils.unpack_tuple(builder, features.shape)[1]
        starts = [
            builder.gep(features.data, [builder.mul(builder.extract_value(arguments[1], k), width)])
            for k in range(count)
        ]
        pointers = [*starts, model.data]
        places = [(k, count) for k in range(count)] + [(k, k) for k in range(count)]
        return builder.call(_function(builder.module, "measure", pointers, places), [*pointers, width])

    return types.UniTuple(types.float64, 2 * count)(table, types.UniTuple(types.int64, count), theta), generate


@intrinsic  # type: ignore[untyped-decorator]
def _add_multiple(typing: Any, rate: Any, table: Any, i: Any, is_first: Any, zeros: Any, sums: Any, place: Any) -> Any:
    """Add a multiple of a row of a contiguous table to zeros or to a row of sums, four numbers at a time."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        factor, is_begun = arguments[0], arguments[3]
        features, nothing, totals = (
            context.make_array(signature.args[k])(context, builder, arguments[k]) for k in (1, 4, 5)
        )
        width = cgutils.unpack_tuple(builder, totals.shape)[1]
        x, after = (
            builder.gep(array.data, [builder.mul(arguments[k], width)]) for array, k in ((features, 2), (totals, 6))
        )
        before = builder.select(is_begun, nothing.data, after)
        whole = builder.and_(width, _WORD(-_LANES))
        for start, stop, count in ((_WORD(0), whole, _LANES), (whole, width, 1)):
            kind, scale = (_DOUBLE, factor) if count == 1 else (_VECTOR, _splat(builder, factor))
            with cgutils.for_range_slice(builder, start, stop, _WORD(count), _WORD) as (j, _):
                terms = [scale, _load(builder, x, j, count), _load(builder, before, j, count)]
                total = builder.call(_fma_function(builder.module, kind), terms)
                target = builder.bitcast(builder.gep(after, [j]), kind.as_pointer())
                builder.store(total, target, align=8)
        return context.get_dummy_value()

    return types.void(types.float64, table, types.int64, types.boolean, zeros, sums, types.int64), generate


def _splat(builder: Any, number: Any) -> Any:
    vector = ir.Constant(_VECTOR, ir.Undefined)
    for k in range(_LANES):
        vector = builder.insert_element(vector, number, ir.IntType(32)(k))
    return vector


def _function(module: Any, name: str, pointers: list[Any], places: list[tuple[int, int]]) -> Any:
    """Return a function of the module that sums the products of pairs of its pointers.

    It is never inlined, so that all calls run the same instructions.
    """
    kinds = [pointer.type for pointer in pointers]
    result = _DOUBLE if len(places) == 1 else ir.ArrayType(_DOUBLE, len(places))
    full_name = "_".join(["clipsilon", name, *("d" if kind.pointee == _DOUBLE else "f" for kind in kinds)])
    function = cgutils.get_or_insert_function(module, ir.FunctionType(result, [*kinds, _WORD]), full_name)
    if function.is_declaration:
        function.linkage = "linkonce_odr"
        function.attributes.add("noinline")
        inner = ir.IRBuilder(function.append_basic_block())
        sums = _sum_products(inner, [(function.args[a], function.args[b]) for a, b in places], function.args[-1])
        if len(places) == 1:
            inner.ret(sums[0])
        else:
            packed = ir.Constant(result, ir.Undefined)
            for k, total in enumerate(sums):
                packed = inner.insert_value(packed, total, k)
            inner.ret(packed)
    return function


def _sum_products(builder: Any, pairs: list[tuple[Any, Any]], size: Any) -> list[Any]:
    """Emit code for Σ_j x_j·y_j of each pair of pointers: four partial sums, added up, then what is left over."""
    whole = builder.and_(size, _WORD(-_LANES))
    lanes = _loop(builder, _WORD(0), whole, _LANES, pairs, [ir.Constant(_VECTOR, [0.0] * _LANES)] * len(pairs))
    sums = [_add_lanes(builder, lane) for lane in lanes]
    return _loop(builder, whole, size, 1, pairs, sums)


def _add_lanes(builder: Any, vector: Any) -> Any:
    a, b, c, d = (builder.extract_element(vector, ir.IntType(32)(k)) for k in range(_LANES))
    return builder.fadd(builder.fadd(a, b), builder.fadd(c, d))


def _loop(builder: Any, start: Any, stop: Any, step: int, pairs: list[tuple[Any, Any]], sums: list[Any]) -> list[Any]:
    """Emit a loop that adds `step` products per turn to each of the sums, and return the sums after it."""
    before = builder.block
    head, body, after = (builder.append_basic_block(name) for name in ("products", "products.body", "products.end"))
    builder.branch(head)
    builder.position_at_end(head)
    place = builder.phi(_WORD)
    totals = [builder.phi(value.type) for value in sums]
    builder.cbranch(builder.icmp_signed("<", place, stop), body, after)
    builder.position_at_end(body)
    moved = []
    for total, pair in zip(totals, pairs, strict=True):
        x, y = (_load(builder, pointer, place, step) for pointer in pair)
        moved.append(builder.call(_fma_function(builder.module, total.type), [x, y, total]))
    following = builder.add(place, _WORD(step))
    for phi, first, later in zip([place, *totals], [start, *sums], [following, *moved], strict=True):
        phi.add_incoming(first, before)
        phi.add_incoming(later, body)
    builder.branch(head)
    builder.position_at_end(after)
    return totals


def _fma_function(module: Any, kind: Any) -> Any:
    """Return LLVM's fused multiplication and addition for numbers or vectors."""
    suffix = "f64" if kind == _DOUBLE else f"v{_LANES}f64"
    return cgutils.get_or_insert_function(module, ir.FunctionType(kind, [kind] * 3), f"llvm.fma.{suffix}")


def _load(builder: Any, pointer: Any, place: Any, count: int) -> Any:
    """Emit a load of one number, or of several as a vector, in double precision."""
    element = pointer.type.pointee
    address = builder.gep(pointer, [place])
    if count == 1:
        value = builder.load(address, align=element_size(element))
        return value if element == _DOUBLE else builder.fpext(value, _DOUBLE)
    kind = ir.VectorType(element, count)
    value = builder.load(builder.bitcast(address, kind.as_pointer()), align=element_size(element))
    return value if element == _DOUBLE else builder.fpext(value, _VECTOR)


def element_size(element: Any) -> int:
    """Return the size of a floating-point number in bytes."""
    return 8 if element == _DOUBLE else 4
