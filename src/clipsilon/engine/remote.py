"""A run whose records are elsewhere, in chunks: each step's sums are computed there, and `finish_step` is run here.

The draws of a step are one sequence over all chunks, as in memory, so which records take part depends neither on the
chunks nor on the machine that holds them. Where records are drawn in increasing order, each chunk receives the state of
the generator at its first record and repeats the draws that fall into it, and no machine needs more memory than one
chunk and vectors of length d. Other samplers draw here, with a permutation of all records, and each chunk receives its
rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.random import SFC64, Generator
from numpy.typing import ArrayLike, NDArray

from clipsilon._core.checks import frozen
from clipsilon._core.kernel_cache import kernel
from clipsilon._core.parts import implementation, read_only
from clipsilon.engine.arrays import Models, RecordParts, Records, Span, Sums, count_records, records
from clipsilon.engine.batch import add_batch, add_penalties, workspace
from clipsilon.engine.grid import Grid, Scaling, check_rounding, scaling, step_grid
from clipsilon.engine.loop import State, deploy, empty_recording, finish_step, initial_state, record
from clipsilon.engine.progress import Progress
from clipsilon.engine.replicate import Replicate
from clipsilon.engine.runner import DivergenceError, Interrupted, start_of, trace_of
from clipsilon.engine.streams import GeneratorState, spawn
from clipsilon.engine.trace import Trace
from clipsilon.problems.losses.base import Loss, gradient, label_kind
from clipsilon.problems.problem import Problem
from clipsilon.problems.regions import Region
from clipsilon.problems.responses import Response, is_random, lag, moving, respond
from clipsilon.rules.clipping import Clip, add_clipped, at_step, count_width, largest_norm
from clipsilon.rules.feedback import Feedback, keep, remembers
from clipsilon.rules.noise import Local, deviation
from clipsilon.rules.rule import Rule, Update
from clipsilon.rules.sampling import Sampling, draw, draw_span, most_drawn, pass_span, permutes

Array = NDArray[np.float64]
Indices = NDArray[np.int64]

_NOTHING = np.empty(0, dtype=np.int64)
_NO_MEMORY = np.empty((0, 0))


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
    region : Region, optional
        Where θ may be; by default anywhere.
    """

    def __init__(
        self, records: int, columns: int, *, loss: Loss, response: Response | None, region: Region | None = None
    ):
        self._records = 1
        labels = None if label_kind(loss) == "none" else [0.0]
        super().__init__(np.ones((1, columns)), labels, loss=loss, response=response, region=region)
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
        Which records take part in a step.
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


ChunkDraws = ChunkStart | Indices
"""Which rows of a chunk take part in a step: the state of the draws at its beginning, or the rows themselves."""


class Step(NamedTuple):
    """What the holders of chunks need to know for one step.

    Attributes
    ----------
    done : int
        The number of steps before this one.
    models : Models
        θ and the deployed model.
    clip : Clip
        The clip in force.
    grid : Grid
        The grid of the step.
    counts : int
        The number of sums that the clip counts.
    draws : list of ChunkDraws
        One per chunk.
    """

    done: int
    models: Models
    clip: Clip
    grid: Grid
    counts: int
    draws: list[ChunkDraws]


# -- where the chunks are -------------------------------------------------------------------------------------------


def drawn_rows(job: Job, draws: ChunkDraws, rows: int) -> Indices:
    """Return the rows of a chunk that take part in a step.

    Parameters
    ----------
    job : Job
        The run.
    draws : ChunkDraws
        What the chunk received for the step.
    rows : int
        The number of rows in the chunk.

    Returns
    -------
    array of int
        Row numbers, counted from the first row of the chunk, increasing.
    """
    if not isinstance(draws, ChunkStart):
        return draws
    drawn = np.empty(rows, dtype=np.int64)
    last = draws.first + rows
    rng = draws.generator.generator()
    return drawn[: _draw(job.sampling, job.records, draws.position, draws.first, last, rng, drawn)]


def _draws_by_chunk(sampling: Sampling) -> bool:
    """Return whether chunks can repeat the draws of a step that fall into them."""
    return implementation(draw_span, type(sampling)) is not None


