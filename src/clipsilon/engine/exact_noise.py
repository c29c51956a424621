"""Exact noise for arrays: integers on a public grid, plus exact normal noise.

A release with noise of standard deviation σ lives on the grid of spacing g = σ·2^−32. What is protected is brought to
the grid as integers q first, within its bound. Then g·(q + Z + ½) with Z = ⌊2^32·N⌋ is a function of the real number
g·q + σ·N: every certificate of Gaussian noise holds for it as it stands.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from numpy.random import BitGenerator, Generator
from numpy.typing import NDArray

from clipsilon._core.exact_normal import UNIT, fill_normal
from clipsilon._core.kernel_cache import kernel

Array = NDArray[np.float64]
Integers = NDArray[np.int64]

_LARGEST = 2**62


@kernel
def fill(bits: BitGenerator, out: Integers) -> None:
    """Fill a vector with independent draws of Z = ⌊2^32·N⌋, N a real standard normal.

    Parameters
    ----------
    bits : BitGenerator
        `rng.bit_generator`. It is not locked: no other thread may draw from it meanwhile.
    out : array of int64
        A vector, overwritten.
    """
    fill_normal(bits, out)


def draw(rng: Generator, size: int) -> Integers:
    """Return independent draws of Z = ⌊2^32·N⌋, N a real standard normal."""
    out = np.empty(size, dtype=np.int64)
    fill(rng.bit_generator, out)
    return out


def draw_whole(rng: Generator, std: float, size: int) -> Integers:
    """Return noise for whole numbers, with a standard deviation of at least `std`.

    Parameters
    ----------
    rng : Generator
        Source of the noise.
    std : float
        Standard deviation of the normal noise, above 0 and at most 2^32; the rounding comes on top.
    size : int
        Number of draws.

    Returns
    -------
    array of int64

    Formal guarantee
    ----------------
    A whole number plus this noise is a function of the number plus N(0, s²), real numbers, with s ≥ std.

    Notes
    -----
    With M = ⌊2^32/std⌋, the number n is n·M on a grid of spacing 1/M, where Z has the deviation 2^32/M ≥ std. Rounded
    to whole numbers, n·M + Z is ⌊(n·M + Z + ⌊M/2⌋)/M⌋ = n + ⌊(Z + ⌊M/2⌋)/M⌋.
    """
    if not 0 < std <= UNIT:
        raise ValueError(f"std must be above 0 and at most 2**32, got {std!r}.")
    spacing = min(int(2**32 / Fraction(std)), _LARGEST)
    return np.asarray((draw(rng, size) + spacing // 2) // spacing)


def grid_of(scale: float) -> float:
    """Return the spacing scale·2^−32 of the grid for noise of this standard deviation."""
    grid = scale / UNIT
    if not (0 < grid < math.inf and grid * UNIT == scale):
        raise ValueError(f"scale must be a positive number of ordinary size, got {scale!r}.")
    return grid


def clip_to_grid(vectors: Array, bound: float, scale: float) -> Integers:
    """Clip a vector, or each row of a table, to a bound and truncate it toward zero to the grid of a noise scale.

    Parameters
    ----------
    vectors : array of shape (d,) or (n, d)
        Finite numbers.
    bound : float
        The largest norm.
    scale : float
        Standard deviation of the noise; bound/scale is at most 2^29.

    Returns
    -------
    array of int64
        The multiples q of the grid's spacing g.

    Formal guarantee
    ----------------
    ‖g·q‖ ≤ bound as real numbers, for any vector of up to 2^40 entries; it does not depend on other rows.

    Notes
    -----
    The computed norm is too small by a factor of at most 1 + (d/2 + 5)·2^−53, and scaling adds five roundings. The
    bound is lowered by (d + 8)·2^−52, which is more; truncation shortens.
    """
    grid = grid_of(scale)
    if not (0 <= bound <= scale * 2.0**29):
        raise ValueError(f"bound must be between 0 and 2**29 times the scale {scale!r}, got {bound!r}.")
    if not np.isfinite(vectors).all():
        raise ValueError("vectors must be finite.")
    allowed = bound * (1.0 - (vectors.shape[-1] + 8) * 2.0**-52)
    largest = np.abs(vectors).max(axis=-1, keepdims=True, initial=0.0)
    direction = vectors / np.where(largest > 0.0, largest, 1.0)  # its squares cannot overflow
    length = np.sqrt(np.sum(direction**2, axis=-1, keepdims=True))  # at least 1 unless all is 0
    with np.errstate(over="ignore"):
        is_short = largest * length <= allowed
    kept = np.where(is_short, vectors, direction * (allowed / np.maximum(length, 1.0)))
    return np.asarray(np.trunc(kept / grid), dtype=np.int64)


def release(q: Integers, scale: float, rng: Generator) -> Array:
    """Return g·(q + Z + ½) with exact normal noise Z: g·q plus noise of deviation `scale`, on the grid g = scale·2^−32.

    Parameters
    ----------
    q : array of int64
        Multiples of g. Beyond ±2^62 they are cut off, which does not increase distances.
    scale : float
        Standard deviation of the noise.
    rng : Generator
        Source of the noise.

    Returns
    -------
    array of shape (d,)

    Formal guarantee
    ----------------
    The result is a function of g·q + N(0, scale²·I), real numbers.
    """
    total = np.clip(q, -_LARGEST, _LARGEST) + draw(rng, q.size)
    return np.asarray((total + 0.5) * grid_of(scale))
