"""Sum the records of a step: v += (1/B) Σ clip(g_i), and with feedback kept += (1/B) Σ clip(g_i, C3).

In general this goes record by record. Where the loss depends on ⟨x, θ⟩, no gradient is formed: it is slope·x plus a
penalty that all records share, and its norm is |slope|·‖x‖. Each record then reduces to one number, by which its row is
multiplied on its way into the sum. Penalties are summed as factors of l2·θ, and `add_penalties` adds them once per
step. Rows of records that react are first gathered, after their reaction, in a block that is then treated as a table.

On a grid (`grid.py`) a record's contribution is checked against its bound and rounded to whole units. It depends on the
record and the model alone, not on the record's place in the batch; where gradients are tracked (`tracking.py`), also on
the record's own memory.

If records are people with several rows, the mean of the gradients of a person's rows is what is clipped. Users' parts
see the rows one by one, and never that mean.

Tuples of arrays are unpacked in one assignment, once per function: the compiler then removes the reference counting,
which it does not where a field is read by name.
"""

from __future__ import annotations

from math import frexp, ldexp
from typing import Any, NamedTuple

import numpy as np
from numba import types
from numba.extending import overload, register_jitable
from numpy.random import Generator
from numpy.typing import NDArray

from clipsilon._core.kernel_cache import kernel
from clipsilon._core.options import INLINE, INNER
from clipsilon._core.parts import all_ours_compiled, implementation, implemented
from clipsilon._core.products import begin_or_add, fused
from clipsilon._core.row_sums import add_sum, add_to_sum, begin_sum, margin_of_sum, norm_of_sum
from clipsilon._core.rows import (
    MARGIN,
    ROWS_AT_A_TIME,
    SQUARE,
    add_row,
    add_rows,
    at_a_time,
    margin,
    measure,
    row,
    row_norm,
    square,
    weigh,
    weight_of,
    width,
)
from clipsilon._core.vectors import LEAST_GRADIENT, is_measurable, is_moderate, norm
from clipsilon.engine.arrays import Models, RecordParts, Records, Span, Sums
from clipsilon.engine.grid import CANCELLATION, Grid
from clipsilon.engine.prefetch import fetch_entry, fetch_start
from clipsilon.engine.tracking import add_change
from clipsilon.problems.losses.base import Loss, gradient, slope, slopes
from clipsilon.problems.responses import Identity, respond
from clipsilon.rules.clipping import add_clipped, largest_norm, scale, tally
from clipsilon.rules.feedback import ErrorFeedback, NoFeedback, keep, kept_amount, tracks

Array = NDArray[np.float64]
Indices = NDArray[np.int64]

_ROUNDING = 2.0**-51

# Columns of `scratch` besides MARGIN and SQUARE, by where they begin: what multiplies a record's features in v and in
# kept; its slope times its weight, and its weight (of a person's row, both divided by the number of rows); its label;
# the norms of its features and of its gradient; what multiplies l2·θ in v and in kept; RATE and WEIGHT of sums.
_COLUMNS = range(2 * ROWS_AT_A_TIME, 13 * ROWS_AT_A_TIME, ROWS_AT_A_TIME)
FACTOR, KEPT_FACTOR, RATE, WEIGHT, LABEL, SIZE, TOTAL, PENALTY, KEPT_PENALTY, SUM_RATE, SUM_WEIGHT = _COLUMNS
COUNT, LEFT = 0, 1  # rows of `people`


class Workspace(NamedTuple):
    """Arrays for intermediate results, which each thread allocates once.

    Attributes
    ----------
    moved : array of shape (columns,)
        A record's features after its reaction.
    dense_row : array of shape (columns,)
        A record's features before its reaction, if the table is sparse.
    gradient : array of shape (d,)
        A record's gradient.
    clipped, capped : array of shape (d,)
        What the record adds to the update and to the error.
    scratch : array of shape (13·ROWS_AT_A_TIME,)
        Numbers of the rows that are being processed, column after column: margins, squared norms and so on.
    average : array of shape (d,)
        The mean of the gradients of a person's rows.
    entries, places : array of shape (d,)
        Where the values of a sum of sparse rows belong, as in `row_sums`.
    rows : array of shape (2·ROWS_AT_A_TIME,)
        Rows of people: those that are being processed and the next ones.
    people : array of shape (2, 2·ROWS_AT_A_TIME)
        For each of these, how many rows its person has, and how many of them come from here on.
    moved_rows : array of shape (min(at_a_time(columns) + 8, ROWS_AT_A_TIME), columns)
        The features of the rows that are being processed, after their reaction; or sums of the rows of people.
    numbers : array of int
        The places of rows in `moved_rows`: 0, 1, 2, … and the same once more.
    """

    moved: Array
    dense_row: Array
    gradient: Array
    clipped: Array
    capped: Array
    scratch: Array
    average: Array
    entries: Indices
    places: Indices
    rows: Indices
    people: Indices
    moved_rows: Array
    numbers: Indices


