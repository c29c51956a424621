"""Which rows an estimator was fitted to: digests by which `partial_fit` recognises rows that it has seen.

A record must be in one call of `partial_fit` only. Digests are kept outside the estimators, so that they are neither
pickled nor written to files, and their key is drawn anew by each process. The statement does not depend on them: a
statement that did would reveal whether a row was there before.
"""

from __future__ import annotations

import os
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

Digests = NDArray[np.uint64]  # ascending

_MOST = 2**20  # digests per estimator, the smallest ones: of a larger table, a sample that all calls share
_NUMBERS = 2**13  # digested at a time: a third of the time that blocks beyond the cache take
_FEWEST_ROWS = 128  # of a block
_LOW = np.uint64(2**32 - 1)
_SHIFT = np.uint64(32)

_seen: WeakKeyDictionary[Any, Digests] = WeakKeyDictionary()
_key = int.from_bytes(os.urandom(16), "little")


def digest_key() -> int:
    """Return the key of this process, for workers elsewhere."""
    return _key


def compute_digests(features: Any, columns: int, key: int | None = None) -> Digests:
    """Return 64 bits for each row, equal for equal rows, and for different ones with probability 2⁻⁶⁴.

    Parameters
    ----------
    features : array or sparse matrix in compressed rows
        One row per record.
    columns : int
        Digest the first columns only; the last one may be of ones.
    key : int, optional
        The key; that of this process by default.

    Returns
    -------
    array of uint64
        The digests in order; only the smallest 2²⁰ if there are more.
    """
    return merge_digests([hash_rows(features, _key if key is None else key, columns)])


def hash_rows(features: Any, key: int, columns: int | None = None) -> NDArray[np.uint64]:
    """Return the digests of all rows, in the order of the rows.

    Parameters
    ----------
    features : array or sparse matrix in compressed rows
        One row per record.
    key : int
        The key.
    columns : int, optional
        Digest the first columns only; all by default.

    Returns
    -------
    array of uint64
        One digest per row.
    """
    rng = np.random.default_rng(key)
    offsets = rng.integers(2**64, size=2, dtype=np.uint64)
    factors = rng.integers(2**64, size=(features.shape[1], 2, 2), dtype=np.uint64)
    if columns is not None:
        factors[columns:] = 0
    found, block = [np.empty(0, dtype=np.uint64)], max(_FEWEST_ROWS, _NUMBERS // max(1, features.shape[1]))
    for first in range(0, features.shape[0], block):
        hashed = _hashed(features[first : first + block], factors) + offsets
        found.append(hashed[:, 0] & ~_LOW | hashed[:, 1] >> _SHIFT)
    return np.concatenate(found)


def _hashed(block: Any, factors: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return Σ_j a_j·low_j + b_j·high_j modulo 2⁶⁴ over the halves of each row's numbers, for two pairs (a, b).

    The upper halves of such sums, with random a and b, are equal for two different rows with probability 2⁻³².
    """
    if sparse.issparse(block):  # zeros add nothing, as their bits are zero
        rows = np.repeat(np.arange(block.shape[0]), np.diff(block.indptr))
        low, high = _halves(block.data)
        terms = low[:, np.newaxis] * factors[block.indices, 0] + high[:, np.newaxis] * factors[block.indices, 1]
        result = np.zeros((block.shape[0], 2), dtype=np.uint64)
        np.add.at(result, rows, terms)
        return result
    low, high = _halves(np.asarray(block))
    return np.asarray(low @ factors[:, 0] + high @ factors[:, 1])


def _halves(numbers: NDArray[Any]) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Return the lower and upper 32 bits of each number; 0 and −0, and numbers of either precision, are the same."""
    bits = (numbers.astype(np.float64) + 0.0).view(np.uint64)
    return bits & _LOW, bits >> _SHIFT


def merge_digests(parts: list[Digests]) -> Digests:
    """Return the digests of all parts, in order; only the smallest 2²⁰ if there are more."""
    return np.sort(np.concatenate(parts))[:_MOST]


def remember_rows(estimator: Any, digests: Digests, reset: bool) -> int:
    """Remember the rows of a call.

    Rows that occur several times within a call do not count: in tables of few different values, equal rows are no sign
    of equal people.

    Parameters
    ----------
    estimator : estimator
        The estimator that was fitted.
    digests : array of uint64
        Those of the call's rows.
    reset : bool
        Whether the call is a fit of its own, which forgets earlier calls.

    Returns
    -------
    int
        How many of the call's rows were in an earlier call; of a large table, at least.
    """
    new = _single(digests)
    earlier = np.empty(0, dtype=np.uint64) if reset else _seen.get(estimator, new[:0])
    _seen[estimator] = np.union1d(earlier, new)[:_MOST]
    return int(np.intersect1d(new, earlier, assume_unique=True).size)


def count_seen(estimator: Any, features: Any) -> int:
    """Return how many rows equal rows that this process fitted the estimator to; of a large table, at least."""
    earlier = _seen.get(estimator)
    if earlier is None:
        return 0
    table = features if sparse.issparse(features) else np.asarray(features)
    digests = _single(compute_digests(table, table.shape[1]))
    return int(np.intersect1d(digests, earlier, assume_unique=True).size)


def _single(digests: Digests) -> Digests:
    """Return the digests that occur once."""
    values, counts = np.unique(digests, return_counts=True)
    return np.asarray(values[counts == 1])
