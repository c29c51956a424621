"""Dask arrays and data frames as records: chunks stay on the workers, and only sums are returned.

Each step is one map-reduce: one task per chunk, whose sums are added in the order of the chunks. A task depends on
nothing but its chunk and its arguments, and changes neither, so one that runs again after its worker was lost returns
the same bits. Noise is added once, to the total. Where gradients are tracked, the memories stay with the workers: those
of a chunk after a step are computed from those before it, so Dask can compute lost ones again, from the first step on.
Dask is an optional dependency, imported where it is used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial, wraps
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_array, check_X_y
from sklearn.utils.validation import check_is_fitted, column_or_1d

from clipsilon._core import checks
from clipsilon._core.grouping import Grouping, group_rows
from clipsilon._core.rows import with_ones
from clipsilon.engine.arrays import Records, Sums
from clipsilon.engine.remote import (
    ChunkDraws,
    Job,
    RemoteProblem,
    Step,
    add_records,
    add_up,
    drawn_rows,
    needs_same_rows,
    no_sums,
    run_chunked,
)
from clipsilon.estimators.inputs import Array, Labels
from clipsilon.estimators.people import hash_people
from clipsilon.estimators.rescaling import project
from clipsilon.estimators.same_rows import KnownRows, check_fingerprint, check_rows, fingerprint, know_rows
from clipsilon.estimators.seen_rows import Digests, compute_digests, digest_key, merge_digests
from clipsilon.estimators.targets import ClassCounts, Moments, merge
from clipsilon.privacy.quantiles import balances
from clipsilon.problems.losses.base import Loss
from clipsilon.problems.responses import Response
from clipsilon.rules.feedback import tracks
from clipsilon.rules.rule import Rule

if TYPE_CHECKING:
    import pandas

    from clipsilon.estimators.inputs import DaskColumn, DaskTable

Encoder = Callable[[Any, Array | None], Labels]  # from y and weights to labels and weights

_BLOCK = 4096  # rows of a chunk that get their column of ones, and are summed, at a time
_FAN_IN = 16  # parts that one task adds up
_TABLES: dict[str, Any] = {"accept_sparse": "csr", "dtype": [np.float64, np.float32]}


class Chunks(NamedTuple):
    """X, y and weights in equal chunks of rows, as delayed objects.

    Parameters
    ----------
    X, y, weights, groups : list
        One delayed chunk each, or None.
    sample : array or data frame
        One row of ones, with the names of the columns if they have any.
    """

    X: list[Any]
    y: list[Any]
    weights: list[Any]
    groups: list[Any]
    sample: Array | pandas.DataFrame

    @property
    def has_people(self) -> bool:
        """Whether records are people with several rows."""
        return self.groups[0] is not None


class Survey(NamedTuple):
    """What is learnt about the chunks before a fit.

    Attributes
    ----------
    sizes : list of int
        The number of records of each chunk: of rows, or of people.
    summary : ClassCounts or Moments
        A summary of all of y.
    digests : Digests
        Digests of the rows, or of the people.
    """

    sizes: list[int]
    summary: ClassCounts | Moments
    digests: Digests


def is_chunked(X: object) -> TypeGuard[DaskTable]:
    """Return whether X is a Dask collection."""
    return hasattr(X, "__dask_graph__")


def to_chunks(
    X: DaskTable,
    y: DaskColumn | None = None,
    weights: DaskColumn | None = None,
    groups: DaskColumn | None = None,
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


def _blocks(X: DaskTable) -> list[Any]:
    """Return the blocks of rows of X, each with all its columns."""
    if not hasattr(X, "columns") and X.numblocks[1] > 1:
        X = X.rechunk({1: -1})
    return list(np.ravel(X.to_delayed()))


def _aligned(name: str, column: DaskColumn | None, X: DaskTable, blocks: list[Any]) -> list[Any]:
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


# -- one pass beforehand ----------------------------------------------------------------------------------------------


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
        The number of records of each chunk, the summary of all of y, and digests of the rows or people.
    """
    examine = partial(_examine, summarize, numeric, digest_key())
    found = _compute(_map(examine, chunks.X, chunks.y, chunks.weights, chunks.groups))
    summaries = [one.summary for one in found if one.summary is not None]
    if not summaries:
        raise ValueError("X must have at least one row, got none in any chunk.")
    if not any(one.has_weight for one in found):
        raise ValueError("sample_weight must have at least one weight above 0, got none.")
    if chunks.has_people:
        _refuse_split([one.digests for one in found])
    digests = merge_digests([one.digests for one in found])
    return Survey([one.records for one in found], merge(summaries), digests)


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

    records: int
    summary: ClassCounts | Moments | None
    has_weight: bool
    digests: Digests


