"""Digests of rows: 64 bits each, equal for equal rows, and for different ones with probability 2⁻⁶⁴ over the key."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clipsilon._core.checks import frozen
from clipsilon._core.kernel_cache import kernel
from clipsilon._core.rows import Table

Words = NDArray[np.uint64]

_NUMBERS = 2**13  # digested at a time: a third of the time that blocks beyond the cache take
_FEWEST_ROWS = 128  # of a block
_LOW = np.uint64(2**32 - 1)
_HIGH = np.uint64(2**64 - 2**32)
_SHIFT = np.uint64(32)


def hash_rows(features: Table, key: int, columns: int | None = None) -> Words:
    """Return the digests of all rows, in the order of the rows.

    Numbers of either precision, 0 and −0, and dense and sparse rows have the same digests if they are equal.

    Parameters
    ----------
    features : array or sparse matrix in compressed rows
        One row per record.
    key : int
        The key. Whoever knows it can make different rows of equal digests.
    columns : int, optional
        Digest the first columns only; all by default.

    Returns
    -------
    array of uint64
        One digest per row.
    """
    rows, width = features.shape
    factors, offsets = _random_words(key, width)
    if columns is not None:
        factors = factors.copy()
        factors[columns:] = 0
    found = np.empty(rows, dtype=np.uint64)
    if not isinstance(features, np.ndarray):
        _hash_entries(_bits(features.data), frozen(features.indices), frozen(features.indptr), factors, offsets, found)
        return found
    block = max(_FEWEST_ROWS, _NUMBERS // max(1, width))
    for first in range(0, rows, block):
        some = slice(first, first + block)
        _hash_dense(_bits(features[some]), factors, offsets, found[some])
    return found


@lru_cache(maxsize=8)
def _random_words(key: int, width: int) -> tuple[Words, Words]:
    """Return two pairs (a, b) of factors per column, and two offsets."""
    rng = np.random.default_rng(key)
    offsets = rng.integers(2**64, size=2, dtype=np.uint64)
    return rng.integers(2**64, size=(width, 2, 2), dtype=np.uint64), offsets


def _bits(numbers: NDArray[Any]) -> Words:
    """Return the bits of numbers as float64, without the sign of zeros."""
    return np.ascontiguousarray(np.asarray(numbers, dtype=np.float64) + 0.0).view(np.uint64)


# A row's digest is made of the upper halves of Σ_j a_j·low_j + b_j·high_j modulo 2⁶⁴, over the halves of its numbers,
# for two pairs (a, b). With random a and b, each is equal for two different rows with probability 2⁻³². Zeros add
# nothing.


@kernel
def _hash_dense(bits: Words, factors: Words, offsets: Words, found: Words) -> None:
    for i in range(bits.shape[0]):
        one, other = offsets[0], offsets[1]
        for j in range(bits.shape[1]):
            low, high = bits[i, j] & _LOW, bits[i, j] >> _SHIFT
            one += low * factors[j, 0, 0] + high * factors[j, 1, 0]
            other += low * factors[j, 0, 1] + high * factors[j, 1, 1]
        found[i] = (one & _HIGH) | (other >> _SHIFT)


@kernel
def _hash_entries(
    bits: Words, columns: NDArray[Any], starts: NDArray[Any], factors: Words, offsets: Words, found: Words
) -> None:
    for i in range(found.size):
        one, other = offsets[0], offsets[1]
        for k in range(starts[i], starts[i + 1]):
            j, low, high = columns[k], bits[k] & _LOW, bits[k] >> _SHIFT
            one += low * factors[j, 0, 0] + high * factors[j, 1, 0]
            other += low * factors[j, 0, 1] + high * factors[j, 1, 1]
        found[i] = (one & _HIGH) | (other >> _SHIFT)
