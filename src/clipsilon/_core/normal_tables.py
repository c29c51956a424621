"""Integer tables of the exact normal sampler, and the proof that they are what the sampler needs.

[0, 8) is cut into 1024 strips of width 1/128, and areas are measured in units of one strip of height 1. The curve is
HEIGHT·exp(−x²/2). In strip i the sampler proposes

- a squeeze of height LOWER[i], which lies under the curve: accepted at once;
- a part above it of height UPPER[i], which reaches over the curve: its points are compared with the curve.

All squeezes together have the area 2^38 − 2^31, so that one alias table of 1024 slots of 2^28 serves. The parts above,
the tail beyond 8 and some area that is rejected share the remaining 2^31. HEIGHT is the smallest number for which the
squeezes, rounded down, fill their area.
"""

from __future__ import annotations

from itertools import accumulate, pairwise

import numpy as np

from clipsilon._core.bell_curve import HEIGHT

STRIPS = 1024
SLOT_BITS, THRESHOLD_BITS, PLACE_BITS = 10, 28, 25
SQUEEZED = 1016
"""Slots from this one on belong to no strip: they lead above the squeezes."""
ABOVE_BITS = 31
"""All that is above the squeezes has the area 2^31, eight slots."""
NEAR_BITS = 10
"""The first bits of a place above, by which `NEAR` finds the strips that it may belong to."""
TAIL = 2048
"""The area that is proposed beyond 8."""

_CAPACITY = 1 << THRESHOLD_BITS
_AREA = (STRIPS << THRESHOLD_BITS) - (1 << ABOVE_BITS)
_PRECISION = 256  # bits after the point


def _exponential(numerator: int, shift: int) -> tuple[int, int]:
    """Return bounds on exp(−numerator·2^−shift) in units of 2^−256, for arguments up to 1/2.

    The series alternates and its terms decrease, so the sum is off by less than the first term left out, which rounds
    to zero, and by the rounding of each term.
    """
    total, term, sign, k = 0, 1 << _PRECISION, 1, 0
    while term:
        total, sign, k = total + sign * term, -sign, k + 1
        term = (term * numerator >> shift) // k
    return total - 2 * k, total + 2 * k


def _curve() -> list[int]:
    """Return ⌊HEIGHT·exp(−x²/2)⌋ at the ends x = i/128 of the strips, i = 0, …, 1024; `verify` checks them."""
    step = _exponential(1, 15)[0]  # exp(−x²/2) is its i²-th power
    value, factor, square = 1 << _PRECISION, step, step * step >> _PRECISION
    found = []
    for _ in range(STRIPS + 1):
        found.append(HEIGHT * value >> _PRECISION)
        value, factor = value * factor >> _PRECISION, factor * square >> _PRECISION
    return found


def _squeezes(curve: list[int]) -> list[int]:
    """Return the squeeze of each strip: the curve at its right end, less what exceeds the area of all squeezes."""
    excess = sum(curve[1:]) - _AREA
    return [end - (i < excess) for i, end in enumerate(curve[1:])]


def _alias(weights: list[int]) -> list[int]:
    """Return an alias table: slot s holds its threshold and the strip beyond it, as threshold·2^10 + strip."""
    left, table = list(weights), [0] * STRIPS
    small = [s for s in range(STRIPS) if left[s] < _CAPACITY]
    large = [s for s in range(STRIPS) if left[s] >= _CAPACITY]
    while small:
        slot, donor = small.pop(), large[-1]
        table[slot] = left[slot] << SLOT_BITS | donor
        left[donor] -= _CAPACITY - left[slot]
        if left[donor] < _CAPACITY:
            small.append(large.pop())
    for slot in large:  # exactly full
        table[slot] = _CAPACITY << SLOT_BITS | slot
    return table


_HEIGHTS = _curve()
_LOWER = _squeezes(_HEIGHTS)
_UPPER = [start + 1 - lower for start, lower in zip(_HEIGHTS, _LOWER, strict=False)]

