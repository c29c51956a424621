"""Means of a number that changes within a bin, such as a loss, from both histograms.

Each person first gets the number that people spread over their bin are expected to have on average. How far this is
off is a sum over the cells of the bin, of which the first histogram has an unbiased estimate with more noise. This
estimate is shrunk as if all people of a bin were at one place in it, and any place were as likely: so nothing is off
where noise is small, and what noise hides is in the interval. What cells hide is in it, too: scores may be tied.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clipsilon.estimators.evaluation.ratios import Array, Counts, Figure, Sums, solve_interval

Integers = NDArray[np.int64]


class Histograms(NamedTuple):
    """Noisy counts of the same people in cells and in bins of cells.

    Parameters
    ----------
    cells, bins : Counts
        The counts, with independent noise.
    bin_of : array of int
        The bin of each cell.
    """

    cells: Counts
    bins: Counts
    bin_of: Integers


def mean(noisy: Histograms, places: Array, expected: Array) -> Figure:
    """Return the mean of a number over all people.

    Parameters
    ----------
    noisy : Histograms
        The noisy counts.
    places : array of shape (cells, places)
        The number of a person at several places in each cell, at least 0.
    expected : array of shape (bins,)
        The mean that is expected in each bin, between the smallest and the largest of its cells.

    Returns
    -------
    Figure
    """
    values, people = places.mean(axis=1), noisy.cells.counts
    total, variance = estimate_sum(noisy, values, expected)
    in_one_place = np.maximum(people**2 - np.diag(noisy.cells.covariance), 0.0)
    variance += float(in_one_place @ places.var(axis=1))
    second, doubt = estimate_sum(noisy, values**2, expected**2)
    everybody = np.ones(expected.size)
    sums = Sums(
        total=total,
        people=float(noisy.bins.counts.sum()),
        second=second + np.sqrt(doubt),
        variance=variance,
        mixed=float(expected @ noisy.bins.covariance @ everybody),
        of_people=float(everybody @ noisy.bins.covariance @ everybody),
    )
    return solve_interval(sums, float(places.min()), float(places.max()))


def estimate_sum(noisy: Histograms, values: Array, expected: Array) -> tuple[float, float]:
    """Return the sum of a number over people, and the variance of its error from noise and from what noise hides.

    Parameters
    ----------
    noisy, expected
        As for `mean`.
    values : array of shape (cells,)
        The number of a person in each cell.

    Returns
    -------
    estimate, variance : float
    """
    cells, bins, bin_of = noisy
    off = np.zeros((expected.size, values.size))
    off[bin_of, np.arange(values.size)] = values - expected[bin_of]
    noise = off @ cells.covariance @ off.T
    possible = np.maximum(bins.counts, 0.0) ** 2 * (off**2).sum(axis=1) / np.bincount(bin_of)
    trusted = np.linalg.solve(noise + np.diag(possible + 1e-9), possible)
    estimate = expected @ bins.counts + trusted @ (off @ cells.counts)
    variance = expected @ bins.covariance @ expected + possible.sum() - possible @ trusted
    return float(estimate), max(float(variance), 0.0)
