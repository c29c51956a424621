"""Dask arrays and data frames as records: chunks stay where they are, and only sums come back.

Every step is one map-reduce: a task a chunk, whose sums are added in the order of the chunks. Tasks look at nothing but
their chunk and their arguments, so one that runs again after its worker was lost gives the same bits, and noise is
added once, to the total. Dask is imported where it is used: it is an optional dependency.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_array, check_X_y
from sklearn.utils.validation import check_is_fitted, column_or_1d

from clipsilon._core import checks
from clipsilon._core.rows import with_ones
from clipsilon.engine.arrays import Records, Sums
from clipsilon.engine.remote import (
    ChunkStart,
    Job,
    RemoteProblem,
    Step,
    add_records,
    add_up,
    drawn_rows,
    no_sums,
    run_chunked,
)
from clipsilon.estimators.methods import Plan, execute
from clipsilon.estimators.quantiles import balances
from clipsilon.estimators.rescaling import margins
from clipsilon.estimators.targets import Labels, together
from clipsilon.rules.rule import Rule

Array = NDArray[np.float64]

_AT_ONCE = 4096  # rows of a chunk that are given their column of ones, and summed, at a time
_FAN = 16  # parts that one task adds up
_TABLES: dict[str, Any] = {"accept_sparse": "csr", "dtype": [np.float64, np.float32]}


class Chunks(NamedTuple):
    """X, y and weights in equal chunks of rows, none of them loaded."""

    X: list[Any]
    y: list[Any]
    weights: list[Any]
    sample: Any  # a row of ones with the names of the columns, if they have any


class Survey(NamedTuple):
    """What one pass over the chunks found."""

    sizes: list[int]
    tally: Any  # of y; see `clipsilon.estimators.targets`


def is_chunked(X: Any) -> bool:
    """Whether X is one of Dask's collections."""
    return hasattr(X, "__dask_graph__")


def chunked(X: Any, y: Any = None, weights: Any = None) -> Chunks:
    """The chunks of X, with those of y and weights brought into line; refuse what does not fit."""
    if getattr(X, "ndim", None) != 2:
        raise ValueError(f"X must be a Dask array or data frame of two dimensions, got {X!r}.")
    blocks = _blocks(X)
    return Chunks(blocks, _aligned("y", y, X, blocks), _aligned("sample_weight", weights, X, blocks), _sample(X))


def _blocks(X: Any) -> list[Any]:
    """The row blocks of X, each with all its columns."""
    if not hasattr(X, "columns") and X.numblocks[1] > 1:
        X = X.rechunk({1: -1})
    return list(np.ravel(X.to_delayed()))


def _aligned(name: str, given: Any, X: Any, blocks: list[Any]) -> list[Any]:
    """One column's chunks, as many and as long as those of X; all None if it is not given."""
    if given is None:
        return [None] * len(blocks)
    if not is_chunked(given) or getattr(given, "ndim", None) != 1:
        kind = type(given).__name__
        raise ValueError(f"{name} must be a Dask array or series of one dimension, as X is Dask's, got {kind}.")
    rows = getattr(X, "chunks", ((np.nan,),))[0]
    if hasattr(given, "chunks") and not np.isnan(rows).any() and not np.isnan(given.chunks[0]).any():
        if given.shape[0] != X.shape[0]:
            raise ValueError(f"{name} must have one entry for each of {X.shape[0]} rows of X, got {given.shape[0]}.")
        given = given.rechunk((rows,))
    if given.npartitions != len(blocks):
        raise ValueError(f"{name} must have as many chunks as X ({len(blocks)}), got {given.npartitions}.")
    return list(np.ravel(given.to_delayed()))


def _sample(X: Any) -> Any:
    row = np.ones((1, X.shape[1]))
    if not hasattr(X, "columns"):
        return row
    import pandas

    return pandas.DataFrame(row, columns=X.columns)


# -- one pass beforehand ----------------------------------------------------------------------------------------------


def survey(chunks: Chunks, tally: Callable[[Any, Any], Any], numeric: bool) -> Survey:
    """Check every chunk as scikit-learn checks tables, and take the tally of y."""
    found = _compute(_map(partial(_examine, tally, numeric), chunks.X, chunks.y, chunks.weights))
    tallies = [tally for _, tally, _ in found if tally is not None]
    if not tallies:
        raise ValueError("X must have at least one row, got none in any chunk.")
    if not any(weighs for _, _, weighs in found):
        raise ValueError("sample_weight must have at least one weight above 0, got none.")
    return Survey([rows for rows, _, _ in found], together(tallies))


def _examine(tally: Callable[[Any, Any], Any], numeric: bool, x: Any, y: Any, weights: Any) -> tuple[int, Any, bool]:
    """The number of rows, the tally of y if there are any, and whether any has weight."""
    x, y = check_X_y(x, y, **_TABLES, y_numeric=numeric, ensure_min_samples=0)
    rows = x.shape[0]
    if weights is not None:
        weights = checks.weights("sample_weight", weights, rows)
    return rows, tally(y, weights) if rows else None, bool(rows if weights is None else (weights > 0).any())


# -- training ---------------------------------------------------------------------------------------------------------


