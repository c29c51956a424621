"""Clips: bounds on the influence of one record, or of the fed-back error.

A clip that depends on the step or on what earlier steps released implements `at_step`: it returns the clip in force,
which is then applied to every record of the step. A clip that adapts also implements `tally`, which counts records,
and `adapt`, which updates the clip's state from the counts. The engine carries the state, saves it in checkpoints, and
adds the counts up over threads and Dask chunks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np
from numba.extending import register_jitable
from numpy.random import Generator
from numpy.typing import NDArray

from clipsilon._core.checks import count, count_noise, open_fraction, positive
from clipsilon._core.exact_normal import integer_normal
from clipsilon._core.options import CONTAINED
from clipsilon._core.parts import Part, checked, fallback, implementation, implemented, implements, operation, traits
from clipsilon._core.vectors import norm
from clipsilon.rules.schedules import Schedule, schedule, size, stretches

__all__ = [
    "Adaptive",
    "Clip",
    "Norm",
    "Normalise",
    "PerClass",
    "Scheduled",
    "Unclipped",
    "adapt",
    "add_clipped",
    "at_step",
    "scale",
    "suggest_quantile",
    "tally",
]

Array = NDArray[np.float64]


class Clip(Part, Protocol):
    """A bound on the influence of one record: implements `add_clipped`, or `at_step` if it changes with the step.

    A clip that only scales its vector also implements `scale`, which is faster. `bound()` states the largest norm that
    leaves the clip; `initial_state()` the numbers that it carries from step to step; the class attribute `counts` how
    many sums over records it adapts to. `check_dimension(dimension)` raises ValueError where θ has no fitting length.
    """


@operation
def add_clipped(clip: Clip, vector: Array, weight: float, total: Array) -> None:
    """Add weight · clip(vector) to `total`, in place.

    Parameters
    ----------
    clip : Clip
        The clip in force.
    vector : array of shape (d,)
        A record's gradient, or the fed-back error; left unchanged.
    weight : float
        What the clipped vector is multiplied by.
    total : array of shape (d,)
        The sum, updated in place.
    """


@operation
def scale(clip: Clip, amount: float, norm: float) -> float:
    """Return the factor that replaces `amount` when `amount`·x is clipped, for clips that only scale.

    Parameters
    ----------
    clip : Clip
        The clip in force.
    amount : float
        What multiplies x before clipping.
    norm : float
        ‖amount·x‖.
    """


@operation
def largest_norm(clip: Clip) -> float:
    """Return the largest norm that leaves a clip in force; infinite unless it is a clip of the package with a bound."""


@operation
def at_step(clip: Clip, t: int, state: Array) -> Clip:
    """Return the clip in force in step t ≥ 1; the clip itself unless it changes with the step.

    Parameters
    ----------
    clip : Clip
        The rule's clip.
    t : int
        The step, counted from 1.
    state : array
        The clip's state before the step, which must not be modified here.
    """


@operation
def tally(clip: Clip, norm: float, counts: Array) -> None:
    """Add one record's contribution to the counts of the step, in place; most clips count nothing.

    Records that are not drawn, and records that are zeroed out (of weight 0), are not counted: count in such a way that
    this is the same as adding 0.

    Parameters
    ----------
    clip : Clip
        The clip in force.
    norm : float
        The norm of the record's gradient before clipping.
    counts : array of shape (clip.counts,)
        Sums over the records of the step.
    """


@operation
def adapt(clip: Clip, t: int, counts: Array, state: Array, rng: Generator) -> None:
    """Update the clip's state after step t, in place; most clips have none.

    Parameters
    ----------
    clip : Clip
        The rule's clip.
    t : int
        The step, counted from 1.
    counts : array of shape (clip.counts,)
        The step's counts without noise. Whatever enters `state` must be private: add noise from `rng`.
    state : array
        The clip's state.
    rng : Generator
        The stream of the noise.
    """


@fallback(largest_norm)
def _unbounded(clip: type) -> Callable[..., float]:
    return _no_bound


def _no_bound(clip):  # type: ignore[no-untyped-def]
    return np.inf


@fallback(at_step)
def _unchanging(clip: type) -> Callable[..., Any] | None:
    return _itself if implementation(add_clipped, clip) is not None else None


def _itself(clip, t, state):  # type: ignore[no-untyped-def]
    return clip


@fallback(tally)
def _uncounted(clip: type) -> Callable[..., None]:
    return _count_nothing


def _count_nothing(clip, norm, counts):  # type: ignore[no-untyped-def]
    pass


@fallback(adapt)
def _unadapting(clip: type) -> Callable[..., None]:
    return _adapt_nothing


def _adapt_nothing(clip, t, counts, state, rng):  # type: ignore[no-untyped-def]
    pass


def initial_state(clip: Clip) -> Array:
    """Return the clip's state before the first step; empty for most clips."""
    return np.array(clip.initial_state(), dtype=np.float64) if hasattr(clip, "initial_state") else np.empty(0)


