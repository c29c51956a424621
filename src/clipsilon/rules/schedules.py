"""Schedules: numbers that change with the step t = 1, 2, …, for step sizes, clip thresholds and noise."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from clipsilon._core.checks import budgets, count, frozen, integers, nonnegative, positive, short_repr
from clipsilon._core.parts import Part, checked, implements, operation, require

__all__ = ["Constant", "InverseTime", "Piecewise", "Power", "Schedule", "size", "stretches"]


class Schedule(Part, Protocol):
    """A number for each step t = 1, 2, …: implements `size`."""


@operation
def size(step: Schedule, t: int) -> float:
    """Return the number for step t ≥ 1, such as the step size γ_t."""


def schedule(name: str, value: Any) -> Any:
    """Check that an argument is a schedule, and return it."""
    require(name, value, [size])
    return value


def stretches(schedule: Schedule, steps: int) -> list[tuple[int, float]]:
    """Cut the steps 1, …, `steps` into stretches of one constant value each.

    Parameters
    ----------
    schedule : Schedule
        The schedule. A method `changes(steps)` that lists the steps at which a new value begins makes this fast for
        long runs; without it every step is evaluated.
    steps : int
        The number of steps, T ≥ 1.

    Returns
    -------
    list of (int, float)
        Lengths, which sum to `steps`, and values, in order.
    """
    changes = getattr(schedule, "changes", None)
    starts = list(range(1, steps + 1)) if changes is None else changes(steps)
    lengths = np.diff([*starts, steps + 1])
    return [(int(length), float(size(schedule, t))) for t, length in zip(starts, lengths, strict=True)]


def sizes(schedule: Schedule, steps: int) -> NDArray[np.float64]:
    """Return the numbers for the steps 1, …, `steps`."""
    if isinstance(schedule, InverseTime | Power):
        return np.asarray(size(schedule, np.arange(1.0, steps + 1.0)), dtype=np.float64)
    lengths, values = zip(*stretches(schedule, steps), strict=True)
    return np.repeat(np.array(values), lengths)


def scaled(schedule: Schedule, factor: float) -> Schedule:
    """Return a schedule of the package with all its values multiplied by a factor."""
    match schedule:
        case Constant():
            return Constant(schedule.gamma * factor)
        case InverseTime():
            return InverseTime(schedule.a0 * factor, schedule.a1)
        case Power():
            return Power(schedule.eta * factor, schedule.alpha)
        case Piecewise():
            return Piecewise(schedule.starts, schedule.values * factor)
    raise ValueError(f"std must be a schedule of clipsilon to be calibrated, got {type(schedule).__name__}.")


@checked(gamma=positive)
class Constant(NamedTuple):
    """γ_t = gamma."""

    gamma: float

    def changes(self, steps: int) -> list[int]:
        """List the steps at which a new value begins."""
        return [1]


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


def _starts(name: str, value: Any) -> NDArray[np.int64]:
    result = integers(value)
    if result is None or result[0] != 1 or (result[1:] <= result[:-1]).any():
        raise ValueError(f"{name} must be increasing step numbers that begin with 1, got {short_repr(value)}.")
    return frozen(result.copy())


@checked(starts=_starts, values=budgets)
class Piecewise(NamedTuple):
    """γ_t = values[k] from step starts[k] up to the next start; the first start is 1.

    A rule whose step size, clip and noise are piecewise constant is one rule with phases.

    Examples
    --------
    >>> import clipsilon as cs
    >>> schedule = cs.schedules.Piecewise(starts=[1, 101], values=[0.5, 0.1])
    >>> cs.schedules.stretches(schedule, 120)
    [(100, 0.5), (20, 0.1)]
    """

    starts: NDArray[np.int64]
    values: NDArray[np.float64]

    def check(self) -> None:
        """Raise ValueError unless there is one value per start."""
        if self.starts.size != self.values.size:
            raise ValueError(f"values must be one per start ({self.starts.size}), got {self.values.size}.")

    def changes(self, steps: int) -> list[int]:
        """List the steps at which a new value begins."""
        count("steps", steps)
        return [int(start) for start in self.starts if start <= steps]


@implements(size, Piecewise)
def _(step, t):
    value = step.values[0]
    for k in range(1, step.starts.size):
        if t >= step.starts[k]:
            value = step.values[k]
    return value
