"""A run whose records are elsewhere, in chunks: each step's sums come from there, and the loop of `loop.py` goes on.

Which records take part is one sequence of draws over all chunks, as in memory. Whoever has a chunk gets the generator
as it was when the draws arrived there, and repeats those that fall into it. So who takes part depends neither on the
chunks nor on who computes them, and nobody needs more room than a chunk, or than d.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.random import SFC64, Generator
from numpy.typing import NDArray

from clipsilon._core.checks import frozen
from clipsilon._core.parts import implementation
from clipsilon._core.rows import stored
from clipsilon.engine.arrays import ProblemArrays
from clipsilon.engine.batch import Summed, add_batch, workspace
from clipsilon.engine.kernel_cache import kernel
from clipsilon.engine.loop import advance, empty_recording, initial_state
from clipsilon.engine.progress import Progress
from clipsilon.engine.replicate import Replicate
from clipsilon.engine.runner import DivergenceError, Interrupted, start_of, trace_of
from clipsilon.engine.streams import GeneratorState, spawn
from clipsilon.engine.threads import alone
from clipsilon.engine.trace import Trace
from clipsilon.problems.losses.base import gradient
from clipsilon.problems.problem import Problem
from clipsilon.problems.responses import is_random, respond
from clipsilon.rules.clipping import add_clipped
from clipsilon.rules.feedback import keep, remembers
from clipsilon.rules.rule import Rule
from clipsilon.rules.sampling import Full, draw_span, expected_batch, pass_span

Array = NDArray[np.float64]
Indices = NDArray[np.int64]
Sums = tuple[Array, Array]  # v, and what feedback keeps (empty without)


class RemoteProblem(Problem):
    """A problem whose records are elsewhere: their number is known, and a row of ones stands for them."""

    def __init__(self, records: int, columns: int, *, loss: Any, response: Any):
        self._records = 1
        super().__init__(np.ones((1, columns)), [0.0], loss=loss, response=response)
        self._records = records

    @property
    def records(self) -> int:
        """m, the number of records."""
        return self._records


class Job(NamedTuple):
    """What those who have the chunks need to know about a run."""

    loss: Any
    response: Any
    clip: Any
    feedback: Any
    sampling: Any
    records: int


class Begin(NamedTuple):
    """The draws of a step where they arrive at a chunk."""

    first: int  # the number of the chunk's first record
    position: float  # the first record from there on that takes part
    moment: GeneratorState  # of the generator, after the draw of that one


class Step(NamedTuple):
    """What differs from step to step."""

    theta: Array
    deployed: Array
    begins: list[Begin]  # one a chunk


# -- where the chunks are -------------------------------------------------------------------------------------------


def drawn_of(job: Job, begin: Begin, rows: int) -> Indices:
    """Which rows of a chunk take part in a step."""
    drawn = np.empty(rows, dtype=np.int64)
    last = begin.first + rows
    rng = begin.moment.generator()
    return drawn[: _draw(job.sampling, job.records, begin.position, begin.first, last, rng, drawn)]


def add_records(job: Job, theta: Array, deployed: Array, features: Any, labels: Array, weights: Any, to: Sums) -> None:
    """Add all the records of a table to the sums of a step."""
    _check_parts(job)
    weights = None if weights is None else frozen(weights)
    weight = 1.0 / expected_batch(job.sampling, job.records)
    _sum(
        stored(features), frozen(labels), weights, job.loss, job.response, job.clip, job.feedback,
        frozen(theta), frozen(deployed), weight, *to, Generator(SFC64(0)),
    )  # fmt: skip


def no_sums(job: Job, dimension: int) -> Sums:
    """Sums without any records."""
    return np.zeros(dimension), np.zeros(dimension if remembers(job.feedback) else 0)


def add_up(*parts: Sums) -> Sums:
    """The sums of several parts, added in their order."""
    v, kept = (part.copy() for part in parts[0])
    for part in parts[1:]:
        v += part[0]
        kept += part[1]
    return v, kept


def _check_parts(job: Job) -> None:
    """Refuse parts of the user's own that came without their functions."""
    needed = {"loss": gradient, "response": respond, "clip": add_clipped, "feedback": keep}
    for role, operation in needed.items():
        kind = type(getattr(job, role))
        if implementation(operation, kind) is None:
            raise TypeError(f"{role} {kind.__name__} must be defined in a module that Dask's workers can import.")


