"""Compiled loops over gradients: norms, sums of whole numbers, and exact noise.

No operation is reordered: the norm and the whole numbers of a record depend on this record alone, and not on its place
in a batch. The proof is in docs/proofs.md, "Exact sums and noise in PyTorch".
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba.extending import register_jitable
from numpy.random import BitGenerator, Generator
from numpy.typing import NDArray

from clipsilon._core.exact_normal import integer_normal
from clipsilon._core.kernel_cache import kernel
from clipsilon.engine.grid import Grid
from clipsilon.engine.grid import add_correlated as engine_add_correlated
from clipsilon.rules.noise import Correlated

Array = NDArray[np.float64]
Floats = NDArray[np.floating[Any]]

LANES, ROUNDS = 64, 32  # squares are summed in 64 lanes of 32 numbers, and these sums with compensation
_BLOCK = 2048  # entries of the sums that stay in the processor's cache while records are added

# Without fastmath, which functions would otherwise inherit from the kernel that calls them.
_EXACT = {"fastmath": False}


@kernel
def add_squares(rows: Floats, squares: Array) -> None:
    """Add the squared norms of rows to sums that are kept in two parts.

    Parameters
    ----------
    rows : array of shape (n, d)
        float32 or float64, contiguous.
    squares : array of shape (n, 2)
        For each row the sum and what rounding has taken from it, modified in place. Zero at first.
    """
    lanes = np.empty(LANES)
    for i in range(rows.shape[0]):
        _add_square(rows[i], lanes, squares[i])


@kernel
def add_whole(rows: Floats, factors: Array, total: Array) -> None:
    """Add rows, each multiplied by its factor and truncated toward zero, to a vector of whole numbers.

    The result is exact, in any order of the rows, as long as no sum exceeds 2^53.

    Parameters
    ----------
    rows : array of shape (n, d)
        float32 or float64, contiguous.
    factors : array of shape (n,)
        One factor per row.
    total : array of shape (d,)
        Whole numbers, modified in place.
    """
    for start in range(0, total.size, _BLOCK):
        _add_block(rows, factors, start, total[start : start + _BLOCK])


@kernel
def release(bits: BitGenerator, whole: Array, rounding: tuple[int, int], spacing: float, out: Floats) -> None:
    """Write spacing·(q + Z + ½), with q the whole numbers on a coarser grid and Z exact normal noise.

    Parameters
    ----------
    bits : BitGenerator
        Source of the noise. It is not locked: no other thread may draw from it meanwhile.
    whole : array of shape (d,)
        Whole numbers below 2^53.
    rounding : tuple of int
        Bits by which the whole numbers, and by which the noise ⌊2^32·N⌋ are rounded.
    spacing : float
        The spacing of the coarser grid, in units of the result.
    out : array of shape (d,)
        float32 or float64, overwritten.
    """
    extra, shift = rounding
    half = (1 << extra) >> 1
    for j in range(out.size):
        coarse = (np.int64(whole[j]) + half) >> extra
        out[j] = spacing * (coarse + (integer_normal(bits) >> shift) + 0.5)


@kernel
def add_correlated(noise: Correlated, units: Grid, whole: Array, memory: Array, rng: Generator) -> None:
    """Add correlated noise to whole numbers, and ½, as the compiled engine does.

    Parameters
    ----------
    noise : Correlated
        The noise, of which the buffers are used.
    units : Grid
        The engine's grid of whole numbers, with the digits of the noise below one.
    whole : array of shape (d,)
        Whole numbers of at most 2^50, modified in place.
    memory : array of shape (memory, d)
        What the noise carries from step to step, modified in place; zero before the first step.
    rng : Generator
        Source of the noise. It is not locked: no other thread may draw from it meanwhile.
    """
    engine_add_correlated(noise, units, whole, memory, rng)


@register_jitable(**_EXACT)  # type: ignore[untyped-decorator]
def _add_square(row: Floats, lanes: Array, square: Array) -> None:
    for start in range(0, row.size, LANES * ROUNDS):
        part = _sum_squares(row[start : start + LANES * ROUNDS], lanes)
        before = square[0]
        after = before + part
        added = after - before
        square[0] = after
        square[1] += (before - (after - added)) + (part - added)


@register_jitable(**_EXACT)  # type: ignore[untyped-decorator]
def _sum_squares(row: Floats, lanes: Array) -> float:
    lanes[:] = 0.0
    whole = row.size // LANES * LANES
    for start in range(0, whole, LANES):
        for k in range(LANES):
            value = np.float64(row[start + k])
            lanes[k] += value * value
    for k in range(row.size - whole):
        value = np.float64(row[whole + k])
        lanes[k] += value * value
    total = 0.0
    for k in range(LANES):
        total += lanes[k]
    return total


@register_jitable(**_EXACT)  # type: ignore[untyped-decorator]
def _add_block(rows: Floats, factors: Array, start: int, total: Array) -> None:
    fours, end = rows.shape[0] // 4 * 4, start + total.size
    for i in range(0, fours, 4):
        a, b, c, d = rows[i, start:end], rows[i + 1, start:end], rows[i + 2, start:end], rows[i + 3, start:end]
        _add_four(a, b, c, d, factors[i : i + 4], total)
    for i in range(fours, rows.shape[0]):
        _add_one(rows[i, start:end], factors[i], total)


@register_jitable(**_EXACT)  # type: ignore[untyped-decorator]
def _add_four(a: Floats, b: Floats, c: Floats, d: Floats, factors: Array, total: Array) -> None:
    f, g, h, k = factors[0], factors[1], factors[2], factors[3]
    for j in range(total.size):
        first = np.trunc(f * np.float64(a[j])) + np.trunc(g * np.float64(b[j]))
        total[j] += first + (np.trunc(h * np.float64(c[j])) + np.trunc(k * np.float64(d[j])))


@register_jitable(**_EXACT)  # type: ignore[untyped-decorator]
def _add_one(row: Floats, factor: float, total: Array) -> None:
    for j in range(total.size):
        total[j] += np.trunc(factor * np.float64(row[j]))
