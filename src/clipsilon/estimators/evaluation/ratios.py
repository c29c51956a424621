"""Intervals for means over people: accuracy, log loss, points of the ROC curve and of the calibration curve.

Each is a ratio of two sums over noisy counts. For every value a that the ratio might have, Σ (value − a)·count has
mean 0 if a is right, and a variance known up to a: that of the noise, and that of sampling people. The interval holds
all a for which the sum is within 2.04 of these deviations (after Fieller, and Wilson). It needs no division by a noisy
number, so it stays right where noise hides the denominator: then it is wide.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

Array = NDArray[np.float64]

CONFIDENCE = 0.95
_CAUTION = 1.04  # variances are estimates, and sums are not quite normal


class Figure(NamedTuple):
    """A measure of quality with its interval.

    Parameters
    ----------
    value : float
        The estimate; NaN if the noise hides it.
    low, high : float
        95 % confidence interval for the value on all people of whom those evaluated are a random sample. It accounts
        for the noise and for this sampling.
    """

    value: float
    low: float
    high: float

    @property
    def margin(self) -> float:
        """Half the width of the interval."""
        return (self.high - self.low) / 2


class Counts(NamedTuple):
    """Noisy counts of people.

    Parameters
    ----------
    counts : array of shape (cells,)
        Unbiased estimates; some may be negative.
    covariance : array of shape (cells, cells)
        That of their noise.
    """

    counts: Array
    covariance: Array


def deviations(confidence: float = CONFIDENCE) -> float:
    """Return the number of standard deviations on either side of an interval."""
    return _CAUTION * float(ndtri(0.5 + confidence / 2))


def ratio(noisy: Counts, values: Array, members: Array, confidence: float = CONFIDENCE) -> Figure:
    """Return the mean of values over people.

    Parameters
    ----------
    noisy : Counts
        The noisy counts.
    values : array of shape (cells,)
        The value of a person in each cell, at least 0.
    members : array of shape (cells,)
        1 for the cells over which the mean is taken, 0 for the others.
    confidence : float, default 0.95
        Coverage of the interval.

    Returns
    -------
    Figure
    """
    inside = members > 0
    gains = values * members
    squares = gains**2
    sums = Sums(
        total=float(gains @ noisy.counts),
        people=float(members @ noisy.counts),
        second=float(squares @ noisy.counts) + np.sqrt(max(float(squares @ noisy.covariance @ squares), 0.0)),
        variance=float(gains @ noisy.covariance @ gains),
        mixed=float(gains @ noisy.covariance @ members),
        of_people=float(members @ noisy.covariance @ members),
    )
    return solve_interval(sums, float(values[inside].min()), float(values[inside].max()), confidence)


class Sums(NamedTuple):
    """Noisy sums over people.

    Parameters
    ----------
    total, people, second : float
        Of the values, of ones, and of the squares, the last on the safe side of its noise.
    variance, mixed, of_people : float
        Variance of the noise in `total`, its covariance with that in `people`, and the variance of the latter.
    """

    total: float
    people: float
    second: float
    variance: float
    mixed: float
    of_people: float


def solve_interval(sums: Sums, lowest: float, highest: float, confidence: float = CONFIDENCE) -> Figure:
    """Return the mean total/people with its interval.

    Parameters
    ----------
    sums : Sums
        The noisy sums.
    lowest, highest : float
        Smallest and largest value of a person.
    confidence : float, default 0.95
        Coverage of the interval.

    Returns
    -------
    Figure
    """
    z2, total, people = deviations(confidence) ** 2, sums.total, sums.people
    # E[value²]/E[value]: with it, spread·a − a² is the variance at mean a.
    spread = min(highest, sums.second / total) if sums.second > 0 and total > 0 else highest
    # (total − a·people)² ≤ z²·(noise + max(people, 0)·(spread·a − a²)), a quadratic inequality in a.
    sampled = max(people, 0.0)
    square = people**2 - z2 * (sums.of_people - sampled)
    linear = -2 * total * people - z2 * (sampled * spread - 2 * sums.mixed)
    constant = total**2 - z2 * sums.variance
    root = linear**2 - 4 * square * constant
    if square <= 0 or root < 0:
        return Figure(float("nan"), lowest, highest)
    ends = (-linear + np.array([-1, 1]) * np.sqrt(root)) / (2 * square)
    low, high = np.clip(ends, lowest, highest)
    return Figure(float(np.clip(total / people, low, high)), float(low), float(high))