def counts_records(clip: Clip) -> bool:
    """Return whether a clip looks at the records of a step beyond clipping them."""
    parts = [clip]
    if type(clip) in implemented(at_step):
        parts.append(at_step(clip, 1, initial_state(clip)))
    return any(type(part) in implemented(op) for part in parts for op in (tally, adapt))


def count_width(clip: Clip) -> int:
    """Return how many sums over records a clip adapts to."""
    return int(getattr(clip, "counts", 0))


def bound_of(clip: Clip) -> float:
    """Return the largest norm that leaves the clip in all steps; ∞ if the clip does not state it."""
    return float(clip.bound()) if hasattr(clip, "bound") else np.inf


def bounds(clip: Clip, steps: int) -> list[tuple[int, float]]:
    """Return the largest norm that leaves the clip, as stretches of constant steps; ∞ if the clip does not state it."""
    if hasattr(clip, "bounds"):
        return list(clip.bounds(steps))
    return [(steps, bound_of(clip))]


class Unclipped(NamedTuple):
    """The identity; nothing is bounded."""

    def bound(self) -> float:
        """Return the largest norm that leaves the clip."""
        return np.inf


@implements(add_clipped, Unclipped)
def _(clip, vector, weight, total):
    for j in range(vector.size):
        total[j] += weight * vector[j]


@implements(scale, Unclipped)
def _(clip, amount, norm):
    return amount


@checked(threshold=positive)
class Norm(NamedTuple):
    """min{1, c/‖g‖}·g, the projection onto the ball of radius c (paper 1, eq. 1)."""

    threshold: float

    def bound(self) -> float:
        """Return the largest norm that leaves the clip."""
        return self.threshold


@implements(largest_norm, Norm)
def _(clip):
    return clip.threshold


@implements(add_clipped, Norm)
def _(clip, vector, weight, total):
    # A zero vector divides by max(…) too, so there is no branch on the data.
    scale = weight * (clip.threshold / max(clip.threshold, norm(vector)))
    for j in range(vector.size):
        total[j] += scale * vector[j]


@implements(scale, Norm)
def _(clip, amount, norm):
    return amount * (clip.threshold / max(clip.threshold, norm))


@checked(length=positive)
class Normalise(NamedTuple):
    """length·g/‖g‖, "automatic" clipping; zero stays zero (paper 3, App. C.4)."""

    length: float = 1.0

    def bound(self) -> float:
        """Return the largest norm that leaves the clip."""
        return self.length


@implements(largest_norm, Normalise)
def _(clip):
    return clip.length


@implements(add_clipped, Normalise)
def _(clip, vector, weight, total):
    length = norm(vector)
    if length != 0.0:  # NaN is passed on
        for j in range(vector.size):
            total[j] += weight * clip.length * (vector[j] / length)


