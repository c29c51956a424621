"""Numbers that findings are about: exponents of powers, and lists in a sentence."""

from __future__ import annotations

from typing import Any

import numpy as np


def slope(x: Any, values: Any, first: float = 0.0) -> float:
    """The exponent of the power of x that fits the values best, from `first` on."""
    places, found = np.asarray(x), np.asarray(values)
    late = places >= first
    return float(np.polyfit(np.log(places[late]), np.log(found[late]), 1)[0])


def listed(values: Any, digits: int = 3) -> str:
    """Numbers in a sentence."""
    return ", ".join(f"{value:.{digits}g}" for value in values)
