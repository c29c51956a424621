"""Sum the records of a step: v += (1/B) Σ clip(g_i), and with feedback kept += (1/B) Σ clip(g_i, C3).

In general this goes record by record. Where records do not react and the loss depends on ⟨x, θ⟩, no gradient is
formed: it is slope·x plus a penalty that all records share, and its norm is |slope|·‖x‖. Each record then reduces to
one number, by which its row is multiplied on its way into the sum.

Tuples of arrays are unpacked in one assignment, once per function: the compiler then removes the reference counting,
which it does not where a field is read by name.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba.extending import overload
from numpy.random import Generator
from numpy.typing import NDArray

from clipsilon._core.parts import implementation, implemented
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
from clipsilon._core.vectors import norm
from clipsilon.engine.arrays import Models, RecordParts, Records, Span, Sums
from clipsilon.engine.kernel_cache import INNER, kernel
from clipsilon.engine.prefetch import fetch_start
from clipsilon.problems.losses.base import gradient, slope, slopes
from clipsilon.problems.responses import Identity, respond
from clipsilon.rules.clipping import add_clipped, scale, tally
from clipsilon.rules.feedback import ErrorFeedback, NoFeedback, keep, kept_amount

Array = NDArray[np.float64]

_ROUNDING = 2.0**-51

# Rows of `scratch` besides MARGIN and SQUARE: the factors of a record's features in v and in kept.
FACTOR, KEPT_FACTOR = 2, 3


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
    scratch : array of shape (4, ROWS_AT_A_TIME)
        Margin, squared norm and the two factors of each row that is being processed.
    """

    moved: Array
    dense_row: Array
    gradient: Array
    scratch: Array


@kernel
def workspace(features: Any, theta: Array) -> Workspace:
    """Allocate the workspace of one thread."""
    columns = width(features)
    scratch = np.empty((KEPT_FACTOR + 1, ROWS_AT_A_TIME))
    return Workspace(np.empty(columns), np.empty(columns), np.empty(theta.size), scratch)


def add_batch(
    records: Records,
    parts: RecordParts,
    models: Models,
    span: Span,
    weight: float,
    into: Sums,
    space: Workspace,
    rng: Generator,
) -> None:
    """Add the records of a span, each times `weight`, to the sums of the step.

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
    weight : float
        1/B, with the expected batch size B.
    into : Sums
        Updated in place.
    space : Workspace
        Overwritten.
    rng : Generator
        The stream of the response.
    """


@overload(add_batch, jit_options=INNER)
def _add_batch(records, parts, models, span, weight, into, space, rng):
    if not _only_multiplies(*parts):
        return _record_by_record
    return _by_margins if _has_margin(parts[0]) else _by_scores


def _only_multiplies(loss: Any, response: Any, clip: Any, feedback: Any) -> bool:
    """Return whether a record's row is only multiplied by a number on its way into the sum."""
    caps = {NoFeedback: [], ErrorFeedback: list(feedback)[-1:]}.get(feedback.instance_class)
    return (
        (_has_margin(loss) or implementation(slopes, loss.instance_class) is not None)
        and response.instance_class is Identity
        and caps is not None
        and all(implementation(scale, part.instance_class) is not None for part in (clip, *caps))
    )


def _has_margin(loss: Any) -> bool:
    """Return whether the loss's gradient follows from its slope, and is not implemented separately."""
    kind = loss.instance_class
    return implementation(slope, kind) is not None and kind not in implemented(gradient)


def _record_by_record(records, parts, models, span, weight, into, space, rng):
    features, labels, weights = records
    loss, response, clip, feedback = parts
    theta, deployed = models
    v, kept, counts = into
    moved, dense_row, gradient_i, _ = space
    drawn, first, last = span
    for k in range(first, last):
        i = drawn[k]
        label = respond(response, deployed, row(features, i, dense_row), labels[i], moved, rng)
        gradient(loss, theta, moved, label, gradient_i)
        weigh(weights, i, gradient_i)
        add_clipped(clip, gradient_i, weight, v)
        keep(feedback, gradient_i, weight, kept)
        if weight_of(weights, i) != 0.0:  # a record of weight 0 is zeroed out, and counted nowhere
            _tally_gradient(clip, gradient_i, counts)


