"""Outputs: what of a run is released at its end."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from clipsilon._core.checks import nonnegative, positive
from clipsilon._core.parts import Part, checked, fallback, implemented, implements, operation, traits
from clipsilon._core.vectors import norm

__all__ = ["Average", "Last", "Output", "Selected", "consider", "summarise"]

Array = NDArray[np.float64]


class Output(Part, Protocol):
    """What of a run is released: implements `summarise` and, if it looks at updates before noise, `consider`."""


@operation
def summarise(output: Output, t: int, theta: Array, summary: Array) -> None:
    """Bring `summary` up to date with θ_t, t ≥ 1. It starts with the model that would be released now."""


@operation
def consider(output: Output, theta: Array, update: Array, summary: Array, rng: Generator) -> None:
    """Bring `summary` up to date with θ_t and its update *before noise*, t ≥ 0; nothing is done for most outputs."""


@fallback(consider)
def _unconsidered(output: type) -> Callable[..., None]:
    return _nothing


def _nothing(output, theta, update, summary, rng):  # type: ignore[no-untyped-def]
    pass


def considers(output: Output) -> bool:
    """Whether an output looks at updates before noise, and not at the iterates alone."""
    return type(output) in implemented(consider)


def averages(output: Output) -> bool:
    """Whether the summary is recorded along the run, as averages are; so is that of an output that does not say."""
    return bool(getattr(output, "averages", True))


def begin(output: Output, theta: Array) -> Array:
    """The summary before the first step: θ itself, or a copy of it and, from ∞ on, what the output notes beside it."""
    if not getattr(output, "separate", True):
        return theta
    return np.append(theta, np.full(getattr(output, "notes", 0), np.inf))


@traits(separate=False, averages=False)
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


@traits(averages=False, notes=1)
@checked(epsilon=positive)
class Selected(NamedTuple):
    """The one of θ_0, …, θ_{T−1} with the shortest mean gradient, up to Laplace noise (paper 5, Theorem 4.1).

    Report-noisy-min: `epsilon` is what the choice costs when a record is replaced. `scale` is that of the noise; it
    depends on the clip and on the number of records, so it is filled in when a run begins, and NaN until then.
    """

    epsilon: float
    scale: float = np.nan

    def on(self, bound: float, records: int) -> Selected:
        """The same with its scale, 4L/(nε): twice 2L/n, the most that one of n gradients up to L changes, over ε."""
        return self._replace(scale=4.0 * bound / (records * self.epsilon))


@implements(summarise, Selected)
def _(output, t, theta, summary):
    pass


@implements(consider, Selected)
def _(output, theta, update, summary, rng):
    noisy = norm(update) + rng.laplace(0.0, output.scale)
    if noisy < summary[theta.size]:  # the least noisy norm until now
        summary[theta.size] = noisy
        for j in range(theta.size):
            summary[j] = theta[j]
