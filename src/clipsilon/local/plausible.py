"""Which reports are refused because no honest device sends them."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clipsilon.problems.losses.base import Loss, gradient_center_of, sensitivity_of

Array = NDArray[np.float64]

REFUSED = 1e-9
"""The probability, at most, that the report of an honest device is refused."""
_TAIL = math.sqrt(-2.0 * math.log(REFUSED))
_SLACK = 1.0 + 1e-6  # for the grid of the noise, and for rounding


class Plausible(NamedTuple):
    """The ball around a loss's public centre in which reports are believed.

    A device sends centre + g + (Δ/μ)·ω with ‖g‖ ≤ Δ/2 and ω ~ N(0, I). ‖ω‖ has slope 1 in ω and a mean of at most √d,
    so P(‖ω‖ ≥ √d + t) ≤ exp(−t²/2), which is 10⁻⁹ here.

    Parameters
    ----------
    center : array
        The public centre of the loss's gradients.
    sensitivity : float
        Δ.
    """

    center: Array
    sensitivity: float

    def radius(self, mu: float) -> float:
        """Return the radius of the ball for a budget μ."""
        spread = math.sqrt(self.center.size) + _TAIL
        return _SLACK * self.sensitivity * (0.5 + spread / mu)

    def check(self, mu: float, report: Array) -> None:
        """Raise ValueError if a report is too long for its budget; at most one in 10⁹ honest ones is."""
        distance = math.dist(report.tolist(), self.center.tolist())  # infinite where it overflows, without a warning
        if not distance <= self.radius(mu):
            raise ValueError(
                f"report must be within {self.radius(mu):.4g} of the loss's centre for μ = {mu:g}, as all but one in "
                f"10⁹ are, got a distance of {distance:.4g}."
            )


def plausible(loss: Loss, dimension: int) -> Plausible:
    """Return the ball of a loss that knows its sensitivity, for reports of this length."""
    return Plausible(gradient_center_of(loss, dimension), sensitivity_of(loss))