@implements(scale, Normalise)
def _(clip, amount, norm):
    return clip.length * (amount / norm) if norm != 0.0 else 0.0


@checked(threshold=positive, classes=count)
class PerClass(NamedTuple):
    """Each of `classes` equal blocks of the vector is clipped by its own norm (paper 5, Theorem D.5)."""

    threshold: float
    classes: int

    def bound(self) -> float:
        """Return the largest norm that leaves the clip: all blocks at their threshold."""
        return self.threshold * float(np.sqrt(self.classes))

    def check_dimension(self, dimension: int) -> None:
        """Raise ValueError unless the dimension divides into equal blocks."""
        if dimension % self.classes:
            raise ValueError(f"PerClass needs a dimension divisible by {self.classes} classes, got {dimension}.")


@implements(largest_norm, PerClass)
def _(clip):
    return clip.threshold * np.sqrt(clip.classes)


@implements(add_clipped, PerClass)
def _(clip, vector, weight, total):
    width = vector.size // clip.classes
    for k in range(clip.classes):
        block = vector[k * width : (k + 1) * width]
        scale = weight * (clip.threshold / max(clip.threshold, norm(block)))
        for j in range(width):
            total[k * width + j] += scale * block[j]


@checked(threshold=schedule)
class Scheduled(NamedTuple):
    """min{1, c_t/‖g‖}·g with a threshold c_t that follows a public schedule.

    Pair it with `noise.ScheduledGaussian`: noise in proportion to the threshold has a constant noise multiplier, and
    the certificate is that of a constant clip.
    """

    threshold: Schedule

    def bounds(self, steps: int) -> list[tuple[int, float]]:
        """Return the thresholds, as stretches of constant steps."""
        return stretches(self.threshold, steps)


@implements(at_step, Scheduled)
def _(clip, t, state):
    return Norm(size(clip.threshold, t))


REACH = 2.0**30
"""An adaptive threshold stays within this factor of its start, so that its grids are those of ordinary numbers."""
_LARGEST_COUNT = 2**61
_FARTHEST = 50.0  # more than the logarithm of REACH², the longest way from one end to the other
_LEAST_CLIPPED = 1e-9


@traits(counts=1)
@checked(start=positive, quantile=open_fraction, rate=positive, count_noise=count_noise)
class Adaptive(NamedTuple):
    """min{1, c_t/‖g‖}·g with a threshold c_t that follows a private quantile of the norms (Andrew et al., 2021).

    A record that takes part counts +½ if ‖g‖ ≤ c_t and −½ otherwise; other records, and records of weight 0, count 0.
    The noisy count b_t estimates the fraction of records that are not clipped, b_t/B + ½, with the public batch size B:

    log c_{t+1} = log c_t − rate·(b_t/B + ½ − quantile), between start·2⁻³⁰ and start·2³⁰.

    Pair it with `noise.Proportional`: no other noise is certified with it. The count is priced together with the sum,
    as one Gaussian (docs/proofs.md, "Adaptive clipping").

    Parameters
    ----------
    start : float
        c_1, the threshold of the first step, above 0. It must not be chosen by looking at the records.
    quantile : float
        The fraction of records that should not be clipped, above 0 and below 1. `suggest_quantile` finds one; the
        median is far too small for most problems.
    rate : float
        How fast the threshold moves, above 0; 0.2 in the paper.
    count_noise : float
        σ_b, the standard deviation of the noise on the count, between 1/32 and 2³⁰; B/20 in the paper.
    batch : float, optional
        B, which a run takes from the rule's sampling; None until then.
    """

    start: float
    quantile: float
    rate: float
    count_noise: float
    batch: float | None = None

    def initial_state(self) -> list[float]:
        """Return the threshold of the first step."""
        return [self.start]

    def on(self, batch: int) -> Adaptive:
        """Return the same clip with the public batch size."""
        return self._replace(batch=float(batch))


