"""Dask arrays and data frames as chunks of records, and what one pass over them returns.

The chunks stay on the workers, and only sums, counts and fingerprints are returned.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.utils import check_array, check_X_y
from sklearn.utils.validation import column_or_1d

from clipsilon._core import checks
from clipsilon.engine.machines import Machine, require_alike, this_machine
from clipsilon.estimators import dask_tasks
from clipsilon.estimators.dask_tasks import Task, make_tasks
from clipsilon.estimators.inputs import Array
from clipsilon.estimators.people import hash_people
from clipsilon.estimators.same_rows import (
    Fingerprints,
    features_fingerprint,
    know_rows,
    require_order,
    require_same,
    targets_fingerprint,
)
from clipsilon.estimators.seen_rows import Digests, digest_key, merge_digests
from clipsilon.estimators.targets import ClassCounts, Moments, merge
from clipsilon.privacy.quantiles import balances

if TYPE_CHECKING:
    import pandas

    from clipsilon.estimators.inputs import DaskColumn, DaskTable

TABLES: dict[str, Any] = {"accept_sparse": "csr", "dtype": [np.float64, np.float32], "ensure_min_samples": 0}
"""How scikit-learn is to check the chunks of X for training."""


class Chunks(NamedTuple):
    """X, y, weights and people in equal chunks of rows, as delayed objects.

    Parameters
    ----------
    X, y, weights, groups : list
        One delayed chunk each, or None.
    sample : array or data frame
        One row of ones, with the names of the columns if they have any.
    """

    X: list[Task]
    y: list[Task | None]
    weights: list[Task | None]
    groups: list[Task | None]
    sample: Array | pandas.DataFrame


def is_chunked(X: object) -> TypeGuard[DaskTable]:
    """Return whether X is a Dask collection."""
    return hasattr(X, "__dask_graph__")


def to_chunks(
    X: DaskTable, y: DaskColumn | None = None, weights: DaskColumn | None = None, groups: DaskColumn | None = None
) -> Chunks:
    """Split Dask collections into chunks of the same rows.

    Parameters
    ----------
    X : Dask array or data frame
        Two-dimensional.
    y, weights, groups : Dask array or series, optional
        One entry per row of X. Arrays are rechunked to the rows of X.

    Returns
    -------
    Chunks
        Lists of equal length, filled with None for what was not given.

    Raises
    ------
    ValueError
        If the dimensions, the numbers of rows or the numbers of chunks do not match.
    """
    if getattr(X, "ndim", None) != 2:
        raise ValueError(f"X must be a Dask array or data frame of two dimensions, got {X!r}.")
    blocks = _blocks(X)
    return Chunks(
        X=blocks,
        y=_aligned("y", y, X, blocks),
        weights=_aligned("sample_weight", weights, X, blocks),
        groups=_aligned("groups", groups, X, blocks),
        sample=_sample(X),
    )


def _blocks(X: DaskTable) -> list[Task]:
    """Return the blocks of rows of X, each with all its columns."""
    if not hasattr(X, "columns") and X.numblocks[1] > 1:
        X = X.rechunk({1: -1})
    return list(np.ravel(X.to_delayed()))


def _aligned(name: str, column: DaskColumn | None, X: DaskTable, blocks: list[Task]) -> list[Task | None]:
    """Return the chunks of a column, aligned with those of X; all None without a column."""
    if column is None:
        return [None] * len(blocks)
    if not is_chunked(column) or getattr(column, "ndim", None) != 1:
        kind = type(column).__name__
        raise ValueError(f"{name} must be a Dask array or series of one dimension, as X is Dask's, got {kind}.")
    rows = getattr(X, "chunks", ((np.nan,),))[0]
    if hasattr(column, "chunks") and not np.isnan(rows).any() and not np.isnan(column.chunks[0]).any():
        if column.shape[0] != X.shape[0]:
            raise ValueError(f"{name} must have one entry for each of {X.shape[0]} rows of X, got {column.shape[0]}.")
        column = column.rechunk((rows,))
    if column.npartitions != len(blocks):
        raise ValueError(f"{name} must have as many chunks as X ({len(blocks)}), got {column.npartitions}.")
    return list(np.ravel(column.to_delayed()))


def _sample(X: DaskTable) -> Array | pandas.DataFrame:
    row = np.ones((1, X.shape[1]))
    if not hasattr(X, "columns"):
        return row
    import pandas

    return pandas.DataFrame(row, columns=X.columns)


# -- training ---------------------------------------------------------------------------------------------------------


class Survey(NamedTuple):
    """What is learnt about the chunks before a fit.

    Attributes
    ----------
    sizes : list of int
        The number of records of each chunk: of rows, or of people.
    fingerprints : list of Fingerprints
        What stands for the rows of each chunk.
    summary : ClassCounts or Moments
        A summary of all of y.
    digests : Digests
        Digests of the rows, or of the people.
    machine : Machine
        What all workers are like.
    """

    sizes: list[int]
    fingerprints: list[Fingerprints]
    summary: ClassCounts | Moments
    digests: Digests
    machine: Machine


def survey(chunks: Chunks, summarize: Callable[[Any, Any], Any], numeric: bool) -> Survey:
    """Check each chunk as scikit-learn checks tables, and summarize y.

    Parameters
    ----------
    chunks : Chunks
        With y.
    summarize : callable
        From the y and weights of a chunk to `ClassCounts` or `Moments`.
    numeric : bool
        Whether y must be numbers.

    Returns
    -------
    Survey
        Sizes and fingerprints of the chunks, the summary of all of y, digests of rows or people, and what workers are
        like.

    Raises
    ------
    ValueError
        If a chunk is not as it must be, or if a person has rows in several chunks.
    """
    examine = partial(_examine, summarize, numeric, digest_key(), chunks.sample.shape[1])
    found = dask_tasks.compute(make_tasks(examine, chunks.X, chunks.y, chunks.weights, chunks.groups))
    machine = require_alike([one.machine for one in found])
    summaries = [one.summary for one in found if one.summary is not None]
    if not summaries:
        raise ValueError("X must have at least one row, got none in any chunk.")
    if not any(one.has_weight for one in found):
        raise ValueError("sample_weight must have at least one weight above 0, got none.")
    if chunks.groups[0] is not None:
        _refuse_split([one.digests for one in found])
    digests, sizes = merge_digests([one.digests for one in found]), [one.records for one in found]
    return Survey(sizes, [one.fingerprints for one in found], merge(summaries), digests, machine)


def _refuse_split(digests: list[Digests]) -> None:
    """Raise ValueError if a person has rows in several chunks; there is one digest per chunk and person."""
    all_people = np.concatenate(digests)
    split = all_people.size - np.unique(all_people).size
    if split:
        raise ValueError(
            f"groups must have all rows of a person in one chunk, got {split} person(s) in several: bring them "
            "together first, with shuffle(on=…) or set_index(…) of a Dask data frame that holds X, y and the ids."
        )


class _Examined(NamedTuple):
    """What is learnt from one chunk: `summary` is that of y, None without rows."""

    records: int  # rows, or people
    fingerprints: Fingerprints
    summary: ClassCounts | Moments | None
    has_weight: bool
    digests: Digests
    machine: Machine


def _examine(
    summarize: Callable[[Any, Any], Any],
    numeric: bool,
    key: int,
    columns: int,
    x: Any,
    y: Any,
    weights: Any,
    groups: Any,
) -> _Examined:
    """Check one chunk; `key` is that of the digests of its rows or people."""
    require_order(x, "y", y)
    require_order(x, "sample_weight", weights)
    require_order(x, "groups", groups)
    targets = targets_fingerprint(column_or_1d(y), weights, groups)
    x, y = check_X_y(x, y, **TABLES, y_numeric=numeric)
    _require_columns(x, columns)
    rows = x.shape[0]
    if weights is not None:
        weights = checks.weights("sample_weight", weights, rows)
    has_weight = bool(rows if weights is None else (weights > 0).any())
    known = know_rows(key, x)
    # Of people, all digests are needed: a sample would not show everybody who is in several chunks.
    digests = merge_digests([known.digests]) if groups is None else np.unique(hash_people(groups, rows, key))
    return _Examined(
        rows if groups is None else digests.size,
        Fingerprints(features_fingerprint(known), targets),
        summarize(y, weights) if rows else None,
        has_weight,
        digests,
        this_machine(),
    )


def _require_columns(x: Any, columns: int) -> None:
    """Raise ValueError if a chunk is not as wide as X: compiled code would read beyond its rows."""
    if x.shape[1] != columns:
        raise ValueError(f"X must have {columns} columns in every chunk, got a chunk with {x.shape[1]}.")
    if sparse.issparse(x):
        x.check_format(full_check=True)


# -- scaling ----------------------------------------------------------------------------------------------------------


class RowCounts(NamedTuple):
    """The rows of X.

    Attributes
    ----------
    rows : int
        Their number.
    fingerprints : list of bytes
        What stands for the rows of each chunk.
    """

    rows: int
    fingerprints: list[bytes]


def count_rows(chunks: Chunks) -> RowCounts:
    """Count the rows of X, or raise ValueError if a value is not a finite number."""
    columns = chunks.sample.shape[1]
    found = dask_tasks.compute(make_tasks(partial(_count, digest_key(), columns), chunks.X))
    return RowCounts(sum(rows for rows, _ in found), [own for _, own in found])


def _count(key: int, columns: int, x: Any) -> tuple[int, bytes]:
    x = check_array(x, dtype=np.float64, ensure_all_finite=False, ensure_min_samples=0)
    _require_columns(x, columns)
    return len(checks.records("X", x) if len(x) else x), features_fingerprint(know_rows(key, x))


def total_balances(chunks: Chunks, counts: RowCounts, thresholds: Array, center: Array | None) -> NDArray[np.int64]:
    """Return the sum of `quantiles.balances` over all chunks.

    Parameters
    ----------
    chunks : Chunks
        The records.
    counts : RowCounts
        What `count_rows` returned.
    thresholds : array
        One per column.
    center : array or None
        One per column: count distances from it instead of values.

    Returns
    -------
    array of int
        One balance per column.
    """
    parts = make_tasks(partial(_balances, digest_key(), thresholds, center), counts.fingerprints, chunks.X)
    return np.asarray(dask_tasks.add_up(_add, parts))


def _add(*parts: NDArray[np.int64]) -> Any:
    return sum(parts)


def _balances(key: int, thresholds: Array, center: Array | None, expected: bytes, x: Any) -> NDArray[np.int64]:
    table = check_array(x, dtype=np.float64, order="F", ensure_all_finite=False, ensure_min_samples=0)
    require_same(features_fingerprint(know_rows(key, table)), expected)
    return balances(table, thresholds, center)