def train(
    chunks: Chunks,
    sizes: list[int],
    read: Callable[[Any, Any], Labels],
    ones: bool,
    problem: RemoteProblem,
    plan: Plan,
    seed: int | None,
    start: Any,
    progress: bool | None,
) -> Array:
    """θ of one run on the chunks."""
    import dask

    # A number or two a record: the workers keep them, so that y is read and looked up once.
    labels = dask.persist(*_map(partial(_labelled, read), chunks.y, chunks.weights))

    def run_part(rule: Rule, steps: int, seed: int | None, start: Any, directions: Array | None) -> Array:
        case = problem
        if directions is not None:
            case = RemoteProblem(problem.records, directions.shape[1], loss=problem.loss, response=None)
        job = Job(case.loss, case.response, rule.feedback, rule.sampling, case.records)

        def sum_up(step: Step) -> Sums:
            common, starts = step._replace(starts=[]), step.starts
            tasks = [partial(_sums_of_chunk, job, ones, directions, common, start) for start in starts]
            parts = [_call(task, x, own) for task, x, own in zip(tasks, chunks.X, labels, strict=True)]
            return Sums(*_reduced(add_up, parts))

        trace = run_chunked(case, rule, steps, start, seed=seed, progress=progress, sizes=sizes, sum_up=sum_up)
        return np.array(trace.output[0])

    return execute(plan, run_part, seed, start)


def _labelled(read: Callable[[Any, Any], Labels], y: Any, weights: Any) -> Labels:
    labels, weights = read(column_or_1d(y), None if weights is None else np.asarray(weights, dtype=np.float64))
    return checks.labels("labels", labels, labels.size, classes=None), weights


def _sums_of_chunk(
    job: Job, ones: bool, directions: Array | None, step: Step, start: ChunkStart, x: Any, own: Labels
) -> Sums:
    """What the records of one chunk add to a step; only of their margins along directions, if there are any."""
    labels, weights = own
    sums, drawn = no_sums(job, step), drawn_rows(job, start, labels.size)
    x = check_array(x, **_TABLES, ensure_all_finite=False, ensure_min_samples=0)
    if x.shape[0] != labels.size:
        raise ValueError(f"X must be the same at every step, got a chunk of {x.shape[0]} rows that had {labels.size}.")
    for first in range(0, drawn.size, _AT_ONCE):
        rows = _as_slice(drawn[first : first + _AT_ONCE])
        features = with_ones(x[rows]) if ones else x[rows]
        features = features if directions is None else margins(features, directions)
        add_records(job, step, Records(features, labels[rows], None if weights is None else weights[rows]), sums)
    return sums


def _as_slice(rows: NDArray[np.int64]) -> Any:
    """Neighbouring rows as a slice, which copies nothing."""
    whole = rows[-1] - rows[0] == rows.size - 1
    return slice(rows[0], rows[-1] + 1) if whole else rows


# -- scaling ----------------------------------------------------------------------------------------------------------


def count_rows(chunks: Chunks) -> int:
    """How many rows there are; refuse values that are no finite numbers."""
    return int(sum(_compute(_map(_rows, chunks.X))))


def _rows(x: Any) -> int:
    return len(_numbers(x))


def _numbers(x: Any) -> Array:
    x = check_array(x, dtype=np.float64, ensure_all_finite=False, ensure_min_samples=0)
    return np.asarray(checks.records("X", x) if len(x) else x)


def total_balances(chunks: Chunks, thresholds: Array, center: Array | None) -> NDArray[np.int64]:
    """`quantiles.balances` of all chunks."""
    return np.asarray(_reduced(_added, _map(partial(_balances, thresholds, center), chunks.X)))


def _added(*parts: NDArray[np.int64]) -> Any:
    return sum(parts)


def _balances(thresholds: Array, center: Array | None, x: Any) -> NDArray[np.int64]:
    table = check_array(x, dtype=np.float64, order="F", ensure_all_finite=False, ensure_min_samples=0)
    return balances(table, thresholds, center)


# -- predictions ------------------------------------------------------------------------------------------------------


def chunkwise(method: Callable[..., Any]) -> Callable[..., Any]:
    """Have a method of one table answer for Dask's collections too: with a Dask array, not yet computed."""

    @wraps(method)
    def of_any(self: Any, X: Any) -> Any:
        return _lazily(partial(method, self), X, self) if is_chunked(X) else method(self, X)

    return of_any


def _lazily(function: Callable[[Any], Any], X: Any, estimator: Any) -> Any:
    import dask.array

    check_is_fitted(estimator)
    chunks = chunked(X)
    like = function(chunks.sample)  # refuses other columns now
    rows = X.chunks[0] if hasattr(X, "chunks") else (np.nan,) * len(chunks.X)
    parts = [
        dask.array.from_delayed(_call(partial(_answer, function, like[:0]), x), (size, *like.shape[1:]), like.dtype)
        for x, size in zip(chunks.X, rows, strict=True)
    ]
    return dask.array.concatenate(parts)


def _answer(function: Callable[[Any], Any], nothing: Any, x: Any) -> Any:
    return function(x) if x.shape[0] else nothing


# -- Dask -------------------------------------------------------------------------------------------------------------


def _call(function: Callable[..., Any], *arguments: Any) -> Any:
    """A task of its own. (Unless told that it is not pure, Dask would digest all its arguments for a name.)"""
    import dask

    return dask.delayed(function, pure=False)(*arguments)


def _map(function: Callable[..., Any], *columns: list[Any]) -> list[Any]:
    return [_call(function, *arguments) for arguments in zip(*columns, strict=True)]


def _reduced(add: Callable[..., Any], parts: list[Any]) -> Any:
    """The sum of the parts, in an order that depends on their number only."""
    while len(parts) > 1:
        parts = [_call(add, *parts[k : k + _FAN]) for k in range(0, len(parts), _FAN)]
    return _compute(parts)[0]


def _compute(tasks: list[Any]) -> Any:
    """On the user's cluster if there is a client, else in this process. Ctrl-C gives the tasks up."""
    import dask

    return dask.compute(*tasks, optimize_graph=False)
