"""Ranges with few digits, which hold the one that was found."""

from __future__ import annotations

import math


def round_outward(low: float, high: float) -> tuple[float, float]:
    """Return a range of two digits, relative to its width, that holds this one; whole numbers where it can be.

    >>> round_outward(18.3, 88.9)
    (18, 89)
    >>> round_outward(0.0123, 0.4567)
    (0.01, 0.46)
    """
    if not low < high:
        around = max(abs(low), abs(high)) or 1.0
        low, high = min(low, high) - around / 2, max(low, high) + around / 2
    digits = 1 - math.floor(math.log10(high - low))
    unit = 10.0**-digits
    ends = round(math.floor(low / unit) * unit, digits), round(math.ceil(high / unit) * unit, digits)
    return _whole(ends[0]), _whole(ends[1])


def round_factor(low: float, high: float) -> tuple[float, float]:
    """Return a range of positive numbers with one digit each that holds this one.

    >>> round_factor(123.0, 45_678.0)
    (100, 50000)
    """
    ends = []
    for value, rounded in ((low, math.floor), (high, math.ceil)):
        digits = -math.floor(math.log10(value))
        ends.append(_whole(round(rounded(value * 10.0**digits) * 10.0**-digits, digits)))
    return ends[0], ends[1]


def _whole(value: float) -> float:
    return int(value) if float(value).is_integer() and abs(value) < 2**53 else value
