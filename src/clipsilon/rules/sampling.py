"""Sampling: which records take part in a step.

Every sampler has a public, *expected* batch size B. The engine divides by B, never by the number of records drawn.
Samplers use only their random generator, so which records take part never depends on the data. It may depend on their
number; only `Poisson` with a rate does not use it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np
from numba.extending import register_jitable
from numpy.random import Generator
from numpy.typing import NDArray

from clipsilon._core.checks import count, rate
from clipsilon._core.exact_coins import draw_run, run_scale
from clipsilon._core.options import CONTAINED
from clipsilon._core.parts import Part, checked, fallback, implements, operation, traits
from clipsilon._core.words import integer_below

__all__ = [
    "Cyclic",
    "Epochs",
    "Full",
    "InOrder",
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
    """Write the records that take part in a step into `drawn`, and return their number.

    Parameters
    ----------
    sampling : Sampling
        The part.
    t : int
        The step, counted from 0.
    m : int
        The number of records.
    order : array of int
        0, …, m − 1 before the first step if the sampler `permutes`, else empty. The sampler may shuffle it; it is kept
        from step to step.
    rng : Generator
        The stream of the records.
    drawn : array of int
        Overwritten from the front with the numbers of the records, without repetition; long enough for every batch.

    Returns
    -------
    int
        The number of records that take part, which may be 0.
    """


@operation
def foresee(sampling: Sampling, t: int, m: int, order: Indices) -> int:
    """Return a record that step t will probably draw, so that it can be prefetched; −1 if unknown.

    The result affects the speed only. Samplers that do not implement this operation return −1.

    Parameters
    ----------
    sampling : Sampling
        The part.
    t : int
        The step, counted from 0; later than the current one.
    m : int
        The number of records.
    order : array of int
        As in `draw`, after the current step.

    Returns
    -------
    int
        The number of a record, or −1.
    """


@fallback(foresee)
def _unpredicted(sampling: type) -> Callable[..., int]:
    return _unknown


def _unknown(sampling, t, m, order):  # type: ignore[no-untyped-def]
    return -1


# The next two operations are for records in chunks. They are implemented by samplers that draw records in increasing
# order, so that the draws of a step can be made chunk by chunk.


@operation
def draw_span(sampling: Sampling, m: int, position: int, first: int, last: int, rng: Generator, drawn: Indices) -> int:
    """Write the records of a chunk that take part in a step into `drawn`, and return their number.

    Parameters
    ----------
    sampling : Sampling
        The part.
    m : int
        The number of records in all chunks.
    position : int
        The first record from `first` on that takes part, as returned by `pass_span`; it may lie beyond the chunk.
    first, last : int
        The chunk holds the records first, …, last − 1.
    rng : Generator
        The stream of the records, in its state after `position` was drawn.
    drawn : array of int
        Overwritten from the front with the numbers of the records, counted from `first`.

    Returns
    -------
    int
        The number of records of the chunk that take part.
    """


@operation
def pass_span(sampling: Sampling, m: int, position: int, last: int, rng: Generator) -> int:
    """Return the first record from `last` on that takes part in a step, and make all draws up to it.

    Parameters
    ----------
    sampling : Sampling
        The part.
    m : int
        The number of records in all chunks.
    position : int
        The last result of this function in the same step; −1 at the beginning of the step.
    last : int
        The first record of the next chunk, or m.
    rng : Generator
        The stream of the records.

    Returns
    -------
    int
        The record; m or more if there is none.
    """


def permutes(sampling: Sampling) -> bool:
    """Return whether a sampler needs a permutation of the records; True unless it has a method `permutes`."""
    return bool(sampling.permutes()) if hasattr(sampling, "permutes") else True


def most_drawn(sampling: Sampling, records: int) -> int:
    """Return the size of the largest batch that a sampler can draw: B if its batches are `fixed`, else all records."""
    return expected_batch(sampling, records) if getattr(sampling, "fixed", False) else records


def expected_batch(sampling: Sampling, records: int) -> int:
    """Return B, the public number that sums are divided by; all records for samplers without a field `batch`."""
    return int(getattr(sampling, "batch", records))


def public_rate(sampling: Sampling) -> float | None:
    """Return the probability with which each record is drawn if it is the same for every number of records, or None."""
    return sampling.rate if type(sampling) is Poisson else None


def sampling_rate(sampling: Sampling, records: int) -> float:
    """Return the probability with which each record is drawn: the public rate, or B/m."""
    fixed = public_rate(sampling)
    return expected_batch(sampling, records) / records if fixed is None else fixed


def longest_run(sampling: Sampling, records: int) -> float:
    """Return the largest number of steps that the sampler allows; infinite unless it is a single pass."""
    return -(-records // sampling.batch) if isinstance(sampling, SinglePass | InOrder) else np.inf


def participations(sampling: Sampling, records: int, steps: int) -> int | None:
    """Return the number of steps in which one record takes part at most; None if it is random.

    Parameters
    ----------
    sampling : Sampling
        The sampler.
    records, steps : int
        m and T.
    """
    match sampling:
        case SinglePass() | InOrder():
            return 1
        case Epochs() | Cyclic():
            return -(-steps // -(-records // sampling.batch))
        case Full():
            return steps
    return steps if sampling_rate(sampling, records) == 1 else None


def separation(sampling: Sampling, records: int) -> int | None:
    """Return the number of steps from one participation of a record to the next; None if it changes."""
    match sampling:
        case SinglePass() | InOrder() | Cyclic():
            return -(-records // sampling.batch)
        case Full():
            return 1
    return None


@traits(fixed=True)  # never more than `batch` records per step
@checked(batch=count)
class Uniform(NamedTuple):
    """Draw B distinct records of m, all subsets equally likely, independently in each step."""

    batch: int = 1

    def permutes(self) -> bool:
        """Return whether `draw` needs a permutation of the records."""
        return self.batch > 1


@implements(draw, Uniform)
def _(sampling, t, m, order, rng, drawn):
    # The first B swaps of a Fisher–Yates shuffle, then the same swaps undone in reverse. Afterwards `order` is
    # 0, …, m − 1 again, so a step costs O(B) and depends on its own draws only. A single record needs no swap: the
    # loops are then empty, not in a branch, which would keep the compiler from removing reference counts.
    bits, swaps = rng.bit_generator, sampling.batch if sampling.batch > 1 else 0
    for k in range(sampling.batch):
        drawn[k] = k + integer_below(bits, m - k)
    for k in range(swaps):
        other = drawn[k]
        order[k], order[other] = order[other], order[k]
    for k in range(swaps - 1, -1, -1):
        other = drawn[k]
        drawn[k] = order[k]
        order[k], order[other] = order[other], order[k]
    return sampling.batch


def _optional_rate(name: str, value: object) -> float | None:
    return None if value is None else rate(name, value)


@checked(batch=count, rate=_optional_rate)
class Poisson(NamedTuple):
    """Draw each record with the same probability, independently of the other records and in each step.

    The probability is exact (docs/proofs.md, "Exact Poisson batches").

    Parameters
    ----------
    batch : int, default 1
        B, the public number that sums are divided by.
    rate : float, optional
        The probability, above 0 and at most 1. With a rate, what happens to a record does not depend on how many others
        there are, which the adjacency "add-remove" requires; B is then a mere constant, which should be close to the
        rate times the number of records. By default the probability is B/m for m records.
    """

    batch: int = 1
    rate: float | None = None

    def permutes(self) -> bool:
        """Return whether `draw` needs a permutation of the records."""
        return False


@register_jitable(**CONTAINED)
def _probability(batch, rate, m):
    """Return numerator and denominator of the probability."""
    if rate is None:  # decided while compiling, by the type of the field
        return batch, m
    return rate, 1.0


# Records are skipped by exact runs of coins. The bit generator is handed over, not the Generator, which would cost
# reference counting for each record.


@register_jitable(**CONTAINED)
def _draw_from(position, batch, rate, m, first, last, bits, drawn):
    """Write the records of a span that take part into `drawn`; `position` is the first of them, or −1 if unknown."""
    numerator, denominator = _probability(batch, rate, m)
    scale = run_scale(numerator, denominator)
    found = 0
    if position >= 0:
        if position >= last:
            return 0
        drawn[0] = position - first
        found = 1
    while True:
        position += 1 + draw_run(bits, numerator, denominator, scale)
        if position >= last:
            return found
        drawn[found] = position - first
        found += 1


@implements(draw_span, Poisson)
def _(sampling, m, position, first, last, rng, drawn):
    return _draw_from(position, sampling.batch, sampling.rate, m, first, last, rng.bit_generator, drawn)


@implements(pass_span, Poisson)
def _(sampling, m, position, last, rng):
    bits = rng.bit_generator
    numerator, denominator = _probability(sampling.batch, sampling.rate, m)
    scale = run_scale(numerator, denominator)
    while position < last:
        position += 1 + draw_run(bits, numerator, denominator, scale)
    return position


@implements(draw, Poisson)
def _(sampling, t, m, order, rng, drawn):
    return _draw_from(-1, sampling.batch, sampling.rate, m, 0, m, rng.bit_generator, drawn)


@traits(fixed=True)  # never more than `batch` records per step
@checked(batch=count)
class SinglePass(NamedTuple):
    """Draw disjoint batches of B in an order shuffled before the run: each record takes part at most once."""

    batch: int = 1

    def permutes(self) -> bool:
        """Return whether `draw` needs a permutation of the records."""
        return True


@traits(fixed=True)  # never more than `batch` records per step
@checked(batch=count)
class InOrder(NamedTuple):
    """Draw disjoint batches of B in the order of the table, in which people came: each record takes part at most once.

    Nothing is drawn at random. The certificate of a single pass does not need it to be: it holds for every order that
    does not depend on the records' contents.
    """

    batch: int = 1

    def permutes(self) -> bool:
        """Return whether `draw` needs a permutation of the records."""
        return False


@implements(draw, InOrder)
def _(sampling, t, m, order, rng, drawn):
    first = (t % -(-m // sampling.batch)) * sampling.batch
    last = min(first + sampling.batch, m)
    for k in range(first, last):
        drawn[k - first] = k
    return last - first


@traits(fixed=True)  # never more than `batch` records per step
@checked(batch=count)
class Epochs(NamedTuple):
    """Draw disjoint batches of B in an order shuffled before each pass; the last batch of a pass may be smaller."""

    batch: int = 1

    def permutes(self) -> bool:
        """Return whether `draw` needs a permutation of the records."""
        return True


@traits(fixed=True)  # never more than `batch` records per step
@checked(batch=count)
class Cyclic(NamedTuple):
    """Draw disjoint batches of B in an order shuffled before the run and the same in every pass.

    From one participation of a record to the next there are always as many steps as a pass has, ⌈m/B⌉; correlated
    noise makes use of it.
    """

    batch: int = 1

    def permutes(self) -> bool:
        """Return whether `draw` needs a permutation of the records."""
        return True


@register_jitable(**CONTAINED)
def _shuffle(m, order, rng):
    """Shuffle an order of m records; with m = 0 do nothing, which costs less than a call in a branch."""
    bits = rng.bit_generator
    for k in range(m - 1):
        other = k + integer_below(bits, m - k)
        order[k], order[other] = order[other], order[k]


@register_jitable(**CONTAINED)
def _draw_place(sampling, t, m, order, drawn):
    """Write the batch of step t of passes in a given order into `drawn`, and return its size."""
    first = (t % -(-m // sampling.batch)) * sampling.batch
    last = min(first + sampling.batch, m)
    for k in range(first, last):
        drawn[k - first] = order[k]
    return last - first


@implements(draw, SinglePass)
@implements(draw, Cyclic)
def _(sampling, t, m, order, rng, drawn):
    _shuffle(m if t == 0 else 0, order, rng)
    return _draw_place(sampling, t, m, order, drawn)


@implements(draw, Epochs)
def _(sampling, t, m, order, rng, drawn):
    _shuffle(m if t % -(-m // sampling.batch) == 0 else 0, order, rng)
    return _draw_place(sampling, t, m, order, drawn)


@implements(foresee, SinglePass)
@implements(foresee, Epochs)
@implements(foresee, Cyclic)
def _(sampling, t, m, order):
    # The order is shuffled again before the next pass, so a prediction beyond the end of this pass may be wrong.
    return order[t % m] if sampling.batch == 1 else -1


class Full(NamedTuple):
    """Draw all m records in every step."""

    def permutes(self) -> bool:
        """Return whether `draw` needs a permutation of the records."""
        return False


@implements(draw_span, Full)
def _(sampling, m, position, first, last, rng, drawn):
    for k in range(last - first):
        drawn[k] = k
    return last - first


@implements(pass_span, Full)
def _(sampling, m, position, last, rng):
    return last


@implements(draw, Full)
def _(sampling, t, m, order, rng, drawn):
    return draw_span(sampling, m, 0, 0, m, rng, drawn)
