"""Decide exactly whether a random point lies under the bell curve, by integers of any width.

The point is known up to a small box. Its coordinates are drawn digit by digit until the digits decide, so the answer
has exactly the probability that real numbers would give it. Numbers are fractions of 31-bit limbs, the most significant
first; every operation rounds down. The error bounds are in docs/proofs.md, "Exact normal noise".
"""

from __future__ import annotations

import numpy as np
from numba.extending import register_jitable
from numpy.random import BitGenerator

from clipsilon._core.limbs import Limbs, distance, extend, multiply
from clipsilon._core.options import CONTAINED
from clipsilon._core.words import LIMB, LIMB_MASK, next_limb

HEIGHT = 1705372967
"""The curve is HEIGHT·exp(−x²/2). `normal_tables` explains the number."""
CELL_BITS = 32
"""A cell has the width 2^−32."""
_LEAST_LIMBS = 6
_GUARD = 3  # limbs beyond those that are compared


@register_jitable(**CONTAINED)
def is_under_curve(bits: BitGenerator, cell: int, height: int, known: int) -> bool:
    """Return whether y < HEIGHT·exp(−x²/2) for a random point (x, y) of a box.

    Parameters
    ----------
    bits : BitGenerator
        Source of the digits.
    cell : int
        x is uniform in [cell, cell + 1)·2^−32; `cell` is below 2^62.
    height, known : int
        The first `known` limbs of y·2^−31 are `height`, which is below 2^31, and zeros. The others are random.

    Returns
    -------
    bool
    """
    exponent = 3
    while cell >> (CELL_BITS + exponent) > 0:
        exponent += 1
    head = (cell << (2 * LIMB - CELL_BITS - exponent)) | (next_limb(bits) >> (CELL_BITS + exponent - LIMB))
    x, y = np.empty(2, np.int64), np.empty(known, np.int64)
    for i in range(known):
        y[i] = height if i == 0 else 0
    x[0], x[1] = head >> LIMB, head & LIMB_MASK
    size = max(_LEAST_LIMBS, known + 2)
    while True:
        x, y = extend(bits, x, size), extend(bits, y, size)
        apart = distance(_bell(x, exponent), y)
        if abs(apart) >= 2 << exponent:
            return apart > 0
        size *= 2


@register_jitable(**CONTAINED)
def _bell(x: Limbs, exponent: int) -> Limbs:
    """Return limbs that begin with HEIGHT·2^−31·exp(−(x·2^exponent)²/2), right to one unit of the last limb of x.

    With h = x²/2, exp(−h) = 1 − h·(1 − h/2·(1 − h/3·(…))), and its power 4^exponent follows by squaring. All products
    are made in one place, since each would be compiled anew.
    """
    size = x.size + _GUARD
    terms = 8 * size
    half, value, product = np.empty(size, np.int64), np.empty(size, np.int64), np.empty(2 * size, np.int64)
    for i in range(size):
        value[i] = x[i] if i < x.size else 0
    for step in range(1 + terms + 2 * exponent):
        in_series = 0 < step <= terms
        multiply(half if in_series else value, value, product)
        divisor = terms + 1 - step if in_series else (2 if step == 0 else 1)
        rest = 0
        for i in range(size):
            total = (rest << LIMB) + product[i]
            quotient = total // divisor
            rest = total - quotient * divisor
            value[i] = LIMB_MASK - quotient if in_series else quotient
            if step == 0:
                half[i], value[i] = quotient, LIMB_MASK
    carry = 0
    for i in range(size - 1, -1, -1):
        total = value[i] * HEIGHT + carry
        product[i + 1] = total & LIMB_MASK
        carry = total >> LIMB
    product[0] = carry
    return product