@kernel
def _draw(sampling: Any, records: int, position: float, first: int, last: int, rng: Generator, drawn: Indices) -> int:
    found: int = draw_span(sampling, records, position, first, last, rng, drawn)
    return found


@kernel
def _sum(
    features: Any,
    labels: Array,
    weights: Any,
    loss: Any,
    response: Any,
    clip: Any,
    feedback: Any,
    theta: Array,
    deployed: Array,
    weight: float,
    v: Array,
    kept: Array,
    rng: Generator,
) -> None:
    moved, written, gradient_i, scratch = workspace(features, theta)
    add_batch(
        features, labels, weights, loss, response, clip, feedback, theta, deployed, np.arange(labels.size), 0,
        labels.size, weight, v, kept, moved, written, gradient_i, scratch, rng,
    )  # fmt: skip


# -- where the model is -----------------------------------------------------------------------------------------------


def run_chunked(
    problem: RemoteProblem,
    rule: Rule,
    steps: int,
    start: Any,
    seed: int | None,
    progress: bool | None,
    sizes: list[int],
    sum_up: Callable[[Step], Sums],
) -> Trace:
    """Run a rule on records in chunks of these sizes; `sum_up` gives the sums of a step over all of them.

    Ctrl-C raises `Interrupted`, and a θ that is no longer finite `DivergenceError`, as of `clipsilon.run`.
    """
    check_chunked(problem, rule)
    rule.check(problem, steps)
    rule = rule.on(problem)
    state = initial_state(problem, rule, start_of(start, problem))
    replicate = Replicate(state, empty_recording(problem, rule, np.array([steps])), spawn(seed, 1)[0])
    firsts = [0, *np.cumsum(sizes).tolist()][:-1]
    try:
        with Progress(progress, rule.name, steps) as bar:
            while replicate.done < steps and not replicate.diverged:
                _advance(problem, rule, replicate, firsts, sum_up)
                bar.show(replicate.done)
    except KeyboardInterrupt:
        raise Interrupted(trace_of(rule, seed, [replicate])) from None
    if replicate.diverged:
        raise DivergenceError(0, trace_of(rule, seed, [replicate]))
    return trace_of(rule, seed, [replicate])


def check_chunked(problem: Problem, rule: Rule) -> None:
    """Refuse what needs all records in one place."""
    if implementation(draw_span, type(rule.sampling)) is None:
        raise ValueError(f"sampling must be Poisson or Full for records in chunks, got {rule.sampling}.")
    if is_random(problem.response):
        raise ValueError(f"response must not draw at random for records in chunks, got {problem.response}.")


def _advance(
    problem: RemoteProblem, rule: Rule, replicate: Replicate, firsts: list[int], sum_up: Callable[[Step], Sums]
) -> None:
    """Take one step, with the sums from elsewhere: the loop finds no records, and adds up what it is handed."""
    state, streams = replicate.state, replicate.streams
    deployed = state.theta if replicate.done % rule.deploy_every == 0 else state.deployed
    begins = _begins(rule.sampling, problem.records, firsts, streams.records)
    v, kept = sum_up(Step(state.theta, deployed, begins))
    summed = Summed(frozen(v), frozen(kept), problem.features.shape[1])
    arrays = ProblemArrays(summed, np.empty(0), None, None, None, problem.region)
    update = rule.update()._replace(clip=None, sampling=Full())
    shared = alone(problem.dimension, state.error.size)
    until = replicate.done + 1
    replicate.diverged = not advance(
        arrays, update, 1, shared, state, replicate.order, replicate.recording, until, *streams
    )


def _begins(sampling: Any, records: int, firsts: list[int], rng: Generator) -> list[Begin]:
    """Go through the draws of a step, without keeping them, and note where each chunk's begin."""
    begins, position = [], -1.0
    for first in firsts:
        position = _pass(sampling, records, position, first, rng)
        begins.append(Begin(first, position, GeneratorState.of(rng)))
    _pass(sampling, records, position, records, rng)
    return begins


@kernel
def _pass(sampling: Any, records: int, position: float, last: int, rng: Generator) -> float:
    reached: float = pass_span(sampling, records, position, last, rng)
    return reached
