"""An attack on the low bits of released numbers.

A sum of two floating-point numbers cannot take every value: its low bits depend on both. So if noise was added in
floating point, a release is impossible for some of the values that the noise should hide, and an attacker who can name
the candidates rules them out, whatever ε says. Exact noise leaves nothing to find: see docs/proofs.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import ArrayLike, NDArray
from randomgen import UserBitGenerator

from clipsilon._core import checks

__all__ = ["identify", "is_possible"]

Floats = NDArray[np.floating[Any]]
Flags = NDArray[np.bool_]

_TAIL = 3.654152885361009  # beyond it, NumPy's sampler returns numbers of any form
_PLACES = 2**52
_LAYERS = 256


def is_possible(released: ArrayLike, candidate: ArrayLike, std: float) -> Flags:
    """Return which released numbers can be a candidate plus floating-point noise.

    Parameters
    ----------
    released : array of float64 or float32
        What was released. float64 is attacked as `candidate + std * rng.standard_normal()` of NumPy (a ziggurat),
        float32 as candidate plus any float32 number.
    candidate : array
        What the noise may have been added to, in the same precision; one number, or one per released number.
    std : float
        Standard deviation of the noise.

    Returns
    -------
    array of bool
        False where no noise that the sampler can return leads to the released number.

    Examples
    --------
    >>> noise = np.random.default_rng(0).standard_normal(20_000)
    >>> bool(is_possible(0.25 + noise, 0.25, std=1.0).all()), bool(is_possible(0.25 + noise, 0.26, std=1.0).all())
    (True, False)
    """
    given = np.atleast_1d(np.asarray(released))
    if given.dtype not in (np.float64, np.float32):
        raise ValueError(f"released must be an array of float64 or float32, got {given.dtype}.")
    scale = checks.positive("std", std)
    center = np.broadcast_to(np.asarray(candidate, dtype=given.dtype), given.shape)
    nearest = given - center
    # Where the release is coarser than the noise, many numbers could have been the noise: nothing is ruled out.
    found = np.asarray(np.spacing(np.abs(given)) > np.spacing(np.abs(nearest)))
    for noise in _neighbours(nearest):  # one of them was the noise, before rounding
        fits = center + noise == given
        found |= fits & _can_be_noise(np.where(fits, noise, given.dtype.type(np.inf)), scale)
    return found


def identify(released: ArrayLike, candidates: Sequence[ArrayLike], std: float) -> int | None:
    """Return the candidate that the low bits speak for, or None if they do not tell.

    Parameters
    ----------
    released : array of float64 or float32
        As of `is_possible`.
    candidates : sequence of arrays
        What the noise may have been added to.
    std : float
        Standard deviation of the noise.

    Returns
    -------
    int or None
        The index of the candidate for which the fewest released numbers are impossible; None if several are equal.

    Examples
    --------
    >>> sums = np.zeros(20_000), np.full(20_000, 0.01)
    >>> identify(sums[1] + np.random.default_rng(0).standard_normal(20_000), sums, std=1.0)
    1
    """
    impossible = [int(np.count_nonzero(~is_possible(released, candidate, std))) for candidate in candidates]
    least = min(impossible)
    return impossible.index(least) if impossible.count(least) == 1 else None


def _neighbours(values: Floats) -> list[Floats]:
    """Return the values and the floating-point numbers next to them, two on each side."""
    below, above = (np.nextafter(values, values.dtype.type(end)) for end in (-np.inf, np.inf))
    further = (np.nextafter(near, values.dtype.type(end)) for near, end in ((below, -np.inf), (above, np.inf)))
    return [values, below, above, *further]


def _can_be_noise(noise: Floats, std: float) -> Flags:
    """Return which numbers the sampler can return; infinite ones it cannot."""
    found = np.isfinite(noise)
    if noise.dtype == np.float32:
        return found
    places = np.flatnonzero(found)
    kept = noise[places]
    possible = np.zeros(places.size, dtype=bool)
    for normal in _neighbours(kept / std):
        fits = np.flatnonzero((std * normal == kept) & ~possible)
        possible[fits] = _from_ziggurat(np.abs(normal[fits]))
    found[places] = possible
    return found


def _from_ziggurat(normal: Floats) -> Flags:
    """Return which numbers are an integer below 2^52 times the width of one of the 256 layers, or in the tail."""
    found = np.asarray(normal >= _TAIL)
    for width in _layer_widths():
        nearest = np.rint(normal / width)
        for count in (nearest - 1, nearest, nearest + 1):  # the quotient of large counts is off by one at times
            found |= (count * width == normal) & (count < _PLACES)
    return found


@cache
def _layer_widths() -> list[float]:
    """Return the widths of the layers of NumPy's sampler, asked of the installed NumPy itself.

    Its first word holds the layer (8 bits), the sign (1) and the multiple of the width (52). A multiple of 2^51 is
    accepted, at the latest by a second word of zero.
    """
    words: list[int] = []
    rng = Generator(UserBitGenerator(lambda _: words.pop() if words else 0))
    widths = []
    for layer in range(_LAYERS):
        words[:] = [(_PLACES // 2) << 9 | layer]
        widths.append(float(rng.standard_normal()) / (_PLACES // 2))
    return widths
