"""Rows of features for compiled code: a dense array, or the entries of a sparse table.

Dense arrays may hold float64 or float32. Sums are in float64 either way: float32 only halves the memory traffic.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numba import types
from numba.extending import overload, register_jitable
from numpy.typing import NDArray
from scipy import sparse

from clipsilon._core.checks import compressed, frozen
from clipsilon._core.options import CONTAINED, INLINE
from clipsilon._core.products import bits_of, dot_from, from_bits, fused, measure_eight, measure_row, sum_of_words
from clipsilon._core.vectors import norm

Array = NDArray[np.float64]
Indices = NDArray[np.int64]

ROWS_AT_A_TIME = 64
# Where in `scratch` `measure` writes ⟨x, θ⟩ and ‖x‖² of each row. Constant distances within one vector tell the
# compiler that loops over several such columns do not overwrite what they read.
MARGIN, SQUARE = 0, ROWS_AT_A_TIME


class Sparse(NamedTuple):
    """A table in compressed rows.

    Parameters
    ----------
    entries, columns : ndarray
        The values that are stored, row after row, and their columns.
    starts : ndarray
        Row i has the entries starts[i], …, starts[i + 1] − 1.
    width : int
        The number of columns.
    """

    entries: NDArray[Any]
    columns: NDArray[Any]
    starts: NDArray[Any]
    width: int


Table: TypeAlias = NDArray[Any] | sparse.csr_array
"""The features of a `Problem`."""
Rows: TypeAlias = NDArray[Any] | Sparse
"""The features as compiled code reads them."""


def stored(features: Table) -> Rows:
    """Return a table as read-only arrays. (Arrays that were pickled, also by joblib, are writable again.)"""
    if sparse.issparse(features):
        table = compressed(features)
        return Sparse(frozen(table.data), frozen(table.indices), frozen(table.indptr), int(table.shape[1]))
    return frozen(features)


def dense(features: Table) -> Array:
    """Return a table as a dense float64 array."""
    table = features if isinstance(features, np.ndarray) else features.toarray()
    return np.asarray(table, dtype=np.float64)


def with_ones(features: Table) -> Table:
    """Append a column of ones, for the intercept."""
    ones = np.ones((features.shape[0], 1), dtype=features.dtype)
    if sparse.issparse(features):
        return sparse.hstack([features, sparse.csr_matrix(ones)], format="csr")
    return np.hstack([features, ones])


def first_row(features: Table) -> Array:
    """Return the features of the first record, in float64."""
    return np.asarray(dense(features[:1])[0])


# Declarations for compiled code. The overloads below implement them for dense and for sparse rows.


def width(features: Rows) -> int:
    """Return the number of columns."""


def row(features: Rows, i: int, workspace: Array) -> Array:
    """Return the i-th row; a sparse one is expanded into `workspace`, which has one entry per column."""


def margin(features: Rows, i: int, theta: Array, first: int) -> float:
    """Return ⟨x_i, θ⟩, where θ begins at theta[first]."""


def square(features: Rows, i: int) -> float:
    """Return ‖x_i‖²."""


def add_row(features: Rows, i: int, rate: float, rounding: float, total: Array, first: int) -> None:
    """Add rate·x_i to `total`, from total[first] on, in whole numbers if `rounding` is ROUND of `engine/grid.py`."""


def measure(features: Rows, drawn: Indices, first: int, last: int, theta: Array, scratch: Array) -> None:
    """Write ⟨x_i, θ⟩ and ‖x_i‖² of the rows i in drawn[first:last] to `scratch`, from MARGIN and from SQUARE on."""


def add_rows(
    features: Rows, drawn: Indices, span: tuple[int, int], scratch: Array, which: int, rounding: float, total: Array
) -> None:
    """Add Σ rate·x_i over the rows i in drawn[first:last], span = (first, last), with the rates in scratch[which:].

    `rounding` is as in `add_row`.
    """


def row_norm(features: Rows, i: int, square: float) -> float:
    """Return ‖x_i‖ from its square; accurate even if the square has overflowed or underflowed."""


def weight_of(weights: Array | None, i: int) -> float:
    """Return the i-th weight, or 1 if there are no weights."""


def weigh(weights: Array | None, i: int, vector: Array) -> None:
    """Multiply a vector by the i-th weight, in place."""


@register_jitable(**CONTAINED)
def at_a_time(columns: int) -> int:
    """Return how many rows to measure before adding them: few enough to remain in the processor's cache."""
    return max(8, min(ROWS_AT_A_TIME, 2048 // columns // 8 * 8))


@overload(width)
def _width(features):
    if isinstance(features, types.Array):
        return lambda features: features.shape[1]
    return lambda features: features.width


@overload(row, jit_options=INLINE)
def _row(features, i, workspace):
    if isinstance(features, types.Array):
        return lambda features, i, workspace: features[i]

    def expanded(features, i, workspace):
        for j in range(workspace.size):
            workspace[j] = 0.0
        for k in range(features.starts[i], features.starts[i + 1]):
            workspace[features.columns[k]] = features.entries[k]
        return workspace

    return expanded


@overload(margin, jit_options=INLINE)
def _margin(features, i, theta, first):
    def of_all(features, i, theta, first):
        columns = features.shape[1]
        return dot_from(features, i * columns, theta, first, columns)

    def of_entries(features, i, theta, first):
        total = 0.0
        for k in range(features.starts[i], features.starts[i + 1]):
            total += features.entries[k] * theta[first + features.columns[k]]
        return total

    return of_all if isinstance(features, types.Array) else of_entries


@overload(square, jit_options=INLINE)
def _square(features, i):
    def of_all(features, i):
        columns = features.shape[1]
        return dot_from(features, i * columns, features, i * columns, columns)

    def of_entries(features, i):
        total = 0.0
        for k in range(features.starts[i], features.starts[i + 1]):
            total += np.float64(features.entries[k]) * features.entries[k]
        return total

    return of_all if isinstance(features, types.Array) else of_entries


@overload(add_row, jit_options=INLINE)
def _add_row(features, i, rate, rounding, total, first):
    def of_all(features, i, rate, rounding, total, first):
        for j in range(features.shape[1]):
            total[first + j] += fused(rate, features[i, j], rounding) - rounding

    def of_entries(features, i, rate, rounding, total, first):
        for k in range(features.starts[i], features.starts[i + 1]):
            total[first + features.columns[k]] += fused(rate, features.entries[k], rounding) - rounding

    return of_all if isinstance(features, types.Array) else of_entries


@overload(row_norm, jit_options=INLINE)
def _row_norm(features, i, square):
    def of_row(features, i, square):
        return np.sqrt(square) if 1e-280 < square < 1e280 else norm(features[i])

    def of_entries(features, i, square):
        if 1e-280 < square < 1e280:
            return np.sqrt(square)
        return norm(features.entries[features.starts[i] : features.starts[i + 1]])

    return of_row if isinstance(features, types.Array) else of_entries


@overload(weight_of, jit_options=INLINE)
def _weight_of(weights, i):
    if isinstance(weights, types.Array):
        return lambda weights, i: weights[i]
    return lambda weights, i: 1.0


@overload(weigh, jit_options=INLINE)
def _weigh(weights, i, vector):
    def each(weights, i, vector):
        for j in range(vector.size):
            vector[j] *= weights[i]

    return each if isinstance(weights, types.Array) else lambda weights, i, vector: None


# Dense rows are read eight at a time: eight streams from memory are nearly twice as fast as one.


@register_jitable(**INLINE)
def _eight(values, first):
    return (
        values[first], values[first + 1], values[first + 2], values[first + 3],
        values[first + 4], values[first + 5], values[first + 6], values[first + 7],
    )  # fmt: skip


@register_jitable(**INLINE)
def _entries(features, rows, j):
    a, b, c, d, e, f, g, h = rows
    return (
        np.float64(features[a, j]), np.float64(features[b, j]), np.float64(features[c, j]), np.float64(features[d, j]),
        np.float64(features[e, j]), np.float64(features[f, j]), np.float64(features[g, j]), np.float64(features[h, j]),
    )  # fmt: skip


@register_jitable(**INLINE)
def _plain_sum(rates, x):
    first = fused(rates[0], x[0], rates[1] * x[1]) + fused(rates[2], x[2], rates[3] * x[3])
    return first + (fused(rates[4], x[4], rates[5] * x[5]) + fused(rates[6], x[6], rates[7] * x[7]))


@register_jitable(**INLINE)
def _whole_sum(rates, x, r):
    """Return the sum of eight products, each rounded to a whole number.

    Between 2^52 and 2^53 the bits of floats are consecutive integers. So the bits of products that were added to
    r = 1.5·2^52 add up to the sum that is wanted, which is smaller than 2^51, and to eight times those of r.
    """
    words = (
        bits_of(fused(rates[0], x[0], r)), bits_of(fused(rates[1], x[1], r)),
        bits_of(fused(rates[2], x[2], r)), bits_of(fused(rates[3], x[3], r)),
        bits_of(fused(rates[4], x[4], r)), bits_of(fused(rates[5], x[5], r)),
        bits_of(fused(rates[6], x[6], r)), bits_of(fused(rates[7], x[7], r)),
    )  # fmt: skip
    return from_bits(sum_of_words(words, bits_of(r))) - r


@overload(measure, jit_options=INLINE)
def _measure(features, drawn, first, last, theta, scratch):
    def of_all(features, drawn, first, last, theta, scratch):
        eights = (last - first) // 8 * 8
        for k in range(0, eights, 8):
            found = measure_eight(features, _eight(drawn, first + k), theta)
            for place in range(8):
                scratch[MARGIN + k + place], scratch[SQUARE + k + place] = found[place], found[8 + place]
        for k in range(eights, last - first):
            scratch[MARGIN + k], scratch[SQUARE + k] = measure_row(features, drawn[first + k], theta)

    def of_entries(features, drawn, first, last, theta, scratch):
        for k in range(last - first):
            i = drawn[first + k]
            scratch[MARGIN + k], scratch[SQUARE + k] = margin(features, i, theta, 0), square(features, i)

    return of_all if isinstance(features, types.Array) else of_entries


@overload(add_rows, jit_options=INLINE)
def _add_rows(features, drawn, span, scratch, which, rounding, total):
    def of_all(features, drawn, span, scratch, which, rounding, total):
        first, last = span
        eights = (last - first) // 8 * 8
        for k in range(0, eights, 8):
            rows, rates = _eight(drawn, first + k), _eight(scratch, which + k)
            if rounding == 0.0:
                for j in range(total.size):
                    total[j] += _plain_sum(rates, _entries(features, rows, j))
            else:
                for j in range(total.size):
                    total[j] += _whole_sum(rates, _entries(features, rows, j), rounding)
        for k in range(eights, last - first):
            add_row(features, drawn[first + k], scratch[which + k], rounding, total, 0)

    def of_entries(features, drawn, span, scratch, which, rounding, total):
        first, last = span
        for k in range(last - first):
            add_row(features, drawn[first + k], scratch[which + k], rounding, total, 0)

    return of_all if isinstance(features, types.Array) else of_entries