def _by_margins(records, parts, models, span, weight, into, space, rng):
    features, labels, weights = records
    loss, _, clip, feedback = parts
    theta, _ = models
    v, kept, counts = into
    _, _, _, scratch = space
    drawn, first, last = span
    theta_norm = _penalised_norm(loss, theta)
    penalty, kept_penalty = 0.0, 0.0
    block = at_a_time(theta.size)
    for begin in range(first, last, block):
        end = min(begin + block, last)
        measure(features, drawn, begin, end, theta, scratch)
        for place in range(end, min(end + block, last)):
            fetch_start(features, drawn[place])
        for k in range(end - begin):
            i, margin_i = drawn[begin + k], scratch[MARGIN, k]
            own = weight_of(weights, i)
            rate = own * slope(loss, margin_i, labels[i])
            size = row_norm(features, i, scratch[SQUARE, k])
            total = _gradient_norm(loss, rate, own, margin_i, size, theta_norm, theta.size)
            if own != 0.0:
                tally(clip, total, counts)
            scratch[FACTOR, k] = weight * scale(clip, rate, total)
            scratch[KEPT_FACTOR, k] = weight * kept_amount(feedback, rate, total)
            if theta_norm != 0.0:
                penalty += weight * scale(clip, own, total)
                kept_penalty += weight * kept_amount(feedback, own, total)
        add_rows(features, drawn, begin, end, scratch, FACTOR, v)
        if kept.size:
            add_rows(features, drawn, begin, end, scratch, KEPT_FACTOR, kept)
    _add_penalty(loss, theta, penalty, v)
    _add_penalty(loss, theta, kept_penalty, kept)


def _by_scores(records, parts, models, span, weight, into, space, rng):
    features, labels, weights = records
    loss, _, clip, feedback = parts
    theta, _ = models
    v, kept, counts = into
    _, _, gradient_i, _ = space
    drawn, first, last = span
    columns, rates = theta.size // loss.classes, gradient_i[: loss.classes]
    theta_norm = _penalised_norm(loss, theta)
    penalty, kept_penalty = 0.0, 0.0
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
        size = norm(rates) * row_norm(features, i, square(features, i))
        total = _gradient_norm(loss, own, own, inner, size, theta_norm, theta.size)
        if own != 0.0:
            tally(clip, total, counts)
        for k in range(loss.classes):
            add_row(features, i, weight * scale(clip, own * rates[k], total), v, k * columns)
        penalty += weight * scale(clip, own, total)
        if kept.size:
            for k in range(loss.classes):
                add_row(features, i, weight * kept_amount(feedback, own * rates[k], total), kept, k * columns)
            kept_penalty += weight * kept_amount(feedback, own, total)
    _add_penalty(loss, theta, penalty, v)
    _add_penalty(loss, theta, kept_penalty, kept)


def _tally_gradient(clip, gradient, counts):
    """Count a record by its gradient; the norm is computed only for clips that count."""


@overload(_tally_gradient, jit_options={"forceinline": True})
def _tally(clip, gradient, counts):
    if clip.instance_class in implemented(tally):
        return lambda clip, gradient, counts: tally(clip, norm(gradient), counts)
    return lambda clip, gradient, counts: None


def _penalised_norm(loss, theta):
    """Return ‖θ‖ if there is a penalty, else 0."""


@overload(_penalised_norm, jit_options={"forceinline": True})
def _theta_norm(loss, theta):
    if not _has_penalty(loss):
        return lambda loss, theta: 0.0
    return lambda loss, theta: norm(theta) if loss.l2 > 0.0 else 0.0


def _has_penalty(loss: Any) -> bool:
    return "l2" in loss.instance_class._fields


def _gradient_norm(loss, rate, own, inner, size, theta_norm, d):
    """Return ‖rate·x + own·l2·θ‖ for ⟨x, θ⟩ = inner and ‖x‖ = size."""


@overload(_gradient_norm, jit_options={"forceinline": True})
def _norm_of(loss, rate, own, inner, size, theta_norm, d):
    def plain(loss, rate, own, inner, size, theta_norm, d):
        return abs(rate) * size

    def penalised(loss, rate, own, inner, size, theta_norm, d):
        # The two terms may nearly cancel. The rounding error is added, so that no record exceeds its clip.
        a, b = abs(rate) * size, abs(own) * loss.l2 * theta_norm
        if b == 0.0:
            return a
        unit = max(a, b)
        cross, most = 2.0 * (rate / unit) * (own * loss.l2 * inner / unit), 2.0 * (a / unit) * (b / unit)
        if np.isnan(cross) or not 1e-280 < size * theta_norm < 1e280:  # overflow or underflow of ⟨x, θ⟩
            cross = most
        return unit * np.sqrt(max(0.0, (a / unit) ** 2 + (b / unit) ** 2 + cross) + (d + 8) * _ROUNDING)

    return penalised if _has_penalty(loss) else plain


def _add_penalty(loss, theta, penalty, total):
    """Add penalty·l2·θ to `total`; do nothing for losses without a penalty."""


@overload(_add_penalty, jit_options={"forceinline": True})
def _penalty_of(loss, theta, penalty, total):
    def added(loss, theta, penalty, total):
        for j in range(total.size):
            total[j] += penalty * loss.l2 * theta[j]

    return added if _has_penalty(loss) else lambda loss, theta, penalty, total: None
