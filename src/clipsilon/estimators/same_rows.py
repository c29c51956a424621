"""Whether a chunk still has the rows that it had when it was surveyed, in the same order.

A row must stand for the same record at every step, or a certificate is wrong. X is read again and again, and labels are
kept: rows in another order would pair the features of one record with the label of another, so that a record adds to
two terms of a sum, or give a row to another person. With an order of records or with memories a record could take part
too often, or enter the memory of another one. A chunk that has become longer would share its coins with the next one.
And what the survey has checked would not be what is used.

Not every source that Dask reads again returns the same rows: some shuffles do not. So the survey takes a fingerprint
of each chunk, which the driver keeps, and whatever is computed from a chunk later is compared with it. Since a step
needs some rows of a chunk only, workers keep a digest of each row.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clipsilon._core.rows import Table
from clipsilon.engine.row_digests import Words, hash_rows

if TYPE_CHECKING:
    from clipsilon.estimators.inputs import Column

_ADVICE = ", got a chunk with other rows, or in another order; persist them, or read from files that nobody writes."


class Fingerprints(NamedTuple):
    """What stands for a chunk as it was surveyed.

    Attributes
    ----------
    features : bytes
        Of the rows of X.
    targets : bytes
        Of y, the weights and the people.
    """

    features: bytes
    targets: bytes


class KnownRows(NamedTuple):
    """The rows of X in a chunk.

    Attributes
    ----------
    key : int
        The key of the digests.
    columns : int
        The number of columns.
    digests : array of uint64
        One per row, in the order of the rows.
    """

    key: int
    columns: int
    digests: Words


def know_rows(key: int, x: Table) -> KnownRows:
    """Return the digests of the rows of X in a chunk."""
    return KnownRows(key, x.shape[1], hash_rows(x, key))


def features_fingerprint(known: KnownRows) -> bytes:
    """Return 16 bytes that stand for all rows of X in a chunk, in their order."""
    size = np.array([known.columns], dtype=np.uint64)
    return _fingerprint(size, known.digests)


def targets_fingerprint(y: ArrayLike, weights: ArrayLike | None, groups: ArrayLike | None) -> bytes:
    """Return 16 bytes that stand for y, the weights and the ids of people of a chunk, in their order.

    Parameters
    ----------
    y : array-like
        The targets.
    weights, groups : array-like or None
        What else belongs to the rows.
    """
    return _fingerprint(*(np.asarray(column) for column in (y, weights, groups) if column is not None))


def _fingerprint(*columns: NDArray[Any]) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for column in columns:
        content = repr(column.tolist()).encode() if column.dtype.hasobject else np.ascontiguousarray(column).tobytes()
        digest.update(f"{column.dtype.str} {len(content)} ".encode() + content)
    return digest.digest()


def require_same(found: bytes, expected: bytes) -> None:
    """Raise ValueError unless a chunk has the fingerprint that was taken when it was surveyed."""
    if found != expected:
        raise ValueError(f"X, y, sample_weight and groups must be the same whenever they are read{_ADVICE}")


def require_shape(known: KnownRows, x: Table) -> None:
    """Raise ValueError unless X has as many rows and columns as are known."""
    rows = known.digests.size
    if x.shape != (rows, known.columns):
        raise ValueError(
            f"X must be the same at every step, got a chunk of {x.shape[0]} rows and {x.shape[1]} columns that had "
            f"{rows} and {known.columns}."
        )


def require_rows(known: KnownRows, rows: slice | NDArray[np.int64], x: Table) -> None:
    """Raise ValueError unless rows are those that stood in their places when the chunk was surveyed.

    Parameters
    ----------
    known : KnownRows
        The rows of the chunk.
    rows : slice or array of int
        The places of some rows in the chunk.
    x : array or sparse matrix in compressed rows
        The features of these rows only.
    """
    if not np.array_equal(hash_rows(x, known.key), known.digests[rows]):
        raise ValueError(f"X must be the same at every step{_ADVICE}")


def require_order(x: Table, name: str, column: Column | None) -> None:
    """Raise ValueError if a column has the rows of X in another order, as after two shuffles of one data frame.

    It is noticed by the index, where there is one. Columns with an index of their own are taken as they are.

    Parameters
    ----------
    x : array, sparse matrix or data frame
        A chunk of X.
    name : str
        The name of the column, for the error.
    column : array, series or None
        The same chunk of y, of the weights or of the people.
    """
    mine: Any = getattr(x, "index", None)
    others: Any = getattr(column, "index", None)
    if not hasattr(mine, "equals") or not hasattr(others, "equals") or mine.equals(others):
        return
    if len(mine) == len(others) and mine.isin(others).all() and others.isin(mine).all():
        raise ValueError(
            f"{name} must have its rows in the order of X, got an index that is that of X in another order; persist "
            "the data frame before you take its columns."
        )
