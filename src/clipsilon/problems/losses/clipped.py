"""The loss that clipped descent minimises: a convex loss of the margin, linear where its gradient is clipped."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba.extending import register_jitable

from clipsilon._core.checks import positive
from clipsilon._core.options import CONTAINED, INLINE
from clipsilon._core.parts import checked, implements, require, traits
from clipsilon._core.vectors import norm
from clipsilon.problems.losses.base import (
    Array,
    Loss,
    gradient,
    is_convex,
    label_kind,
    margin_value,
    penalty,
    slope,
    value,
)

_FAR = 1e100  # a slope that has not reached a level at this margin never does


def _convex(name: str, loss: Loss) -> Loss:
    """Return a convex loss of the margin without a penalty."""
    require(name, loss, [margin_value, slope])
    if penalty(loss) != 0.0:
        raise ValueError(
            f"{name} must have l2 = 0, got {loss}: with a penalty the clipped gradient is the gradient of no function. "
            "Bound θ by a region instead."
        )
    if not is_convex(loss):
        raise ValueError(f"{name} must be convex in the margin, got {loss}, whose slope decreases somewhere.")
    return loss


@checked(loss=_convex, clip=positive)
@traits(linear=True)
class Clipped(NamedTuple):
    """The convex loss whose gradient is the clipped gradient clip_B(φ'(⟨x, θ⟩, y)·x) (paper 5, Lemma 5.1).

    It equals φ at margins where |φ'|·‖x‖ ≤ B, and continues as a straight line of slope ±B/‖x‖ beyond. If |φ'|
    exceeds B/‖x‖ at every margin, the lemma leaves a constant open; here the line then meets φ at margin 0.
    """

    loss: Any
    clip: float

    @property
    def labels(self) -> str:
        """The kind of labels of the loss that is clipped."""
        return label_kind(self.loss)


def clipped_loss(loss: Loss, clip: float) -> Clipped:
    """Return the loss that gradient descent minimises when each gradient is clipped (paper 5, Lemma 5.1).

    Parameters
    ----------
    loss : Loss
        Any convex loss of the margin without a penalty, of the package or your own.
    clip : float
        The clipping threshold B, above 0.

    Returns
    -------
    Clipped
        A convex loss.

    Raises
    ------
    ValueError
        If the loss has a penalty or is not convex.

    Examples
    --------
    >>> import clipsilon as cs
    >>> x, y, loss = [0.5, 0.5, 1.0], [1, 1, 0], cs.losses.Logistic()
    >>> print(cs.stable_point(cs.Problem(x, y, loss=cs.losses.clipped_loss(loss, 0.1))).theta.round(6))
    [4.394449]
    >>> print(cs.clipped_point(cs.Problem(x, y, loss=loss), 0.1).theta.round(6))
    [4.394449]
    """
    return Clipped(loss, clip)


@register_jitable(**INLINE)
def _margin(theta: Array, features: Array) -> float:
    margin = 0.0
    for j in range(theta.size):
        margin += features[j] * theta[j]
    return margin


@register_jitable(**INLINE)
def _level(clip: float, features: Array) -> float:
    """Return the largest slope that is not clipped, B/‖x‖."""
    length = norm(features)
    return clip / length if length > 0.0 else np.inf


@register_jitable(**CONTAINED)
def _crossing(loss: Any, label: float, level: float) -> float:
    """Return the margin where the slope reaches a level, or ±∞ if it is above or below the level everywhere."""
    low, high = -1.0, 1.0
    while slope(loss, low, label) >= level:
        low *= 2.0
        if low < -_FAR:
            return -np.inf
    while slope(loss, high, label) < level:
        high *= 2.0
        if high > _FAR:
            return np.inf
    for _ in range(400):  # far fewer are needed, unless the crossing is at 0
        middle = 0.5 * (low + high)
        if middle in (low, high):
            break
        if slope(loss, middle, label) >= level:
            high = middle
        else:
            low = middle
    return high


@implements(value, Clipped)
def _(loss, theta, features, label):
    margin = _margin(theta, features)
    level = _level(loss.clip, features)
    rate = slope(loss.loss, margin, label)
    # Comparisons with NaN are false, so NaN is passed on.
    if not (rate > level or rate < -level):
        return margin_value(loss.loss, margin, label)
    if rate < 0.0:
        level = -level
    turn = _crossing(loss.loss, label, level)
    if not np.isfinite(turn):
        turn = 0.0
    return margin_value(loss.loss, turn, label) + level * (margin - turn)


@implements(gradient, Clipped)
def _(loss, theta, features, label, out):
    rate = slope(loss.loss, _margin(theta, features), label)
    level = _level(loss.clip, features)
    if rate > level:
        rate = level
    elif rate < -level:
        rate = -level
    for j in range(theta.size):
        out[j] = rate * features[j]