def add_records(job: Job, step: Step, table: Records, into: Sums, memory: Array = _NO_MEMORY) -> None:
    """Add all records of a table to the sums of a step.

    Parameters
    ----------
    job, step : Job, Step
        The run and the step.
    table : Records
        Features, labels, weights (or None), and where people begin (or None).
    into : Sums
        Updated in place.
    memory : array of shape (records of the table, d), default empty
        The memories of the records if the feedback tracks gradients, updated in place.
    """
    loss, response = read_only("loss", job.loss), read_only("response", job.response)
    parts = RecordParts(loss, response, step.clip, job.feedback)
    _check_parts(parts)
    models = Models(*(frozen(model) for model in step.models))
    _sum(records(*table), parts, models, step.grid, into, memory, Generator(SFC64(0)))


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
        kind = type(moving(getattr(parts, role)))
        if implementation(operation, kind) is None:
            raise TypeError(f"{role} {kind.__name__} must be defined in a module that Dask's workers can import.")


@kernel
def _draw(sampling: Sampling, m: int, position: int, first: int, last: int, rng: Generator, drawn: Indices) -> int:
    found: int = draw_span(sampling, m, position, first, last, rng, drawn)
    return found


@kernel
def _sum(
    table: Records, parts: RecordParts, models: Models, grid: Grid, into: Sums, memory: Array, rng: Generator
) -> None:
    m = count_records(table.labels, table.starts)
    space = workspace(table.features, models.theta)
    add_batch(table, parts, models, Span(np.arange(m), 0, m), grid, into, memory, space, rng)


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
        The rule. If it tracks gradients, `sum_up` keeps the memories.
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
    check_rounding(problem, rule, steps)
    rule = rule.on(problem, steps)
    state = initial_state(problem, rule, start_of(start, problem))
    order = np.arange(problem.records) if permutes(rule.sampling) else _NOTHING
    replicate = Replicate(state, empty_recording(problem, rule, np.array([steps])), spawn(seed, 1)[0], order)
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
    if isinstance(rule.noise, Local):
        raise ValueError(f"noise must not be local for records in chunks, whose users are elsewhere, got {rule.noise}.")
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
    state, streams, done = replicate.state, replicate.streams, replicate.done
    past = lag(problem.response)
    if (rule.deploy_every > 1 or past > 0.0) and done % rule.deploy_every == 0:
        deploy(state.theta, past, state.deployed)
    clip = at_step(rule.clip, done + 1, state.clip)
    draws = _draw_chunks(rule.sampling, done, problem.records, firsts, replicate)
    bound = largest_norm(clip)
    std = deviation(rule.noise, done + 1, bound * public.weight)
    grid = step_grid(public, bound, std, state.theta.size)
    total = sum_up(Step(done, _copied_models(state), clip, grid, count_width(rule.clip), draws))
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


def _copied_models(state: State) -> Models:
    """Return copies of the models, since a task that runs again later must find those of its own step."""
    theta = state.theta.copy()
    return Models(theta, theta if state.deployed is state.theta else state.deployed.copy())


def _draw_chunks(sampling: Sampling, t: int, m: int, firsts: list[int], replicate: Replicate) -> list[ChunkDraws]:
    """Draw the records of step t, and return what each chunk needs to know of them."""
    rng = replicate.streams.records
    if _draws_by_chunk(sampling):
        return [*_chunk_starts(sampling, m, firsts, rng)]
    return [*_chunk_rows(sampling, t, m, firsts, replicate.order, rng)]


def _chunk_rows(sampling: Sampling, t: int, m: int, firsts: list[int], order: Indices, rng: Generator) -> list[Indices]:
    """Draw the records of step t, and return the rows of each chunk in increasing order."""
    drawn = np.empty(most_drawn(sampling, m), dtype=np.int64)
    drawn = np.sort(drawn[: _draw_batch(sampling, t, m, order, rng, drawn)])
    parts = np.split(drawn, np.searchsorted(drawn, firsts[1:]))
    return [part - first for part, first in zip(parts, firsts, strict=True)]


@kernel
def _draw_batch(sampling: Sampling, t: int, m: int, order: Indices, rng: Generator, drawn: Indices) -> int:
    batch: int = draw(sampling, t, m, order, rng, drawn)
    return batch


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
