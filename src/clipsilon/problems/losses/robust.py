"""Losses that grow linearly in the residual: Huber and absolute."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from clipsilon._core.checks import nonnegative, positive
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
