"""Feedback: what becomes of the part of a gradient that clipping removes.

Error feedback (DiceSGD) accumulates it over all records, and adds it to later updates. Two equations of the update, and
the operations that compute them::

    v       = u + clip(e_t, C2)                       recall
    e_{t+1} = e_t + (1/B) Σ clip(g_i, C3) − v         keep for each record, then settle

(paper 1, Algorithm 1, lines 5 and 7; paper 3, Algorithm 2). In the papers C3 = ∞. A finite cap bounds the contribution
of one record to the hidden state e, which makes a useful privacy certificate possible.

Tracking (`TrackedSGD`) keeps it with the record: h_i is the part of its gradient that record i has contributed so far,
and what is clipped is g_i − h_i. No record's memory depends on another record.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from clipsilon._core.parts import Part, checked, implements, operation, require, traits
from clipsilon.rules.clipping import Clip, add_clipped, scale

__all__ = ["ErrorFeedback", "Feedback", "NoFeedback", "Tracked", "keep", "kept_amount", "recall", "settle"]

Array = NDArray[np.float64]


class Feedback(Part, Protocol):
    """The treatment of what clipping removes from gradients: implements `keep`, `recall` and `settle`.

    The class attribute `remembers` states whether there is an error e to carry from step to step (default True), and
    `tracks` whether each record has a memory h_i of its own (default False; only `Tracked` has one).
    """


@operation
def keep(feedback: Feedback, gradient: Array, weight: float, kept: Array) -> None:
    """Add weight·clip(g_i, C3) of one record to `kept`, in place.

    Parameters
    ----------
    feedback : Feedback
        The part.
    gradient : array of shape (d,)
        g_i, the gradient of the record; left unchanged.
    weight : float
        1/B, with the expected batch size B.
    kept : array of shape (d,)
        The sum over the records of the step; empty if the feedback has no error.
    """


@operation
def kept_amount(feedback: Feedback, amount: float, norm: float) -> float:
    """Return the factor that replaces `amount` when `keep` caps `amount`·x, for caps that implement `scale`.

    Parameters
    ----------
    feedback : Feedback
        The part.
    amount : float
        What multiplies x before it is capped.
    norm : float
        The norm of the record's gradient, which the cap compares with C3.

    Returns
    -------
    float
        `amount` times the factor by which the cap shortens the gradient; 0 without feedback.
    """


@operation
def recall(feedback: Feedback, error: Array, update: Array) -> None:
    """Add the clipped error to the update, in place: v = u + clip(e, C2).

    Parameters
    ----------
    feedback : Feedback
        The part.
    error : array of shape (d,)
        e; left unchanged.
    update : array of shape (d,)
        u before the call, v after it.
    """


@operation
def settle(feedback: Feedback, error: Array, kept: Array, update: Array) -> None:
    """Update the error, in place: e ← e + kept − v, with v before noise.

    Parameters
    ----------
    feedback : Feedback
        The part.
    error : array of shape (d,)
        e.
    kept : array of shape (d,)
        What `keep` summed over the records of the step.
    update : array of shape (d,)
        v, as `recall` left it; left unchanged.
    """


def remembers(feedback: Feedback) -> bool:
    """Return whether a feedback carries an error e; True unless its class attribute `remembers` is False."""
    return bool(getattr(feedback, "remembers", True))


def tracks(feedback: Feedback) -> bool:
    """Return whether each record has a memory of its own; False unless the class attribute `tracks` is True."""
    return bool(getattr(feedback, "tracks", False))


@traits(remembers=False)
class NoFeedback(NamedTuple):
    """No feedback, v = u: what clipping removes is lost."""


@implements(keep, NoFeedback)
def _(feedback, gradient, weight, kept):
    pass


@implements(kept_amount, NoFeedback)
def _(feedback, amount, norm):
    return 0.0


@implements(recall, NoFeedback)
def _(feedback, error, update):
    pass


@implements(settle, NoFeedback)
def _(feedback, error, kept, update):
    pass


def _clip(name: str, value: Clip) -> Clip:
    require(name, value, [add_clipped])
    return value


@checked(clip=_clip, cap=_clip)
@traits(remembers=True)
class ErrorFeedback(NamedTuple):
    """Feedback with a clip for the error e (threshold C2) and a cap on each record's contribution to it (C3)."""

    clip: Clip
    cap: Clip


@implements(keep, ErrorFeedback)
def _(feedback, gradient, weight, kept):
    add_clipped(feedback.cap, gradient, weight, kept)


@implements(kept_amount, ErrorFeedback)
def _(feedback, amount, norm):
    return scale(feedback.cap, amount, norm)


@implements(recall, ErrorFeedback)
def _(feedback, error, update):
    add_clipped(feedback.clip, error, 1.0, update)


@implements(settle, ErrorFeedback)
def _(feedback, error, kept, update):
    for j in range(error.size):
        error[j] += kept[j] - update[j]


@traits(remembers=False, tracks=True)
class Tracked(NamedTuple):
    """Per-record memory: of each record in the batch Δ_i = clip(g_i − h_i) is summed, and h_i ← h_i + Δ_i.

    h_i is 0 before the first step, and hidden. The sum of all Δ_i so far approaches the sum of all gradients, so add up
    the updates with `preconditioning.Accumulated`. The memory takes 8·m·d bytes per replicate for m records and d
    coordinates. Clip and noise must not change from step to step.
    """


@implements(keep, Tracked)
def _(feedback, gradient, weight, kept):
    pass


@implements(recall, Tracked)
def _(feedback, error, update):
    pass


@implements(settle, Tracked)
def _(feedback, error, kept, update):
    pass
