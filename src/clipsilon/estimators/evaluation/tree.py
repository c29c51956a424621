"""Histograms as trees: the total, and for each node how many more are in its right half than in its left.

With noise on these numbers instead of the counts themselves, a count over half of all bins has the noise of one number
and not of half of the bins. The figures of an evaluation are such counts, so coarse levels get larger weights than fine
ones.
"""

from __future__ import annotations

from math import isqrt

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Integers = NDArray[np.int64]

_FALL = 2.0**-0.5  # of the squared weight from one level to the next
_PRECISION = 2**24  # of squared weights


def level_weights(levels: int, unit: int) -> list[int]:
    """Return whole weights of the total and of each level below it, whose squares add up to at most unit².

    A person in one bin changes one number per level, so `unit` bounds the length of the change. No weight exceeds the
    first. So two people's changes never point in opposite directions, and replacing one by the other is a change of at
    most √2·unit.

    Parameters
    ----------
    levels : int
        Number of levels below the total; there are 2^levels bins.
    unit : int
        The length that stands for one person.

    Returns
    -------
    list of int
        levels + 1 weights.
    """
    squares = [round(_PRECISION * _FALL ** max(1, level)) for level in range(levels + 1)]
    return [isqrt(unit**2 * square // sum(squares)) for square in squares]


def node_levels(levels: int) -> Integers:
    """Return the level of each number of a tree, in the order of `to_tree`."""
    return np.repeat(np.arange(levels + 1), [1, *(2**level for level in range(levels))])


def to_tree(counts: Integers) -> Integers:
    """Return the total and the differences along the last axis, coarse ones first; 2^levels counts give as many."""
    parts = []
    while counts.shape[-1] > 1:
        left, right = counts[..., ::2], counts[..., 1::2]
        parts.append(right - left)
        counts = left + right
    return np.concatenate([counts, *reversed(parts)], axis=-1)


def from_tree(tree: Array) -> Array:
    """Invert `to_tree`."""
    counts, used = tree[..., :1], 1
    while used < tree.shape[-1]:
        differences = tree[..., used : 2 * used]
        counts = np.stack([counts - differences, counts + differences], axis=-1).reshape(*tree.shape[:-1], 2 * used) / 2
        used *= 2
    return counts
