"""Outputs: the model that is released at the end of a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from clipsilon._core.checks import nonnegative, positive
from clipsilon._core.exact_laplace import integer_laplace
from clipsilon._core.exact_normal import UNIT
from clipsilon._core.parts import Part, checked, fallback, implemented, implements, operation, traits
from clipsilon._core.vectors import norm

__all__ = ["Average", "Last", "Output", "Selected", "TailAverage", "consider", "summarise"]

Array = NDArray[np.float64]


class Output(Part, Protocol):
    """The model that a run releases: implements `summarise` and, if it uses updates before noise, `consider`.

    An output keeps a `summary`, an array that begins with the model that would be released now. Class attributes state
    how: `separate = False` if the summary is θ itself, `notes` for the number of values after the model (default 0),
    and `averages = False` if the summary need not be recorded along the run.
    """


@operation
def summarise(output: Output, t: int, theta: Array, summary: Array) -> None:
    """Update the summary with the iterate θ_t, in place.

    Parameters
    ----------
    output : Output
        The part.
    t : int
        The number of steps done, at least 1.
    theta : array of shape (d,)
        θ_t.
    summary : array of shape (d + notes,)
        The model that would be released now, and the output's notes.
    """


@operation
def consider(output: Output, theta: Array, update: Array, summary: Array, rng: Generator) -> None:
    """Update the summary with θ_t and its update *before noise*, in place; most outputs do nothing.

    Nothing is certified for a user's output that implements this operation.

    Parameters
    ----------
    output : Output
        The part.
    theta : array of shape (d,)
        θ_t, t ≥ 0, at which the gradients of the step were taken.
    update : array of shape (d,)
        The mean update v, without noise.
    summary : array of shape (d + notes,)
        The model that would be released now, and the output's notes.
    rng : Generator
        The stream of the noise.
    """


@fallback(consider)
def _unconsidered(output: type) -> Callable[..., None]:
    return _nothing


def _nothing(output, theta, update, summary, rng):  # type: ignore[no-untyped-def]
    pass


def considers(output: Output) -> bool:
    """Return whether an output uses updates before noise, besides the iterates."""
    return type(output) in implemented(consider)


def averages(output: Output) -> bool:
    """Return whether the summary is recorded along the run; True unless the output's attribute `averages` is False."""
    return bool(getattr(output, "averages", True))


def begin(output: Output, theta: Array) -> Array:
    """Return the summary before the first step: θ itself, or a copy of it followed by `notes` entries of ∞."""
    if not getattr(output, "separate", True):
        return theta
    return np.append(theta, np.full(getattr(output, "notes", 0), np.inf))


@traits(separate=False, averages=False)
class Last(NamedTuple):
    """Release the last iterate: the summary is θ itself."""


@implements(summarise, Last)
def _(output, t, theta, summary):
    pass


@checked(power=nonnegative)
@traits(averages=True)
class Average(NamedTuple):
    """Release the mean of θ_1, …, θ_t (Polyak–Ruppert), updated in each step without storing the iterates.

    With a power p > 0, θ_k has a weight of about (k/t)^p: polynomial-decay averaging (Shamir and Zhang, 2013, with
    η = p). It forgets early iterates sooner, and does not need the length of the run in advance.
    """

    power: float = 0.0


@implements(summarise, Average)
def _(output, t, theta, summary):
    weight = (1.0 + output.power) / (t + output.power)
    for j in range(theta.size):
        summary[j] += weight * (theta[j] - summary[j])


@traits(averages=True)
class TailAverage(NamedTuple):
    """Release the mean of the last half of the iterates, θ_{⌊T/2⌋+1}, …, θ_T; before them, the last iterate.

    `begin`, the number of iterates that are left out, follows from the length of the run, so it is filled in when a run
    begins and is −1 until then.
    """

    begin: int = -1

    def on(self, steps: int) -> TailAverage:
        """Return the output for a run of T steps."""
        return TailAverage(steps // 2)


@implements(summarise, TailAverage)
def _(output, t, theta, summary):
    weight = 1.0 / max(1, t - output.begin)
    for j in range(theta.size):
        summary[j] += weight * (theta[j] - summary[j])


@traits(averages=False, notes=1, exact=True)
@checked(epsilon=positive)
class Selected(NamedTuple):
    """Release the iterate of θ_0, …, θ_{T−1} with the smallest noisy norm of the mean gradient.

    This is report-noisy-min with Laplace noise (paper 5, Theorem 4.1). `epsilon` is the privacy cost of the selection
    under replace-one. `scale`, the scale of the noise, depends on the clip and on the number of records, so it is
    filled in when a run begins and is NaN until then.
    """

    epsilon: float
    scale: float = np.nan

    def on(self, bound: float, records: int, dimension: int = 1) -> Selected:
        """Return the output with the scale 4L/(nε), twice the sensitivity 2L/n over ε; L is `bound`, n is `records`.

        It is larger by a factor of 1 + 2⁻²⁰ + 2⁻²⁰/ε, which covers the rounding of norms and of the grid; more if
        n·(d + 16) exceeds 2³³ (docs/proofs.md, "Exact sums in the engine").

        Parameters
        ----------
        bound : float
            L, the bound on one record's gradient.
        records, dimension : int
            n and d.
        """
        more = 1.0 + max(2.0**-20, records * (dimension + 16) * 2.0**-53) + 2.0**-20 / self.epsilon
        return self._replace(scale=more * 4.0 * bound / (records * self.epsilon))


@implements(summarise, Selected)
def _(output, t, theta, summary):
    pass


@implements(consider, Selected)
def _(output, theta, update, summary, rng):
    # On a grid of scale·2⁻³², exactly; which iterate is selected follows from the noisy whole numbers.
    noisy = np.rint(norm(update) / output.scale * UNIT) + integer_laplace(rng.bit_generator)
    if noisy < summary[theta.size]:  # the smallest noisy norm so far
        summary[theta.size] = noisy
        for j in range(theta.size):
            summary[j] = theta[j]
