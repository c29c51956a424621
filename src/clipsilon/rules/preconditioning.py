"""Preconditioning: how the noisy update is turned into a direction. Preconditioners see noisy updates only."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from clipsilon._core.checks import fraction, positive
from clipsilon._core.parts import Part, checked, implements, operation, traits

__all__ = ["Accumulated", "Adam", "Plain", "Preconditioner", "precondition"]

Array = NDArray[np.float64]


class Preconditioner(Part, Protocol):
    """The direction made from a noisy update: implements `precondition`.

    The class attribute `moments` states how many vectors of length d are carried from step to step (default 2).
    """


@operation
def precondition(preconditioner: Preconditioner, t: int, update: Array, moments: Array) -> None:
    """Replace the noisy update by a direction, in place.

    Parameters
    ----------
    preconditioner : Preconditioner
        The part.
    t : int
        The step, counted from 1.
    update : array of shape (d,)
        The noisy update.
    moments : array of shape (moments, d)
        What the preconditioner carries from step to step; zero before the first step.
    """


def moments(preconditioner: Preconditioner) -> int:
    """Return the number of vectors that a preconditioner carries; 2 unless it has an attribute `moments`."""
    return int(getattr(preconditioner, "moments", 2))


@traits(moments=0)
class Plain(NamedTuple):
    """Use the noisy update itself."""


@implements(precondition, Plain)
def _(preconditioner, t, update, moments):
    pass


@checked(beta1=fraction, beta2=fraction, stability=positive)
@traits(moments=2)
class Adam(NamedTuple):
    """Divide a running mean of the noisy updates by the root of a running mean square (paper 3, Algorithm 3).

    The printed algorithm divides by 1 − β^t at t = 0 and writes β² for β₂. Here t counts from 1, and each moment is
    corrected by its own power.

    Parameters
    ----------
    beta1, beta2 : float, default 0.9 and 0.999
        Decay rates of the first and second moments, at least 0 and below 1.
    stability : float, default 1e-8
        ε₁, above 0. As in the paper, it is added under the root.
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


@traits(moments=1)
class Accumulated(NamedTuple):
    """The sum of all noisy updates so far, G ← G + share·(v + noise), where updates are changes of a gradient.

    Parameters
    ----------
    share : float, optional
        q, the expected share of the records in a batch: B/m, with which G is a sum over all records divided by m, or
        the sampler's public rate. A run fills it in.
    """

    share: float = np.nan

    def on(self, share: float) -> Accumulated:
        """Return the part with the share of the records in a batch."""
        return Accumulated(float(share))


@implements(precondition, Accumulated)
def _(preconditioner, t, update, moments):
    for j in range(update.size):
        moments[0, j] += preconditioner.share * update[j]
        update[j] = moments[0, j]