@kernel
def workspace(features: Any, theta: Array) -> Workspace:
    """Allocate the workspace of one thread."""
    columns = width(features)
    scratch = np.empty(SUM_WEIGHT + ROWS_AT_A_TIME)
    d = theta.size
    rows, places = (np.empty(columns), np.empty(columns)), (np.zeros(d, np.int64), np.zeros(d, np.int64))
    vectors = (np.empty(d), np.empty(d), np.empty(d))
    people = (np.zeros(2 * ROWS_AT_A_TIME, np.int64), np.zeros((2, 2 * ROWS_AT_A_TIME), np.int64))
    most = min(at_a_time(columns) + 8, ROWS_AT_A_TIME)
    block = (np.empty((most, columns)), np.arange(2 * most) % most)
    return Workspace(*rows, *vectors, scratch, np.empty(d), *places, *people, *block)


def add_batch(
    records: Records,
    parts: RecordParts,
    models: Models,
    span: Span,
    grid: Grid,
    into: Sums,
    memory: Array,
    space: Workspace,
    rng: Generator,
) -> None:
    """Add the records of a span to the sums of the step.

    This is a declaration for compiled code. The types of the parts select one of the functions below.

    Parameters
    ----------
    records : Records
        All records.
    parts : RecordParts
        Loss, response, clip in force and feedback.
    models : Models
        θ and the deployed model.
    span : Span
        The records to add.
    grid : Grid
        The units of the sums, and the weight of each record.
    into : Sums
        Updated in place.
    memory : array of shape (m, d)
        The memories of the records, updated in place; empty if the feedback does not track gradients.
    space : Workspace
        Overwritten.
    rng : Generator
        The stream of the response.
    """


@overload(add_batch, jit_options=INNER)
def _add_batch(records, parts, models, span, grid, into, memory, space, rng):
    is_dense, has_people = isinstance(records[0], types.Array), isinstance(records[3], types.Array)
    if tracks(parts[3].instance_class):
        return _people_by_memory if has_people else _by_memory
    gathers = is_dense and not has_people and not _is_alone(grid)
    if not _only_multiplies(*parts) or not (_stays(parts[1]) or gathers):
        return _person_by_person if has_people else _record_by_record
    if has_people:
        return _people_by_margins if _has_margin(parts[0]) and is_dense else _people_by_sums
    return _by_margins if _has_margin(parts[0]) else _by_scores


def _only_multiplies(loss: Any, response: Any, clip: Any, feedback: Any) -> bool:
    """Return whether a record's row, after its reaction, is only multiplied by a number on its way into the sum.

    Rows after their reaction are gathered in a block for responses of the package only: those of users see one record.
    """
    has_slopes = implementation(slopes, loss.instance_class) is not None
    is_known = _stays(response) or (all_ours_compiled(response) and _has_margin(loss))
    return is_known and (_has_margin(loss) or has_slopes) and _only_scales(clip, feedback)


def _is_alone(grid: Any) -> bool:
    """Return whether every batch holds one record at most; gathering one in a block would only take time."""
    return isinstance(grid[grid.fields.index("alone")], types.Boolean)


def _stays(response: Any) -> bool:
    """Return whether records do not react."""
    return response.instance_class is Identity


def _only_scales(clip: Any, feedback: Any) -> bool:
    """Return whether clip and cap only multiply a gradient by a number."""
    caps = {NoFeedback: [], ErrorFeedback: list(feedback)[-1:]}.get(feedback.instance_class)
    return caps is not None and all(implementation(scale, part.instance_class) is not None for part in (clip, *caps))


def _has_margin(loss: Any) -> bool:
    """Return whether the loss's gradient follows from its slope, and is not implemented separately."""
    kind = loss.instance_class
    return implementation(slope, kind) is not None and kind not in implemented(gradient)


def _record_by_record(records, parts, models, span, grid, into, memory, space, rng):
    features, labels, weights, _ = records
    loss, response, clip, feedback = parts
    theta, deployed = models
    v, kept, _, counts = into
    moved, dense_row, gradient_i, clipped, capped, _, _, _, _, _, _, _, _ = space
    drawn, first, last = span
    for k in range(first, last):
        i = drawn[k]
        forget(response, moved)
        label = respond(response, deployed, row(features, i, dense_row), labels[i], moved, rng)
        forget(loss, gradient_i)
        gradient(loss, theta, moved, label, gradient_i)
        weigh(weights, i, gradient_i)
        _add_record(clip, feedback, gradient_i, grid, clipped, capped, v, kept)
        if weight_of(weights, i) != 0.0:  # a record of weight 0 is zeroed out, and counted nowhere
            _tally_gradient(clip, gradient_i, counts)


