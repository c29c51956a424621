"""The update, compiled: the only loop over steps in the package. It knows no algorithm by name."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from clipsilon.engine.arrays import ProblemArrays
from clipsilon.engine.batch import add_batch, workspace
from clipsilon.engine.kernel_cache import kernel
from clipsilon.engine.prefetch import AHEAD, fetch_record
from clipsilon.engine.threads import StepThreads, announce, clear, span_start, wait_for
from clipsilon.problems.problem import Problem
from clipsilon.problems.regions import project
from clipsilon.rules.feedback import recall, remembers, settle
from clipsilon.rules.noise import add_noise
from clipsilon.rules.outputs import averages, begin, consider, summarise
from clipsilon.rules.preconditioning import moments, precondition
from clipsilon.rules.rule import Rule, Update
from clipsilon.rules.sampling import draw, foresee
from clipsilon.rules.schedules import size

Array = NDArray[np.float64]


class State(NamedTuple):
    """All that one replicate carries from step to step (its random streams and the sampler's permutation apart)."""

    clock: NDArray[np.int64]  # steps done, records written
    theta: Array
    deployed: Array  # the model that records react to: θ itself under greedy deployment
    error: Array  # e of the feedback; empty without
    moments: Array  # of the preconditioner
    summary: Array  # starts with what would be released now: θ itself, an average, or the best so far


class Recording(NamedTuple):
    """Where the loop writes what is to be kept: row k belongs to iteration iterations[k]."""

    iterations: NDArray[np.int64]
    theta: Array
    error: Array
    average: Array


def initial_state(problem: Problem, rule: Rule, start: Array) -> State:
    """The state before the first step, at θ_0 = start."""
    d = problem.dimension
    theta = start.copy()
    return State(
        clock=np.zeros(2, dtype=np.int64),
        theta=theta,
        deployed=theta if rule.deploy_every == 1 else start.copy(),
        error=np.zeros(d if remembers(rule.feedback) else 0),
        moments=np.zeros((moments(rule.preconditioner), d)),
        summary=begin(rule.output, theta),
    )


def empty_recording(problem: Problem, rule: Rule, iterations: NDArray[np.int64]) -> Recording:
    """Rows of NaN, one for each iteration that is to be recorded."""
    kept = (True, remembers(rule.feedback), averages(rule.output))
    widths = [problem.dimension if wanted else 0 for wanted in kept]
    return Recording(iterations, *(np.full((iterations.size, width), np.nan) for width in widths))


@kernel
def advance(
    arrays: ProblemArrays,
    update: Update,
    batch: int,
    shared: StepThreads,
    state: State,
    order: NDArray[np.int64],
    recording: Recording,
    until: int,
    record_rng: Generator,
    noise_rng: Generator,
    response_rng: Generator,
) -> bool:
    """Run the update until step `until`; False as soon as θ is no longer finite."""
    # Arrays are taken out of their tuples here: inside the loop that would cost reference counting.
    features, labels, weights, loss, response, region = arrays
    clip, feedback = update.clip, update.feedback
    clock, theta, deployed, error, memory, summary = state
    post, drawn, sums, kept_sums, members = shared
    moved, written, gradient_i, scratch = workspace(features, theta)
    v, kept = sums[0], kept_sums[0]
    spans, weight = sums.shape[0], 1.0 / batch
    due = _record(state, recording)
    for t in range(clock[0], until):
        if update.deploy_every > 1 and t % update.deploy_every == 0:
            _copy(theta, deployed)
        taking_part = draw(update.sampling, t, labels.size, order, record_rng, drawn)
        soon = foresee(update.sampling, t + AHEAD, labels.size, order)
        if soon >= 0:
            fetch_record(features, labels, soon)
        post[1] = taking_part
        announce(post, 0, t + 1)
        for span in range(spans // members):
            into, kept_into = (v, kept) if span == 0 else (sums[span], kept_sums[span])
            clear(into)
            clear(kept_into)
            first, last = span_start(span, spans, taking_part), span_start(span + 1, spans, taking_part)
            add_batch(
                features, labels, weights, loss, response, clip, feedback, theta, deployed, drawn, first, last, weight,
                into, kept_into, moved, written, gradient_i, scratch, response_rng,
            )  # fmt: skip
        for member in range(1, members):
            wait_for(post, member, t + 1)
        for span in range(1, spans):
            _add(sums[span], v)
            _add(kept_sums[span], kept)
        recall(feedback, error, v)
        settle(feedback, error, kept, v)
        consider(update.output, theta, v, summary, noise_rng)
        add_noise(update.noise, drawn, v, noise_rng)
        precondition(update.preconditioner, t + 1, v, memory)
        total = _move(theta, size(update.step, t + 1), v)
        clock[0] = t + 1
        # Before the projection, which could hide it; a non-finite e shows in θ at the next step.
        if not np.isfinite(total):
            return False
        project(region, theta)
        summarise(update.output, t + 1, theta, summary)
        if t + 1 == due:
            due = _record(state, recording)
    return True


@kernel
def _record(state: State, recording: Recording) -> int:
    """Keep θ, e and the average if this iteration is to be recorded; return the next one that is."""
    k = state.clock[1]
    if k < recording.iterations.size and recording.iterations[k] == state.clock[0]:
        recording.theta[k] = state.theta
        recording.error[k] = state.error
        for j in range(recording.average.shape[1]):
            recording.average[k, j] = state.summary[j]
        k += 1
        state.clock[1] = k
    return recording.iterations[k] if k < recording.iterations.size else -1


@kernel
def _copy(source: Array, target: Array) -> None:
    for j in range(source.size):
        target[j] = source[j]


@kernel
def _add(source: Array, target: Array) -> None:
    for j in range(source.size):
        target[j] += source[j]


@kernel
def _move(theta: Array, gamma: float, direction: Array) -> float:
    """Take a step; return the sum of θ, which is finite if all of θ is."""
    total = 0.0
    for j in range(theta.size):
        theta[j] -= gamma * direction[j]
        total += theta[j]
    return total
