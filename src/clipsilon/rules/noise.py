"""Noise: what is added to the mean update v before it is applied.

Noise receives the step and a state of its own, so it may change over time or be correlated between steps. The class
attribute (or property) `memory` states how many vectors of length d the engine carries for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np
from numba import types
from numba.extending import register_jitable
from numpy.random import BitGenerator, Generator
from numpy.typing import NDArray

from clipsilon._core.apart import call_apart
from clipsilon._core.checks import budgets, buffers, frozen, nonnegative, positive, public_variance
from clipsilon._core.exact_normal import UNIT, integer_normal
from clipsilon._core.options import CONTAINED
from clipsilon._core.parts import Part, checked, fallback, implements, operation, traits
from clipsilon._core.vectors import is_measurable, norm
from clipsilon.problems.losses.base import gradient_center_of, sensitivity_of
from clipsilon.rules.correlation import LARGEST
from clipsilon.rules.schedules import Schedule, schedule, size, stretches

__all__ = [
    "Correlated",
    "Gaussian",
    "Local",
    "Noise",
    "Proportional",
    "Radial",
    "ScheduledGaussian",
    "add_noise",
    "correlate",
    "make_report",
]

Array = NDArray[np.float64]
Indices = NDArray[np.int64]


class Noise(Part, Protocol):
    """The noise added to the mean update: implements `add_noise`, unless it is Gaussian noise of the package.

    Noise that users add to their own gradients implements `make_report` instead.
    """


@operation
def add_noise(noise: Noise, t: int, drawn: Indices, update: Array, state: Array, rng: Generator) -> None:
    """Add noise to the mean update, in place.

    Parameters
    ----------
    noise : Noise
        The part.
    t : int
        The step, counted from 1.
    drawn : array of int
        Starts with the records that take part in the step.
    update : array of shape (d,)
        The mean update v, modified in place.
    state : array of shape (memory, d)
        What the noise carries from step to step; zero before the first step.
    rng : Generator
        The stream of the noise.
    """


@operation
def deviation(noise: Noise, t: int, contribution: float) -> float:
    """Return the standard deviation per coordinate in step t ≥ 1 of Gaussian noise, else 0.

    Where one record's contribution is bounded, too, the engine adds this noise itself, exactly.

    Parameters
    ----------
    noise : Noise
        The part.
    t : int
        The step, counted from 1.
    contribution : float
        The most that one record adds to the mean update of the step: the bound of the clip in force, divided by B.
    """


@operation
def correlate(noise: Noise, state: Array) -> None:
    """Turn fresh noise into that of a step, and remember it, in place; for Gaussian noise with a memory.

    Parameters
    ----------
    noise : Noise
        The part.
    state : array of shape (memory, d)
        What the noise carries from step to step. Its last row holds independent whole numbers, in units of the grid,
        and is to hold the noise of the step, which are whole numbers as well.
    """


@operation
def make_report(noise: Noise, user: int, gradient: Array, rng: Generator) -> float:
    """Turn a user's gradient into their report, in place, and return the weight of the report; for local noise.

    The engine averages the reports of a step, each divided by the total of the weights.

    Parameters
    ----------
    noise : Noise
        The part.
    user : int
        The number of the record.
    gradient : array of shape (d,)
        The gradient of the record, overwritten.
    rng : Generator
        The stream of the noise.

    Returns
    -------
    float
        A weight above 0, which must not depend on the gradient.
    """


@fallback(deviation)
def _unknown_deviation(noise: type) -> Callable[..., float]:
    return _no_deviation


def _no_deviation(noise, t, contribution):  # type: ignore[no-untyped-def]
    return 0.0


def initial_state(noise: Noise, dimension: int) -> Array:
    """Return the noise's state before the first step: `noise.memory` vectors of zeros, none if it does not say."""
    return np.zeros((int(getattr(noise, "memory", 0)), dimension))


def stds(noise: Noise, steps: int) -> list[tuple[int, float]]:
    """Return the standard deviation per coordinate as stretches of constant steps; 0 unless noise is Gaussian.

    That of correlated noise is the standard deviation of w.
    """
    if type(noise) is ScheduledGaussian:
        return stretches(noise.std, steps)
    return [(steps, float(noise.std) if isinstance(noise, Gaussian | Correlated) else 0.0)]


def std_of(noise: Noise) -> float:
    """Return the standard deviation of `Gaussian` noise; raise TypeError for any other noise."""
    if not isinstance(noise, Gaussian):
        raise TypeError(f"noise must be Gaussian, got {noise}.")
    return noise.std


@traits(exact=True)
@checked(std=nonnegative)
class Gaussian(NamedTuple):
    """N(0, std²) on every coordinate of the mean update (ζ in paper 1, w in paper 3)."""

    std: float


