"""The records of a step, summed: v += (1/B) Σ clip(g_i), and with feedback kept += (1/B) Σ clip(g_i, C3).

In general record by record. Where records do not react and the loss sees ⟨x, θ⟩, no gradient is formed: it is
slope·x, plus a penalty that all records share, and its norm |slope|·‖x‖. So each record comes down to one number, by
which its row is added to the sum.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba.extending import overload
from numpy.random import Generator
from numpy.typing import NDArray

from clipwise.clipping import add_clipped, scale
from clipwise.engine.cache import INNER
from clipwise.engine.world import World
from clipwise.feedback import ErrorFeedback, NoFeedback, keep, kept_amount
from clipwise.losses.base import gradient, slope, slopes
from clipwise.parts import implementation, implemented
from clipwise.responses import Identity, respond
from clipwise.rows import add_row, add_rows, at_a_time, length, margin, measure, row, square, weigh, weight_of, width
from clipwise.rule import Update
from clipwise.vectors import norm

Array = NDArray[np.float64]
Indices = NDArray[np.int64]


_ROUNDING = 2.0**-51


def add_batch(
    world: World,
    update: Update,
    theta: Array,
    deployed: Array,
    drawn: Indices,
    weight: float,
    v: Array,
    kept: Array,
    room: Array,
    rng: Generator,
) -> None:
    """Add the drawn records, each times `weight`, to v and to kept (which is empty without feedback).

    `room` is three vectors for intermediate results. Which of the functions below this is depends on the parts' types.
    """


@overload(add_batch, jit_options=INNER)
def _add_batch(world, update, theta, deployed, drawn, weight, v, kept, room, rng):  # type: ignore[no-untyped-def]
    parts = {**dict(zip(World._fields, world, strict=True)), **dict(zip(Update._fields, update, strict=True))}
    if not _only_multiplies(parts):
        return _record_by_record
    return _by_margins if _has_margin(parts["loss"]) else _by_scores


def _only_multiplies(parts: dict[str, Any]) -> bool:
    """Whether a record's row is only multiplied by a number on its way into the sum."""
    loss, response, clip, feedback = (parts[name].instance_class for name in ("loss", "response", "clip", "feedback"))
    caps = {NoFeedback: [], ErrorFeedback: [parts["feedback"].types[-1:]]}.get(feedback)
    return (
        (_has_margin(parts["loss"]) or implementation(slopes, loss) is not None)
        and response is Identity
        and implementation(scale, clip) is not None
        and caps is not None
        and all(implementation(scale, cap.instance_class) is not None for (cap,) in caps)
    )


def _has_margin(loss: Any) -> bool:
    """Whether the loss's gradient follows from its slope, and is not one of its own."""
    kind = loss.instance_class
    return implementation(slope, kind) is not None and kind not in implemented(gradient)


def _record_by_record(world, update, theta, deployed, drawn, weight, v, kept, room, rng):  # type: ignore[no-untyped-def]
    features, labels = world.features, world.labels
    moved, written, gradient_i = room[0][: width(features)], room[1][: width(features)], room[2][: theta.size]
    for i in drawn:
        label = respond(world.response, deployed, row(features, i, written), labels[i], moved, rng)
        gradient(world.loss, theta, moved, label, gradient_i)
        weigh(world.weights, i, gradient_i)
        add_clipped(update.clip, gradient_i, weight, v)
        keep(update.feedback, gradient_i, weight, kept)