def _examine(
    summarize: Callable[[Any, Any], Any], numeric: bool, key: int, x: Any, y: Any, weights: Any, groups: Any
) -> _Examined:
    """Check one chunk; `key` is that of the digests of its rows or people."""
    x, y = check_X_y(x, y, **_TABLES, y_numeric=numeric, ensure_min_samples=0)
    rows = x.shape[0]
    if weights is not None:
        weights = checks.weights("sample_weight", weights, rows)
    has_weight = bool(rows if weights is None else (weights > 0).any())
    digests = compute_digests(x, x.shape[1], key) if groups is None else np.unique(hash_people(groups, rows, key))
    records = rows if groups is None else digests.size
    return _Examined(records, summarize(y, weights) if rows else None, has_weight, digests)


# -- training ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ChunkRunner:
    """Run rules on records in chunks; a `Runner`.

    Parameters
    ----------
    chunks : Chunks
        The records.
    sizes : list of int
        Number of records of each chunk.
    encode : callable
        From y and weights to labels and weights, for one chunk.
    problem : RemoteProblem
        Loss, response and size of the data.
    has_intercept : bool
        Whether to append a column of ones.
    progress : bool or None
        As in `clipsilon.run`.
    max_rows : int or None
        Largest number of rows per person.
    """

    chunks: Chunks
    sizes: list[int]
    encode: Encoder
    problem: RemoteProblem
    has_intercept: bool
    progress: bool | None
    max_rows: int | None = None

    @cached_property
    def labels(self) -> tuple[Any, ...]:
        """Return labels and weights, encoded once and kept by the workers: one or two numbers per record."""
        import dask

        encoded: tuple[Any, ...] = dask.persist(
            *_map(partial(_encode_chunk, self.encode), self.chunks.y, self.chunks.weights)
        )
        return encoded

    @cached_property
    def people(self) -> list[Any]:
        """Return which rows belong to whom, kept by the workers; None for each chunk if records are rows."""
        if not self.chunks.has_people:
            return [None] * len(self.sizes)
        found = partial(_find_people, self.max_rows, digest_key())
        return list(_persist(_map(found, self.chunks.groups)))

    @cached_property
    def known(self) -> list[tuple[Any, bytes]]:
        """Return the digests of all rows, kept by the workers, and the fingerprint of each chunk's, kept here."""
        found = _persist(_map(partial(_know_chunk, digest_key()), self.chunks.X, list(self.labels), self.people))
        return list(zip(found, _compute(_map(fingerprint, list(found))), strict=True))

    def run(
        self, rule: Rule, steps: int, seed: int | None, start: float | Array, directions: Array | None = None
    ) -> Array:
        """Run a rule on the chunks, or on their projection, and return its output.

        Parameters
        ----------
        rule : Rule
            The rule; its noise must not be local.
        steps : int
            Number of iterations.
        seed : int or None
            None for cryptographic noise.
        start : float or array
            θ_0; a number stands for all entries.
        directions : array, optional
            One direction per column: records are projected on these, and θ has one entry for each.

        Returns
        -------
        array
            θ.
        """
        problem = self.problem
        if directions is not None:
            problem = RemoteProblem(problem.records, directions.shape[1], loss=problem.loss, response=None)
        job = Job(problem.loss, problem.response, rule.feedback, rule.sampling, problem.records)
        kept: list[Any] = []  # what the workers keep from step to step
        add: Callable[..., Sums] = partial(self._track_chunks, kept) if tracks(rule.feedback) else self._add_chunks
        sum_up = partial(add, job, directions)
        try:
            trace = run_chunked(
                problem, rule, steps, start, seed=seed, progress=self.progress, sizes=self.sizes, sum_up=sum_up
            )
        finally:
            _release(kept)
        return np.array(trace.output[0])

    def _add_chunks(self, job: Job, directions: Array | None, step: Step) -> Sums:
        """Return the sums of one step over all chunks."""
        common = _ChunkStep(job, self.has_intercept, directions, step._replace(draws=[]))
        parts = [_delay(partial(_sums_of_chunk, common, turn), *chunk) for turn, *chunk in self._turns(job, step)]
        total: Sums = _reduce(add_up, parts)
        return total

    def _track_chunks(self, kept: list[Any], job: Job, directions: Array | None, step: Step) -> Sums:
        """Return the sums of one step over all chunks, and replace the memories in `kept` by those after the step."""
        common = _share(_ChunkStep(job, self.has_intercept, directions, step._replace(draws=[])))
        before = kept[:-1] or [None] * len(self.sizes)
        turns = zip(self._turns(job, step), before, strict=True)
        chunks = [_delay(partial(_track_chunk, turn), common, memory, *chunk) for (turn, *chunk), memory in turns]
        kept[:] = _persist([*chunks, _tree(add_up, _map(_sums_of, chunks))])
        total: Sums = _compute(kept[-1:])[0]
        return total

    def _turns(self, job: Job, step: Step) -> list[tuple[Any, ...]]:
        """Return what differs between the tasks of one step: a turn, and what the workers have of each chunk."""
        checked = needs_same_rows(job) or self.chunks.has_people  # a row must stay with its person
        known = self.known if checked else [(None, b"")] * len(self.sizes)
        chunks = zip(step.draws, self.chunks.X, self.labels, known, self.people, strict=True)
        return [
            (_Turn(draws, expected), x, own, digests, whose) for draws, x, own, (digests, expected), whose in chunks
        ]


