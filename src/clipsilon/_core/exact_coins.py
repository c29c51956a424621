"""Exact runs of biased coins: the number of failures before the first success, for coins of a known probability q.

A run G has P(G ≥ g) = (1 − q)^g. For U uniform in [0, 1) it is the number of g ≥ 1 with U < (1 − q)^g, the integer part
of log U / log(1 − q). One word gives the first 62 bits of U. Floating point finds G from them, unless the quotient is
so close to an integer that an error could matter. For those, U is compared with powers of 1 − q by integers of any
width (`limbs`), and its further digits are drawn until they decide: no approximation is left. The proof is in
docs/proofs.md, "Exact Poisson batches".
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.extending import register_jitable
from numpy.random import BitGenerator
from numpy.typing import NDArray

from clipsilon._core.apart import call_apart
from clipsilon._core.limbs import Limbs, distance, extend, multiply
from clipsilon._core.options import CONTAINED
from clipsilon._core.words import LIMB, LIMB_MASK, next_word

LONGEST = 1 << 60
"""Longer runs are cut off here. No table has as many records."""

_HEAD_BITS = 2 * LIMB  # of U, from the first word
_HEAD_MASK = (1 << _HEAD_BITS) - 1
_LEAST_HEAD = 1 << 47  # the octaves of the table begin here

# Cells of [1, 2), and octaves by the last bits of a float's exponent: 47, …, 62 are all different modulo 16.
_CELL_BITS, _OCTAVE_BITS = 7, 4
_CELLS, _OCTAVES = 1 << _CELL_BITS, 1 << _OCTAVE_BITS
_FRACTION_BITS, _EXPONENT_BIAS = 52, 1023

_UNIT_BITS = 16  # quotients are multiples of 2^−16 ...
_UNIT_MASK = (1 << _UNIT_BITS) - 1
_WIDEST_FAST = 2.0**25  # ... if their error, 2^−41·scale, is below that
_MARGIN = 2.0**-40
_LEAST_ESTIMATED = 2.0**-100
_NEAR_ONE = 0.7
_LEAST_LIMBS, _GUARD = 6, 3
_ONE = 1 << 128
_Draw = tuple[BitGenerator, int, float, float, float]


def logarithm(x: float) -> int:
    """Return 2^128·log x for ½ ≤ x ≤ 2 with an error below 2^20, by the series of 2·artanh((x − 1)/(x + 1))."""
    numerator, denominator = x.as_integer_ratio()
    s = _ONE * (numerator - denominator) // (numerator + denominator)
    square, power, total = s * s // _ONE, s, 0
    for k in range(40):  # |s| ≤ 1/3, so what is left out is below 3^−81
        total, power = total + power // (2 * k + 1), power * square // _ONE
    return 2 * total


def _table() -> NDArray[np.float64]:
    """Return c·2^−e and (62 − e)·log 2 + log c for the octaves [2^e, 2^(e + 1)) and the centres 1/c of their cells."""
    centres = [1.0 / (1.0 + (2 * cell + 1) / (2 * _CELLS)) for cell in range(_CELLS)]
    logarithms = [logarithm(c) for c in centres]
    table = np.empty((_OCTAVES * _CELLS, 2))
    for e in range(_HEAD_BITS - _OCTAVES + 1, _HEAD_BITS + 1):
        first, octave = ((e + _EXPONENT_BIAS) % _OCTAVES) * _CELLS, (_HEAD_BITS - e) * logarithm(2.0)
        rows = [(c * 2.0**-e, (octave + log) / _ONE) for c, log in zip(centres, logarithms, strict=True)]
        table[first : first + _CELLS] = rows
    return table


TABLE = _table()
LOG_TWO = logarithm(2.0) / _ONE
_ODD = np.array([1.0 / (2 * k + 1) for k in range(11)])


@register_jitable(**CONTAINED)  # type: ignore[untyped-decorator]
def run_scale(numerator: float, denominator: float) -> float:
    """Return 1/λ with λ = −log(1 − q), q = numerator/denominator, and a relative error below 2^−48.

    The numbers are integers below 2^53, or a float64 and 1.0. The result is 0 for q = 1 and infinite for q < 2^−100.
    """
    if numerator >= denominator:
        return 0.0
    doublings, q = 0, numerator / denominator
    if q < _LEAST_ESTIMATED:
        return np.inf
    s = q / (2.0 - q)
    if q > 1.0 - _NEAR_ONE:
        p = (denominator - numerator) / denominator
        while p < _NEAR_ONE:
            p, doublings = p + p, doublings + 1
        s = (1.0 - p) / (1.0 + p)
    square, series = s * s, 0.0
    for k in range(_ODD.size - 1, -1, -1):
        series = _ODD[k] + square * series
    scale: float = 1.0 / (doublings * LOG_TWO + 2.0 * s * series)
    return scale


@register_jitable(**CONTAINED)
def draw_run(bits: BitGenerator, numerator: float, denominator: float, scale: float) -> int:
    """Return the number of failures before the first success of coins with the probability q = numerator/denominator.

    Parameters
    ----------
    bits : BitGenerator
        Source of uniform, independent 64-bit words: `rng.bit_generator`.
    numerator, denominator : int or float
        Two integers below 2^53, or a float64 and 1.0, with 0 < q ≤ 1.
    scale : float
        `run_scale` of both. If it is 0, no word is drawn.

    Returns
    -------
    int
        The number, or LONGEST if it is larger.

    Formal guarantee
    ----------------
    P(G ≥ g) = (1 − q)^g for every g ≤ LONGEST, exactly, if the words are uniform and independent.
    """
    if scale == 0.0:
        return 0
    head = (next_word(bits) >> (64 - _HEAD_BITS)) & _HEAD_MASK
    units = scale * 2.0**_UNIT_BITS if scale <= _WIDEST_FAST else 0.0  # a quotient of 0 is never decided here
    quotient = int(_minus_log(head) * units)
    if head >= _LEAST_HEAD and (quotient + 1) & _UNIT_MASK >= 2:
        return quotient >> _UNIT_BITS
    compared: int = _compared_run((bits, head, numerator, denominator, scale))
    return compared


@register_jitable(**CONTAINED)
def _minus_log(head: int) -> float:
    """Return −log(head·2^−62) for a head of at least 2^47, with an error below 2^−42; for others any number."""
    x = np.float64(head)
    cell = (x.view(np.int64) >> (_FRACTION_BITS - _CELL_BITS)) & (_OCTAVES * _CELLS - 1)
    z = x * TABLE[cell, 0] - 1.0
    minus_log: float = TABLE[cell, 1] - z * (1.0 - z * (0.5 - z * (1.0 / 3.0 - z * 0.25)))
    return minus_log


# -- where 64 bits do not decide ------------------------------------------------------------------------------------


def _search_run(draw: _Draw) -> int:
    """Return the number of g ≥ 1 with U < (1 − q)^g, at most LONGEST, by bisection."""
    bits, head, numerator, denominator, scale = draw
    lowest, highest = _bounds(head, scale)
    u = np.empty(2, np.int64)
    u[0], u[1] = head >> LIMB, head & LIMB_MASK
    while lowest < highest:
        middle = highest - (highest - lowest) // 2
        size, apart = max(_LEAST_LIMBS, u.size), 0
        while abs(apart) < 2:
            u = extend(bits, u, size)
            apart = distance(_power(_complement(numerator, denominator, size + _GUARD), middle), u)
            size *= 2
        if apart > 0:
            lowest = middle
        else:
            highest = middle - 1
    return lowest


_compared_run: Any = call_apart(_search_run, types.int64, on_error=LONGEST)


@register_jitable(**CONTAINED)
def _bounds(head: int, scale: float) -> tuple[int, int]:
    """Return bounds on a run, whatever the digits of U after the head."""
    if head == 0 or scale == np.inf:
        return 0, LONGEST
    shift = 0
    while head << shift < _LEAST_HEAD:
        shift += 1
    quotient = (_minus_log(head << shift) + shift * LOG_TWO) * scale
    margin = (_MARGIN + 2.0 / head) * scale
    return int(min(max(quotient - margin, 0.0), LONGEST)), int(min(max(quotient + margin, 0.0), LONGEST))


@register_jitable(**CONTAINED)
def _complement(numerator: float, denominator: float, size: int) -> Limbs:
    """Return 1 − q as limbs, too small by at most one unit of the last; doubling and subtracting are exact."""
    limbs, rest = np.empty(size, np.int64), numerator
    for i in range(size):
        limb = 0
        for _ in range(LIMB):
            rest += rest
            limb += limb
            if rest >= denominator:
                rest -= denominator
                limb += 1
        limbs[i] = LIMB_MASK - limb
    return limbs


@register_jitable(**CONTAINED)
def _power(base: Limbs, exponent: int) -> Limbs:
    """Return base^exponent for an exponent of at least 1, rounded down in each product."""
    value, product = base.copy(), np.empty(2 * base.size, np.int64)
    place = 0
    while exponent >> (place + 1) > 0:
        place += 1
    for step in range(2 * place):  # a squaring, then a product with the base where the exponent has a 1
        is_product = step & 1 == 1
        if not is_product or (exponent >> (place - 1 - step // 2)) & 1 == 1:
            multiply(base if is_product else value, value, product)
            for i in range(value.size):
                value[i] = product[i]
    return value
