"""Fractions of any width for compiled code, as vectors of 31-bit limbs, the most significant first."""

from __future__ import annotations

import numpy as np
from numba.extending import register_jitable
from numpy.random import BitGenerator
from numpy.typing import NDArray

from clipsilon._core.options import CONTAINED
from clipsilon._core.words import LIMB, LIMB_MASK, next_limb

Limbs = NDArray[np.int64]


@register_jitable(**CONTAINED)
def extend(bits: BitGenerator, limbs: Limbs, size: int) -> Limbs:
    """Return the limbs, followed by random ones up to the given size.

    Parameters
    ----------
    bits : BitGenerator
        Source of the random limbs.
    limbs : array of int64
        The first limbs.
    size : int
        The number of limbs to return.
    """
    out = np.empty(size, np.int64)
    for i in range(size):
        out[i] = limbs[i] if i < limbs.size else next_limb(bits)
    return out


@register_jitable(**CONTAINED)
def multiply(a: Limbs, b: Limbs, product: Limbs) -> None:
    """Write a·b; its first half is the product of the fractions, rounded down.

    Parameters
    ----------
    a, b : array of int64
        Two fractions of n limbs.
    product : array of int64
        2n limbs, overwritten.
    """
    n = a.size
    for i in range(2 * n):
        product[i] = 0
    for i in range(n - 1, -1, -1):
        carry = 0
        for j in range(n - 1, -1, -1):
            total = a[i] * b[j] + product[i + j + 1] + carry
            product[i + j + 1] = total & LIMB_MASK
            carry = total >> LIMB
        product[i] = carry


@register_jitable(**CONTAINED)
def distance(a: Limbs, b: Limbs) -> int:
    """Return a − b in units of the last limb of b; if it is ±2^32 or beyond, any number of its sign there."""
    apart = 0
    for i in range(b.size):
        apart = (apart << LIMB) + (a[i] - b[i])
        if abs(apart) >= 2 << LIMB:  # what follows changes it by less than 1, and one more shift would overflow
            break
    return apart
