"""Sums of a few rows of features, for compiled code: those of one person.

A sum Σ rate·x_i is an array of values. For a dense table, values[j] belongs to the entry j of θ. For a sparse one only
the entries that occur are stored: values[k] belongs to the entry entries[k] of θ, k < size, and places[j] is the k of
the entry j, if entries[k] is j; so nothing has to be cleared before the next sum (Briggs and Torczon's sparse sets).
"""

from __future__ import annotations

import numpy as np
from numba import types
from numba.extending import overload
from numpy.typing import NDArray

from clipsilon._core.options import INLINE
from clipsilon._core.products import dot_from, fused
from clipsilon._core.rows import Rows
from clipsilon._core.vectors import norm

Array = NDArray[np.float64]
Indices = NDArray[np.int64]


def begin_sum(features: Rows, values: Array) -> int:
    """Begin a sum of no rows; return its size, the number of values in it."""


def add_to_sum(
    features: Rows, i: int, rate: float, first: int, values: Array, entries: Indices, places: Indices, size: int
) -> int:
    """Add rate·x_i to a sum; return its size afterwards.

    Parameters
    ----------
    features : ndarray or Sparse
        The table.
    i : int
        The row.
    rate : float
        Its factor.
    first : int
        The entry of θ that belongs to the first column.
    values : array of shape (d,)
        The sum, updated in place.
    entries, places : array of shape (d,)
        Which entries of θ the values belong to, updated in place; unused for dense tables.
    size : int
        The number of values before.
    """


def norm_of_sum(features: Rows, values: Array, size: int) -> float:
    """Return the norm of a sum, accurate even if its squares overflow or underflow; NaN if a value is NaN.

    Parameters
    ----------
    features : ndarray or Sparse
        The table.
    values : array of shape (d,)
        The sum.
    size : int
        The number of values in it.
    """


def margin_of_sum(features: Rows, values: Array, entries: Indices, size: int, theta: Array) -> float:
    """Return ⟨sum, θ⟩.

    Parameters
    ----------
    features : ndarray or Sparse
        The table.
    values : array of shape (d,)
        The sum.
    entries : array of shape (d,)
        Which entries of θ the values belong to.
    size : int
        The number of values.
    theta : array of shape (d,)
        θ.
    """


def add_sum(
    features: Rows, values: Array, entries: Indices, size: int, factor: float, rounding: float, total: Array
) -> None:
    """Add factor·sum to `total`; nothing if the factor is 0, even if the sum is not finite.

    Parameters
    ----------
    features : ndarray or Sparse
        The table.
    values : array of shape (d,)
        The sum.
    entries : array of shape (d,)
        Which entries of θ the values belong to.
    size : int
        The number of values.
    factor : float
        The factor.
    rounding : float
        ROUND of `engine/grid.py` to add whole numbers, 0 to add the products themselves.
    total : array of shape (d,)
        Updated in place.
    """


@overload(begin_sum, jit_options=INLINE)
def _begin(features, values):
    def dense(features, values):
        for j in range(values.size):
            values[j] = 0.0
        return values.size

    return dense if isinstance(features, types.Array) else lambda features, values: 0


@overload(add_to_sum, jit_options=INLINE)
def _add_to(features, i, rate, first, values, entries, places, size):
    def dense(features, i, rate, first, values, entries, places, size):
        for j in range(features.shape[1]):
            values[first + j] = fused(rate, features[i, j], values[first + j])
        return size

    def stored(features, i, rate, first, values, entries, places, size):
        for k in range(features.starts[i], features.starts[i + 1]):
            j = first + features.columns[k]
            place = places[j]
            if place < size and entries[place] == j:
                values[place] = fused(rate, features.entries[k], values[place])
            else:
                places[j], entries[size], values[size] = size, j, rate * features.entries[k]
                size += 1
        return size

    return dense if isinstance(features, types.Array) else stored


@overload(norm_of_sum, jit_options=INLINE)
def _norm_of(features, values, size):
    def stored(features, values, size):
        square = dot_from(values, 0, values, 0, size)
        return np.sqrt(square) if 1e-280 < square < 1e280 else norm(values[:size])

    return (lambda features, values, size: norm(values)) if isinstance(features, types.Array) else stored


@overload(margin_of_sum, jit_options=INLINE)
def _margin_of(features, values, entries, size, theta):
    def dense(features, values, entries, size, theta):
        return dot_from(values, 0, theta, 0, size)

    def stored(features, values, entries, size, theta):
        total = 0.0
        for k in range(size):
            total += values[k] * theta[entries[k]]
        return total

    return dense if isinstance(features, types.Array) else stored


@overload(add_sum, jit_options=INLINE)
def _add(features, values, entries, size, factor, rounding, total):
    def dense(features, values, entries, size, factor, rounding, total):
        for j in range(total.size if factor != 0.0 else 0):
            total[j] += fused(factor, values[j], rounding) - rounding

    def stored(features, values, entries, size, factor, rounding, total):
        for k in range(size if factor != 0.0 else 0):
            total[entries[k]] += fused(factor, values[k], rounding) - rounding

    return dense if isinstance(features, types.Array) else stored