@implements(deviation, Gaussian)
def _(noise, t, contribution):
    return noise.std


@implements(add_noise, Gaussian)
def _(noise, t, drawn, update, state, rng):
    if noise.std > 0.0:
        _add_normal(noise.std, update, rng)


@register_jitable(**CONTAINED)
def _add_normal(std: float, update: Array, rng: Generator) -> None:
    """Add normal noise to sums that are not on a grid, in place."""
    bits = rng.bit_generator
    for j in range(update.size):
        update[j] += std * ((integer_normal(bits) + 0.5) / UNIT)


@traits(exact=True)
@checked(std=schedule)
class ScheduledGaussian(NamedTuple):
    """N(0, std_t²) on every coordinate, with a standard deviation that follows a public schedule."""

    std: Schedule


@implements(deviation, ScheduledGaussian)
def _(noise, t, contribution):
    return size(noise.std, t)


@implements(add_noise, ScheduledGaussian)
def _(noise, t, drawn, update, state, rng):
    _add_normal(size(noise.std, t), update, rng)


@traits(exact=True)
@checked(std=nonnegative, buffers=buffers)
class Correlated(NamedTuple):
    """Gaussian noise that later steps take back in part: C⁻¹w with w ~ N(0, std²) on every coordinate of every step.

    C is lower triangular, with 1 on the diagonal and c_k = Σ_i ω_i·θ_i^(k−1) k steps below it. The certificate is that
    of Gaussian noise w on C·v. `clipsilon.correlation` has functions that choose the buffers.

    Parameters
    ----------
    std : float
        Standard deviation of w, at least 0.
    buffers : array of shape (k, 2)
        Pairs of a decay θ_i and a weight ω_i, both between 0 and 1; the weights add up to at most 1.
    """

    std: float
    buffers: Array

    @property
    def memory(self) -> int:
        """How many vectors the noise carries from step to step: the buffers, what they take back, and the noise."""
        return len(self.buffers) + 2


@implements(deviation, Correlated)
def _(noise, t, contribution):
    return noise.std


@implements(correlate, Correlated)
def _(noise, state):
    # Row by row, so that the loops are compiled to vector instructions.
    count, d = noise.buffers.shape[0], state.shape[1]
    for j in range(d):
        state[count, j] = 0.0
    for i in range(count):
        weight = noise.buffers[i, 1]
        for j in range(d):
            state[count, j] += weight * state[i, j]
    for j in range(d):
        state[count + 1, j] -= np.rint(state[count, j])
    for i in range(count):
        decay = noise.buffers[i, 0]
        for j in range(d):
            state[i, j] = min(max(decay * state[i, j] + state[count + 1, j], -LARGEST), LARGEST)


@implements(add_noise, Correlated)
def _(noise, t, drawn, update, state, rng):
    bits, last = rng.bit_generator, state.shape[0] - 1
    for j in range(update.size):
        state[last, j] = integer_normal(bits)
    correlate(noise, state)
    for j in range(update.size):
        update[j] += noise.std * ((state[last, j] + 0.5) / UNIT)


@traits(exact=True)
@checked(multiplier=nonnegative)
class Proportional(NamedTuple):
    """N(0, (multiplier·c_t/B)²) on every coordinate: noise in proportion to c_t, the bound of the clip in force.

    The noise multiplier is the same in all steps, whatever the clip does: `clipping.Adaptive` needs this noise, and
    `clipping.Scheduled` is certified with it as a constant clip is.
    """

    multiplier: float


@implements(deviation, Proportional)
def _(noise, t, contribution):
    return noise.multiplier * contribution


@checked(scale=positive)
class Radial(NamedTuple):
    """Density ∝ exp(−‖z‖/scale): a uniform direction and a length of law Gamma(d, scale) (paper 5, App. E)."""

    scale: float


@implements(add_noise, Radial)
def _(noise, t, drawn, update, state, rng):
    direction = np.empty(update.size)
    square = 0.0
    for j in range(update.size):
        direction[j] = rng.standard_normal()
        square += direction[j] * direction[j]
    length = noise.scale * rng.standard_gamma(float(update.size)) / np.sqrt(square)
    for j in range(update.size):
        update[j] += length * direction[j]


_ORIGIN = frozen(np.zeros(1))
_MOST_BUDGET = 2.0**80  # whole numbers of 64 bits would not do for more