def _by_memory(records, parts, models, span, grid, into, memory, space, rng):
    features, labels, weights, _ = records
    loss, response, clip, _ = parts
    theta, deployed = models
    v, _, _, _ = into
    moved, dense_row, gradient_i, change, _, _, _, _, _, _, _, _, _ = space
    drawn, first, last = span
    for k in range(first, last):
        i = drawn[k]
        forget(response, moved)
        label = respond(response, deployed, row(features, i, dense_row), labels[i], moved, rng)
        forget(loss, gradient_i)
        gradient(loss, theta, moved, label, gradient_i)
        weigh(weights, i, gradient_i)
        add_change(clip, gradient_i, grid, memory, i, change, v)


def forget(part: Any, vector: Array) -> None:
    """Overwrite what the record before has left in a vector, unless a part of the package is to write all of it.

    An entry that a user's part does not write is NaN then: such a record adds nothing, in place of another's numbers.
    """


@overload(forget, jit_options=INNER)
def _forgotten(part, vector):
    def overwrite(part, vector):
        for j in range(vector.size):
            vector[j] = np.nan

    return (lambda part, vector: None) if all_ours_compiled(part) else overwrite


def _add_record(clip, feedback, gradient_i, grid, clipped, capped, v, kept):
    """Add a record; on a grid in whole units, and nothing of a record that is longer than it may be, or not finite."""


@overload(_add_record, jit_options=INNER)
def _record_of(clip, feedback, gradient_i, grid, clipped, capped, v, kept):
    def scaled(clip, feedback, gradient_i, grid, clipped, capped, v, kept):
        length = norm(gradient_i)
        factors, is_known = _known_factors(clip, feedback, grid, (1.0, 1.0), (length, length), 0.0)
        factor, kept_factor, _, _ = factors
        # Empty loops rather than factors of 0: the processor then goes on before the record has been checked.
        adds = factor != 0.0 and (is_known or grid.rounding == 0.0)
        for j in range(v.size if adds else 0):
            v[j] += fused(factor, gradient_i[j], grid.rounding) - grid.rounding
        for j in range(kept.size if adds else 0):
            kept[j] += fused(kept_factor, gradient_i[j], grid.rounding) - grid.rounding

    def measured(clip, feedback, gradient_i, grid, clipped, capped, v, kept):
        for j in range(v.size):
            clipped[j], capped[j] = 0.0, 0.0
        add_clipped(clip, gradient_i, grid.weight, clipped)
        keep(feedback, gradient_i, grid.weight, capped)
        length, kept_length = norm(clipped), norm(capped)
        is_bounded = grid.rounding == 0.0 or (length <= grid.limit and kept_length <= grid.kept_limit)
        for j in range(v.size):
            v[j] += ((clipped[j] if is_bounded else 0.0) + grid.rounding) - grid.rounding
        for j in range(kept.size):
            kept[j] += ((capped[j] if is_bounded else 0.0) + grid.rounding) - grid.rounding

    def unbounded(clip, feedback, gradient_i, grid, clipped, capped, v, kept):
        add_clipped(clip, gradient_i, grid.weight, v)
        keep(feedback, gradient_i, grid.weight, kept)

    if clip.instance_class not in implemented(largest_norm):
        return unbounded
    return scaled if _only_scales(clip, feedback) else measured


def _by_margins(records, parts, models, span, grid, into, memory, space, rng):
    features, labels, weights, _ = records
    loss, response, clip, feedback = parts
    theta, deployed = models
    v, kept, penalties, counts = into
    _, _, _, _, _, scratch, _, _, _, _, _, moved_rows, numbers = space
    drawn, first, last = span
    table, places = _unless_moved(response, features, moved_rows), _unless_moved(response, drawn, numbers)
    theta_norm = _penalised_norm(loss, theta)
    unit = _penalty_unit(loss, grid, theta_norm)
    block = at_a_time(theta.size)
    for begin in range(first, last, block):
        end = min(begin + block, last)
        _move_rows(response, deployed, features, labels, drawn, (begin, end), moved_rows, scratch, rng)
        start = _unless_moved(response, begin, 0)
        measure(table, places, start, start + end - begin, theta, scratch)
        for place in range(end, min(end + block, last)):
            fetch_start(features, drawn[place])
        _rate_block(loss, weights, drawn, (begin, end), scratch)
        _size_block(table, places, (start, start + end - begin), scratch)
        _factor_block(loss, clip, feedback, grid, end - begin, (theta_norm, theta.size), scratch)
        _drop_moved(response, places, (start, start + end - begin), moved_rows, scratch)
        for k in range(end - begin):
            if scratch[WEIGHT + k] != 0.0:
                tally(clip, scratch[TOTAL + k], counts)
        for k in range(end - begin if theta_norm != 0.0 else 0):
            _add_factors(penalties, grid, unit, (scratch[PENALTY + k], scratch[KEPT_PENALTY + k]))
        add_rows(table, places, (start, start + end - begin), scratch, FACTOR, grid.rounding, v)
        if kept.size:
            add_rows(table, places, (start, start + end - begin), scratch, KEPT_FACTOR, grid.rounding, kept)


