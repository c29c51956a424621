"""Regions: the feasible set of θ and the projection onto it (𝒳 in paper 1, 𝒞 in paper 5)."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from clipsilon._core.checks import number, positive
from clipsilon._core.parts import Part, checked, implements, operation
from clipsilon._core.vectors import norm

__all__ = ["Ball", "Box", "Everywhere", "Region", "project"]

Array = NDArray[np.float64]


class Region(Part, Protocol):
    """The feasible set of θ: implements `project`."""


@operation
def project(region: Region, theta: Array) -> None:
    """Move θ to the nearest point of the region, in place."""


class Everywhere(NamedTuple):
    """No constraint."""

    def radius(self, dimension: int) -> float:
        """Return the largest ‖θ‖ in the region: ∞."""
        return np.inf


@implements(project, Everywhere)
def _(region, theta):
    pass


@checked(low=number, high=number)
class Box(NamedTuple):
    """A box: low ≤ θ_j ≤ high for every coordinate."""

    low: float
    high: float

    def radius(self, dimension: int) -> float:
        """Return the largest ‖θ‖ in the region, for θ of length `dimension`."""
        return float(np.sqrt(dimension) * max(abs(self.low), abs(self.high)))

    def check(self) -> None:
        """Raise ValueError if the box is empty."""
        if self.low > self.high:
            raise ValueError(f"Box needs low ≤ high, got low={self.low} and high={self.high}.")


@implements(project, Box)
def _(region, theta):
    for j in range(theta.size):
        theta[j] = min(max(theta[j], region.low), region.high)


@checked(size=positive)
class Ball(NamedTuple):
    """A ball around 0: ‖θ‖ ≤ size."""

    size: float

    def radius(self, dimension: int) -> float:
        """Return the largest ‖θ‖ in the region."""
        return self.size


@implements(project, Ball)
def _(region, theta):
    length = norm(theta)
    if length > region.size:
        for j in range(theta.size):
            theta[j] *= region.size / length
