"""One replicate of a run: its state, its recording and its random streams, and how it advances."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clipsilon.engine.arrays import Models, ProblemArrays, problem_arrays, visible_models
from clipsilon.engine.grid import Scaling
from clipsilon.engine.loop import Recording, State, advance
from clipsilon.engine.streams import Streams
from clipsilon.engine.threads import StepThreads, prepare, step_threads, worker_threads
from clipsilon.problems.problem import Problem
from clipsilon.rules.rule import Rule, Update
from clipsilon.rules.sampling import permutes

CHUNK_SECONDS = 0.1  # how long the compiled loop runs before it can be stopped or saved

_NOTHING = np.empty(0, dtype=np.int64)


class Fixed(NamedTuple):
    """The arguments of `advance` that stay the same throughout a run.

    Attributes
    ----------
    arrays : ProblemArrays
        The problem.
    update : Update
        The parts of the rule.
    public : Scaling
        The numbers that the grid of a step follows from.
    shared : StepThreads
        The memory shared with the worker threads.
    models : Models
        θ and the deployed model, as losses and responses see them.
    """

    arrays: ProblemArrays
    update: Update
    public: Scaling
    shared: StepThreads
    models: Models


@dataclass
class Pace:
    """The number of steps to take at a time, shared by the replicates of a run."""

    chunk: int = 1

    def learn(self, steps: int, seconds: float) -> None:
        """Adjust the chunk to CHUNK_SECONDS. Doubling finds the right size in a few calls, whatever a step costs."""
        if seconds < CHUNK_SECONDS / 2:
            self.chunk = max(self.chunk, 2 * steps)
        else:
            self.chunk = max(1, int(steps * CHUNK_SECONDS / seconds))


@dataclass
class Replicate:
    """One replicate of a run.

    Parameters
    ----------
    state : State
        Where it is.
    recording : Recording
        What it has recorded.
    streams : Streams
        Its random streams.
    order : array of int, default empty
        The sampler's permutation of the records while it runs.
    diverged : bool, default False
        Whether θ is no longer finite.
    moving : threading.Lock
        Held while the state changes, and by `still`.
    turn : threading.Lock
        Held by the thread that is next to acquire `moving`.
    """

    state: State
    recording: Recording
    streams: Streams
    order: NDArray[np.int64] = field(default_factory=lambda: _NOTHING)
    diverged: bool = False
    moving: threading.Lock = field(default_factory=threading.Lock)
    turn: threading.Lock = field(default_factory=threading.Lock)

    @property
    def done(self) -> int:
        """Return the number of steps done."""
        return int(self.state.clock[0])

    @contextmanager
    def still(self) -> Iterator[None]:
        """Keep the replicate between two chunks for the duration of the block.

        `turn` is acquired first, so that no other thread can overtake this one.
        """
        with self.turn:
            self.moving.acquire()
        try:
            yield
        finally:
            self.moving.release()

    def compile(self, problem: Problem, rule: Rule, public: Scaling, threads: int) -> None:
        """Compile or load the loop, and record the start; no step is taken.

        Parameters
        ----------
        problem, rule : Problem, Rule
            What will run.
        public : Scaling
            The numbers that the grids of the run follow from.
        threads : int
            The largest number of threads per step.
        """
        fixed = self._fixed(problem, rule, public, threads)
        advance(*fixed, self.state, self.order, self.recording, self.done, *self.streams)
        prepare(fixed.shared, *self._common(fixed))

    def advance_to(
        self,
        problem: Problem,
        rule: Rule,
        public: Scaling,
        steps: int,
        threads: int,
        pace: Pace,
        stop: threading.Event,
    ) -> None:
        """Advance in chunks of about CHUNK_SECONDS, so that the replicate can be stopped or saved in between.

        Parameters
        ----------
        problem, rule : Problem, Rule
            What runs.
        public : Scaling
            The numbers that the grids of the run follow from, which all replicates share.
        steps : int
            The number of steps at the end.
        threads : int
            The largest number of threads per step.
        pace : Pace
            The chunk size, shared with the other replicates.
        stop : threading.Event
            Ends the run after the present chunk.
        """
        if self.done == steps:
            return
        if permutes(rule.sampling) and self.order.size == 0:
            self.order = np.arange(problem.records)
        fixed = self._fixed(problem, rule, public, threads)
        with worker_threads(fixed.shared, *self._common(fixed)):
            self._advance(fixed, steps, pace, stop)
        if self.done == steps:
            with self.still():
                self.order = _NOTHING  # so that memory does not grow with the number of replicates

    def _fixed(self, problem: Problem, rule: Rule, public: Scaling, threads: int) -> Fixed:
        models = visible_models(problem, self.state.theta, self.state.deployed)
        return Fixed(problem_arrays(problem), rule.update(), public, step_threads(problem, rule, threads), models)

    def _common(self, fixed: Fixed) -> tuple[Any, ...]:
        """Return the arguments that all worker threads share."""
        state = self.state
        return fixed.arrays, fixed.update, fixed.models, state.memory, state.clip, fixed.public, self.streams.response

    def _advance(self, fixed: Fixed, steps: int, pace: Pace, stop: threading.Event) -> None:
        while self.done < steps and not stop.is_set():
            began = time.monotonic()
            with self.still():
                began_at = self.done
                until = min(steps, began_at + pace.chunk)
                self.diverged = not advance(*fixed, self.state, self.order, self.recording, until, *self.streams)
            if self.diverged:
                return
            pace.learn(self.done - began_at, time.monotonic() - began)


@contextmanager
def all_still(replicates: Iterable[Replicate]) -> Iterator[None]:
    """Keep all replicates still for the duration of the block."""
    with ExitStack() as stack:
        for replicate in replicates:
            stack.enter_context(replicate.still())
        yield
