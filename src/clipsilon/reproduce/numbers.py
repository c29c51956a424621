"""Numbers in findings: fitted exponents, and lists in a sentence."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike


def slope(x: ArrayLike, values: ArrayLike, first: float = 0.0) -> float:
    """Return the exponent of the power of x that fits the values best.

    Parameters
    ----------
    x, values : array_like of shape (K,)
        Positive numbers.
    first : float, default 0.0
        Points with a smaller x are ignored.

    Returns
    -------
    float
        The least-squares slope of log(values) against log(x).
    """
    places, found = np.asarray(x), np.asarray(values)
    late = places >= first
    return float(np.polyfit(np.log(places[late]), np.log(found[late]), 1)[0])


def join(values: Iterable[float], digits: int = 3) -> str:
    """Return the numbers with commas between them, for a sentence."""
    return ", ".join(f"{value:.{digits}g}" for value in values)
