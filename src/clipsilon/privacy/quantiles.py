"""One quantile of each column, privately: a binary search by noisy counts that allows for wrong answers.

Values are searched on a public line that gives each octave the same width: position 0 is the value 0, positions ±1 are
the values ±2⁵⁰. A question is "how many values are below this threshold, and how many above?", with one threshold per
column. Noise may reverse an answer, so none is taken as certain: the intervals between the thresholds have
probabilities (Bayes' rule), and the next threshold is their median.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr

Array = NDArray[np.float64]

WORST_ERROR = 1 / 20
"""The largest error of an answer, as a fraction of the records: with a larger one, answers are worthless."""

VOTE = 2**10
"""A person with several rows has one vote, which is counted in fractions of this size."""

_OCTAVES = 50  # sizes from 2⁻⁵⁰ to 2⁵⁰, about 1e-15 to 1e15, are distinguished; smaller ones are 0
_ZERO = 0.07  # positions up to this are 0: a wide interval, since many columns are mostly 0


def balances(X: Array, thresholds: Array, center: Array | None = None) -> NDArray[np.int64]:
    """Count the values below a threshold minus those above it, for each column. Nothing else is asked of the data.

    Parameters
    ----------
    X : array of shape (records, columns)
        The records. Tables in Fortran order are counted eight times as fast.
    thresholds : array
        One threshold per column.
    center : array, optional
        One number per column; if given, distances from it are counted instead of values.

    Returns
    -------
    array of int
        One balance per column. The balances of two tables add up.

    Notes
    -----
    A record adds −1, 0 or 1 to each balance. So it changes the answer by at most √d if it is removed, and by at most
    2·√d if it is replaced.
    """
    centers = [None] * len(thresholds) if center is None else center
    counted = (_balance(*each) for each in zip(X.T, thresholds, centers, strict=True))
    return np.fromiter(counted, dtype=np.int64, count=len(thresholds))


def person_balances(
    starts: NDArray[np.int64], X: Array, thresholds: Array, center: Array | None = None
) -> NDArray[np.int64]:
    """Return the sum over people of the mean balance of their rows, in units of 1/`VOTE`, for each column.

    Parameters
    ----------
    starts : array of shape (people + 1,)
        Where the rows of each person begin, and where the last ones end.
    X : array of shape (rows, columns)
        The rows, sorted by person.
    thresholds, center
        As for `balances`.

    Returns
    -------
    array of int
        One number per column.

    Notes
    -----
    A person adds a whole number from −VOTE to VOTE, whatever the rows; it is rounded by itself.
    """
    centers = [None] * len(thresholds) if center is None else center
    rows = np.diff(starts)
    found = np.empty(len(thresholds), dtype=np.int64)
    for k, (column, threshold, middle) in enumerate(zip(X.T, thresholds, centers, strict=True)):
        counted = column if middle is None else np.abs(column - middle)
        signs = (counted < threshold).astype(np.int64) - (counted > threshold)
        found[k] = np.rint(VOTE * np.add.reduceat(signs, starts[:-1]) / rows).astype(np.int64).sum()
    return found


def _balance(column: Array, threshold: float, center: float | None) -> int:
    counted = column if center is None else np.abs(column - center)
    return int(np.count_nonzero(counted < threshold) - np.count_nonzero(counted > threshold))


def balance_noise(mu: float, asked: int, adjacency: str) -> float:
    """Return the standard deviation of the noise on each balance.

    Parameters
    ----------
    mu : float
        All balances together are μ-GDP.
    asked : int
        Number of balances: questions times columns.
    adjacency : str
        "zero-out", or "replace-one", under which a balance changes by 2 instead of 1.

    Returns
    -------
    float
        The standard deviation.
    """
    change = 2.0 if adjacency == "replace-one" else 1.0
    return float(change * np.sqrt(asked) / mu * (1.0 + 2.0**-50))  # not below, whatever was rounded


def answer_error(std: float, records: int) -> float:
    """Return the standard deviation of an answer, as a fraction of the records."""
    return float(np.hypot(std, 0.3) / (2 * records))  # 0.3 for rounding


def values(positions: Array) -> Array:
    """Return the values at positions between −1 and 1 of the line."""
    octave = _OCTAVES * (2 * (np.abs(positions) - _ZERO) / (1 - _ZERO) - 1)
    return np.where(np.abs(positions) < _ZERO, 0.0, np.copysign(np.exp2(octave), positions))


@dataclass(frozen=True)
class Posterior:
    """Where a quantile of each column may be: uniformly within each interval, with these probabilities.

    Parameters
    ----------
    edges : array of shape (columns, k + 1)
        The positions between which the intervals lie, ascending.
    weights : array of shape (columns, k)
        The probability of each interval; each row adds up to 1.
    """

    edges: Array
    weights: Array

    def position(self, fraction: float) -> Array:
        """Return, for each column, the position that has this fraction of the probability below it."""
        cumulative = np.cumsum(self.weights, axis=1)
        rows = np.arange(cumulative.shape[0])
        # Rounding may leave the last sum below the fraction.
        cell = np.minimum((cumulative < fraction).sum(axis=1), cumulative.shape[1] - 1)
        weight = self.weights[rows, cell]
        inside = np.clip(1 - (cumulative[rows, cell] - fraction) / np.where(weight > 0, weight, 1.0), 0.0, 1.0)
        low, high = self.edges[rows, cell], self.edges[rows, cell + 1]
        return np.asarray(low + inside * (high - low))


def search(
    ask: Callable[[Array], Array], columns: int, quantile: float, error: float, questions: int, lowest: float
) -> tuple[Posterior, Array]:
    """Search a quantile of each column.

    Parameters
    ----------
    ask : callable
        From one threshold per column to the fraction of values below each, with a noise of standard deviation `error`.
    columns : int
        Number of columns.
    quantile : float
        The fraction of values below the quantile, between 0 and 1.
    error : float
        Standard deviation of the answers.
    questions : int
        How often to ask, more than 2.
    lowest : float
        The lowest position: −1, or 0 for values that are not negative.

    Returns
    -------
    posterior : Posterior
        What is known about the quantile after all questions.
    position : array
        The position to use for it, one per column.
    """
    asked, answers = np.empty((columns, 0)), np.empty((columns, 0))
    # The last two questions are about the tails: a threshold that hit the quantile early has wide intervals beside it.
    for fraction in (*(0.5,) * (questions - 2), 0.1, 0.9):
        positions = _posterior(asked, answers, quantile, error, lowest).position(fraction)
        positions = np.copysign(np.maximum(np.abs(positions), _ZERO), positions)  # the interval of 0 is not divided
        asked = np.column_stack([asked, positions])
        answers = np.column_stack([answers, ask(values(positions))])
    posterior = _posterior(asked, answers, quantile, error, lowest)
    # If an answer cannot be distinguished from the quantile, use its threshold: later answers there are coin tosses.
    misses = np.abs(answers - quantile)
    rows, closest = np.arange(columns), misses.argmin(axis=1)
    position = np.where(misses[rows, closest] <= 2 * error, asked[rows, closest], posterior.position(0.5))
    return posterior, np.where(np.abs(position) <= _ZERO, 0.0, position)


def _posterior(asked: Array, answers: Array, quantile: float, error: float, lowest: float) -> Posterior:
    """Combine the answers, each of which gives the odds that the quantile is above or below its threshold."""
    order = np.argsort(asked, axis=1, kind="stable")
    inner = np.take_along_axis(asked, order, axis=1)
    excess = (np.take_along_axis(answers, order, axis=1) - quantile) / error
    ends = np.full((inner.shape[0], 1), lowest), np.ones((inner.shape[0], 1))
    edges = np.hstack([ends[0], inner, ends[1]])
    # An interval is above the thresholds before it, which have too few values below them, and below the others.
    zeros = np.zeros((inner.shape[0], 1))
    above = np.hstack([zeros, np.cumsum(log_ndtr(-excess), axis=1)])
    below = np.hstack([np.cumsum(log_ndtr(excess)[:, ::-1], axis=1)[:, ::-1], zeros])
    widths = np.diff(edges, axis=1)
    odds = np.where(widths > 0, above + below, -np.inf)
    weights = widths * np.exp(odds - odds.max(axis=1, keepdims=True))
    return Posterior(edges, weights / weights.sum(axis=1, keepdims=True))
