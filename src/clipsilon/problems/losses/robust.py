"""Losses that grow linearly in the residual: Huber, absolute and pinball."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from clipsilon._core.checks import nonnegative, open_fraction, positive
from clipsilon._core.parts import checked, implements
from clipsilon.problems.losses.base import Array, MarginBounds, margin_value, slope


@checked(c=positive, l2=nonnegative)
class Huber(NamedTuple):
    """The Huber loss of the residual r = ⟨x, θ⟩ − y: ½r² for |r| ≤ c, c·|r| − ½c² beyond, plus (l2/2)·‖θ‖².

    With a single feature that is 1 for all records, this is the loss of paper 3, App. B.1.
    """

    c: float = 1.345
    l2: float = 0.0

    def bounds(self, reach: Array, label: Array) -> MarginBounds:
        """Bound the derivatives; the curvature is 1 within ±c and 0 beyond."""
        residual = reach + np.abs(label)
        return MarginBounds(np.minimum(residual, self.c), (residual <= self.c).astype(float), np.ones_like(reach))


@implements(margin_value, Huber)
def _(loss, margin, label):
    size = abs(margin - label)
    inner = min(size, loss.c)
    return inner * (size - 0.5 * inner)


@implements(slope, Huber)
def _(loss, margin, label):
    return min(max(margin - label, -loss.c), loss.c)


class Absolute(NamedTuple):
    """The absolute error |⟨x, θ⟩ − y|, the non-smooth loss of paper 5's lower bound; its slope at 0 is 0."""

    def bounds(self, reach: Array, label: Array) -> MarginBounds:
        """Bound the derivatives; the curvature is 0 except at the kink, where it is unbounded."""
        one = np.ones_like(reach)
        return MarginBounds(one, 0.0 * one, np.inf * one)


@implements(margin_value, Absolute)
def _(loss, margin, label):
    return abs(margin - label)


@implements(slope, Absolute)
def _(loss, margin, label):
    return np.sign(margin - label)


@checked(quantile=open_fraction, l2=nonnegative)
class Pinball(NamedTuple):
    """The pinball loss, whose minimiser is a conditional quantile, plus (l2/2)·‖θ‖².

    With q = `quantile` and the residual r = y − ⟨x, θ⟩ it is q·r for r ≥ 0 and (q − 1)·r for r < 0. Its slope in the
    margin is −q below y and 1 − q above; at the kink it is 0, a subgradient, since −q < 0 < 1 − q.
    """

    quantile: float = 0.5
    l2: float = 0.0

    @property
    def unclipped_slope(self) -> float:
        """The steeper of the two slopes: if only this one were clipped, another quantile would be found."""
        return max(self.quantile, 1.0 - self.quantile)

    def bounds(self, reach: Array, label: Array) -> MarginBounds:
        """Bound the derivatives; the curvature is 0 except at the kink, where it is unbounded."""
        one = np.ones_like(reach)
        return MarginBounds(self.unclipped_slope * one, 0.0 * one, np.inf * one)


@implements(margin_value, Pinball)
def _(loss, margin, label):
    residual = label - margin
    return max(loss.quantile * residual, (loss.quantile - 1.0) * residual)


@implements(slope, Pinball)
def _(loss, margin, label):
    above = margin - label
    if above > 0.0:
        return 1.0 - loss.quantile
    if above < 0.0:
        return -loss.quantile
    return above  # 0, or NaN