CURVE = np.array(_HEIGHTS[:STRIPS], dtype=np.int64)
"""The curve at the left end of each strip, rounded down."""
LOWER = np.array(_LOWER, dtype=np.int64)
"""The height of each squeeze."""
STARTS = np.array([*accumulate(_UPPER, initial=0)], dtype=np.int64)
"""Where the part above each squeeze starts among all that is above; the tail starts at the last entry."""
_PLACES = np.arange((1 << NEAR_BITS) + 1, dtype=np.int64) << (ABOVE_BITS - NEAR_BITS)
NEAR = np.minimum(np.searchsorted(STARTS, _PLACES, side="right") - 1, STRIPS - 1)
"""The strip of each 2^21st place above, the last strip for those beyond: the places between lie in strips between."""
ALIAS = np.array(_alias(_LOWER[:SQUEEZED] + [_CAPACITY] * (STRIPS - SQUEEZED)), dtype=np.int64)
"""The alias table: threshold·2^10 + strip, for each slot."""


def verify() -> None:
    """Prove in integer arithmetic that the tables are what the sampler needs; raise AssertionError otherwise.

    Formal guarantee
    ----------------
    In every strip, and beyond 8, squeeze ≤ HEIGHT·exp(−x²/2) ≤ what is proposed. The alias table proposes each squeeze
    with its height as weight. All areas together are 2^38. `CURVE` is the curve, rounded down.
    """
    lower, starts = LOWER.tolist(), STARTS.tolist()
    bounds = [_curve_bounds(i) for i in range(STRIPS + 1)]
    for i, (left, right) in enumerate(pairwise(bounds)):
        _require(0 <= lower[i] << _PRECISION <= right[0], f"the squeeze of strip {i} must lie under the curve")
        above = lower[i] + starts[i + 1] - starts[i]
        _require(left[1] <= above << _PRECISION, f"what is proposed in strip {i} must reach over the curve")
        _require(CURVE[i] == left[0] >> _PRECISION == left[1] >> _PRECISION, f"CURVE[{i}] must be rounded down")
    _require(sum(lower) == _AREA and lower[SQUEEZED:] == [0] * (STRIPS - SQUEEZED), "the squeezes must fill their area")
    _require(starts[0] == 0 and starts[STRIPS] + TAIL <= 1 << ABOVE_BITS, "what is above must fit into its area")
    _require(len(NEAR) == (1 << NEAR_BITS) + 1, "NEAR must cover all places")
    for k, strip in enumerate(NEAR.tolist()):
        place = min(k << (ABOVE_BITS - NEAR_BITS), starts[STRIPS] - 1)
        is_strip = 0 <= strip < STRIPS and starts[strip] <= place < starts[strip + 1]
        _require(is_strip, f"NEAR[{k}] must be the strip of its place")
    _require(_weights_of_alias() == lower[:SQUEEZED] + [_CAPACITY] * (STRIPS - SQUEEZED), "ALIAS must hold the weights")
    _require(max(lower) < HEIGHT < 1 << 31, "heights must fit into a limb")
    # Beyond 8b, b = 1, 2, …, a height of 2^(−31(b − 1)) is proposed, and the curve is at most HEIGHT·exp(−32)^(b²).
    # As b² ≥ 1 + 3(b − 1), it is enough to compare at b = 1, and exp(−96) with 2^−31.
    _require(bounds[STRIPS][1] <= 1 << _PRECISION, "what is proposed beyond 8 must reach over the curve")
    _require(bounds[STRIPS][1] ** 3 <= HEIGHT**3 << (3 * _PRECISION - 31), "the curve must fall faster than the blocks")


def _curve_bounds(i: int) -> tuple[int, int]:
    """Return bounds on HEIGHT·exp(−x²/2) at x = i/128 in units of 2^−256."""
    if i == 0:
        return HEIGHT << _PRECISION, HEIGHT << _PRECISION
    least, most = _exponential(i * i, 15 + 6)
    for _ in range(6):
        least, most = least * least >> _PRECISION, (most * most >> _PRECISION) + 1
    return HEIGHT * least, HEIGHT * most


def _weights_of_alias() -> list[int]:
    """Return how many pairs of a slot and a threshold lead to each outcome."""
    found = [0] * STRIPS
    for slot, entry in enumerate(ALIAS.tolist()):
        threshold, other = entry >> SLOT_BITS, entry & (STRIPS - 1)
        _require(0 <= threshold <= _CAPACITY, f"the threshold of slot {slot} must be within its capacity")
        found[slot] += threshold
        found[other] += _CAPACITY - threshold
    return found


def _require(condition: bool, what: str) -> None:
    if not condition:
        raise AssertionError(f"{what}; the sampler must not be used.")
