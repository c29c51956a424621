"""Several threads per step: the batch is cut into spans, each is summed separately, and the sums are added in order.

The number of spans depends on the batch size only, so the result does not depend on the number of threads. A step takes
microseconds, which is less than it takes to wake a thread. The worker threads therefore poll a number in memory, the
ticket, which the leader sets to the number of the step that is due.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from numba import types
from numba.extending import intrinsic, register_jitable
from numpy.random import Generator
from numpy.typing import NDArray

from clipsilon._core.kernel_cache import kernel
from clipsilon._core.options import INNER
from clipsilon.engine.arrays import Models, ProblemArrays, RecordParts, Span, Sums
from clipsilon.engine.batch import add_batch, workspace
from clipsilon.engine.grid import Scaling, step_grid
from clipsilon.engine.reports import has_reports
from clipsilon.problems.problem import Problem
from clipsilon.problems.responses import is_random
from clipsilon.rules.clipping import at_step, count_width, largest_norm
from clipsilon.rules.feedback import remembers
from clipsilon.rules.noise import deviation
from clipsilon.rules.rule import Rule, Update
from clipsilon.rules.sampling import expected_batch, most_drawn

Array = NDArray[np.float64]

_MOST_SPANS = 16
_SPAN = 32  # least number of records per span if there are several
_WORTHWHILE = 2_000  # numbers read per step, below which a second thread costs more than it saves
_LINE = 8  # numbers per cache line: each thread writes to a line of its own
_STOP = -1
_PATIENCE = 2_000  # polls of the ticket before the thread yields the processor


class StepThreads(NamedTuple):
    """The memory that the threads of one replicate share.

    Attributes
    ----------
    post : array of int
        The ticket, the size of the batch, and from the second cache line on, one line per thread, the last step that
        the thread has finished.
    drawn : array of int
        Begins with the records of the batch.
    v, kept, penalties, counts : array
        One row per span, as in `Sums`.
    members : int
        The number of threads, including the leader.
    """

    post: NDArray[np.int64]
    drawn: NDArray[np.int64]
    v: Array
    kept: Array
    penalties: Array
    counts: Array
    members: int


def step_threads(problem: Problem, rule: Rule, threads: int) -> StepThreads:
    """Allocate the shared memory of a replicate.

    Parameters
    ----------
    problem, rule : Problem, Rule
        Their sizes and parts determine the sizes of the arrays.
    threads : int
        The largest number of threads per step. Fewer are used where they would not save time.

    Returns
    -------
    StepThreads
        The memory, with the number of threads to use.
    """
    batch = expected_batch(rule.sampling, problem.records)
    spans = 1 if has_reports(rule.noise) else _spans(batch)
    members = min(threads, spans) if _is_worthwhile(problem, batch) else 1
    return StepThreads(
        post=np.zeros((members + 1) * _LINE, dtype=np.int64),
        drawn=np.empty(most_drawn(rule.sampling, problem.records), dtype=np.int64),
        v=np.empty((spans, problem.dimension)),
        kept=np.empty((spans, problem.dimension if remembers(rule.feedback) else 0)),
        penalties=np.empty((spans, 2)),
        counts=np.empty((spans, count_width(rule.clip))),
        members=members,
    )


def _spans(batch: int) -> int:
    """Return the number of spans, a power of two, so that the usual numbers of threads get equal shares."""
    spans = 1
    while spans < _MOST_SPANS and 2 * spans * _SPAN <= batch:
        spans *= 2
    return spans


def _is_worthwhile(problem: Problem, batch: int) -> bool:
    """Return whether a second thread is possible and saves time; random responses draw from one stream in order."""
    if sys.platform == "win32" or is_random(problem.response):
        return False
    return batch * problem.rows // problem.records * problem.dimension >= _WORTHWHILE


@contextmanager
def worker_threads(shared: StepThreads, *common: Any) -> Iterator[None]:
    """Run the worker threads for the duration of the block. `common` is passed on to `_assist`."""
    workers = [
        threading.Thread(target=_assist, args=(shared, *common, member), daemon=True)
        for member in range(1, shared.members)
    ]
    try:
        for worker in workers:
            worker.start()
        yield
    finally:
        shared.post[0] = _STOP
        for worker in workers:
            if worker.ident is not None:  # a thread that could not be started cannot be joined
                worker.join()
        shared.post[:] = 0


def prepare(shared: StepThreads, *common: Any) -> None:
    """Compile or load `_assist`. `common` is as for `worker_threads`."""
    if shared.members > 1:
        shared.post[0] = _STOP
        _assist(shared, *common, 1)
        shared.post[0] = 0


@kernel
def _assist(
    shared: StepThreads,
    arrays: ProblemArrays,
    update: Update,
    models: Models,
    memory: Array,
    clip_state: Array,
    public: Scaling,
    rng: Generator,
    member: int,
) -> None:
    """Process this thread's spans of each batch until the leader signals the end."""
    post, spans, members = shared.post, shared.v.shape[0], shared.members
    space = workspace(arrays.records.features, models.theta)
    seen, looks = 0, 0
    while True:
        ticket = look(post, 0)
        if ticket == _STOP:
            return
        if ticket == seen:
            looks += 1
            if looks > _PATIENCE:
                _yield_processor()
            continue
        clip = at_step(update.clip, ticket, clip_state)
        bound = largest_norm(clip)
        std = deviation(update.noise, ticket, bound * public.weight)
        grid = step_grid(public, bound, std, models.theta.size)
        parts = RecordParts(arrays.loss, arrays.response, clip, update.feedback)
        for span in range(member * spans // members, (member + 1) * spans // members):
            into = span_sums(shared, span)
            clear(into)
            some = Span(shared.drawn, span_start(span, spans, post[1]), span_start(span + 1, spans, post[1]))
            add_batch(arrays.records, parts, models, some, grid, into, memory, space, rng)
        seen, looks = ticket, 0
        announce(post, (member + 1) * _LINE, ticket)


@register_jitable(**INNER)  # type: ignore[untyped-decorator]
def span_sums(shared: StepThreads, span: int) -> Sums:
    """Return the rows of the shared memory that belong to a span."""
    return Sums(shared.v[span], shared.kept[span], shared.penalties[span], shared.counts[span])


@register_jitable(**INNER)  # type: ignore[untyped-decorator]
def clear(into: Sums) -> None:
    """Set all sums to zero. (A plain loop is faster than a slice assignment at the size of one record.)"""
    v, kept, penalties, counts = into
    for j in range(v.size):
        v[j] = 0.0
    for j in range(kept.size):
        kept[j] = 0.0
    penalties[0], penalties[1] = 0.0, 0.0
    for j in range(counts.size):
        counts[j] = 0.0


@register_jitable(**INNER)  # type: ignore[untyped-decorator]
def span_start(span: int, spans: int, batch: int) -> int:
    """Return the place of a span's first record, a multiple of eight, because rows are summed eight at a time.

    Parameters
    ----------
    span : int
        The span, from 0 to `spans`; `spans` gives the end of the last one.
    spans : int
        The number of spans.
    batch : int
        The number of records drawn.

    Returns
    -------
    int
        A place in `drawn`, at most `batch`.
    """
    return batch if span == spans else span * (batch // 8) // spans * 8


@kernel
def wait_for(post: NDArray[np.int64], member: int, ticket: int) -> None:
    """Wait until a thread has finished a step.

    Parameters
    ----------
    post : array of int
        `StepThreads.post`.
    member : int
        The thread, counted from 1.
    ticket : int
        The step, counted from 1.
    """
    looks = 0
    while look(post, (member + 1) * _LINE) != ticket:
        looks += 1
        if looks > _PATIENCE:
            _yield_processor()


# Atomic loads and stores, which other threads observe in program order. As Numba intrinsics, they receive Numba types.


@intrinsic  # type: ignore[untyped-decorator]
def look(typing: Any, array: Any, place: Any) -> Any:
    """Load a number that another thread may write; compiled code calls `look(array, place)`.

    Parameters
    ----------
    typing : numba typing context
        Passed by Numba.
    array : array of int64
        The array to read.
    place : int
        The index of the number.

    Returns
    -------
    tuple
        For Numba, the signature and the code generator; for compiled code, the number.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        view = context.make_array(signature.args[0])(context, builder, arguments[0])
        return builder.load_atomic(builder.gep(view.data, [arguments[1]]), "acquire", 8)

    return types.int64(array, types.intp), generate


@intrinsic  # type: ignore[untyped-decorator]
def announce(typing: Any, array: Any, place: Any, value: Any) -> Any:
    """Store a number so that threads that see it also see everything written before it.

    Compiled code calls `announce(array, place, value)`.

    Parameters
    ----------
    typing : numba typing context
        Passed by Numba.
    array : array of int64
        The array to write.
    place : int
        The index of the number.
    value : int
        The number.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        view = context.make_array(signature.args[0])(context, builder, arguments[0])
        builder.store_atomic(arguments[2], builder.gep(view.data, [arguments[1]]), "release", 8)
        return context.get_dummy_value()

    return types.void(array, types.intp, types.int64), generate


if sys.platform == "win32":

    @register_jitable
    def _yield_processor() -> None:
        """Do nothing: one thread per replicate is used on this platform."""

else:
    _yield_processor = types.ExternalFunction("sched_yield", types.int32())