# The next functions are loops without calls and with few branches, so that the compiler makes vector instructions of
# them. Without fast-math flags, each record's numbers are the same as if it were alone.


@register_jitable(**INNER)
def _rate_block(loss, weights, drawn, span, scratch):
    """Write each record's weight, and that times its slope, for rows measured and labels written before."""
    begin, end = span
    for k in range(end - begin):
        scratch[WEIGHT + k] = weight_of(weights, drawn[begin + k])
    for k in range(end - begin):
        scratch[RATE + k] = scratch[WEIGHT + k] * slope(loss, scratch[MARGIN + k], scratch[LABEL + k])


@register_jitable(**INNER)
def _size_block(table, places, span, scratch):
    """Write ‖x‖ of each row."""
    start, end = span
    is_ordinary = True
    for k in range(end - start):
        is_ordinary &= (scratch[SQUARE + k] > 1e-280) & (scratch[SQUARE + k] < 1e280)
        scratch[SIZE + k] = np.sqrt(scratch[SQUARE + k])
    for k in range(0 if is_ordinary else end - start):
        scratch[SIZE + k] = row_norm(table, places[start + k], scratch[SQUARE + k])


@register_jitable(**INNER)
def _factor_block(loss, clip, feedback, grid, count, model, scratch):
    """Write the norm of each record's gradient and the four numbers of `_factors`; model = (‖θ‖ as penalised, d)."""
    theta_norm, d = model
    for k in range(count):
        rate, own, size = scratch[RATE + k], scratch[WEIGHT + k], scratch[SIZE + k]
        total = _gradient_norm(loss, rate, own, scratch[MARGIN + k], size, theta_norm, d)
        factors = _factors(clip, feedback, grid, (rate, own), (size, total), theta_norm)
        scratch[TOTAL + k], scratch[FACTOR + k], scratch[KEPT_FACTOR + k] = total, factors[0], factors[1]
        scratch[PENALTY + k], scratch[KEPT_PENALTY + k] = factors[2], factors[3]


@register_jitable(**INNER)
def _drop_rows(places, span, rows, scratch):
    """Overwrite rows that add nothing with zeros: they may be infinite, and 0·∞ is NaN."""
    start, end = span
    for k in range(end - start):
        adds = scratch[FACTOR + k] != 0.0 or scratch[KEPT_FACTOR + k] != 0.0
        for j in range(0 if adds else rows.shape[1]):
            rows[places[start + k], j] = 0.0


def _unless_moved(response, original, moved):
    """Return what belongs to the table if records do not react, else what belongs to the rows after their reaction."""


@overload(_unless_moved, jit_options=INNER)
def _source_of(response, original, moved):
    if _stays(response):
        return lambda response, original, moved: original
    return lambda response, original, moved: moved


def _move_rows(response, deployed, features, labels, drawn, span, moved_rows, scratch, rng):
    """Write labels to `scratch`; if records react, after their reaction, with the rows in `moved_rows`."""


@overload(_move_rows, jit_options=INNER)
def _rows_of(response, deployed, features, labels, drawn, span, moved_rows, scratch, rng):
    def each(response, deployed, features, labels, drawn, span, moved_rows, scratch, rng):
        begin, end = span
        for k in range(end - begin):
            i = drawn[begin + k]
            scratch[LABEL + k] = respond(response, deployed, features[i], labels[i], moved_rows[k], rng)

    def unmoved(response, deployed, features, labels, drawn, span, moved_rows, scratch, rng):
        begin, end = span
        for k in range(end - begin):
            scratch[LABEL + k] = labels[drawn[begin + k]]

    return unmoved if _stays(response) else each


def _drop_moved(response, places, span, moved_rows, scratch):
    """Drop rows that add nothing if a reaction has moved them."""


@overload(_drop_moved, jit_options=INNER)
def _moved_dropped(response, places, span, moved_rows, scratch):
    if _stays(response):
        return lambda response, places, span, moved_rows, scratch: None
    return lambda response, places, span, moved_rows, scratch: _drop_rows(places, span, moved_rows, scratch)


def _by_scores(records, parts, models, span, grid, into, memory, space, rng):
    features, labels, weights, _ = records
    loss, _, clip, feedback = parts
    theta, _ = models
    v, kept, penalties, counts = into
    _, _, gradient_i, _, _, _, _, _, _, _, _, _, _ = space
    drawn, first, last = span
    columns, rates = theta.size // loss.classes, gradient_i[: loss.classes]
    theta_norm = _penalised_norm(loss, theta)
    unit = _penalty_unit(loss, grid, theta_norm)
    for place in range(first, last):
        i = drawn[place]
        own = weight_of(weights, i)
        for k in range(loss.classes):
            rates[k] = margin(features, i, theta, k * columns)
        slopes(loss, rates, labels[i])
        inner = 0.0  # ⟨gradient without penalty, θ⟩
        if theta_norm > 0.0:
            for k in range(loss.classes):
                inner += rates[k] * margin(features, i, theta, k * columns)
        size = _product_of_norms(grid, norm(rates), row_norm(features, i, square(features, i)))
        total = _gradient_norm(loss, own, own, inner, size, theta_norm, theta.size)
        if own != 0.0:
            tally(clip, total, counts)
        factors = _factors(clip, feedback, grid, (own, own), (size, total), theta_norm)
        for k in range(loss.classes):
            add_row(features, i, _product(factors[0], rates[k]), grid.rounding, v, k * columns)
        if kept.size:
            for k in range(loss.classes):
                add_row(features, i, _product(factors[1], rates[k]), grid.rounding, kept, k * columns)
        if theta_norm != 0.0:
            _add_factors(penalties, grid, unit, factors[2:])


