"""Noise: what is added to the mean update v before it is applied."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from clipsilon._core.checks import budgets, nonnegative, positive
from clipsilon._core.parts import Part, checked, implements, operation
from clipsilon.problems.losses.base import sensitivity_of

__all__ = ["Gaussian", "Local", "Noise", "Radial", "add_noise"]

Array = NDArray[np.float64]
Indices = NDArray[np.int64]


class Noise(Part, Protocol):
    """The noise added to the mean update: implements `add_noise`."""


@operation
def add_noise(noise: Noise, drawn: Indices, update: Array, rng: Generator) -> None:
    """Update += noise, in place. `drawn` starts with the records of the step."""


@checked(std=nonnegative)
class Gaussian(NamedTuple):
    """N(0, std²) on every coordinate of the mean update (ζ in paper 1, w in paper 3)."""

    std: float


@implements(add_noise, Gaussian)
def _(noise, drawn, update, rng):
    if noise.std > 0.0:
        for j in range(update.size):
            update[j] += noise.std * rng.standard_normal()


@checked(scale=positive)
class Radial(NamedTuple):
    """Density ∝ exp(−‖z‖/scale) on the mean update: any direction, a length of Gamma(d, scale) (paper 5, App. E)."""

    scale: float


@implements(add_noise, Radial)
def _(noise, drawn, update, rng):
    direction = np.empty(update.size)
    square = 0.0
    for j in range(update.size):
        direction[j] = rng.standard_normal()
        square += direction[j] * direction[j]
    length = noise.scale * rng.standard_gamma(float(update.size)) / np.sqrt(square)
    for j in range(update.size):
        update[j] += length * direction[j]


@checked(budgets=budgets)
class Local(NamedTuple):
    """N(0, (Δ/μ_i)²) for the user i of the step, who chose μ_i: 2·C0/μ_i in paper 4, eq. 2.

    `budgets` holds one μ for all users or one each. `sensitivity` is Δ, how much a gradient changes at most when its
    record is replaced; the problem's loss knows it, so it is filled in when a run begins, and NaN until then.
    """

    budgets: Array
    sensitivity: float = np.nan

    def on(self, problem: Any) -> Local:
        """The same budgets with the sensitivity of the problem's loss."""
        sensitivity = sensitivity_of(problem.loss)
        if problem.weights is not None:
            raise ValueError("weights must be None for local privacy: a weight would change the loss's sensitivity.")
        self.check_users(problem.records)
        return self._replace(sensitivity=sensitivity)

    def check_users(self, users: int) -> None:
        """Refuse budgets of other users than these."""
        if self.budgets.size not in (1, users):
            raise ValueError(f"budget must be one number or one for each of {users} users, got {self.budgets.size}.")


@implements(add_noise, Local)
def _(noise, drawn, update, rng):
    user = drawn[0] if noise.budgets.size > 1 else 0
    std = noise.sensitivity / noise.budgets[user]
    for j in range(update.size):
        update[j] += std * rng.standard_normal()