def make_runner(
    chunks: Chunks,
    sizes: list[int],
    encode: Encoder,
    *,
    loss: Loss,
    response: Response | None,
    has_intercept: bool,
    progress: bool | None,
    max_rows: int | None = None,
) -> ChunkRunner:
    """Return a runner for records in chunks.

    Parameters
    ----------
    chunks : Chunks
        The records.
    sizes : list of int
        Number of records of each chunk.
    encode : callable
        From y and weights to labels and weights, for one chunk.
    loss : Loss
        The loss of one record.
    response : Response or None
        How records react to the model.
    has_intercept : bool
        Whether to append a column of ones.
    progress : bool or None
        As in `clipsilon.run`.
    max_rows : int or None
        Largest number of rows per person.

    Returns
    -------
    ChunkRunner
        The runner; nothing is computed yet.
    """
    columns = chunks.sample.shape[1] + has_intercept
    problem = RemoteProblem(sum(sizes), columns, loss=loss, response=response)
    return ChunkRunner(
        chunks=chunks,
        sizes=sizes,
        encode=encode,
        problem=problem,
        has_intercept=has_intercept,
        progress=progress,
        max_rows=max_rows,
    )


def _encode_chunk(encode: Encoder, y: Any, weights: Any) -> Labels:
    labels, weights = encode(column_or_1d(y), None if weights is None else np.asarray(weights, dtype=np.float64))
    return checks.labels("labels", labels, labels.size, classes=None), weights


class _People(NamedTuple):
    """The people of one chunk, and a digest of each row's id."""

    grouping: Grouping
    digests: Digests


def _find_people(max_rows: int | None, key: int, groups: Any) -> _People:
    rows = len(groups)
    return _People(group_rows(checks.people("groups", groups, rows), max_rows), hash_people(groups, rows, key))


def _know_chunk(key: int, x: Any, own: Labels, people: _People | None) -> KnownRows:
    return know_rows(key, _checked(x, own), own, None if people is None else people.digests)


def _checked(x: Any, own: Labels) -> Any:
    """Return a chunk of X as the engine takes it; raise ValueError if it has another number of rows than the labels."""
    x, rows = check_array(x, **_TABLES, ensure_all_finite=False, ensure_min_samples=0), own[0].size
    if x.shape[0] != rows:
        raise ValueError(f"X must be the same at every step, got a chunk of {x.shape[0]} rows that had {rows}.")
    return x


