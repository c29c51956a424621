"""Several threads in one step: the batch is cut into spans, each summed by itself, and the sums are added in order.

How many spans there are depends on the batch alone, so the result does not depend on the number of threads. A step
takes microseconds; threads that had to be woken up for it would come too late. So they watch a number in memory, the
ticket, which the leader sets to the step that is due.
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

from clipsilon.engine.arrays import ProblemArrays
from clipsilon.engine.batch import add_batch, workspace
from clipsilon.engine.kernel_cache import INNER, kernel
from clipsilon.problems.problem import Problem
from clipsilon.problems.responses import is_random
from clipsilon.rules.rule import Rule, Update
from clipsilon.rules.sampling import expected_batch, most_drawn

Array = NDArray[np.float64]

_MOST_SPANS = 16
_SPAN = 32  # records, at least, in a span of which there are several
_WORTHWHILE = 2_000  # numbers to read in a step, below which a second thread costs more than it brings
_LINE = 8  # places of a cache line: each member writes to one of its own
_STOP = -1
_PATIENCE = 2_000  # looks at the ticket before another thread is let through


class StepThreads(NamedTuple):
    """What the threads of one replicate share."""

    post: NDArray[np.int64]  # the ticket, how many records take part, and from the second line on who is done
    drawn: NDArray[np.int64]
    sums: Array  # one row a span: v
    kept: Array  # the same for the feedback; empty rows without
    members: int


def team(problem: Problem, rule: Rule, threads: int, remembered: int) -> StepThreads:
    """Room for a replicate whose steps are shared by up to so many threads; `remembered` is the length of e."""
    batch = expected_batch(rule.sampling, problem.records)
    spans = _spans(batch)
    members = min(threads, spans) if _is_worthwhile(problem, batch) else 1
    return StepThreads(
        post=np.zeros((members + 1) * _LINE, dtype=np.int64),
        drawn=np.empty(most_drawn(rule.sampling, problem.records), dtype=np.int64),
        sums=np.empty((spans, problem.dimension)),
        kept=np.empty((spans, remembered)),
        members=members,
    )


def alone(dimension: int, remembered: int) -> StepThreads:
    """Room for one thread that is handed the sums of its steps."""
    post, drawn = np.zeros(2 * _LINE, dtype=np.int64), np.empty(0, dtype=np.int64)
    return StepThreads(post, drawn, np.empty((1, dimension)), np.empty((1, remembered)), members=1)


def _spans(batch: int) -> int:
    """A power of two, so that spans are about equal for the usual numbers of threads."""
    spans = 1
    while spans < _MOST_SPANS and 2 * spans * _SPAN <= batch:
        spans *= 2
    return spans


def _is_worthwhile(problem: Problem, batch: int) -> bool:
    """Random responses draw from one stream, record after record."""
    alone = sys.platform == "win32" or is_random(problem.response)
    return not alone and batch * problem.dimension >= _WORTHWHILE


@contextmanager
def assembled(shared: StepThreads, *common: Any) -> Iterator[None]:
    """Have all members but the leader at their places until the leader is done; `common` is what `_assist` is told."""
    members = [
        threading.Thread(target=_assist, args=(shared, *common, member), daemon=True)
        for member in range(1, shared.members)
    ]
    try:
        for member in members:
            member.start()
        yield
    finally:
        shared.post[0] = _STOP
        for member in members:
            if member.ident is not None:  # a thread that could not be started cannot be joined
                member.join()
        shared.post[:] = 0


def prepare(shared: StepThreads, *common: Any) -> None:
    """Have `_assist` ready, compiled or loaded."""
    if shared.members > 1:
        shared.post[0] = _STOP
        _assist(shared, *common, 1)
        shared.post[0] = 0


@kernel
def _assist(
    shared: StepThreads,
    arrays: ProblemArrays,
    update: Update,
    theta: Array,
    deployed: Array,
    weight: float,
    rng: Generator,
    member: int,
) -> None:
    """Take one's share of every step that is announced, until told to stop."""
    post, spans, members = shared.post, shared.sums.shape[0], shared.members
    seen, looks = 0, 0
    while True:
        ticket = look(post, 0)
        if ticket == _STOP:
            return
        if ticket == seen:
            looks += 1
            if looks > _PATIENCE:
                _let_others()
            continue
        for span in range(member * spans // members, (member + 1) * spans // members):
            sum_span(arrays, update, theta, deployed, shared, span, weight, rng)
        seen, looks = ticket, 0
        announce(post, (member + 1) * _LINE, ticket)


@register_jitable(**INNER)  # type: ignore[untyped-decorator]
def sum_span(
    arrays: ProblemArrays,
    update: Update,
    theta: Array,
    deployed: Array,
    shared: StepThreads,
    span: int,
    weight: float,
    rng: Generator,
) -> None:
    """Sum the records of one span into its rows."""
    spans, taking_part, v, kept = shared.sums.shape[0], shared.post[1], shared.sums[span], shared.kept[span]
    clear(v)
    clear(kept)
    first, last = span_start(span, spans, taking_part), span_start(span + 1, spans, taking_part)
    moved, written, gradient_i, scratch = workspace(arrays.features, theta)
    add_batch(
        arrays.features, arrays.labels, arrays.weights, arrays.loss, arrays.response, update.clip, update.feedback,
        theta, deployed, shared.drawn, first, last, weight, v, kept, moved, written, gradient_i, scratch, rng,
    )  # fmt: skip


@register_jitable(**INNER)  # type: ignore[untyped-decorator]
def span_start(span: int, spans: int, taking_part: int) -> int:
    """The place of a span's first record: a multiple of eight, because rows are summed eight at a time."""
    return taking_part if span == spans else span * (taking_part // 8) // spans * 8


@kernel
def wait_for(post: NDArray[np.int64], member: int, ticket: int) -> None:
    """Wait until a member is done with a step."""
    looks = 0
    while look(post, (member + 1) * _LINE) != ticket:
        looks += 1
        if looks > _PATIENCE:
            _let_others()


@kernel
def clear(vector: Array) -> None:
    """Set all to zero. (Plain loops are faster than NumPy's slices at the sizes of one record.)"""
    for j in range(vector.size):
        vector[j] = 0.0


# Loads and stores that other threads see in the order in which they were made.


@intrinsic  # type: ignore[untyped-decorator]
def look(typing: Any, array: Any, place: Any) -> Any:
    """What stands at a place that another member writes to."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        view = context.make_array(signature.args[0])(context, builder, arguments[0])
        return builder.load_atomic(builder.gep(view.data, [arguments[1]]), "acquire", 8)

    return types.int64(array, types.intp), generate


@intrinsic  # type: ignore[untyped-decorator]
def announce(typing: Any, array: Any, place: Any, value: Any) -> Any:
    """Let all members see a number, after all that was written before it."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        view = context.make_array(signature.args[0])(context, builder, arguments[0])
        builder.store_atomic(arguments[2], builder.gep(view.data, [arguments[1]]), "release", 8)
        return context.get_dummy_value()

    return types.void(array, types.intp, types.int64), generate


if sys.platform == "win32":

    @register_jitable
    def _let_others() -> None:
        """Teams have one member there."""

else:
    _let_others = types.ExternalFunction("sched_yield", types.int32())