def _person_by_person(records, parts, models, span, grid, into, memory, space, rng):
    features, labels, weights, starts = records
    loss, response, clip, feedback = parts
    theta, deployed = models
    v, kept, _, counts = into
    moved, dense_row, gradient_i, clipped, capped, _, average, _, _, _, _, _, _ = space
    drawn, first, last = span
    for k in range(first, last):
        begin, end = starts[drawn[k]], starts[drawn[k] + 1]
        share, own = 1.0 / (end - begin), 0.0
        _clear(average)
        for i in range(begin, end):
            forget(response, moved)
            label = respond(response, deployed, row(features, i, dense_row), labels[i], moved, rng)
            forget(loss, gradient_i)
            gradient(loss, theta, moved, label, gradient_i)
            own += _add_share(share * weight_of(weights, i), gradient_i, average)
        _add_record(clip, feedback, average, grid, clipped, capped, v, kept)
        if own != 0.0:
            _tally_gradient(clip, average, counts)


def _people_by_memory(records, parts, models, span, grid, into, memory, space, rng):
    features, labels, weights, starts = records
    loss, response, clip, _ = parts
    theta, deployed = models
    v, _, _, _ = into
    moved, dense_row, gradient_i, change, _, _, average, _, _, _, _, _, _ = space
    drawn, first, last = span
    for k in range(first, last):
        begin, end = starts[drawn[k]], starts[drawn[k] + 1]
        share = 1.0 / (end - begin)
        _clear(average)
        for i in range(begin, end):
            forget(response, moved)
            label = respond(response, deployed, row(features, i, dense_row), labels[i], moved, rng)
            forget(loss, gradient_i)
            gradient(loss, theta, moved, label, gradient_i)
            _add_share(share * weight_of(weights, i), gradient_i, average)
        add_change(clip, average, grid, memory, drawn[k], change, v)


@register_jitable(**INNER)
def _clear(vector):
    for j in range(vector.size):
        vector[j] = 0.0


@register_jitable(**INNER)
def _add_share(share, gradient_i, average):
    """Add a row's share of a person's mean gradient, and return the share; a row of weight 0 adds nothing."""
    for j in range(average.size if share != 0.0 else 0):
        average[j] = fused(share, gradient_i[j], average[j])
    return share


def _people_by_sums(records, parts, models, span, grid, into, memory, space, rng):
    features, labels, weights, starts = records
    loss, _, clip, feedback = parts
    theta, _ = models
    v, kept, penalties, counts = into
    _, _, gradient_i, _, _, _, average, entries, places, _, _, _, _ = space
    drawn, first, last = span
    rates = _rates_of(loss, gradient_i)
    theta_norm = _penalised_norm(loss, theta)
    unit = _penalty_unit(loss, grid, theta_norm)
    for place in range(first, last):
        begin, end = starts[drawn[place]], starts[drawn[place] + 1]
        fetch_start(features, starts[drawn[min(place + 1, last - 1)]])
        share, own, size = 1.0 / (end - begin), 0.0, begin_sum(features, average)
        for i in range(begin, end):
            weight = share * weight_of(weights, i)
            own += weight
            size = _add_slopes(loss, features, i, labels[i], weight, theta, rates, average, entries, places, size)
        length = norm_of_sum(features, average, size)
        inner = margin_of_sum(features, average, entries, size if theta_norm > 0.0 else 0, theta)
        total = _gradient_norm(loss, 1.0, own, inner, length, theta_norm, theta.size)
        if own != 0.0:
            tally(clip, total, counts)
        factors = _factors(clip, feedback, grid, (1.0, own), (length, total), theta_norm)
        add_sum(features, average, entries, size, factors[0], grid.rounding, v)
        if kept.size:
            add_sum(features, average, entries, size, factors[1], grid.rounding, kept)
        if theta_norm != 0.0:
            _add_factors(penalties, grid, unit, factors[2:])