class _ChunkStep(NamedTuple):
    """The arguments that all chunks share in one step."""

    job: Job
    has_intercept: bool
    directions: Array | None
    step: Step


class _Turn(NamedTuple):
    """What one chunk receives for one step: who takes part, and the fingerprint of its rows where these are checked."""

    draws: ChunkDraws
    fingerprint: bytes


class _Chunk(NamedTuple):
    """What the workers have of one chunk; `known` is None where rows are not checked, `people` if records are rows."""

    x: Any
    own: Labels
    known: KnownRows | None
    people: _People | None

    @property
    def records(self) -> int:
        """The number of records: of people, or of rows."""
        return self.own[0].size if self.people is None else self.people.grouping.people


def _sums_of_chunk(common: _ChunkStep, turn: _Turn, *chunk: Any) -> Sums:
    """Return what the records of one chunk, or their projections if there are directions, add to a step."""
    return _add_rows(common, turn, _Chunk(*chunk), None)


class _TrackedChunk(NamedTuple):
    """What a chunk has after a step of a rule that tracks gradients; `done` counts the steps that are in the memory."""

    done: int
    memory: Array
    sums: Sums


def _track_chunk(turn: _Turn, common: _ChunkStep, before: _TrackedChunk | None, *chunk: Any) -> _TrackedChunk:
    """Return the sums of one chunk and its memories after a step. Those before it are not changed, but copied."""
    step, done, records = common.step, 0 if before is None else before.done, _Chunk(*chunk).records
    if done != step.done:  # a memory that was lost must never become one of zeros
        raise RuntimeError(f"the memories of a chunk must be of step {step.done}, got those of step {done}.")
    memory = np.zeros((records, step.models.theta.size)) if before is None else before.memory.copy()
    sums = _add_rows(common, turn, _Chunk(*chunk), memory)
    return _TrackedChunk(done + 1, memory, sums)


def _sums_of(chunk: _TrackedChunk) -> Sums:
    """Return a copy of a chunk's sums, which leaves the memories where they are."""
    return add_up(chunk.sums)


def _add_rows(common: _ChunkStep, turn: _Turn, chunk: _Chunk, memory: Array | None) -> Sums:
    """Sum the records of a chunk that take part in a step, and update their memories, if any, in place."""
    job, step = common.job, common.step
    x, known = _checked(chunk.x, chunk.own), chunk.known
    sums, drawn = no_sums(job, step), drawn_rows(job, turn.draws, chunk.records)
    if known is not None:
        check_fingerprint(known, turn.fingerprint)
    for first in range(0, drawn.size, _BLOCK):
        some = drawn[first : first + _BLOCK]
        rows, starts = (_as_slice(some), None) if chunk.people is None else chunk.people.grouping.rows_of(some)
        some_x, own = x[rows], _labels_of(chunk.own, rows)
        if known is not None:
            check_rows(known, rows, some_x, own, None if chunk.people is None else chunk.people.digests[rows])
        table = Records(_features(common, some_x), *own, starts)
        if memory is None:
            add_records(job, step, table, sums)
        else:
            memories = memory[_as_slice(some)]
            add_records(job, step, table, sums, memories)
            memory[_as_slice(some)] = memories
    return sums


def _labels_of(own: Labels, rows: slice | NDArray[np.int64]) -> Labels:
    labels, weights = own
    return labels[rows], None if weights is None else weights[rows]


def _features(common: _ChunkStep, x: Any) -> Any:
    """Return rows with their column of ones, projected if there are directions."""
    features = with_ones(x) if common.has_intercept else x
    return features if common.directions is None else project(features, common.directions)


def _as_slice(rows: NDArray[np.int64]) -> slice | NDArray[np.int64]:
    """Return increasing rows that are contiguous as a slice, which avoids a copy."""
    contiguous = rows[-1] - rows[0] == rows.size - 1
    return slice(rows[0], rows[-1] + 1) if contiguous else rows


# -- scaling ----------------------------------------------------------------------------------------------------------


def count_rows(chunks: Chunks) -> int:
    """Count the rows of X, or raise ValueError if a value is not a finite number."""
    return int(sum(_compute(_map(_rows, chunks.X))))