class _CountedNorm(NamedTuple):
    """`Norm` that also counts who is clipped: `Adaptive` as in force in one step."""

    threshold: float

    def bound(self) -> float:
        """Return the largest norm that leaves the clip."""
        return self.threshold


@implements(at_step, Adaptive)
def _(clip, t, state):
    return _CountedNorm(state[0])


@implements(largest_norm, _CountedNorm)
def _(clip):
    return clip.threshold


@implements(add_clipped, _CountedNorm)
def _(clip, vector, weight, total):
    add_clipped(Norm(clip.threshold), vector, weight, total)


@implements(scale, _CountedNorm)
def _(clip, amount, norm):
    return scale(Norm(clip.threshold), amount, norm)


@implements(tally, _CountedNorm)
def _(clip, norm, counts):
    # Twice the count, so that it is whole. A gradient that is not finite counts as one that is too long.
    counts[0] += 1.0 if norm <= clip.threshold else -1.0


@implements(adapt, Adaptive)
def _(clip, t, counts, state, rng):
    fraction = noisy_count(clip.count_noise, counts[0], rng) / clip.batch + 0.5
    farther = min(max(-clip.rate * (fraction - clip.quantile), -_FARTHEST), _FARTHEST)  # so that nothing overflows
    moved = state[0] * np.exp(farther)
    state[0] = min(max(moved, clip.start / REACH), clip.start * REACH)


@register_jitable(**CONTAINED)
def noisy_count(std: float, doubled: float, rng: Generator) -> float:
    """Return a count of halves plus exact normal noise.

    With `spacing` units per half, whole numbers n become n·spacing + ⌊2³²·N⌋: a function of n/2 + s·N, real numbers,
    with s = 2³¹/spacing ≥ std.

    Parameters
    ----------
    std : float
        The standard deviation of the noise, between 1/32 and 2³⁰.
    doubled : float
        Twice the count, a whole number.
    rng : Generator
        The stream of the noise.
    """
    spacing = np.int64((1.0 - 2.0**-50) * 2.0**31 / std)
    most = _LARGEST_COUNT // spacing
    halves = min(max(np.int64(doubled), -most), most)
    return (halves * spacing + integer_normal(rng.bit_generator) + 0.5) / (2.0 * spacing)


def suggest_quantile(dimension: int, noise_multiplier: float, batch: int, steps: int) -> float:
    """Return a target quantile for `Adaptive`: 1 − √d·z/(B·√(T/2)), but at least ½.

    Clipping biases the mean update by about c times the fraction of records that are clipped; noise has the length
    √d·z·c/B in one step, and averages out over the last T/2 steps. The suggestion makes both equal. It follows from
    public numbers alone.

    Parameters
    ----------
    dimension : int
        d, the number of parameters.
    noise_multiplier : float
        z, the noise on the sum of a batch in units of the threshold, above 0, such as that of a calibrated rule.
    batch : int
        B, the expected batch size.
    steps : int
        T, the length of the run.

    Returns
    -------
    float

    Notes
    -----
    On paper 1's credit problem (β = 0.1, ε = 2, δ = 10⁻⁵, zero-out; step size, B and T tuned for each), the squared
    distance from the stable point is 0.044 ± 0.002 with the suggestion, from any start between 0.1 and 10; 0.180 ±
    0.002 with the median; 0.051 ± 0.004 with the best constant clip of 1, 3, 10 and 30.

    Examples
    --------
    >>> round(suggest_quantile(dimension=11, noise_multiplier=2.0, batch=500, steps=2_000), 4)
    0.9996
    """
    d, b, t = count("dimension", dimension), count("batch", batch), count("steps", steps)
    clipped = np.sqrt(d) * positive("noise_multiplier", noise_multiplier) / (b * np.sqrt(t / 2))
    return float(1.0 - min(max(clipped, _LEAST_CLIPPED), 0.5))
