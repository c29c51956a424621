"""Rows of features as compiled code takes them: a dense array, or a sparse one of which only the entries are kept.

Dense arrays may hold float64 or float32. Sums are in float64 either way: float32 only halves what is read.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit, types
from numba.extending import overload, register_jitable
from numpy.typing import NDArray
from scipy import sparse

from clipwise.checks import compressed, frozen
from clipwise.vectors import norm

Array = NDArray[np.float64]
Indices = NDArray[np.int64]

ROWS_AT_A_TIME = 64
MARGIN, SQUARE = 0, 1  # what `measure` finds of a row: ⟨x, θ⟩ and ‖x‖²


class Sparse(NamedTuple):
    """A table in compressed rows: row i has its entries at starts[i], …, starts[i + 1] − 1."""

    entries: NDArray[Any]
    columns: NDArray[Any]
    starts: NDArray[Any]
    width: int


def stored(features: Any) -> Any:
    """The arrays of a table, read-only. (Unpickling forgets that arrays are read-only, and so does joblib.)"""
    if sparse.issparse(features):
        features = compressed(features)
        arrays = (frozen(features.data), frozen(features.indices), frozen(features.indptr))
        return Sparse(*arrays, int(features.shape[1]))
    return frozen(features)


def dense(features: Any) -> Array:
    """The table with all its zeros, in float64."""
    table = features.toarray() if sparse.issparse(features) else features
    return np.asarray(table, dtype=np.float64)


def with_ones(features: Any) -> Any:
    """The table and a last column of ones, for the intercept."""
    ones = np.ones((features.shape[0], 1), dtype=features.dtype)
    if sparse.issparse(features):
        return sparse.hstack([features, sparse.csr_matrix(ones)], format="csr")
    return np.hstack([features, ones])


def first_row(features: Any) -> Array:
    """The first record's features, in float64."""
    return np.asarray(dense(features[:1])[0])


# Each of these is a declaration for compiled code; `overload` has its two forms.


def width(features: Any) -> int:
    """How many columns there are."""


def row(features: Any, i: int, room: Array) -> Array:
    """The i-th row; a sparse one is written out into `room`, which has one entry a column."""


def margin(features: Any, i: int, theta: Array, first: int) -> float:
    """⟨x_i, θ⟩, with the entries of θ from `first` on."""


def square(features: Any, i: int) -> float:
    """‖x_i‖²."""


def add_row(features: Any, i: int, rate: float, total: Array, first: int) -> None:
    """Total += rate·x_i, from its entry `first` on."""


def measure(features: Any, drawn: Indices, first: int, last: int, theta: Array, scratch: Array) -> None:
    """⟨x_i, θ⟩ and ‖x_i‖² of the rows i in drawn[first:last], into scratch[MARGIN] and scratch[SQUARE]."""


def add_rows(features: Any, drawn: Indices, first: int, last: int, scratch: Array, which: int, total: Array) -> None:
    """Total += Σ rate·x_i over the rows in drawn[first:last], with their rates in scratch[which]."""


def row_norm(features: Any, i: int, square: float) -> float:
    """‖x_i‖, given its square; right even where that has overflowed or vanished."""


def weight_of(weights: Any, i: int) -> float:
    """The i-th weight; 1 if there are none."""


def weigh(weights: Any, i: int, vector: Array) -> None:
    """Vector ← the i-th weight times the vector."""


