"""Exact normal noise: Z = ⌊2^32·N⌋ for a real standard normal N, in integer arithmetic alone.

Floating-point noise betrays what it is added to: only some sums of a number and a possible noise value exist, and the
low bits of a release tell them apart. q + Z does not, for q is an integer and q + Z = ⌊q + 2^32·N⌋: it is the Gaussian
mechanism on real numbers, rounded down afterwards.

|N| is drawn by rejection under strips (`normal_tables`). One 64-bit word holds sign, slot, threshold and place; 99.2 %
of the draws need no other. The rest compare a point with the curve by 64-bit integers, and by integers of any width
(`bell_curve`) where those do not decide. The proof is in docs/proofs.md, "Exact normal noise".
"""

from __future__ import annotations

import numpy as np
from numba import types
from numba.extending import register_jitable
from numpy.random import BitGenerator
from numpy.typing import NDArray

from clipsilon._core.apart import call_apart
from clipsilon._core.bell_curve import is_under_curve
from clipsilon._core.normal_tables import (
    ABOVE_BITS,
    ALIAS,
    CURVE,
    LOWER,
    NEAR,
    NEAR_BITS,
    PLACE_BITS,
    SLOT_BITS,
    SQUEEZED,
    STARTS,
    STRIPS,
    TAIL,
    THRESHOLD_BITS,
)
from clipsilon._core.options import CONTAINED
from clipsilon._core.words import next_limb, next_word

UNIT = 2.0**32
"""The standard deviation of Z, but for the rounding."""

_SLOT_MASK, _THRESHOLD_MASK, _PLACE_MASK = STRIPS - 1, (1 << THRESHOLD_BITS) - 1, (1 << PLACE_BITS) - 1
_FAR_BITS = ABOVE_BITS - NEAR_BITS
_ONE = 1 << 32
_MARGIN = 4  # heights that differ from the estimate of the curve by less are not decided by it


@register_jitable(**CONTAINED)
def integer_normal(bits: BitGenerator) -> int:
    """Return Z = ⌊2^32·N⌋ for a real standard normal N.

    Parameters
    ----------
    bits : BitGenerator
        Source of uniform, independent 64-bit words: `rng.bit_generator`. (Passing the Generator would cost half as much
        time again in compiled code.)

    Returns
    -------
    int
        Z, an int64 in compiled code.

    Formal guarantee
    ----------------
    P(Z = z) = Φ((z + 1)·2^−32) − Φ(z·2^−32) for every integer z, exactly, if the words are uniform and independent.
    """
    while True:
        word = next_word(bits)
        slot = word & _SLOT_MASK
        entry = ALIAS[slot]
        strip = slot if (word >> SLOT_BITS) & _THRESHOLD_MASK < entry >> SLOT_BITS else entry & _SLOT_MASK
        if strip < SQUEEZED:
            cell: int = strip << PLACE_BITS | (word >> (SLOT_BITS + THRESHOLD_BITS)) & _PLACE_MASK
            return cell ^ (word >> 63)  # ⌊−x⌋ = −⌊x⌋ − 1 unless x is an integer
        cell = _above_squeeze(bits)
        if cell >= 0:
            return cell ^ (word >> 63)


@register_jitable(**CONTAINED)
def fill_normal(bits: BitGenerator, out: NDArray[np.int64]) -> None:
    """Fill a vector with independent draws of `integer_normal`."""
    for i in range(out.size):
        out[i] = integer_normal(bits)


def _search_above(bits: BitGenerator) -> int:
    """Return the cell of a point between squeeze and curve, or −1 if the point is rejected."""
    word = next_word(bits)
    level, place = (word >> (64 - ABOVE_BITS)) & ((1 << ABOVE_BITS) - 1), word & _PLACE_MASK
    if level >= STARTS[STRIPS] + TAIL:
        return -1
    if level >= STARTS[STRIPS]:
        return _beyond_strips(bits)
    near = level >> _FAR_BITS
    strip, end = int(NEAR[near]), int(NEAR[near + 1]) + 1
    while end - strip > 1:
        middle = (strip + end) >> 1
        if STARTS[middle] <= level:
            strip = middle
        else:
            end = middle
    height = LOWER[strip] + (level - STARTS[strip])
    estimate = _estimate(strip, place)
    cell = strip << PLACE_BITS | place
    if height + _MARGIN <= estimate:
        return cell
    if height >= estimate + _MARGIN or not is_under_curve(bits, cell, height, 1):
        return -1
    return cell


_above_squeeze = call_apart(_search_above, types.int64, on_error=-1)


@register_jitable(**CONTAINED)
def _estimate(strip: int, place: int) -> int:
    """Return HEIGHT·exp(−x²/2) at the left end of a cell, with an error below 3.

    For x = a + δ with a the left end of the strip, it is the curve at a times exp(−t), t = a·δ + δ²/2 < 1/16. Its
    series has the coefficients 2^32/k!, rounded down.
    """
    t = (place * ((strip << 26) + place)) >> 33
    series = 35791394 - (5965232 * t >> 32)
    series = 178956970 - (series * t >> 32)
    series = 715827882 - (series * t >> 32)
    series = 2147483648 - (series * t >> 32)
    series = _ONE - (series * t >> 32)
    scaled: int = CURVE[strip] * (_ONE - (series * t >> 32))
    return scaled >> 32


@register_jitable(**CONTAINED)
def _beyond_strips(bits: BitGenerator) -> int:
    """Return the cell of a point beyond 8 under the curve, or −1 if the point is rejected.

    Block b = 1, 2, … is [8b, 8b + 8); it is proposed with probability 2^(−31(b − 1) − 1).
    """
    block = 1
    while True:
        coin = next_limb(bits)
        if coin >= 1 << 30:
            break
        if coin > 0:
            return -1
        block += 1
    cell = block << 35 | next_word(bits) & ((1 << 35) - 1)
    return cell if is_under_curve(bits, cell, 0, block) else -1
