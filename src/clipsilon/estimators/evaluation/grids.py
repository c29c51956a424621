"""Public cells for scores and errors, and bins of cells that follow noisy counts.

Cells are fixed before anything is seen: 256 steps of 1/16 in the log-odds from −8 to 8, or of the square root of an
error's share of the range. The AUC alone needs no noise per cell, so there 2^16 steps of 1/256 are used. Half of the
bins have equal numbers of people, as far as the noise lets this be known, and half have equal width, so that neither
many people nor a long distance are in one bin.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Integers = NDArray[np.int64]

CELLS = 256
CELL_LEVELS = 8
ZERO = CELLS // 2  # the edge at log-odds 0, which separates the predicted classes
_STEPS = 16  # per unit of log-odds
_LEAST_TAIL, _MOST_TAIL = 0.002, 0.02  # fraction of the people on either side of the bins of equal width
_TAIL_NOISE = 10.0  # deviations of the noise that a tail must have people for
_TAIL_WIDTH = 2.4  # of a tail, in widths of the bin beside it
_INSIDE = (np.arange(8) + 0.5) / 8  # of a bin
_LEAST_LEVELS, _MOST_LEVELS = 3, 7
_FINENESS = 7.0  # of bins: 4^levels, for one person


class Grid(NamedTuple):
    """Cells of equal size around log-odds of 0; scores beyond them count as in the first or the last.

    Parameters
    ----------
    cells : int
        The number of cells.
    steps : int
        Cells per unit of log-odds.
    """

    cells: int
    steps: int


COARSE = Grid(CELLS, _STEPS)
FINE = Grid(2**16, 2**8)


def locate_scores(scores: Array, grid: Grid = COARSE) -> Array:
    """Return the position of each log-odds, between 0 and the number of cells."""
    return np.asarray(np.clip(scores * grid.steps + grid.cells / 2, 0.0, grid.cells))


def locate_errors(errors: Array) -> Array:
    """Return the position of each error, in units of the range of the targets; larger ones count as 1."""
    return np.asarray(np.sqrt(np.clip(errors, 0.0, 1.0)) * CELLS)


def to_cells(positions: Array, cells: int = CELLS) -> Integers:
    """Return the cell of each position; a cell includes its upper end, as the negative class includes 0."""
    return np.asarray(np.clip(np.ceil(positions) - 1, 0, cells - 1), dtype=np.int64)


def are_at_edges(positions: Array, distance: float, cells: int = CELLS) -> NDArray[np.bool_]:
    """Return which positions are close to an edge between two cells.

    Parameters
    ----------
    positions : array
        Between 0 and `cells`.
    distance : float
        What is close, in cells.
    cells : int
        The number of cells.

    Returns
    -------
    array of bool
    """
    edges = np.clip(np.rint(positions), 1, cells - 1)
    return np.asarray(np.abs(positions - edges) < distance)


def score_at(positions: Array) -> Array:
    """Return the log-odds at positions between 0 and `CELLS`."""
    return (positions - ZERO) / _STEPS


def error_at(positions: Array) -> Array:
    """Return the error at positions between 0 and `CELLS`."""
    return np.asarray(np.square(positions / CELLS))


def choose_levels(people: float) -> int:
    """Return the levels of the tree of bins.

    What bins hide of the AUC falls with 4^−levels, what sampling leaves with 1/√people, and noise grows with each
    level: so the former is kept at a constant fraction of sampling.
    """
    wanted = round(float(np.log2(_FINENESS * np.sqrt(max(people, 1.0))) / 2))
    return min(max(wanted, _LEAST_LEVELS), _MOST_LEVELS)


def choose_edges(counts: Array, levels: int, std: float, required: int | None) -> Integers:
    """Choose the inner edges of 2^levels bins.

    Parameters
    ----------
    counts : array of shape (CELLS,)
        Noisy counts of people.
    levels : int
        Levels of the tree of bins.
    std : float
        Standard deviation of the noise, in units of one person.
    required : int or None
        A cell that must begin a bin.

    Returns
    -------
    array of int
        2^levels − 1 different cells in ascending order, each of which begins a bin.
    """
    below = np.cumsum(counts)
    below = (np.maximum.accumulate(below) + np.minimum.accumulate(below[::-1])[::-1]) / 2  # noise made it fall
    fractions = (below - below[0]) / (below[-1] - below[0]) if below[-1] > below[0] else np.linspace(0, 1, CELLS)
    tail = min(max(_TAIL_NOISE * std / max(below[-1], 1.0), _LEAST_TAIL), _MOST_TAIL)
    low, high = np.searchsorted(fractions, [tail, 1 - tail])
    across = np.clip((np.arange(CELLS) + 1 - low) / max(high + 1 - low, 1), 0.0, 1.0)
    wanted = np.arange(1, 2**levels) / 2**levels
    edges = np.searchsorted((fractions + across) / 2, wanted) + 1
    return _separate(edges, required)


def _separate(edges: Integers, required: int | None) -> Integers:
    """Return edges between 1 and CELLS − 1 that are all different, one of which is as required."""
    kept = np.unique(np.clip(edges, 1, CELLS - 1))
    if required is not None and required not in kept:
        if kept.size == edges.size:
            kept = np.delete(kept, np.argmin(np.abs(kept - required)))
        kept = np.append(kept, required)
    # Many people in one cell want the same edge several times: the others go to the cells beside the edges.
    free = np.setdiff1d(np.arange(1, CELLS), kept)
    distances = np.abs(free[:, np.newaxis] - kept).min(axis=1)
    beside = free[np.argsort(distances, kind="stable")][: edges.size - kept.size]
    return np.sort(np.concatenate([kept, beside]))


def spread(edges: Integers) -> Array:
    """Return eight positions in each bin, between 0 and `CELLS`, as if people were spread evenly over it.

    The first and the last bin may be far wider than where their people are; these are cut to a multiple of the bin
    beside them.
    """
    ends = np.concatenate([[0], edges, [CELLS]]).astype(float)
    ends[0] = max(ends[0], ends[1] - _TAIL_WIDTH * (ends[2] - ends[1]))
    ends[-1] = min(ends[-1], ends[-2] + _TAIL_WIDTH * (ends[-2] - ends[-3]))
    return np.asarray(ends[:-1, np.newaxis] + np.diff(ends)[:, np.newaxis] * _INSIDE)
