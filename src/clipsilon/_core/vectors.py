"""Arithmetic on vectors for Python and for compiled code."""

from __future__ import annotations

import numpy as np
from numba.extending import register_jitable
from numpy.typing import NDArray


@register_jitable(forceinline=True)
def norm(vector: NDArray[np.float64]) -> float:
    """Return ‖vector‖, accurate even if the squares overflow or underflow; NaN if an entry is NaN."""
    square = 0.0
    for j in range(vector.size):
        square += vector[j] * vector[j]
    if 1e-280 < square < 1e280:
        return float(np.sqrt(square))
    if np.isnan(square):
        return square
    largest = 0.0
    for j in range(vector.size):
        largest = max(largest, abs(vector[j]))
    if largest == 0.0:
        return 0.0
    square = 0.0
    for j in range(vector.size):
        square += (vector[j] / largest) * (vector[j] / largest)
    return float(largest * np.sqrt(square))