@register_jitable
def at_a_time(columns: int) -> int:
    """How many rows to measure before they are added: few enough to be still in the processor's cache by then."""
    return max(4, min(ROWS_AT_A_TIME, 2048 // columns))


_FAST = {"forceinline": True, "fastmath": {"reassoc", "contract"}}


@overload(width)
def _width(features):
    if isinstance(features, types.Array):
        return lambda features: features.shape[1]
    return lambda features: features.width


@overload(row, jit_options=_FAST)
def _row(features, i, room):
    if isinstance(features, types.Array):
        return lambda features, i, room: features[i]

    def written_out(features, i, room):
        for j in range(room.size):
            room[j] = 0.0
        for k in range(features.starts[i], features.starts[i + 1]):
            room[features.columns[k]] = features.entries[k]
        return room

    return written_out


@overload(margin, jit_options=_FAST)
def _margin(features, i, theta, first):
    def of_all(features, i, theta, first):
        total = 0.0
        for j in range(features.shape[1]):
            total += features[i, j] * theta[first + j]
        return total

    def of_entries(features, i, theta, first):
        total = 0.0
        for k in range(features.starts[i], features.starts[i + 1]):
            total += features.entries[k] * theta[first + features.columns[k]]
        return total

    return of_all if isinstance(features, types.Array) else of_entries


@overload(square, jit_options=_FAST)
def _square(features, i):
    def of_all(features, i):
        total = 0.0
        for j in range(features.shape[1]):
            total += np.float64(features[i, j]) * features[i, j]
        return total

    def of_entries(features, i):
        total = 0.0
        for k in range(features.starts[i], features.starts[i + 1]):
            total += np.float64(features.entries[k]) * features.entries[k]
        return total

    return of_all if isinstance(features, types.Array) else of_entries


@overload(add_row, jit_options=_FAST)
def _add_row(features, i, rate, total, first):
    def of_all(features, i, rate, total, first):
        for j in range(features.shape[1]):
            total[first + j] += rate * features[i, j]

    def of_entries(features, i, rate, total, first):
        for k in range(features.starts[i], features.starts[i + 1]):
            total[first + features.columns[k]] += rate * features.entries[k]

    return of_all if isinstance(features, types.Array) else of_entries


@njit(nogil=True, error_model="numpy")  # not inlined: it is hardly ever needed
def _careful_norm(vector: Array) -> float:
    return float(norm(vector))


@overload(row_norm, jit_options=_FAST)
def _length(features, i, square):
    def of_row(features, i, square):
        return np.sqrt(square) if 1e-280 < square < 1e280 else _careful_norm(features[i])

    def of_entries(features, i, square):
        if 1e-280 < square < 1e280:
            return np.sqrt(square)
        return _careful_norm(features.entries[features.starts[i] : features.starts[i + 1]])

    return of_row if isinstance(features, types.Array) else of_entries


@overload(weight_of, jit_options=_FAST)
def _weight_of(weights, i):
    if isinstance(weights, types.Array):
        return lambda weights, i: weights[i]
    return lambda weights, i: 1.0


@overload(weigh, jit_options=_FAST)
def _weigh(weights, i, vector):
    def each(weights, i, vector):
        for j in range(vector.size):
            vector[j] *= weights[i]

    return each if isinstance(weights, types.Array) else lambda weights, i, vector: None


# Of dense rows four at a time, which keeps the processor's arithmetic busy while they come from memory.


@overload(measure, jit_options=_FAST)
def _measure(features, drawn, first, last, theta, scratch):
    def of_all(features, drawn, first, last, theta, scratch):
        fours = (last - first) // 4 * 4
        for k in range(0, fours, 4):
            a, b, c, d = drawn[first + k], drawn[first + k + 1], drawn[first + k + 2], drawn[first + k + 3]
            m0, m1, m2, m3, s0, s1, s2, s3 = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
            for j in range(theta.size):
                t = theta[j]
                x0, x1 = np.float64(features[a, j]), np.float64(features[b, j])
                x2, x3 = np.float64(features[c, j]), np.float64(features[d, j])
                m0, m1, m2, m3 = m0 + x0 * t, m1 + x1 * t, m2 + x2 * t, m3 + x3 * t
                s0, s1, s2, s3 = s0 + x0 * x0, s1 + x1 * x1, s2 + x2 * x2, s3 + x3 * x3
            scratch[MARGIN, k], scratch[MARGIN, k + 1], scratch[MARGIN, k + 2], scratch[MARGIN, k + 3] = m0, m1, m2, m3
            scratch[SQUARE, k], scratch[SQUARE, k + 1], scratch[SQUARE, k + 2], scratch[SQUARE, k + 3] = s0, s1, s2, s3
        for k in range(fours, last - first):
            i = drawn[first + k]
            scratch[MARGIN, k], scratch[SQUARE, k] = margin(features, i, theta, 0), square(features, i)

    def of_entries(features, drawn, first, last, theta, scratch):
        for k in range(last - first):
            i = drawn[first + k]
            scratch[MARGIN, k], scratch[SQUARE, k] = margin(features, i, theta, 0), square(features, i)

    return of_all if isinstance(features, types.Array) else of_entries


@overload(add_rows, jit_options=_FAST)
def _add_rows(features, drawn, first, last, scratch, which, total):
    def of_all(features, drawn, first, last, scratch, which, total):
        fours = (last - first) // 4 * 4
        for k in range(0, fours, 4):
            a, b, c, d = drawn[first + k], drawn[first + k + 1], drawn[first + k + 2], drawn[first + k + 3]
            r0, r1, r2, r3 = scratch[which, k], scratch[which, k + 1], scratch[which, k + 2], scratch[which, k + 3]
            for j in range(total.size):
                total[j] += (r0 * features[a, j] + r1 * features[b, j]) + (r2 * features[c, j] + r3 * features[d, j])
        for k in range(fours, last - first):
            add_row(features, drawn[first + k], scratch[which, k], total, 0)

    def of_entries(features, drawn, first, last, scratch, which, total):
        for k in range(last - first):
            add_row(features, drawn[first + k], scratch[which, k], total, 0)

    return of_all if isinstance(features, types.Array) else of_entries
