"""Error feedback: remember what clipping took away and give it back later (DiceSGD).

The two lines of the update, and the operations that do them::

    v       = u + clip(e_t, C2)                       recall
    e_{t+1} = e_t + (1/B) Σ clip(g_i, C3) − v         keep for each record, then settle

(paper 1, Algorithm 1, lines 5 and 7; paper 3, Algorithm 2). The papers have C3 = ∞; a finite
cap bounds what one record can leave in the hidden state e, which is what makes a privacy
certificate possible.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from clipsilon._core.parts import Part, checked, implements, operation, require, traits
from clipsilon.rules.clipping import Clip, add_clipped, scale

__all__ = ["ErrorFeedback", "Feedback", "NoFeedback", "keep", "kept_amount", "recall", "settle"]

Array = NDArray[np.float64]


class Feedback(Part, Protocol):
    """What becomes of the clipped-off part of gradients: implements `keep`, `recall` and `settle`."""


@operation
def keep(feedback: Feedback, gradient: Array, weight: float, kept: Array) -> None:
    """Add one record's (capped) gradient to what this step should have applied."""


@operation
def kept_amount(feedback: Feedback, amount: float, norm: float) -> float:
    """What `amount` becomes in `keep`, where it multiplies a vector of that norm; only if the cap has a `scale`."""


@operation
def recall(feedback: Feedback, error: Array, update: Array) -> None:
    """Add the clipped error to the update: v = u + clip(e, C2)."""


@operation
def settle(feedback: Feedback, error: Array, kept: Array, update: Array) -> None:
    """Update the error: e ← e + kept − v, with v before noise."""


def remembers(feedback: Feedback) -> bool:
    """Whether there is an error to keep; a feedback that does not say is given room for one."""
    return bool(getattr(feedback, "remembers", True))


@traits(remembers=False)
class NoFeedback(NamedTuple):
    """v = u: what clipping takes away is lost."""


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


def _clip(name: str, value: Any) -> Any:
    require(name, value, [add_clipped])
    return value


@checked(clip=_clip, cap=_clip)
@traits(remembers=True)
class ErrorFeedback(NamedTuple):
    """Feedback with a clip for e (C2) and a cap on each record's residual (C3), both clips."""

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