def _by_margins(world, update, theta, deployed, drawn, weight, v, kept, room, rng):  # type: ignore[no-untyped-def]
    features, labels, loss = world.features, world.labels, world.loss
    margins, rates, kept_rates = room[0], room[1], room[2]
    theta_norm = norm(theta)
    share, kept_share = 0.0, 0.0
    block = at_a_time(theta.size)
    for first in range(0, drawn.size, block):
        some = drawn[first : first + block]
        measure(features, some, theta, margins, rates)
        for k in range(some.size):
            i = some[k]
            own = weight_of(world.weights, i)
            rate = own * slope(loss, margins[k], labels[i])
            total = _gradient_norm(loss, rate, own, margins[k], length(features, i, rates[k]), theta_norm, theta.size)
            rates[k] = weight * scale(update.clip, rate, total)
            kept_rates[k] = weight * kept_amount(update.feedback, rate, total)
            share += weight * scale(update.clip, own, total)
            kept_share += weight * kept_amount(update.feedback, own, total)
        add_rows(features, some, rates, v)
        if kept.size:
            add_rows(features, some, kept_rates, kept)
    _add_penalty(loss, theta, share, v)
    _add_penalty(loss, theta, kept_share, kept)


def _by_scores(world, update, theta, deployed, drawn, weight, v, kept, room, rng):  # type: ignore[no-untyped-def]
    # One margin a class. θ, and so each of the three vectors of `room`, has one entry a class and column.
    features, labels, loss = world.features, world.labels, world.loss
    columns = theta.size // loss.classes
    theta_norm = norm(theta)
    rates = room[0][: loss.classes]
    share, kept_share = 0.0, 0.0
    for i in drawn:
        own = weight_of(world.weights, i)
        for k in range(loss.classes):
            rates[k] = margin(features, i, theta, k * columns)
            room[1][k] = rates[k]
        slopes(loss, rates, labels[i])
        along, steepness = 0.0, norm(rates)
        for k in range(loss.classes):
            along += rates[k] * room[1][k]
        size = steepness * length(features, i, square(features, i))
        # As if there were one row, of slope 1: the gradient before the penalty, whose margin is `along`.
        total = _gradient_norm(loss, own, own, along, size, theta_norm, theta.size)
        for k in range(loss.classes):
            add_row(features, i, weight * scale(update.clip, own * rates[k], total), v, k * columns)
        share += scale(update.clip, own, total)
        if kept.size:
            for k in range(loss.classes):
                add_row(features, i, weight * kept_amount(update.feedback, own * rates[k], total), kept, k * columns)
            kept_share += kept_amount(update.feedback, own, total)
    _add_penalty(loss, theta, weight * share, v)
    _add_penalty(loss, theta, weight * kept_share, kept)


def _gradient_norm(loss, rate, own, along, size, theta_norm, d):  # type: ignore[no-untyped-def]
    """‖rate·x + own·l2·θ‖ for ⟨x, θ⟩ = along and ‖x‖ = size."""


@overload(_gradient_norm, jit_options={"forceinline": True})
def _norm_of(loss, rate, own, along, size, theta_norm, d):  # type: ignore[no-untyped-def]
    def plain(loss, rate, own, along, size, theta_norm, d):  # type: ignore[no-untyped-def]
        return abs(rate) * size

    def penalised(loss, rate, own, along, size, theta_norm, d):  # type: ignore[no-untyped-def]
        # The two parts may nearly cancel. What rounding could hide is added, so that no record passes its clip.
        a, b = abs(rate) * size, abs(own) * loss.l2 * theta_norm
        unit = max(a, b)
        if unit == 0.0:
            return 0.0
        cross = 2.0 * (rate / unit) * (own * loss.l2 * along / unit)
        return unit * np.sqrt(max(0.0, (a / unit) ** 2 + (b / unit) ** 2 + cross) + (d + 8) * _ROUNDING)

    return penalised if "l2" in loss.instance_class._fields else plain


def _add_penalty(loss, theta, share, total):  # type: ignore[no-untyped-def]
    """Total += share·l2·θ; nothing for losses without a penalty, and for an empty total."""


@overload(_add_penalty, jit_options={"forceinline": True})
def _penalty_of(loss, theta, share, total):  # type: ignore[no-untyped-def]
    def added(loss, theta, share, total):  # type: ignore[no-untyped-def]
        for j in range(total.size):
            total[j] += share * loss.l2 * theta[j]

    return added if "l2" in loss.instance_class._fields else lambda loss, theta, share, total: None