@traits(exact=True)
@checked(budgets=budgets, variance=public_variance)
class Local(NamedTuple):
    """N(0, (Δ/μ_i)²) on the gradient of user i, who chose μ_i; the standard deviation is 2·C0/μ_i in paper 4, eq. 2.

    The noise is exact: gradient and noise are whole numbers on a public grid (docs/proofs.md, "Exact normal noise").
    The reports of a step are averaged with weights 1/(V + d·(Δ/μ_i)²), which depend on public numbers alone.

    Parameters
    ----------
    budgets : array
        One μ for all users, or one per user.
    variance : float, default infinity
        V, the public guess at the variance of a gradient, at least 0. Infinity gives equal weights; NaN stands for
        (Δ/2)², which no variance exceeds, and is replaced when a run begins.
    sensitivity : float
        Δ, the largest change of a gradient when its record is replaced. The problem's loss states it, so it is filled
        in when a run begins and is NaN until then.
    center : array
        The middle of all gradients, one number or one per coordinate; filled in likewise. Only rounding takes a
        gradient more than Δ/2 away from it, and such a gradient is moved back; one that is not finite is replaced by
        the center.
    """

    budgets: Array
    variance: float = np.inf
    sensitivity: float = np.nan
    center: Array = _ORIGIN

    def on(self, problem: Any) -> Local:
        """Return the same budgets with the sensitivity of the problem's loss."""
        sensitivity = sensitivity_of(problem.loss)
        if problem.weights is not None:
            raise ValueError("weights must be None for local privacy: a weight would change the loss's sensitivity.")
        if problem.starts is not None:
            raise ValueError("groups must be None for local privacy, where each user has one record.")
        self.check_users(problem.records)
        if self.budgets.max() > _MOST_BUDGET:
            raise ValueError(f"budget must be at most 2**80, got {self.budgets.max():g}.")
        center = frozen(gradient_center_of(problem.loss, problem.dimension))
        variance = (0.5 * sensitivity) ** 2 if np.isnan(self.variance) else self.variance
        return self._replace(variance=variance, sensitivity=sensitivity, center=center)

    def check_users(self, users: int) -> None:
        """Raise ValueError unless there is one budget, or one per user."""
        if self.budgets.size not in (1, users):
            raise ValueError(f"budget must be one number or one for each of {users} users, got {self.budgets.size}.")


@implements(make_report, Local)
def _(noise, user, gradient, rng):
    budgets, variance, sensitivity, center = noise  # arrays in tuples would be counted as references in every step
    budget = budgets[user if budgets.size > 1 else 0]
    std = sensitivity / budget
    unit, shift = _unit_of(0.5 * budget)
    is_written = _write_report((gradient, center, 0.5 * sensitivity, std * unit, shift, rng.bit_generator))
    return is_written * report_weight(variance, gradient.size, std)


@register_jitable(**CONTAINED)
def report_weight(variance: float, dimension: int, std: float) -> float:
    """Return the weight of a report in the mean of a round, 1/(V + d·σ²); 1 if V is infinite.

    These weights, divided by their sum, give the mean of independent reports its least variance.

    Parameters
    ----------
    variance : float
        V, the variance of a gradient: the mean square of its distance from the mean gradient.
    dimension : int
        d.
    std : float
        σ, the standard deviation of the report's noise per coordinate.

    Returns
    -------
    float
        A number above 0.
    """
    return 1.0 if variance == np.inf else 1.0 / (variance + dimension * std * std)


# Without fastmath, which functions would otherwise inherit from the kernel that calls them.
_EXACT = {"fastmath": False, "error_model": "numpy", "forceinline": True}


@register_jitable(**_EXACT)  # type: ignore[untyped-decorator]
def _unit_of(share: float) -> tuple[float, int]:
    """Return the grid in standard deviations, 2^(shift−32), and the shift, for vectors of `share` deviations at most.

    Whole numbers up to share/unit are then below 2⁵⁰.
    """
    unit, shift = 2.0**-32, 0
    while share >= 2.0**50 * unit:
        unit, shift = 2.0 * unit, shift + 1
    return unit, shift


def _write(job: tuple[Array, Array, float, float, int, BitGenerator]) -> float:
    """Turn a gradient into a report, in place, and return 1; job = (gradient, center, most, grid, shift, bits).

    Minus the center, the gradient becomes a multiple grid·q of norm at most `most`, or 0 if it cannot be measured; then
    grid·(q + ⌊2^(32−shift)·N⌋ + ½), plus the center. Sums of q and noise are exact, as both are below 2^50.
    """
    vector, center, most, grid, shift, bits = job
    stride = 1 if center.size > 1 else 0
    for j in range(vector.size):
        vector[j] -= center[stride * j]
    length, limit = norm(vector), (1.0 - (vector.size + 8) * 2.0**-52) * most
    factor = limit / max(limit, length)
    for j in range(vector.size):
        vector[j] = np.trunc(factor * vector[j] / grid) if is_measurable(length) else 0.0
    for j in range(vector.size):
        units = (integer_normal(bits) >> shift) + 0.5
        vector[j] = grid * (vector[j] + units) + center[stride * j]
    return 1.0


_write_report = call_apart(_write, types.float64, on_error=np.nan)  # a weight of NaN stops the run
