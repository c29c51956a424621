"""Outputs: what of a run is released at its end."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clipwise.checks import nonnegative
from clipwise.parts import checked, implements, operation, traits

Array = NDArray[np.float64]


@operation
def summarise(output: Any, t: int, theta: Array, summary: Array) -> None:
    """Bring `summary` up to date with θ_t, t ≥ 1."""


def averages(output: Any) -> bool:
    """Whether the summary is something else than θ; an output that does not say gets room of its own."""
    return bool(getattr(output, "averages", True))


@traits(averages=False)
class Last(NamedTuple):
    """The last iterate: the summary is θ itself."""


@implements(summarise, Last)
def _(output, t, theta, summary):
    pass


@checked(power=nonnegative)
@traits(averages=True)
class Average(NamedTuple):
    """The running mean of θ_1, …, θ_t (Polyak–Ruppert), without storing them; with a power p, later ones weigh more.

    Then the weight of θ_k is about (k/t)^p: polynomial-decay averaging (Shamir and Zhang, 2013, with η = p). It forgets
    the way from the start sooner, and needs not know how long the run will be.
    """

    power: float = 0.0


@implements(summarise, Average)
def _(output, t, theta, summary):
    weight = (1.0 + output.power) / (t + output.power)
    for j in range(theta.size):
        summary[j] += weight * (theta[j] - summary[j])
