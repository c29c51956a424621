"""Preconditioning: how the private update is turned into a direction. It sees only noisy updates."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from clipsilon._core.checks import fraction, positive
from clipsilon._core.parts import Part, checked, implements, operation, traits

__all__ = ["Adam", "Plain", "Preconditioner", "precondition"]

Array = NDArray[np.float64]


class Preconditioner(Part, Protocol):
    """The direction made from a noisy update: implements `precondition`."""


@operation
def precondition(preconditioner: Preconditioner, t: int, update: Array, moments: Array) -> None:
    """Replace the t-th noisy update (t ≥ 1) by a direction, in place; `moments` is its memory."""


def moments(preconditioner: Preconditioner) -> int:
    """How many vectors of memory a preconditioner has; one that does not say gets two."""
    return int(getattr(preconditioner, "moments", 2))


@traits(moments=0)
class Plain(NamedTuple):
    """The update itself."""


@implements(precondition, Plain)
def _(preconditioner, t, update, moments):
    pass


@checked(beta1=fraction, beta2=fraction, stability=positive)
@traits(moments=2)
class Adam(NamedTuple):
    """Adam's moments of the noisy update (paper 3, Algorithm 3).

    The algorithm divides by 1 − β^t at t = 0 and writes β² for β₂; here t counts from 1 and both
    moments are corrected by their own power. As in the paper, `stability` (ε₁) stands under the root.
    """

    beta1: float = 0.9
    beta2: float = 0.999
    stability: float = 1e-8


@implements(precondition, Adam)
def _(preconditioner, t, update, moments):
    first = 1.0 - preconditioner.beta1**t
    second = 1.0 - preconditioner.beta2**t
    for j in range(update.size):
        moments[0, j] += (1.0 - preconditioner.beta1) * (update[j] - moments[0, j])
        moments[1, j] += (1.0 - preconditioner.beta2) * (update[j] * update[j] - moments[1, j])
        update[j] = (moments[0, j] / first) / np.sqrt(moments[1, j] / second + preconditioner.stability)
