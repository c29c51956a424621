"""Smooth non-convex losses of the signed margin v = ±⟨x, θ⟩ (paper 5, section 4).

Labels are 0 and 1, as for every classification loss of the package; the sign is 2·label − 1.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from clipsilon._core.parts import implements, traits
from clipsilon.problems.losses.base import Array, MarginBounds, margin_value, slope


def _everywhere(reach: Array, slope_bound: float, low: float, high: float) -> MarginBounds:
    one = np.ones_like(reach)
    return MarginBounds(slope_bound * one, low * one, high * one)


@traits(labels="binary")
class Sigmoid(NamedTuple):
    """The sigmoid loss 1/(1 + exp(v)), a smooth zero-one loss."""

    def bounds(self, reach: Array, label: Array) -> MarginBounds:
        """Bound the derivatives: |φ'| ≤ 1/4 and |φ''| ≤ 1/(6√3) at every margin."""
        return _everywhere(reach, 0.25, -1 / (6 * np.sqrt(3)), 1 / (6 * np.sqrt(3)))


@implements(margin_value, Sigmoid)
def _(loss, margin, label):
    return 1.0 / (1.0 + np.exp((2.0 * label - 1.0) * margin))


@implements(slope, Sigmoid)
def _(loss, margin, label):
    sign = 2.0 * label - 1.0
    tail = np.exp(-abs(margin))  # φ' is even in v, and this form does not overflow
    return -sign * tail / (1.0 + tail) ** 2


@traits(labels="binary")
class Savage(NamedTuple):
    """The Savage loss 1/(1 + exp(v))² (Masnadi-Shirazi and Vasconcelos, 2009)."""

    def bounds(self, reach: Array, label: Array) -> MarginBounds:
        """Bound the derivatives at every margin.

        With p = 1/(1 + exp(v)), φ' = −2p²(1−p) and φ'' = 2p²(1−p)(2−3p), which is extreme at p = (15 ± √33)/24.
        """
        p = (15 + np.array([1, -1]) * np.sqrt(33)) / 24
        low, high = 2 * p**2 * (1 - p) * (2 - 3 * p)
        return _everywhere(reach, 8 / 27, low, high)


@implements(margin_value, Savage)
def _(loss, margin, label):
    return 1.0 / (1.0 + np.exp((2.0 * label - 1.0) * margin)) ** 2


@implements(slope, Savage)
def _(loss, margin, label):
    sign = 2.0 * label - 1.0
    p = 1.0 / (1.0 + np.exp(sign * margin))
    return -2.0 * sign * p * p * (1.0 - p)


@traits(labels="binary")
class Tangent(NamedTuple):
    """The tangent loss (2·arctan(v) − 1)² (Masnadi-Shirazi et al., 2010)."""

    def bounds(self, reach: Array, label: Array) -> MarginBounds:
        """Bound the derivatives by the extremes of 4(2·arctan v − 1)/(1 + v²) and its derivative, rounded outwards."""
        return _everywhere(reach, 6.1686, -3.1702, 8.4847)


@implements(margin_value, Tangent)
def _(loss, margin, label):
    sign = 2.0 * label - 1.0
    return (2.0 * np.arctan(sign * margin) - 1.0) ** 2


@implements(slope, Tangent)
def _(loss, margin, label):
    sign = 2.0 * label - 1.0
    v = sign * margin
    return sign * 4.0 * (2.0 * np.arctan(v) - 1.0) / (1.0 + v * v)
