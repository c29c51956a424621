"""Training on Dask's chunks: each step is one map-reduce, one task per chunk.

Their sums are added in the order of the chunks. A task depends on nothing but its chunk and its arguments, and changes
neither, so one that runs again after its worker was lost returns the same bits. Noise is added once, to the total.
Where gradients are tracked, the memories stay with the workers: those of a chunk after a step are computed from those
before it, so Dask can compute lost ones again, from the first step on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
from sklearn.utils import check_array
from sklearn.utils.validation import column_or_1d

from clipsilon._core import checks
from clipsilon._core.grouping import Grouping, Indices, group_rows
from clipsilon._core.rows import with_ones
from clipsilon.engine.arrays import Records, Sums
from clipsilon.engine.machines import Machine, require_machine
from clipsilon.engine.projection import project
from clipsilon.engine.remote import (
    ChunkDraws,
    Job,
    RemoteProblem,
    Step,
    add_records,
    add_up,
    drawn_rows,
    no_sums,
    run_chunked,
)
from clipsilon.engine.tracking import check_memory
from clipsilon.estimators import dask_tasks
from clipsilon.estimators.chunks import TABLES, Chunks, Survey
from clipsilon.estimators.dask_tasks import Task, make_task, make_tasks
from clipsilon.estimators.inputs import Array, Labels
from clipsilon.estimators.same_rows import (
    KnownRows,
    features_fingerprint,
    know_rows,
    require_rows,
    require_same,
    require_shape,
    targets_fingerprint,
)
from clipsilon.estimators.seen_rows import digest_key
from clipsilon.problems.losses.base import Loss
from clipsilon.problems.regions import Region
from clipsilon.problems.responses import Response
from clipsilon.rules.feedback import tracks
from clipsilon.rules.rule import Rule

Encoder = Callable[[Any, Array | None], Labels]  # from y and weights to labels and weights

_BLOCK = 4096  # rows of a chunk that get their column of ones, and are summed, at a time


@dataclass(frozen=True, kw_only=True)
class ChunkRunner:
    """Run rules on records in chunks; a `Runner`.

    Parameters
    ----------
    chunks : Chunks
        The records.
    survey : Survey
        What is known about them.
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
    survey: Survey
    encode: Encoder
    problem: RemoteProblem
    has_intercept: bool
    progress: bool | None
    max_rows: int | None

    @cached_property
    def targets(self) -> list[Task]:
        """Return labels, weights and people, encoded once and kept by the workers: a few numbers per row."""
        expected = [own.targets for own in self.survey.fingerprints]
        encode, chunks = partial(_encode_chunk, self.encode, self.max_rows), self.chunks
        return dask_tasks.persist(make_tasks(encode, expected, chunks.y, chunks.weights, chunks.groups))

    @cached_property
    def known(self) -> list[Task]:
        """Return the digests of all rows, kept by the workers: one number per row."""
        expected = [own.features for own in self.survey.fingerprints]
        return dask_tasks.persist(make_tasks(partial(_know_chunk, digest_key()), expected, self.chunks.X))

    def run(
        self,
        rule: Rule,
        steps: int,
        seed: int | None,
        start: float | Array,
        *,
        directions: Array | None = None,
        region: Region | None = None,
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
        region : Region, optional
            The region of θ, without directions.

        Returns
        -------
        array
            θ.
        """
        problem = self.problem if region is None else self.problem.within(region)
        if directions is not None:
            problem = RemoteProblem(problem.records, directions.shape[1], loss=problem.loss, response=None)
        check_memory(problem, rule, 1, dask_tasks.count_workers())
        job = Job(problem.loss, problem.response, rule.feedback, rule.sampling, problem.records)
        kept: list[Task] = []  # what the workers keep from step to step
        add: Callable[..., Sums] = partial(self._track_chunks, kept) if tracks(rule.feedback) else self._add_chunks
        sum_up, sizes = partial(add, job, directions), self.survey.sizes
        try:
            trace = run_chunked(
                problem, rule, steps, start, seed=seed, progress=self.progress, sizes=sizes, sum_up=sum_up
            )
        finally:
            dask_tasks.release(kept)
        return np.array(trace.output[0])

    def _add_chunks(self, job: Job, directions: Array | None, step: Step) -> Sums:
        """Return the sums of one step over all chunks."""
        common = self._common(job, directions, step)
        parts = [make_task(partial(_sums_of_chunk, common, draws), *chunk) for draws, chunk in self._turns(step)]
        return dask_tasks.add_up(add_up, parts)

    def _track_chunks(self, kept: list[Task], job: Job, directions: Array | None, step: Step) -> Sums:
        """Return the sums of one step over all chunks, and replace the memories in `kept` by those after the step."""
        common = dask_tasks.share(self._common(job, directions, step))
        before: list[Task | None] = [*kept[:-1]] or [None] * len(self.survey.sizes)
        turns = zip(self._turns(step), before, strict=True)
        chunks = [make_task(partial(_track_chunk, draws), common, memory, *chunk) for (draws, chunk), memory in turns]
        kept[:] = dask_tasks.persist([*chunks, dask_tasks.sum_of(add_up, make_tasks(_sums_of, chunks))])
        total: Sums = dask_tasks.compute(kept[-1:])[0]
        return total

    def _common(self, job: Job, directions: Array | None, step: Step) -> _ChunkStep:
        return _ChunkStep(job, self.has_intercept, directions, step._replace(draws=[]), self.survey.machine)

    def _turns(self, step: Step) -> list[tuple[ChunkDraws, _Chunk]]:
        """Return what differs between the tasks of one step: who takes part, and the chunk."""
        chunks = map(_Chunk, self.chunks.X, self.targets, self.known)
        return list(zip(step.draws, chunks, strict=True))


def make_runner(
    chunks: Chunks,
    survey: Survey,
    encode: Encoder,
    *,
    loss: Loss,
    response: Response | None,
    has_intercept: bool,
    progress: bool | None,
    max_rows: int | None,
) -> ChunkRunner:
    """Return a runner for records in chunks.

    Parameters
    ----------
    chunks : Chunks
        The records.
    survey : Survey
        What is known about them.
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
    problem = RemoteProblem(sum(survey.sizes), columns, loss=loss, response=response)
    return ChunkRunner(
        chunks=chunks,
        survey=survey,
        encode=encode,
        problem=problem,
        has_intercept=has_intercept,
        progress=progress,
        max_rows=max_rows,
    )


# -- tasks ------------------------------------------------------------------------------------------------------------


class _Targets(NamedTuple):
    """What belongs to the rows of one chunk; `people` is None if records are rows."""

    labels: Array
    weights: Array | None
    people: Grouping | None

    @property
    def records(self) -> int:
        """The number of records: of people, or of rows."""
        return self.labels.size if self.people is None else self.people.people


def _encode_chunk(
    encode: Encoder, max_rows: int | None, expected: bytes, y: Any, weights: Any, groups: Any
) -> _Targets:
    targets = column_or_1d(y)
    require_same(targets_fingerprint(targets, weights, groups), expected)
    labels, weights = encode(targets, None if weights is None else np.asarray(weights, dtype=np.float64))
    labels = checks.labels("labels", labels, labels.size, classes=None)
    people = None if groups is None else group_rows(checks.people("groups", groups, labels.size), max_rows)
    return _Targets(labels, weights, people)


def _know_chunk(key: int, expected: bytes, x: Any) -> KnownRows:
    known = know_rows(key, _as_table(x))
    require_same(features_fingerprint(known), expected)
    return known


def _as_table(x: Any) -> Any:
    """Return a chunk of X as the engine takes it. It was found to be finite when it was surveyed."""
    return check_array(x, **TABLES, ensure_all_finite=False)


class _ChunkStep(NamedTuple):
    """The arguments that all chunks share in one step."""

    job: Job
    has_intercept: bool
    directions: Array | None
    step: Step
    machine: Machine


class _Chunk(NamedTuple):
    """What the workers have of one chunk: X, what belongs to its rows, and the digests of the rows."""

    x: Any
    own: Any
    known: Any


def _sums_of_chunk(common: _ChunkStep, draws: ChunkDraws, x: Any, own: _Targets, known: KnownRows) -> Sums:
    """Return what the records of one chunk, or their projections if there are directions, add to a step."""
    return _add_rows(common, draws, _Chunk(x, own, known), None)


class _TrackedChunk(NamedTuple):
    """What a chunk has after a step of a rule that tracks gradients; `done` counts the steps that are in the memory."""

    done: int
    memory: Array
    sums: Sums


def _track_chunk(
    draws: ChunkDraws, common: _ChunkStep, before: _TrackedChunk | None, x: Any, own: _Targets, known: KnownRows
) -> _TrackedChunk:
    """Return the sums of one chunk and its memories after a step. Those before it are not changed, but copied."""
    step, done = common.step, 0 if before is None else before.done
    if done != step.done:  # a memory that was lost must never become one of zeros
        raise RuntimeError(f"the memories of a chunk must be of step {step.done}, got those of step {done}.")
    memory = np.zeros((own.records, step.models.theta.size)) if before is None else before.memory.copy()
    sums = _add_rows(common, draws, _Chunk(x, own, known), memory)
    return _TrackedChunk(done + 1, memory, sums)


def _sums_of(chunk: _TrackedChunk) -> Sums:
    """Return a copy of a chunk's sums, which leaves the memories where they are."""
    return add_up(chunk.sums)


def _add_rows(common: _ChunkStep, draws: ChunkDraws, chunk: _Chunk, memory: Array | None) -> Sums:
    """Sum the records of a chunk that take part in a step, and update their memories, if any, in place."""
    require_machine(common.machine)
    job, step = common.job, common.step
    x = _as_table(chunk.x)
    require_shape(chunk.known, x)
    sums, drawn = no_sums(job, step), drawn_rows(job, draws, chunk.own.records)
    for first in range(0, drawn.size, _BLOCK):
        some = drawn[first : first + _BLOCK]
        rows, starts = _rows_of(chunk.own, some)
        some_x = x[rows]
        require_rows(chunk.known, rows, some_x)
        table = Records(_features(common, some_x), *_labels_of(chunk.own, rows), starts)
        if memory is None:
            add_records(job, step, table, sums)
        else:
            memories = memory[_as_slice(some)]
            add_records(job, step, table, sums, memories)
            memory[_as_slice(some)] = memories
    return sums


def _rows_of(own: _Targets, records: Indices) -> tuple[slice | Indices, Indices | None]:
    """Return the rows of some records, and where each person's begin, if records are people."""
    return (_as_slice(records), None) if own.people is None else own.people.rows_of(records)


def _labels_of(own: _Targets, rows: slice | Indices) -> Labels:
    return own.labels[rows], None if own.weights is None else own.weights[rows]


def _features(common: _ChunkStep, x: Any) -> Any:
    """Return rows with their column of ones, projected if there are directions."""
    features = with_ones(x) if common.has_intercept else x
    return features if common.directions is None else project(features, common.directions)


def _as_slice(rows: Indices) -> slice | Indices:
    """Return increasing rows that are contiguous as a slice, which avoids a copy."""
    contiguous = rows[-1] - rows[0] == rows.size - 1
    return slice(rows[0], rows[-1] + 1) if contiguous else rows
