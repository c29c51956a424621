"""A noisy histogram in which each person has one unit of weight, exact in the machine."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from clipsilon.engine import exact_noise
from clipsilon.estimators.evaluation.ratios import Counts
from clipsilon.estimators.evaluation.tree import from_tree, level_weights, node_levels, to_tree

Integers = NDArray[np.int64]

MOST_PEOPLE = 2**26
_LARGEST_UNIT = 2**36  # times MOST_PEOPLE: no sum exceeds 2^62, where noise is still added in 64 bits


def draw_histogram(bins: Integers, rows_of: Integers, classes: int, levels: int, std: float, rng: Generator) -> Counts:
    """Count people in the bins of each class, with noise.

    Parameters
    ----------
    bins : array of int
        The bin of each row: class·2^levels + bin of the score.
    rows_of : array of int
        For each row, the number of rows of its person.
    classes, levels : int
        There are classes·2^levels bins.
    std : float
        Standard deviation of the noise in units of one person.
    rng : Generator
        Source of the noise.

    Returns
    -------
    Counts
        Unbiased counts and the covariance of their noise.

    Formal guarantee
    ----------------
    The result is a function of numbers that change by at most 1 (Euclidean norm) if a person is added, removed or
    zeroed out, and by at most √2 if one is replaced, each plus independent N(0, s²) with s ≥ std, real numbers.
    """
    unit = min(int(2**32 / Fraction(std)), _LARGEST_UNIT)
    weights = level_weights(levels, unit)
    tree = weighted_tree(bins, rows_of, classes, weights)
    noise = exact_noise.draw(rng, tree.size).reshape(tree.shape)
    scale = np.array(weights, dtype=np.float64)[node_levels(levels)]
    counts = from_tree((tree + noise + 0.5) / scale)
    basis = from_tree(np.eye(scale.size))
    own = (basis.T * (2.0**32 / scale) ** 2) @ basis
    return Counts(counts.ravel(), np.asarray(np.kron(np.eye(classes), own), dtype=np.float64))


def weighted_tree(bins: Integers, rows_of: Integers, classes: int, weights: list[int]) -> Integers:
    """Return the tree of each class in whole numbers, to which a person with k rows adds ⌊weight/k⌋ per row and level.

    Parameters
    ----------
    bins, rows_of, classes
        As for `draw_histogram`.
    weights : list of int
        The weight of one person on each level.

    Returns
    -------
    array of int64, of shape (classes, 2^levels)
    """
    levels = len(weights) - 1
    total = np.zeros((classes, 2**levels), dtype=np.int64)
    for rows in np.unique(rows_of).tolist():
        counts = np.bincount(bins[rows_of == rows], minlength=total.size).reshape(total.shape)
        shares = np.array([weight // rows for weight in weights], dtype=np.int64)
        total += to_tree(counts) * shares[node_levels(levels)]
    return total


def with_total(noisy: Counts, people: int) -> Counts:
    """Return the counts, given that they add up to a known number of people."""
    counts, covariance = noisy
    with_sum = covariance.sum(axis=1)
    variance = with_sum.sum()
    corrected = counts - with_sum * (counts.sum() - people) / variance
    return Counts(corrected, covariance - np.outer(with_sum, with_sum) / variance)
