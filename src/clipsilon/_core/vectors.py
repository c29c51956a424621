"""Arithmetic on vectors for Python and for compiled code."""

from __future__ import annotations

import numpy as np
from numba import types
from numba.extending import register_jitable
from numpy.typing import NDArray

from clipsilon._core.apart import call_apart
from clipsilon._core.options import CONTAINED, INLINE
from clipsilon._core.products import dot

LEAST, MOST = 1e-90, 1e90
"""Exact sums are made for thresholds, noise and rows whose sizes lie between these, where no product underflows."""
LEAST_GRADIENT, MOST_GRADIENT = 1e-200, 1e200
"""A gradient whose norm does not lie between these adds nothing to an exact sum; neither does one that is NaN."""


@register_jitable(**INLINE)
def is_moderate(size: float) -> bool:
    """Return whether a size lies between LEAST and MOST; False for NaN."""
    return LEAST <= size <= MOST


@register_jitable(**INLINE)
def is_measurable(length: float) -> bool:
    """Return whether the norm of a gradient is known with a small relative error; False for NaN."""
    return (length >= LEAST_GRADIENT) & (length <= MOST_GRADIENT)  # without a branch


@register_jitable(**CONTAINED)
def _scaled_norm(vector: NDArray[np.float64]) -> float:
    """Return ‖vector‖ without squaring its largest entry; NaN if an entry is NaN."""
    largest = 0.0
    for j in range(vector.size):
        if np.isnan(vector[j]):
            return float(vector[j])
        largest = max(largest, abs(vector[j]))
    if largest == 0.0:
        return 0.0
    square = 0.0
    for j in range(vector.size):
        square += (vector[j] / largest) * (vector[j] / largest)
    return float(largest * np.sqrt(square))


def _norm(vector: NDArray[np.float64]) -> float:
    square = dot(vector, vector)
    return float(np.sqrt(square)) if 1e-280 < square < 1e280 else _scaled_norm(vector)


norm = call_apart(_norm, types.float64, on_error=np.nan)
"""‖vector‖, accurate even if the squares overflow or underflow; NaN if an entry is NaN."""
