"""The compiled update, the only loop over steps in the package. It is the same for all algorithms.

A step has two halves. `reports.add_span` sums the records of the batch; `finish_step` turns the sums into the next θ.
`remote.py` shares the second half: its sums come from elsewhere.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba.extending import overload, register_jitable
from numpy.random import Generator
from numpy.typing import NDArray

from clipsilon._core.kernel_cache import kernel
from clipsilon._core.options import INNER
from clipsilon._core.parts import all_ours_compiled, implemented
from clipsilon.engine.arrays import Models, ProblemArrays, RecordParts, Span, Sums, count_records, first_row
from clipsilon.engine.batch import add_penalties, workspace
from clipsilon.engine.grid import Grid, Scaling, add_correlated, add_normal, round_fed_back, step_grid
from clipsilon.engine.prefetch import AHEAD, fetch_record
from clipsilon.engine.reports import add_span, has_reports
from clipsilon.engine.threads import StepThreads, announce, clear, span_start, span_sums, wait_for
from clipsilon.engine.tracking import initial_memory
from clipsilon.problems.problem import Problem
from clipsilon.problems.regions import Region, project
from clipsilon.problems.responses import lag
from clipsilon.rules import clipping, noise, preconditioning
from clipsilon.rules.clipping import adapt, at_step, largest_norm
from clipsilon.rules.feedback import NoFeedback, Tracked, recall, remembers, settle
from clipsilon.rules.noise import add_noise, correlate, deviation
from clipsilon.rules.outputs import averages, begin, consider, summarise
from clipsilon.rules.preconditioning import precondition
from clipsilon.rules.rule import Rule, Update
from clipsilon.rules.sampling import draw, foresee
from clipsilon.rules.schedules import size

Array = NDArray[np.float64]


class State(NamedTuple):
    """What one replicate carries from step to step, besides its random streams and the sampler's permutation.

    Attributes
    ----------
    clock : array of 2 int
        The number of steps done, and the number of rows recorded.
    theta : array of shape (d,)
        θ.
    deployed : array of shape (d,)
        The model that records react to: θ itself, the same array, under greedy deployment. For a response with memory,
        a mean of past models.
    error : array
        e of the feedback; empty without feedback.
    memory : array of shape (m, d)
        What each record remembers, in units; empty unless the feedback tracks gradients.
    clip : array
        The state of the clip.
    noise, moments : array of shape (k, d)
        The states of the noise and of the preconditioner, one vector per row; k may be 0.
    summary : array
        Begins with the model that would be released now: θ itself, an average, or the selected iterate.
    """

    clock: NDArray[np.int64]
    theta: Array
    deployed: Array
    error: Array
    memory: Array
    clip: Array
    noise: Array
    moments: Array
    summary: Array


class Recording(NamedTuple):
    """The rows that the loop records: row k belongs to iteration iterations[k].

    Attributes
    ----------
    iterations : array of int
        The iterations to record, increasing.
    theta, error, average : array of shape (iterations.size, d or 0)
        θ, e and the average; without columns if the rule has no error or no average.
    """

    iterations: NDArray[np.int64]
    theta: Array
    error: Array
    average: Array


def initial_state(problem: Problem, rule: Rule, start: Array) -> State:
    """Return the state before the first step.

    Parameters
    ----------
    problem : Problem
        Its dimension d is the length of θ.
    rule : Rule
        Its parts determine the sizes of the arrays.
    start : array of shape (d,)
        θ_0, which is copied.

    Returns
    -------
    State
        The state with no steps done.
    """
    d = problem.dimension
    theta = start.copy()
    return State(
        clock=np.zeros(2, dtype=np.int64),
        theta=theta,
        deployed=theta if rule.deploy_every == 1 and lag(problem.response) == 0.0 else start.copy(),
        error=np.zeros(d if remembers(rule.feedback) else 0),
        memory=initial_memory(problem, rule),
        clip=clipping.initial_state(rule.clip),
        noise=noise.initial_state(rule.noise, d),
        moments=np.zeros((preconditioning.moments(rule.preconditioner), d)),
        summary=begin(rule.output, theta),
    )


def empty_recording(problem: Problem, rule: Rule, iterations: NDArray[np.int64]) -> Recording:
    """Return a recording filled with NaN.

    Parameters
    ----------
    problem : Problem
        Its dimension is the number of columns.
    rule : Rule
        Determines whether there are errors and averages to record.
    iterations : array of int
        The iterations to record, increasing.

    Returns
    -------
    Recording
        One row per iteration.
    """
    kept = (True, remembers(rule.feedback), averages(rule.output))
    widths = [problem.dimension if wanted else 0 for wanted in kept]
    return Recording(iterations, *(np.full((iterations.size, width), np.nan) for width in widths))


@kernel
def advance(
    arrays: ProblemArrays,
    update: Update,
    public: Scaling,
    shared: StepThreads,
    models: Models,
    state: State,
    order: NDArray[np.int64],
    recording: Recording,
    until: int,
    record_rng: Generator,
    noise_rng: Generator,
    response_rng: Generator,
) -> bool:
    """Run the update until step `until`; return False as soon as θ is no longer finite.

    Parameters
    ----------
    arrays : ProblemArrays
        The problem.
    update : Update
        The parts of the rule.
    public : Scaling
        The numbers that the grid of a step follows from.
    shared : StepThreads
        The memory shared with the worker threads, which must be running if there are any.
    models : Models
        Read-only views of the state's θ and deployed model.
    state : State
        Updated in place.
    order : array of int
        The sampler's permutation of the records, updated in place; empty if it needs none.
    recording : Recording
        Filled in place.
    until : int
        The number of steps done on return.
    record_rng, noise_rng, response_rng : Generator
        The random streams of the replicate.
    """
    # Arrays are unpacked from their tuples here: inside the loop this would cost reference counting.
    records, loss, response, region = arrays
    features, labels, _, starts = records
    m = count_records(labels, starts)
    clock, theta, deployed, _, memory, clip_state, _, _, _ = state
    seen = _shown(loss, response, models, theta, deployed)
    post, drawn = shared.post, shared.drawn
    space, total = workspace(features, theta), span_sums(shared, 0)
    spans, members = shared.v.shape[0], shared.members
    due, begun, past = record(state, recording), clock[0], lag(response)
    grid = step_grid(public, np.inf, 0.0, theta.size)
    for t in range(begun, until):
        if (update.deploy_every > 1 or past > 0.0) and t % update.deploy_every == 0:
            deploy(theta, past, deployed)
        batch = draw(update.sampling, t, m, order, record_rng, drawn)
        soon = foresee(update.sampling, t + AHEAD, m, order)
        if soon >= 0:
            fetch_record(features, labels, first_row(starts, soon))
        post[1] = batch
        announce(post, 0, t + 1)
        clip = at_step(update.clip, t + 1, clip_state)
        if not (public.is_constant and t > begun):
            bound = largest_norm(clip)
            std = deviation(update.noise, t + 1, bound * public.weight)
            grid = step_grid(public, bound, std, theta.size)
        parts = RecordParts(loss, response, clip, update.feedback)
        for span in range(spans // members):
            into = span_sums(shared, span)
            clear(into)
            some = Span(drawn, span_start(span, spans, batch), span_start(span + 1, spans, batch))
            add_span(update.noise, records, parts, seen, some, grid, into, memory, space, (response_rng, noise_rng))
        for member in range(1, members):
            wait_for(post, member, t + 1)
        for span in range(1, spans):
            _add(shared.v[span], total.v)
            _add(shared.kept[span], total.kept)
            _add(shared.penalties[span], total.penalties)
            _add(shared.counts[span], total.counts)
        add_penalties(loss, theta, grid, total)
        if not finish_step(update, region, drawn, grid, total, state, noise_rng):
            return False
        if t + 1 == due:
            due = record(state, recording)
    return True


def _shown(loss, response, views, theta, deployed):  # type: ignore[no-untyped-def]
    """Return the models that losses and responses see: the views, or the state's own arrays if all parts are ours.

    The compiler then knows that both are the same memory, which makes batches of 250 records 1.6 times as fast.
    """


@overload(_shown, jit_options=INNER)
def _shown_to(loss, response, views, theta, deployed):  # type: ignore[no-untyped-def]
    def own(loss, response, views, theta, deployed):  # type: ignore[no-untyped-def]
        return Models(theta, deployed)

    def read_only(loss, response, views, theta, deployed):  # type: ignore[no-untyped-def]
        theta_view, deployed_view = views
        return Models(theta_view, deployed_view)

    return own if all_ours_compiled(loss) and all_ours_compiled(response) else read_only


@register_jitable(**INNER)  # type: ignore[untyped-decorator]
def finish_step(
    update: Update, region: Region, drawn: NDArray[np.int64], grid: Grid, total: Sums, state: State, rng: Generator
) -> bool:
    """Turn the sums of a step into the next θ; return False if θ is no longer finite.

    Parameters
    ----------
    update : Update
        The parts of the rule.
    region : Region
        Where θ may be.
    drawn : array of int
        Starts with the records that took part.
    grid : Grid
        The grid of the step.
    total : Sums
        The sums over these records, penalties included; overwritten.
    state : State
        Updated in place.
    rng : Generator
        The stream of the noise.
    """
    # Loops may be empty, but none is in a branch, which would keep the compiler from removing reference counts.
    v, kept, _, counts = total
    clock, theta, _, error, _, clip_state, noise_state, moments, summary = state
    t = clock[0] + 1
    _leave_grid(update, grid, v, kept)
    recall(update.feedback, error, v)
    settle(update.feedback, error, kept, v)
    round_fed_back(grid, error, v)
    consider(update.output, theta, v, summary, rng)
    adapt(update.clip, t, counts, clip_state, rng)
    _add_noise(update, grid, t, drawn, v, noise_state, rng)
    precondition(update.preconditioner, t, v, moments)
    checksum = _move(theta, size(update.step, t), v)
    clock[0] = t
    # Checked before the projection, which could hide it. A non-finite e makes θ non-finite in the next step.
    if not np.isfinite(checksum):
        return False
    project(region, theta)
    summarise(update.output, t, theta, summary)
    return True


def _leave_grid(update, grid, v, kept):
    """Turn sums in units of the grid into numbers, unless nothing but the noise reads them."""


@overload(_leave_grid, jit_options=INNER)
def _numbers_of(update, grid, v, kept):
    def multiplied(update, grid, v, kept):
        unit = grid.unit if grid.rounding != 0.0 else 1.0
        _multiply(unit, v)
        _multiply(unit, kept)

    return (lambda update, grid, v, kept: None) if _stays_whole(update) else multiplied


def _stays_whole(update):
    """Return whether the sums of a step are used by Gaussian noise alone, which adds whole numbers to them."""
    noise, feedback, output = (update[update.fields.index(name)] for name in ("noise", "feedback", "output"))
    return (
        _is_gaussian(noise)
        and feedback.instance_class in (NoFeedback, Tracked)
        and output.instance_class not in implemented(consider)
    )


def _is_gaussian(noise):
    """Return whether the engine draws the noise, independently in each step."""
    kind = noise.instance_class
    return kind in implemented(deviation) and kind not in implemented(correlate) and not has_reports(noise)


def _add_noise(update, grid, t, drawn, v, state, rng):
    """Add the noise of a step: that of the grid where it is Gaussian, else what the noise's `add_noise` adds.

    Reports have theirs already.
    """


@overload(_add_noise, jit_options=INNER)
def _noise_of(update, grid, t, drawn, v, state, rng):
    def whole(update, grid, t, drawn, v, state, rng):
        add_normal(grid, v, True, rng)

    def gaussian(update, grid, t, drawn, v, state, rng):
        add_normal(grid, v, False, rng)

    def correlated(update, grid, t, drawn, v, state, rng):
        add_correlated(update.noise, grid, v, state, rng)

    def other(update, grid, t, drawn, v, state, rng):
        add_noise(update.noise, t, drawn, v, state, rng)

    noise = update[update.fields.index("noise")]
    if has_reports(noise):
        return lambda update, grid, t, drawn, v, state, rng: None
    if noise.instance_class in implemented(correlate):
        return correlated
    if not _is_gaussian(noise):
        return other
    return whole if _stays_whole(update) else gaussian


@kernel
def record(state: State, recording: Recording) -> int:
    """Record θ, e and the average if this iteration is to be recorded; return the next one that is, or −1."""
    k = state.clock[1]
    if k < recording.iterations.size and recording.iterations[k] == state.clock[0]:
        # Assigning rows would compile Numba's check of shapes, whose message takes longer to compile than the loops.
        for j in range(recording.theta.shape[1]):
            recording.theta[k, j] = state.theta[j]
        for j in range(recording.error.shape[1]):
            recording.error[k, j] = state.error[j]
        for j in range(recording.average.shape[1]):
            recording.average[k, j] = state.summary[j]
        k += 1
        state.clock[1] = k
    return recording.iterations[k] if k < recording.iterations.size else -1


@kernel
def deploy(theta: Array, past: float, deployed: Array) -> None:
    """Deploy θ: records react to it, or to a mean that keeps the weight `past` for what they reacted to before.

    Parameters
    ----------
    theta : array of shape (d,)
        θ.
    past : float
        The lag of the response.
    deployed : array of shape (d,)
        The model that records react to, updated in place.
    """
    for j in range(theta.size):
        deployed[j] = theta[j] if past == 0.0 else past * deployed[j] + (1.0 - past) * theta[j]


@kernel
def _add(source: Array, target: Array) -> None:
    for j in range(source.size):
        target[j] += source[j]


@register_jitable(**INNER)  # type: ignore[untyped-decorator]
def _multiply(factor: float, vector: Array) -> None:
    for j in range(vector.size):
        vector[j] *= factor


@kernel
def _move(theta: Array, gamma: float, direction: Array) -> float:
    """Take a step; return the sum of θ, which is finite if all entries are."""
    total = 0.0
    for j in range(theta.size):
        theta[j] -= gamma * direction[j]
        total += theta[j]
    return total
