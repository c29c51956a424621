"""One replicate of a run: its state, what it recorded, its random streams; and how it moves."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clipsilon.engine.arrays import ProblemArrays, problem_arrays
from clipsilon.engine.loop import Recording, State, advance
from clipsilon.engine.streams import Streams
from clipsilon.engine.threads import StepThreads, assembled, prepare, team
from clipsilon.problems.problem import Problem
from clipsilon.rules.rule import Rule, Update
from clipsilon.rules.sampling import expected_batch, permutes

CHUNK_SECONDS = 0.1  # how long the compiled loop may run before it looks up

_NOTHING = np.empty(0, dtype=np.int64)


@dataclass
class Pace:
    """How many steps to take at a time; the replicates of a run learn it from each other."""

    chunk: int = 1

    def learn(self, steps: int, seconds: float) -> None:
        """Aim at CHUNK_SECONDS. Doubling finds the right size in a few calls, whatever a step costs."""
        if seconds < CHUNK_SECONDS / 2:
            self.chunk = max(self.chunk, 2 * steps)
        else:
            self.chunk = max(1, int(steps * CHUNK_SECONDS / seconds))


@dataclass
class Replicate:
    """One replicate. `moving` is held while its state changes, `turn` by whoever is next to hold it."""

    state: State
    recording: Recording
    streams: Streams
    order: NDArray[np.int64] = field(default_factory=lambda: _NOTHING)  # the sampler's permutation, while it runs
    diverged: bool = False
    moving: threading.Lock = field(default_factory=threading.Lock)
    turn: threading.Lock = field(default_factory=threading.Lock)

    @property
    def done(self) -> int:
        """Steps done."""
        return int(self.state.clock[0])

    @contextmanager
    def still(self) -> Iterator[None]:
        """Hold the replicate between two chunks. Taking the turn first keeps others from slipping in."""
        with self.turn:
            self.moving.acquire()
        try:
            yield
        finally:
            self.moving.release()

    def compile(self, problem: Problem, rule: Rule, threads: int) -> None:
        """Have the loop ready, compiled or loaded, and record the start; no step is taken."""
        place, update, batch, shared = self._arguments(problem, rule, threads)
        advance(place, update, batch, shared, self.state, self.order, self.recording, self.done, *self.streams)
        prepare(shared, place, update, *self._common(batch))

    def advance_to(
        self, problem: Problem, rule: Rule, steps: int, threads: int, pace: Pace, stop: threading.Event
    ) -> None:
        """Advance in chunks of about CHUNK_SECONDS, so that it can be stopped or saved in between."""
        if self.done == steps:
            return
        if permutes(rule.sampling) and self.order.size == 0:
            self.order = np.arange(problem.records)
        place, update, batch, shared = self._arguments(problem, rule, threads)
        with assembled(shared, place, update, *self._common(batch)):
            self._advance((place, update, batch, shared), steps, pace, stop)
        if self.done == steps:
            with self.still():
                self.order = _NOTHING  # so that memory does not grow with the number of replicates

    def _arguments(self, problem: Problem, rule: Rule, threads: int) -> tuple[ProblemArrays, Update, int, StepThreads]:
        """What the compiled loop is told about the problem and the rule, and room for its sums."""
        shared = team(problem, rule, threads, self.state.error.size)
        return problem_arrays(problem), rule.update(), expected_batch(rule.sampling, problem.records), shared

    def _common(self, batch: int) -> tuple[Any, ...]:
        """What every member of a team is told besides."""
        return self.state.theta, self.state.deployed, 1.0 / batch, self.streams.response

    def _advance(
        self, fixed: tuple[ProblemArrays, Update, int, StepThreads], steps: int, pace: Pace, stop: threading.Event
    ) -> None:
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
    """Hold all replicates at once."""
    with ExitStack() as stack:
        for replicate in replicates:
            stack.enter_context(replicate.still())
        yield
