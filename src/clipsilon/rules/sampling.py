"""Sampling: which records take part in a step.

Every sampler names a public, *expected* batch size B; the engine divides by it, never by the
number that was drawn. A sampler looks at nothing but its own generator, so which records take
part never depends on the data.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np
from numba.extending import register_jitable
from numpy.random import Generator
from numpy.typing import NDArray

from clipsilon._core.checks import count
from clipsilon._core.parts import Part, checked, fallback, implements, operation, traits

__all__ = [
    "Epochs",
    "Full",
    "Poisson",
    "Sampling",
    "SinglePass",
    "Uniform",
    "draw",
    "draw_span",
    "foresee",
    "pass_span",
]

Indices = NDArray[np.int64]


class Sampling(Part, Protocol):
    """Which records take part in a step: implements `draw`."""


@operation
def draw(sampling: Sampling, t: int, m: int, order: Indices, rng: Generator, drawn: Indices) -> int:
    """Write which of m records take part in step t (t ≥ 0) into `drawn`; return how many there are.

    `order` starts as 0 … m−1 for samplers that ask for it (`permutes`) and is empty for others; a
    sampler may shuffle it and finds it so at the next step.
    """


@operation
def foresee(sampling: Sampling, t: int, m: int, order: Indices) -> int:
    """A record that step t will probably want, so that it can be fetched early; −1 if the sampler cannot tell."""


@fallback(foresee)
def _unforeseen(sampling: type) -> Callable[..., int]:
    return _unknown


def _unknown(sampling, t, m, order):  # type: ignore[no-untyped-def]
    return -1


# Samplers that take records in their order can be followed from chunk to chunk of the records. Those that cannot leave
# these two out.


@operation
def draw_span(
    sampling: Sampling, m: int, position: float, first: int, last: int, rng: Generator, drawn: Indices
) -> int:
    """Write who of the records first … last − 1 takes part into `drawn`, counted from `first`; return how many do.

    `position` is the first of them, or what `pass_span` gave for `first`.
    """


@operation
def pass_span(sampling: Sampling, m: int, position: float, last: int, rng: Generator) -> float:
    """The first record from `last` on that takes part, given the one at `position` (−1 before the first).

    It makes the draws of all those before. A result of m or more means that there is none.
    """


def permutes(sampling: Sampling) -> bool:
    """Whether a sampler works on a permutation of the records; one that does not say gets it."""
    return bool(sampling.permutes()) if hasattr(sampling, "permutes") else True


def most_drawn(sampling: Sampling, records: int) -> int:
    """Room for the largest batch that a sampler can draw; all records if it does not say."""
    return expected_batch(sampling, records) if getattr(sampling, "fixed", False) else records


def expected_batch(sampling: Sampling, records: int) -> int:
    """B: the public, expected number of records in a step."""
    return int(getattr(sampling, "batch", records))


def longest_run(sampling: Sampling, records: int) -> float:
    """The largest number of steps the sampler allows."""
    return -(-records // sampling.batch) if isinstance(sampling, SinglePass) else np.inf


@traits(fixed=True)  # never more than `batch` records a step
@checked(batch=count)
class Uniform(NamedTuple):
    """B distinct records of m, all subsets equally likely, anew at every step."""

    batch: int = 1

    def permutes(self) -> bool:
        """Whether `draw` works on a permutation."""
        return self.batch > 1


@implements(draw, Uniform)
def _(sampling, t, m, order, rng, drawn):
    if sampling.batch == 1:
        drawn[0] = rng.integers(0, m)
        return 1
    # The first B places of a Fisher–Yates shuffle, then its swaps undone in reverse: `order` is
    # 0 … m−1 again, so a step costs O(B) and depends on nothing but its own draws.
    for k in range(sampling.batch):
        other = rng.integers(k, m)
        order[k], order[other] = order[other], order[k]
        drawn[k] = other
    for k in range(sampling.batch - 1, -1, -1):
        other = drawn[k]
        drawn[k] = order[k]
        order[k], order[other] = order[other], order[k]
    return sampling.batch


@checked(batch=count)
class Poisson(NamedTuple):
    """Every record takes part with probability B/m, independently, anew at every step."""

    batch: int = 1

    def permutes(self) -> bool:
        """Whether `draw` works on a permutation."""
        return False


@register_jitable
def _rate(batch, m):
    return -np.log1p(-batch / m) if batch < m else np.inf


@register_jitable
def _following(position, rate, rng):
    """Skips between participants are geometric: ⌊E/λ⌋ for E ~ Exp(1) and λ = −log(1 − B/m)."""
    return np.floor(position) + 1.0 + rng.standard_exponential() / rate


@implements(draw_span, Poisson)
def _(sampling, m, position, first, last, rng, drawn):
    rate = _rate(sampling.batch, m)
    found = 0
    while position < last:
        drawn[found] = int(position) - first
        found += 1
        position = _following(position, rate, rng)
    return found


@implements(pass_span, Poisson)
def _(sampling, m, position, last, rng):
    rate = _rate(sampling.batch, m)
    while position < last:
        position = _following(position, rate, rng)
    return position


@implements(draw, Poisson)
def _(sampling, t, m, order, rng, drawn):
    return draw_span(sampling, m, pass_span(sampling, m, -1.0, 0, rng), 0, m, rng, drawn)


@traits(fixed=True)  # never more than `batch` records a step
@checked(batch=count)
class SinglePass(NamedTuple):
    """Disjoint batches of B in an order shuffled beforehand: each record takes part at most once."""

    batch: int = 1

    def permutes(self) -> bool:
        """Whether `draw` works on a permutation."""
        return True


@traits(fixed=True)  # never more than `batch` records a step
@checked(batch=count)
class Epochs(NamedTuple):
    """Disjoint batches of B, shuffled anew before each pass over the data; a short last batch stays short."""

    batch: int = 1

    def permutes(self) -> bool:
        """Whether `draw` works on a permutation."""
        return True


@implements(draw, SinglePass)
@implements(draw, Epochs)
def _(sampling, t, m, order, rng, drawn):
    batches = -(-m // sampling.batch)
    if t % batches == 0:
        for k in range(m - 1):
            other = rng.integers(k, m)
            order[k], order[other] = order[other], order[k]
    first = (t % batches) * sampling.batch
    last = min(first + sampling.batch, m)
    for k in range(first, last):
        drawn[k - first] = order[k]
    return last - first


@implements(foresee, SinglePass)
@implements(foresee, Epochs)
def _(sampling, t, m, order):
    # The next pass is shuffled anew, so a guess across its beginning may be wrong.
    return order[t % m] if sampling.batch == 1 else -1


class Full(NamedTuple):
    """All m records at every step."""

    def permutes(self) -> bool:
        """Whether `draw` works on a permutation."""
        return False


@implements(draw_span, Full)
def _(sampling, m, position, first, last, rng, drawn):
    for k in range(last - first):
        drawn[k] = k
    return last - first


@implements(pass_span, Full)
def _(sampling, m, position, last, rng):
    return float(last)


@implements(draw, Full)
def _(sampling, t, m, order, rng, drawn):
    return draw_span(sampling, m, 0.0, 0, m, rng, drawn)
