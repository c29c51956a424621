"""Clipping: what bounds the influence of one record, or of the fed-back error."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from clipsilon._core.checks import count, positive
from clipsilon._core.parts import Part, checked, implements, operation
from clipsilon._core.vectors import norm

__all__ = ["Clip", "Norm", "Normalise", "PerClass", "Unclipped", "add_clipped", "scale"]

Array = NDArray[np.float64]


class Clip(Part, Protocol):
    """A bound on the influence of one record: implements `add_clipped` and, if it only scales its vector, `scale`."""


@operation
def add_clipped(clip: Clip, vector: Array, weight: float, total: Array) -> None:
    """Total += weight · clip(vector)."""


@operation
def scale(clip: Clip, amount: float, norm: float) -> float:
    """What clipping makes of `amount·x` if it only scales: the number in its place, with norm = ‖amount·x‖."""


class Unclipped(NamedTuple):
    """The vector as it is; nothing is bounded."""

    def bound(self) -> float:
        """The largest norm that leaves the clip."""
        return np.inf


@implements(add_clipped, Unclipped)
def _(clip, vector, weight, total):
    for j in range(vector.size):
        total[j] += weight * vector[j]


@implements(scale, Unclipped)
def _(clip, amount, norm):
    return amount


@checked(threshold=positive)
class Norm(NamedTuple):
    """min{1, c/‖g‖}·g, the projection onto the ball of radius c (paper 1, eq. 1)."""

    threshold: float

    def bound(self) -> float:
        """The largest norm that leaves the clip."""
        return self.threshold


@implements(add_clipped, Norm)
def _(clip, vector, weight, total):
    # A zero vector divides by max(…) too, so there is no branch on the data.
    scale = weight * (clip.threshold / max(clip.threshold, norm(vector)))
    for j in range(vector.size):
        total[j] += scale * vector[j]


@implements(scale, Norm)
def _(clip, amount, norm):
    return amount * (clip.threshold / max(clip.threshold, norm))


@checked(length=positive)
class Normalise(NamedTuple):
    """length·g/‖g‖, "automatic" clipping; zero stays zero (paper 3, App. C.4)."""

    length: float = 1.0

    def bound(self) -> float:
        """The largest norm that leaves the clip."""
        return self.length


@implements(add_clipped, Normalise)
def _(clip, vector, weight, total):
    length = norm(vector)
    if length != 0.0:  # NaN is passed on
        for j in range(vector.size):
            total[j] += weight * clip.length * (vector[j] / length)


@implements(scale, Normalise)
def _(clip, amount, norm):
    return clip.length * (amount / norm) if norm != 0.0 else 0.0


@checked(threshold=positive, classes=count)
class PerClass(NamedTuple):
    """Each of `classes` equal blocks of the vector is clipped by its own norm (paper 5, Theorem D.5)."""

    threshold: float
    classes: int

    def bound(self) -> float:
        """The largest norm that leaves the clip: all blocks at their threshold."""
        return self.threshold * float(np.sqrt(self.classes))

    def check_dimension(self, dimension: int) -> None:
        """Refuse a parameter vector that does not fall into equal blocks."""
        if dimension % self.classes:
            raise ValueError(f"PerClass needs a dimension divisible by {self.classes} classes, got {dimension}.")


@implements(add_clipped, PerClass)
def _(clip, vector, weight, total):
    width = vector.size // clip.classes
    for k in range(clip.classes):
        block = vector[k * width : (k + 1) * width]
        scale = weight * (clip.threshold / max(clip.threshold, norm(block)))
        for j in range(width):
            total[k * width + j] += scale * block[j]
