"""Convex losses of a mean exp⟨x, θ⟩, for targets that are not negative: Poisson for counts, Gamma for amounts."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba.extending import register_jitable

from clipsilon._core.checks import nonnegative
from clipsilon._core.options import INLINE
from clipsilon._core.parts import checked, implements, traits
from clipsilon.problems.losses.base import Array, MarginBounds, margin_value, slope

LARGEST = 100.0
"""The margin from which on the exponential function continues as its tangent, so that nothing overflows."""

_UNCLIPPED = 4.0  # slopes for targets in units of a quarter of their range


@register_jitable(**INLINE)
def _rate(margin: float) -> float:
    """Return exp(margin), constant beyond `LARGEST`; NaN is passed on, as it is the first argument of min."""
    return float(np.exp(min(margin, LARGEST)))


@register_jitable(**INLINE)
def _exponential(margin: float) -> float:
    """Return the function whose derivative is `_rate`: exp(margin), and its tangent beyond `LARGEST`."""
    return _rate(margin) * (1.0 + max(margin - LARGEST, 0.0))


@checked(l2=nonnegative)
@traits(labels="nonnegative", unclipped_slope=_UNCLIPPED)
class PoissonDeviance(NamedTuple):
    """Half the Poisson deviance of a count y ≥ 0 from its mean exp⟨x, θ⟩, without the terms that θ does not enter.

    ℓ(θ; x, y) = exp⟨x, θ⟩ − y·⟨x, θ⟩ + (l2/2)·‖θ‖². From a margin of 100 on the exponential continues as its tangent,
    which keeps the loss convex. The gradient has no useful bound: constants hold for models in a ball, and what a
    record adds to a run is bounded by the clip alone.
    """

    l2: float = 0.0

    def bounds(self, reach: Array, label: Array) -> MarginBounds:
        """Bound the derivatives; the slope exp(margin) − y increases from one end to the other."""
        low, high = np.exp(-reach), np.exp(np.minimum(reach, LARGEST))
        largest = np.maximum(np.abs(high - label), np.abs(low - label))
        return MarginBounds(largest, np.where(reach <= LARGEST, low, 0.0), high)


@implements(margin_value, PoissonDeviance)
def _(loss, margin, label):
    return _exponential(margin) - label * margin


@implements(slope, PoissonDeviance)
def _(loss, margin, label):
    return _rate(margin) - label


@checked(l2=nonnegative)
@traits(labels="nonnegative", unclipped_slope=_UNCLIPPED)
class GammaDeviance(NamedTuple):
    """Half the Gamma deviance of an amount y > 0 from its mean exp⟨x, θ⟩, without the terms that θ does not enter.

    ℓ(θ; x, y) = y·exp(−⟨x, θ⟩) + ⟨x, θ⟩ + (l2/2)·‖θ‖². Up to a margin of −100 the exponential is continued as its
    tangent, which keeps the loss convex. The gradient has no useful bound: constants hold for models in a ball, and
    what a record adds to a run is bounded by the clip alone. An amount of 0 is allowed, and has no finite minimiser.
    """

    l2: float = 0.0

    def bounds(self, reach: Array, label: Array) -> MarginBounds:
        """Bound the derivatives; the slope 1 − y·exp(−margin) increases from one end to the other."""
        low, high = label * np.exp(-reach), label * np.exp(np.minimum(reach, LARGEST))
        largest = np.maximum(np.abs(1.0 - high), np.abs(1.0 - low))
        return MarginBounds(largest, np.where(reach <= LARGEST, low, 0.0), high)


@implements(margin_value, GammaDeviance)
def _(loss, margin, label):
    return label * _exponential(-margin) + margin


@implements(slope, GammaDeviance)
def _(loss, margin, label):
    return 1.0 - label * _rate(-margin)