def _rows(x: Any) -> int:
    x = check_array(x, dtype=np.float64, ensure_all_finite=False, ensure_min_samples=0)
    return len(checks.records("X", x) if len(x) else x)


def total_balances(chunks: Chunks, thresholds: Array, center: Array | None) -> NDArray[np.int64]:
    """Return the sum of `quantiles.balances` over all chunks.

    Parameters
    ----------
    chunks : Chunks
        The records.
    thresholds : array
        One per column.
    center : array or None
        One per column: count distances from it instead of values.

    Returns
    -------
    array of int
        One balance per column.
    """
    return np.asarray(_reduce(_add, _map(partial(_balances, thresholds, center), chunks.X)))


def _add(*parts: NDArray[np.int64]) -> Any:
    return sum(parts)


def _balances(thresholds: Array, center: Array | None, x: Any) -> NDArray[np.int64]:
    table = check_array(x, dtype=np.float64, order="F", ensure_all_finite=False, ensure_min_samples=0)
    return balances(table, thresholds, center)


# -- predictions ------------------------------------------------------------------------------------------------------


def chunkwise(method: Callable[..., Any]) -> Callable[..., Any]:
    """Extend a method of one table to Dask collections, for which it returns a Dask array that is not yet computed."""

    @wraps(method)
    def extended(self: Any, X: Any) -> Any:
        return _map_lazily(partial(method, self), X, self) if is_chunked(X) else method(self, X)

    return extended


def _map_lazily(function: Callable[[Any], Any], X: DaskTable, estimator: BaseEstimator) -> Any:
    import dask.array

    check_is_fitted(estimator)
    chunks = to_chunks(X)
    like = function(chunks.sample)  # raises now if the columns are wrong
    rows = X.chunks[0] if hasattr(X, "chunks") else (np.nan,) * len(chunks.X)
    parts = [
        dask.array.from_delayed(_delay(partial(_apply, function, like[:0]), x), (size, *like.shape[1:]), like.dtype)
        for x, size in zip(chunks.X, rows, strict=True)
    ]
    return dask.array.concatenate(parts)


def _apply(function: Callable[[Any], Any], empty: Any, x: Any) -> Any:
    return function(x) if x.shape[0] else empty


# -- Dask -------------------------------------------------------------------------------------------------------------


def _delay(function: Callable[..., Any], *arguments: Any) -> Any:
    """Make a task. With pure=True, Dask would hash all arguments for its name."""
    import dask

    return dask.delayed(function, pure=False)(*arguments)


def _map(function: Callable[..., Any], *columns: list[Any]) -> list[Any]:
    return [_delay(function, *arguments) for arguments in zip(*columns, strict=True)]


def _share(value: Any) -> Any:
    """Make one object of a value that many tasks take, so that it is sent once."""
    import dask

    return dask.delayed(value, pure=False, traverse=False)


def _reduce(add: Callable[..., Any], parts: list[Any]) -> Any:
    """Add up the parts in an order that depends on their number only."""
    return _compute([_tree(add, parts)])[0]


def _tree(add: Callable[..., Any], parts: list[Any]) -> Any:
    """Return the task that `_reduce` computes."""
    while len(parts) > 1:
        parts = [_delay(add, *parts[k : k + _FAN_IN]) for k in range(0, len(parts), _FAN_IN)]
    return parts[0]


def _compute(tasks: list[Any]) -> Any:
    """Compute on the user's cluster if there is a client, else in this process. Ctrl-C cancels the tasks."""
    import dask

    return dask.compute(*tasks, optimize_graph=False)


def _persist(tasks: list[Any]) -> tuple[Any, ...]:
    """Compute where `_compute` would, and leave the results there. Dask remembers how they were computed."""
    import dask

    kept: tuple[Any, ...] = dask.persist(*tasks, optimize_graph=False)
    return kept


def _release(kept: list[Any]) -> None:
    """Free what the workers keep, and cancel what they are still computing."""
    for task in kept:
        for result in dict(task.__dask_graph__()).values():
            if hasattr(result, "release"):  # a future; there are none without a cluster
                result.release()
