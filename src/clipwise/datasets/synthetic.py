"""The papers' synthetic data."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from clipwise import checks


def bernoulli(records: int, p: float, scale: float = 1.0, seed: int = 0) -> NDArray[np.float64]:
    """z̄_i = scale·Z̃_i with Z̃_i ~ Bernoulli(p): the quadratic problem of paper 1, eq. 24 (b = scale)."""
    draws = np.random.default_rng(seed).random(checks.count("records", records))
    return np.where(draws < checks.fraction("p", p), checks.number("scale", scale), 0.0)
