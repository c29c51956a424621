"""Smooth convex losses of the margin ⟨x, θ⟩: logistic and squared error."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from clipsilon._core.checks import nonnegative, positive
from clipsilon._core.exponential import exp
from clipsilon._core.parts import checked, implements, traits
from clipsilon.problems.losses.base import Array, MarginBounds, margin_value, slope


@checked(l2=nonnegative, positive_weight=positive)
@traits(labels="binary")
class Logistic(NamedTuple):
    """Weighted logistic loss for labels 0 and 1 (paper 1, eq. 7).

    ℓ(θ; x, y) = α·(log(1 + exp⟨x, θ⟩) − y·⟨x, θ⟩) + (l2/2)·‖θ‖², where α is `positive_weight` if y = 1, and
    otherwise 1. (The paper has α = 1 + y, that is, a `positive_weight` of 2.)
    """

    l2: float = 0.0
    positive_weight: float = 1.0

    def bounds(self, reach: Array, label: Array) -> MarginBounds:
        """Bound the derivatives; the curvature α·σ·(1−σ) is even and decreases with |margin|."""
        weight = 1.0 + (self.positive_weight - 1.0) * label
        tail = np.exp(-reach)
        return MarginBounds(weight * np.ones_like(reach), weight * tail / (1.0 + tail) ** 2, weight * 0.25)


@implements(margin_value, Logistic)
def _(loss, margin, label):
    weight = 1.0 + (loss.positive_weight - 1.0) * label
    # log(1 + exp(margin)) without overflow
    return weight * (max(margin, 0.0) + np.log1p(np.exp(-abs(margin))) - label * margin)


@implements(slope, Logistic)
def _(loss, margin, label):
    weight = 1.0 + (loss.positive_weight - 1.0) * label
    return weight * (1.0 / (1.0 + exp(-margin)) - label)


@checked(l2=nonnegative)
class SquaredError(NamedTuple):
    """Squared error: ℓ(θ; x, y) = ½(⟨x, θ⟩ − y)² + (l2/2)·‖θ‖²."""

    l2: float = 0.0

    def bounds(self, reach: Array, label: Array) -> MarginBounds:
        """Bound the derivatives; the residual is at most reach + |label|, and the curvature is 1."""
        one = np.ones_like(reach)
        return MarginBounds(reach + np.abs(label), one, one)


@implements(margin_value, SquaredError)
def _(loss, margin, label):
    return 0.5 * (margin - label) ** 2


@implements(slope, SquaredError)
def _(loss, margin, label):
    return margin - label
