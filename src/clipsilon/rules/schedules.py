"""Step sizes γ_t for t = 1, 2, …"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from clipsilon._core.checks import nonnegative, positive
from clipsilon._core.parts import Part, checked, implements, operation

__all__ = ["Constant", "InverseTime", "Power", "Schedule", "size"]


class Schedule(Part, Protocol):
    """A number for each step t = 1, 2, …: implements `size`."""


@operation
def size(step: Schedule, t: int) -> float:
    """γ_t, the step size of the t-th update, t ≥ 1."""


@checked(gamma=positive)
class Constant(NamedTuple):
    """γ_t = gamma."""

    gamma: float


@implements(size, Constant)
def _(step, t):
    return step.gamma


@checked(a0=positive, a1=nonnegative)
class InverseTime(NamedTuple):
    """γ_t = a0/(a1 + t) (paper 1, Theorem 4.3)."""

    a0: float
    a1: float


@implements(size, InverseTime)
def _(step, t):
    return step.a0 / (step.a1 + t)


@checked(eta=positive, alpha=nonnegative)
class Power(NamedTuple):
    """γ_t = eta·t^(−alpha) (paper 4)."""

    eta: float
    alpha: float


@implements(size, Power)
def _(step, t):
    return step.eta * t ** (-step.alpha)