def _people_by_margins(records, parts, models, span, grid, into, memory, space, rng):
    """Sum the rows of people block by block, and add these sums as if they were records' rows.

    Complete sums are added eight at a time; up to seven wait for the next block. A block has b = sums.shape[0] − 8
    rows, and b ≥ 8, as at_a_time(d) ≥ 8. A row completes one sum or none, so that there are never more than b + 7 of
    them, counting the one that the last row has not completed: no row of `sums` is overwritten before it was added, and
    `tail` meets `head` only if no sum is complete.
    """
    features, labels, weights, starts = records
    loss, _, _, _ = parts
    theta, _ = models
    _, _, _, _, _, scratch, zeros, _, _, rows, people, sums, numbers = space
    drawn, first, last = span
    block, theta_norm = sums.shape[0] - 8, _penalised_norm(loss, theta)
    model = (theta_norm, theta.size, _penalty_unit(loss, grid, theta_norm))
    _clear(zeros)
    now, head, tail = 0, 0, 0
    place, i, following = _gather(starts, drawn, (first, last, -1), rows, people, (now, block))
    while following > 0:
        size, then = following, ROWS_AT_A_TIME - now
        measure(features, rows, now, now + size, theta, scratch)
        place, i, following = _gather(starts, drawn, (place, last, i), rows, people, (then, block))
        for k in range(then, then + following):
            fetch_start(features, rows[k])
            fetch_entry(labels, rows[k])
        for k in range(place, min(place + block, last)):
            fetch_entry(starts, drawn[k])
        _rate_rows(loss, labels, weights, rows, people, (now, size), scratch)
        if _are_alone(people, now, size, scratch):  # no copies are needed
            _factor_people(features, rows, (now, now + size), parts, grid, model, into, scratch)
            _add_people(features, rows, (now, now + size), grid, into, scratch)
        else:
            tail = _sum_rows(features, rows, people, (now, size), tail, zeros, scratch, sums)
        complete = tail - head if tail >= head else tail - head + sums.shape[0]
        ready = (head, head + (complete // 8 * 8 if following > 0 else complete))
        _take_sums(sums, numbers, ready, theta, scratch)
        _factor_people(sums, numbers, ready, parts, grid, model, into, scratch)
        _drop_rows(numbers, ready, sums, scratch)
        _add_people(sums, numbers, ready, grid, into, scratch)
        head, now = numbers[ready[1]], then


@register_jitable(**INNER)
def _are_alone(people, first, number, scratch):
    """Return whether each row is somebody's only one, and finite: of others that add nothing, copies are dropped."""
    are_alone = True
    for k in range(number):
        are_alone &= (people[COUNT, first + k] == 1) & (scratch[SQUARE + k] < np.inf)
    return are_alone


@register_jitable(**INNER)
def _sum_rows(features, rows, people, block, tail, zeros, scratch, sums):
    """Add the rows of people in block = (first, number) to sums[tail], and then to the rows after it.

    Return the place that the next block is to continue. After the last row of `sums` comes the first. An only row is
    copied, and multiplied afterwards like a record's, to add the same. There are no branches, since the processor could
    not foresee where a person ends.
    """
    first, number = block
    for k in range(number):
        count, left, rate = people[COUNT, first + k], people[LEFT, first + k], scratch[RATE + k]
        weight = scratch[SUM_WEIGHT + tail]
        scratch[SUM_WEIGHT + tail] = (0.0 if left == count else weight) + scratch[WEIGHT + k]
        scratch[SUM_RATE + tail] = rate if count == 1 else 1.0
        begin_or_add(1.0 if count == 1 else rate, features, rows[first + k], left == count, zeros, sums, tail)
        tail += left == 1
        tail = 0 if tail == sums.shape[0] else tail
    return tail


@register_jitable(**INNER)
def _take_sums(sums, numbers, span, theta, scratch):
    """Write the numbers of people's sums as if they were records' rows."""
    start, end = span
    measure(sums, numbers, start, end, theta, scratch)
    for k in range(end - start):
        place = numbers[start + k]
        scratch[RATE + k], scratch[WEIGHT + k] = scratch[SUM_RATE + place], scratch[SUM_WEIGHT + place]


@register_jitable(**INNER)
def _factor_people(table, places, span, parts, grid, model, into, scratch):
    """Write what multiplies rows that were measured and rated, and count them; model = (‖θ‖ as penalised, d, unit)."""
    start, end = span
    loss, _, clip, feedback = parts
    theta_norm, d, unit = model
    _, _, penalties, counts = into
    _size_block(table, places, span, scratch)
    _factor_block(loss, clip, feedback, grid, end - start, (theta_norm, d), scratch)
    for k in range(end - start):
        if scratch[WEIGHT + k] != 0.0:
            tally(clip, scratch[TOTAL + k], counts)
    for k in range(end - start if theta_norm != 0.0 else 0):
        _add_factors(penalties, grid, unit, (scratch[PENALTY + k], scratch[KEPT_PENALTY + k]))


@register_jitable(**INNER)
def _add_people(table, places, span, grid, into, scratch):
    """Add the rows of a block."""
    v, kept, _, _ = into
    add_rows(table, places, span, scratch, FACTOR, grid.rounding, v)
    if kept.size:
        add_rows(table, places, span, scratch, KEPT_FACTOR, grid.rounding, kept)


@register_jitable(**INNER)
def _gather(starts, drawn, source, rows, people, target):
    """Write the next rows of the people drawn[place:last] to rows[begin:begin + most], from row i on.

    Return the place and the row to continue from, and how many rows were written. `source` is (place, last, i), with a
    negative i for the first row, and `target` is (begin, most). A person's rows may be spread over several calls. Up to
    three entries after those that count are overwritten.
    """
    place, last, i = source
    begin, most = target
    written = 0
    while place < last and written < most:
        start, end = starts[drawn[place]], starts[drawn[place] + 1]
        i = max(i, start)
        run = min(end - i, most - written)
        for j in range(4):  # however many there are: the processor cannot foresee where a short loop ends
            k = begin + written + j
            rows[k], people[COUNT, k], people[LEFT, k] = i + j, end - start, end - i - j
        for j in range(4, run):
            k = begin + written + j
            rows[k], people[COUNT, k], people[LEFT, k] = i + j, end - start, end - i - j
        written += run
        if i + run < end:
            return place, i + run, written
        place, i = place + 1, -1
    return place, i, written


@register_jitable(**INNER)
def _rate_rows(loss, labels, weights, rows, people, block, scratch):
    """Write the share of each row in its person's mean, and that times its slope, for block = (first, number)."""
    first, number = block
    for k in range(number):
        i = rows[first + k]
        scratch[WEIGHT + k], scratch[LABEL + k] = weight_of(weights, i), labels[i]
    for k in range(number):  # without gathering, so that the compiler makes vector instructions of it
        scratch[WEIGHT + k] /= people[COUNT, first + k]
    for k in range(number):
        scratch[RATE + k] = _product(scratch[WEIGHT + k], slope(loss, scratch[MARGIN + k], scratch[LABEL + k]))


def _rates_of(loss, vector):
    """Return room for one slope per class, at the beginning of a vector."""


@overload(_rates_of, jit_options=INNER)
def _room_of(loss, vector):
    return (lambda loss, vector: vector) if _has_margin(loss) else (lambda loss, vector: vector[: loss.classes])


def _add_slopes(loss, features, i, label, share, theta, rates, values, entries, places, size):
    """Add share times the gradient of a row, without its penalty, to a sum of rows; return the size of the sum."""


@overload(_add_slopes, jit_options=INNER)
def _slopes_of(loss, features, i, label, share, theta, rates, values, entries, places, size):
    def of_margin(loss, features, i, label, share, theta, rates, values, entries, places, size):
        rate = _product(share, slope(loss, margin(features, i, theta, 0), label))
        return add_to_sum(features, i, rate, 0, values, entries, places, size)

    def of_scores(loss, features, i, label, share, theta, rates, values, entries, places, size):
        columns = theta.size // loss.classes
        for k in range(loss.classes):
            rates[k] = margin(features, i, theta, k * columns)
        slopes(loss, rates, label)
        for k in range(loss.classes):
            rate = _product(share, rates[k])
            size = add_to_sum(features, i, rate, k * columns, values, entries, places, size)
        return size

    return of_margin if _has_margin(loss) else of_scores


@register_jitable(**INNER)
def _product(factor, number):
    """Return factor·number, and 0 for a factor of 0 even if the number is not finite."""
    return factor * number if factor != 0.0 else 0.0


@register_jitable(**INNER)
def _product_of_norms(grid, first, second):
    """Return the product of two norms; NaN on a grid if one of them is so small that it is not known accurately."""
    is_known = (is_measurable(first) | (first == 0.0)) & (is_measurable(second) | (second == 0.0))
    return first * second if is_known or grid.rounding == 0.0 else np.nan


@register_jitable(**INNER)
def _factors(clip, feedback, grid, amounts, sizes, theta_norm):
    """Return what multiplies a record's row in v and in kept, and l2·θ in v and in kept.

    On a grid, all are 0 for a record that cannot be measured, or that is longer than it may be.
    """
    factors, is_known = _known_factors(clip, feedback, grid, amounts, sizes, theta_norm)
    if not is_known and grid.rounding != 0.0:
        return 0.0, 0.0, 0.0, 0.0
    return factors


@register_jitable(**INNER)
def _known_factors(clip, feedback, grid, amounts, sizes, theta_norm):
    """Return the four numbers of `_factors`, and whether the record can be measured and is as short as it must be."""
    rate, own = amounts
    size, total = sizes
    in_v, in_kept = grid.weight * scale(clip, rate, total), grid.weight * kept_amount(feedback, rate, total)
    penalty, kept_penalty = 0.0, 0.0
    length, kept_length, is_known = abs(in_v) * size, abs(in_kept) * size, True
    if theta_norm != 0.0:
        penalty, kept_penalty = grid.weight * scale(clip, own, total), grid.weight * kept_amount(feedback, own, total)
        length = grid.weight * scale(clip, 1.0, total) * total
        kept_length = grid.weight * kept_amount(feedback, 1.0, total) * total
        is_known = is_moderate(own) and is_moderate(total)
        is_known &= np.isfinite(in_v) & np.isfinite(in_kept) & np.isfinite(kept_penalty)  # also where the row is zero
    # Without branches, which would take longer than the comparisons; NaN fails all of them.
    is_known &= (length <= grid.limit) & (kept_length <= grid.kept_limit)
    is_known &= is_measurable(size) | (size == 0.0)
    return (in_v, in_kept, penalty, kept_penalty), is_known


@register_jitable(**INNER)
def _penalty_unit(loss, grid, theta_norm):
    """Return a power of two above l2·‖θ‖, by which factors of l2·θ are multiplied; 1 if there is no grid."""
    if grid.rounding == 0.0 or theta_norm == 0.0:
        return 1.0
    return ldexp(1.0, frexp(_penalty_of(loss) * theta_norm)[1])


@register_jitable(**INNER)
def _add_factors(penalties, grid, unit, factors):
    """Add a record's factors of l2·θ in v and in kept to their sums, in whole numbers if there is a grid."""
    penalties[0] += (factors[0] * unit + grid.rounding) - grid.rounding
    penalties[1] += (factors[1] * unit + grid.rounding) - grid.rounding


def add_penalties(loss: Loss, theta: Array, grid: Grid, total: Sums) -> None:
    """Add the penalties of all records of a step to its sums; a declaration for compiled code.

    Parameters
    ----------
    loss : Loss
        The loss of one record.
    theta : array of shape (d,)
        The model at which gradients were taken.
    grid : Grid
        The grid of the step.
    total : Sums
        The sums over all records of the step, updated in place.
    """


@overload(add_penalties, jit_options=INNER)
def _penalties_of(loss, theta, grid, total):
    def added(loss, theta, grid, total):
        v, kept, penalties, _ = total
        in_v, in_kept = penalties[0], penalties[1]
        entries = v.size if in_v != 0.0 or in_kept != 0.0 else 0
        factor = loss.l2 / _penalty_unit(loss, grid, norm(theta) if entries else 0.0)
        for j in range(entries):
            v[j] += (in_v * (factor * theta[j]) + grid.rounding) - grid.rounding
        for j in range(min(entries, kept.size)):
            kept[j] += (in_kept * (factor * theta[j]) + grid.rounding) - grid.rounding

    return added if _has_penalty(loss) else lambda loss, theta, grid, total: None


def _tally_gradient(clip, gradient, counts):
    """Count a record by its gradient; the norm is computed only for clips that count."""


@overload(_tally_gradient, jit_options=INLINE)
def _tally(clip, gradient, counts):
    if clip.instance_class in implemented(tally):
        return lambda clip, gradient, counts: tally(clip, norm(gradient), counts)
    return lambda clip, gradient, counts: None


def _penalty_of(loss):
    """Return l2, or 0 for losses without a penalty."""


@overload(_penalty_of, jit_options=INLINE)
def _l2_of(loss):
    return (lambda loss: loss.l2) if _has_penalty(loss) else (lambda loss: 0.0)


def _has_penalty(loss: Any) -> bool:
    return "l2" in loss.instance_class._fields


@register_jitable(**INNER)
def _penalised_norm(loss, theta):
    """Return ‖θ‖ if there is a penalty, else 0; also 0 for a θ so small that its penalty does not matter."""
    length = norm(theta) if _penalty_of(loss) > 0.0 else 0.0
    return 0.0 if length < LEAST_GRADIENT else length


def _gradient_norm(loss, rate, own, inner, size, theta_norm, d):
    """Return ‖rate·x + own·l2·θ‖ for ⟨x, θ⟩ = inner and ‖x‖ = size; rounded up, as far as rounding matters."""


@overload(_gradient_norm, jit_options=INLINE)
def _norm_of(loss, rate, own, inner, size, theta_norm, d):
    def plain(loss, rate, own, inner, size, theta_norm, d):
        return abs(rate) * size

    def penalised(loss, rate, own, inner, size, theta_norm, d):
        # The two terms may nearly cancel. The rounding error is added, so that no record exceeds its clip.
        a, b = abs(rate) * size, own * (loss.l2 * theta_norm)
        if b == 0.0:
            return a
        longer, lengths = max(a, b), size * theta_norm
        cosine = inner / lengths if rate > 0.0 else -inner / lengths
        if cosine != cosine or not 1e-280 < lengths < 1e280:  # overflow or underflow of ⟨x, θ⟩
            cosine = 1.0
        first, second = a / longer, b / longer
        cross = 2.0 * first * second * min(max(cosine, -1.0), 1.0)
        square = max(0.0, first * first + second * second + cross) + (2 * d + 64) * _ROUNDING
        return longer * max(np.sqrt(square), 1.0 / CANCELLATION)

    return penalised if _has_penalty(loss) else plain
