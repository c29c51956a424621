"""Random 64-bit words of a bit generator, for Python and for compiled code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba.extending import overload, register_jitable
from numba.np.random.generator_core import next_uint32, next_uint64
from numpy.random import BitGenerator

from clipsilon._core.options import CONTAINED

LIMB = 31
"""Bits of a limb: products of two limbs, and two carries, fit into a signed 64-bit integer."""
LIMB_MASK = (1 << LIMB) - 1
_HALF_MASK = (1 << 32) - 1
_MOST_MULTIPLIED = 1 << 31  # times 32 random bits, it fits into a signed 64-bit integer


def next_word(bits: BitGenerator) -> int:
    """Return the next 64 bits of a generator as a signed integer, so that `word >> 63` is 0 or −1."""
    interface: Any = bits.ctypes
    word = int(interface.next_uint64(interface.state))
    return word - (word >> 63 << 64)


@overload(next_word, strict=False)
def _next_word(bits: BitGenerator) -> Callable[..., Any]:
    return lambda bits: np.int64(next_uint64(bits))  # type: ignore[no-untyped-call]


@register_jitable(**CONTAINED)
def next_limb(bits: BitGenerator) -> int:
    """Return 31 random bits."""
    return (next_word(bits) >> (64 - LIMB)) & LIMB_MASK


def next_half(bits: BitGenerator) -> int:
    """Return the next 32 bits of a generator."""
    interface: Any = bits.ctypes
    return int(interface.next_uint32(interface.state))


@overload(next_half, strict=False)
def _next_half(bits: BitGenerator) -> Callable[..., Any]:
    return lambda bits: np.int64(next_uint32(bits))  # type: ignore[no-untyped-call]


@register_jitable(**CONTAINED)
def integer_below(bits: BitGenerator, size: int) -> int:
    """Return an integer from 0, …, size − 1, all equally likely, for 1 ≤ size < 2^63.

    Up to 2^31 it is the number that `Generator.integers(size)` returns (Lemire, 2019). Numba's version of that method
    allocates an array per call, so that the compiler keeps the reference counting of everything in a loop around it.
    """
    if size == 1:
        return 0
    if size > _MOST_MULTIPLIED:
        return _masked_below(bits, size)
    product = next_half(bits) * size
    if product & _HALF_MASK < size:
        least = ((1 << 32) - size) % size
        while product & _HALF_MASK < least:
            product = next_half(bits) * size
    return product >> 32


@register_jitable(**CONTAINED)
def _masked_below(bits: BitGenerator, size: int) -> int:
    """Return as many random bits as size − 1 has, drawn again until they are below `size`."""
    mask = size - 1
    for shift in (1, 2, 4, 8, 16, 32):
        mask |= mask >> shift
    number = next_word(bits) & mask
    while number >= size:
        number = next_word(bits) & mask
    return number
