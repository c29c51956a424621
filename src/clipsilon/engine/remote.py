"""A run whose records are elsewhere, in chunks: each step's sums are computed there, and `finish_step` is run here.

The draws of a step are one sequence over all chunks, as in memory. Each chunk receives the state of the generator at
its first record and repeats the draws that fall into it. Which records take part therefore depends neither on the
chunks nor on the machine that holds them, and no machine needs more memory than one chunk and vectors of length d.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.random import SFC64, Generator
from numpy.typing import ArrayLike, NDArray

from clipsilon._core.checks import frozen
from clipsilon._core.parts import implementation, read_only
from clipsilon.engine.arrays import Models, RecordParts, Records, Span, Sums, records
from clipsilon.engine.batch import add_batch, add_penalties, workspace
from clipsilon.engine.grid import Grid, Scaling, scaling, step_grid
from clipsilon.engine.kernel_cache import kernel
from clipsilon.engine.loop import State, empty_recording, finish_step, initial_state, record
from clipsilon.engine.progress import Progress
from clipsilon.engine.replicate import Replicate
from clipsilon.engine.runner import DivergenceError, Interrupted, start_of, trace_of
from clipsilon.engine.streams import GeneratorState, spawn
from clipsilon.engine.trace import Trace
from clipsilon.problems.losses.base import Loss, gradient
from clipsilon.problems.problem import Problem
from clipsilon.problems.regions import Region
from clipsilon.problems.responses import Response, is_random, respond
from clipsilon.rules.clipping import Clip, add_clipped, at_step, count_width, largest_norm
from clipsilon.rules.feedback import Feedback, keep, remembers, tracks
from clipsilon.rules.noise import deviation
from clipsilon.rules.rule import Rule, Update
from clipsilon.rules.sampling import Sampling, draw_span, pass_span

Indices = NDArray[np.int64]


class RemoteProblem(Problem):
    """A problem whose records are elsewhere: only their number is known, and one row of ones stands in for them.

    Parameters
    ----------
    records : int
        m, the number of records.
    columns : int
        The number of features per record.
    loss : Loss
        The loss of one record.
    response : Response or None
        How records react to the model; None if they do not.
    """

    def __init__(self, records: int, columns: int, *, loss: Loss, response: Response | None):
        self._records = 1
        super().__init__(np.ones((1, columns)), [0.0], loss=loss, response=response)
        self._records = records

    @property
    def records(self) -> int:
        """Return m, the number of records."""
        return self._records


class Job(NamedTuple):
    """What the holders of chunks need to know, and stays the same throughout a run.

    Attributes
    ----------
    loss : Loss
        The loss of one record.
    response : Response
        How records react to the model.
    feedback : Feedback
        The treatment of what clipping removes.
    sampling : Sampling
        Which records take part in a step; implements `draw_span`.
    records : int
        m, the number of records in all chunks.
    """

    loss: Loss
    response: Response
    feedback: Feedback
    sampling: Sampling
    records: int


class ChunkStart(NamedTuple):
    """The state of a step's draws at the beginning of a chunk.

    Attributes
    ----------
    first : int
        The number of the chunk's first record.
    position : int
        The first record from `first` on that takes part, as returned by `pass_span`.
    generator : GeneratorState
        The state of the generator after that record was drawn.
    """

    first: int
    position: int
    generator: GeneratorState


class Step(NamedTuple):
    """What the holders of chunks need to know for one step.

    Attributes
    ----------
    models : Models
        θ and the deployed model.
    clip : Clip
        The clip in force.
    grid : Grid
        The grid of the step.
    counts : int
        The number of sums that the clip counts.
    starts : list of ChunkStart
        One per chunk.
    """

    models: Models
    clip: Clip
    grid: Grid
    counts: int
    starts: list[ChunkStart]


# -- where the chunks are -------------------------------------------------------------------------------------------


def drawn_rows(job: Job, start: ChunkStart, rows: int) -> Indices:
    """Return the rows of a chunk that take part in a step.

    Parameters
    ----------
    job : Job
        The run.
    start : ChunkStart
        The state of the step's draws at the beginning of the chunk.
    rows : int
        The number of rows in the chunk.

    Returns
    -------
    array of int
        Row numbers, counted from the first row of the chunk.
    """
    drawn = np.empty(rows, dtype=np.int64)
    last = start.first + rows
    rng = start.generator.generator()
    return drawn[: _draw(job.sampling, job.records, start.position, start.first, last, rng, drawn)]


def add_records(job: Job, step: Step, table: Records, into: Sums) -> None:
    """Add all records of a table to the sums of a step.

    Parameters
    ----------
    job, step : Job, Step
        The run and the step.
    table : Records
        Features, labels and weights (or None).
    into : Sums
        Updated in place.
    """
    loss, response = read_only("loss", job.loss), read_only("response", job.response)
    parts = RecordParts(loss, response, step.clip, job.feedback)
    _check_parts(parts)
    models = Models(*(frozen(model) for model in step.models))
    _sum(records(*table), parts, models, step.grid, into, Generator(SFC64(0)))


def no_sums(job: Job, step: Step) -> Sums:
    """Return the sums of a step without any records."""
    dimension = step.models.theta.size
    kept = np.zeros(dimension if remembers(job.feedback) else 0)
    return Sums(np.zeros(dimension), kept, np.zeros(2), np.zeros(step.counts))


def add_up(*parts: Sums) -> Sums:
    """Return the sums of several parts, added in their order."""
    total = Sums(*(array.copy() for array in parts[0]))
    for part in parts[1:]:
        for mine, other in zip(total, part, strict=True):
            mine += other
    return total


def _check_parts(parts: RecordParts) -> None:
    """Raise TypeError if a user's part was sent here without its functions."""
    needed = {"loss": gradient, "response": respond, "clip": add_clipped, "feedback": keep}
    for role, operation in needed.items():
        kind = type(getattr(parts, role))
        if implementation(operation, kind) is None:
            raise TypeError(f"{role} {kind.__name__} must be defined in a module that Dask's workers can import.")


