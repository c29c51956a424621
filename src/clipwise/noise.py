"""Noise: what is added to the mean update v before it is applied."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from clipwise.checks import nonnegative
from clipwise.parts import checked, implements, operation

Array = NDArray[np.float64]


@operation
def add_noise(noise: Any, update: Array, rng: Generator) -> None:
    """Update += noise, in place."""


@checked(std=nonnegative)
class Gaussian(NamedTuple):
    """N(0, std²) on every coordinate of the mean update (ζ in paper 1, w in paper 3)."""

    std: float


@implements(add_noise, Gaussian)
def _(noise, update, rng):
    if noise.std > 0.0:
        for j in range(update.size):
            update[j] += noise.std * rng.standard_normal()
