"""Which rows an estimator was fitted to: digests by which `partial_fit` recognises rows that it has seen.

A record must be in one call of `partial_fit` only. Digests are kept outside the estimators, so that they are neither
pickled nor written to files, and their key is drawn anew by each process. The statement does not depend on them: a
statement that did would reveal whether a row was there before.
"""

from __future__ import annotations

import hashlib
import os
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from clipsilon.engine.row_digests import hash_rows

Digests = NDArray[np.uint64]  # ascending

_MOST = 2**20  # digests per estimator, the smallest ones: of a larger table, a sample that all calls share

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


def identify_rows(features: Any, key: int, columns: int | None = None) -> str:
    """Return a digest of all rows together, whatever their order.

    Parameters
    ----------
    features : array-like or sparse matrix
        One row of numbers per record.
    key : int
        The key.
    columns : int, optional
        Digest the first columns only; all by default.

    Returns
    -------
    str
    """
    table = sparse.csr_array(features) if sparse.issparse(features) else np.asarray(features)
    digests = merge_digests([hash_rows(table, key, columns)])
    return hashlib.blake2b(digests.tobytes(), digest_size=16).hexdigest()


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


def count_seen(estimator: Any, digests: Digests) -> int:
    """Return how many digests are those of rows, or people, that this process fitted the estimator to.

    Of a large table, there are at least as many.
    """
    earlier = _seen.get(estimator)
    return 0 if earlier is None else int(np.intersect1d(_single(digests), earlier, assume_unique=True).size)


def _single(digests: Digests) -> Digests:
    """Return the digests that occur once."""
    values, counts = np.unique(digests, return_counts=True)
    return np.asarray(values[counts == 1])