@kernel
def _draw(sampling: Sampling, m: int, position: int, first: int, last: int, rng: Generator, drawn: Indices) -> int:
    found: int = draw_span(sampling, m, position, first, last, rng, drawn)
    return found


@kernel
def _sum(table: Records, parts: RecordParts, models: Models, grid: Grid, into: Sums, rng: Generator) -> None:
    rows = table.labels.size
    space = workspace(table.features, models.theta)
    memory = np.empty((0, 0))  # rules that track gradients cannot be run in chunks
    add_batch(table, parts, models, Span(np.arange(rows), 0, rows), grid, into, memory, space, rng)


# -- where the model is -----------------------------------------------------------------------------------------------


def run_chunked(
    problem: RemoteProblem,
    rule: Rule,
    steps: int,
    start: ArrayLike,
    *,
    seed: int | None,
    progress: bool | None,
    sizes: list[int],
    sum_up: Callable[[Step], Sums],
) -> Trace:
    """Run a rule on records in chunks.

    Parameters
    ----------
    problem : RemoteProblem
        The problem without its records.
    rule : Rule
        The rule; its sampling must be Poisson or Full.
    steps : int
        T, the number of updates.
    start : array-like
        θ_0, one number for all coordinates or one per coordinate.
    seed, progress
        As for `clipsilon.run`.
    sizes : list of int
        The number of records in each chunk.
    sum_up : callable
        Returns the sums of a step over all chunks.

    Returns
    -------
    Trace
        One replicate, recorded at the end.

    Raises
    ------
    Interrupted, DivergenceError
        As for `clipsilon.run`.
    """
    check_chunked(problem, rule)
    rule.check(problem, steps)
    rule = rule.on(problem, steps)
    state = initial_state(problem, rule, start_of(start, problem))
    replicate = Replicate(state, empty_recording(problem, rule, np.array([steps])), spawn(seed, 1)[0])
    public = scaling(problem, rule, steps)
    firsts = [0, *np.cumsum(sizes).tolist()][:-1]
    try:
        with Progress(progress, rule.name, steps) as bar:
            while replicate.done < steps and not replicate.diverged:
                _advance(problem, rule, public, replicate, firsts, sum_up)
                bar.show(replicate.done)
    except KeyboardInterrupt:
        raise Interrupted(trace_of(rule, seed, [replicate])) from None
    if replicate.diverged:
        raise DivergenceError(0, trace_of(rule, seed, [replicate]))
    return trace_of(rule, seed, [replicate])


def check_chunked(problem: Problem, rule: Rule) -> None:
    """Raise ValueError for a rule or a problem that needs all records in one place."""
    if implementation(draw_span, type(rule.sampling)) is None:
        raise ValueError(f"sampling must be Poisson or Full for records in chunks, got {rule.sampling}.")
    if tracks(rule.feedback):
        raise ValueError(
            f"feedback must not track gradients for records in chunks, which keep no memory, got {rule.feedback}."
        )
    if is_random(problem.response):
        raise ValueError(f"response must not draw at random for records in chunks, got {problem.response}.")


def _advance(
    problem: RemoteProblem,
    rule: Rule,
    public: Scaling,
    replicate: Replicate,
    firsts: list[int],
    sum_up: Callable[[Step], Sums],
) -> None:
    """Take one step with the sums that `sum_up` returns."""
    state, streams = replicate.state, replicate.streams
    if rule.deploy_every > 1 and replicate.done % rule.deploy_every == 0:
        state.deployed[:] = state.theta
    clip = at_step(rule.clip, replicate.done + 1, state.clip)
    starts = _chunk_starts(rule.sampling, problem.records, firsts, streams.records)
    bound = largest_norm(clip)
    std = deviation(rule.noise, replicate.done + 1, bound * public.weight)
    grid = step_grid(public, bound, std, state.theta.size)
    total = sum_up(Step(Models(state.theta, state.deployed), clip, grid, count_width(rule.clip), starts))
    arrays = (problem.loss, problem.region)
    replicate.diverged = not _finish_step(rule.update(), *arrays, grid, total, state, streams.noise)
    record(state, replicate.recording)


@kernel
def _finish_step(
    update: Update, loss: Loss, region: Region, grid: Grid, total: Sums, state: State, rng: Generator
) -> bool:
    drawn = np.empty(0, np.int64)  # noise that depends on the records drawn cannot be run in chunks
    add_penalties(loss, state.theta, grid, total)
    finite: bool = finish_step(update, region, drawn, grid, total, state, rng)
    return finite


def _chunk_starts(sampling: Sampling, m: int, firsts: list[int], rng: Generator) -> list[ChunkStart]:
    """Make the draws of a step without storing them, and return their state at the beginning of each chunk."""
    starts, position = [], -1
    for first in firsts:
        position = _pass(sampling, m, position, first, rng)
        starts.append(ChunkStart(first, position, GeneratorState.of(rng)))
    _pass(sampling, m, position, m, rng)
    return starts


@kernel
def _pass(sampling: Sampling, m: int, position: int, last: int, rng: Generator) -> int:
    reached: int = pass_span(sampling, m, position, last, rng)
    return reached
