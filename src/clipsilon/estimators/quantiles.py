"""One quantile of each column, privately: a search by noisy counts that allows for answers that are wrong.

Values are searched on a public line that gives every octave of size the same room: place 0 is the value 0, place ±1
the values ±2⁵⁰. A question is "how many values are below this threshold, and how many above?", one threshold a
column. The noise may turn an answer round, so none is taken for certain: the places between the thresholds have
weights (Bayes' rule), and the next threshold halves the weight.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr

Array = NDArray[np.float64]

_OCTAVES = 50  # sizes from 2⁻⁵⁰ to 2⁵⁰, about 1e-15 to 1e15, are told apart; smaller ones are 0
_ZERO = 0.07  # places up to this are 0: some room, as many columns are 0 for the most part


def balances(X: Array, thresholds: Array, center: Array | None = None) -> NDArray[np.int64]:
    """How many values of each column are below its threshold, less how many are above: all that is asked of the data.

    Given a center, it is the distances from it that are counted. The balances of two tables add up. A record adds −1,
    0 or 1 to each: so it moves the answer by at most √d if it is dropped, and by 2·√d if it is replaced. Tables whose
    columns lie in one piece (Fortran order) are counted eight times as fast.
    """
    offsets = [None] * len(thresholds) if center is None else center
    counted = (_balance(*each) for each in zip(X.T, thresholds, offsets, strict=True))
    return np.fromiter(counted, dtype=np.int64, count=len(thresholds))


def _balance(column: Array, threshold: float, center: float | None) -> int:
    asked = column if center is None else np.abs(column - center)
    return int(np.count_nonzero(asked < threshold) - np.count_nonzero(asked > threshold))


def values(places: Array) -> Array:
    """The values at places of the line from −1 to 1."""
    octave = _OCTAVES * (2 * (np.abs(places) - _ZERO) / (1 - _ZERO) - 1)
    return np.where(np.abs(places) < _ZERO, 0.0, np.copysign(np.exp2(octave), places))


@dataclass(frozen=True)
class Belief:
    """Where a quantile of each column may be: evenly between neighbouring `edges`, by these `weights`."""

    edges: Array  # (columns, k + 1), ascending
    weights: Array  # (columns, k), each row adds up to 1

    def place(self, share: float) -> Array:
        """The place of each column that has this share of the weight below it."""
        reached = np.cumsum(self.weights, axis=1)
        rows = np.arange(reached.shape[0])
        # Rounding may leave the last sum below the share.
        cell = np.minimum((reached < share).sum(axis=1), reached.shape[1] - 1)
        weight = self.weights[rows, cell]
        inside = np.clip(1 - (reached[rows, cell] - share) / np.where(weight > 0, weight, 1.0), 0.0, 1.0)
        low, high = self.edges[rows, cell], self.edges[rows, cell + 1]
        return np.asarray(low + inside * (high - low))


def search(
    ask: Callable[[Array], Array], columns: int, quantile: float, error: float, questions: int, lowest: float
) -> tuple[Belief, Array]:
    """What is believed about a quantile of each column after some questions, and the place to take for it.

    `ask` gives, for one threshold a column, the share of values below it with an error of standard deviation `error`.
    """
    asked, answers = np.empty((columns, 0)), np.empty((columns, 0))
    # The last two are about the outskirts: a threshold that hit the quantile early leaves wide room beside it.
    for share in (*(0.5,) * (questions - 2), 0.1, 0.9):
        places = _believe(asked, answers, quantile, error, lowest).place(share)
        places = np.copysign(np.maximum(np.abs(places), _ZERO), places)  # 0 itself is not divided
        asked = np.column_stack([asked, places])
        answers = np.column_stack([answers, ask(values(places))])
    belief = _believe(asked, answers, quantile, error, lowest)
    # Where an answer cannot be told from the quantile, the threshold will do: further ones only toss coins.
    misses = np.abs(answers - quantile)
    rows, closest = np.arange(columns), misses.argmin(axis=1)
    place = np.where(misses[rows, closest] <= 2 * error, asked[rows, closest], belief.place(0.5))
    return belief, np.where(np.abs(place) <= _ZERO, 0.0, place)


def _believe(asked: Array, answers: Array, quantile: float, error: float, lowest: float) -> Belief:
    """Every answer says, with its odds, on which side of its threshold the quantile is."""
    order = np.argsort(asked, axis=1, kind="stable")
    inner = np.take_along_axis(asked, order, axis=1)
    excess = (np.take_along_axis(answers, order, axis=1) - quantile) / error
    ends = np.full((inner.shape[0], 1), lowest), np.ones((inner.shape[0], 1))
    edges = np.hstack([ends[0], inner, ends[1]])
    # A cell is above the thresholds before it, which have too little below them, and below the others.
    nothing = np.zeros((inner.shape[0], 1))
    above = np.hstack([nothing, np.cumsum(log_ndtr(-excess), axis=1)])
    below = np.hstack([np.cumsum(log_ndtr(excess)[:, ::-1], axis=1)[:, ::-1], nothing])
    widths = np.diff(edges, axis=1)
    odds = np.where(widths > 0, above + below, -np.inf)
    weights = widths * np.exp(odds - odds.max(axis=1, keepdims=True))
    return Belief(edges, weights / weights.sum(axis=1, keepdims=True))
