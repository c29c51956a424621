"""Charts and tables as plain numbers, which other modules draw or write.

The same `Chart` becomes a picture for a paper (SVG, PNG), an interactive figure on the page, and a CSV file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["Chart", "Series", "Table", "band"]

Array = NDArray[np.float64]
Cell = str | bool | int | float | np.bool_ | np.integer | np.floating | None


class Series(NamedTuple):
    """One line or one set of points; NaN leaves a gap.

    Parameters
    ----------
    name : str
        Entry in the legend.
    x, y : array_like of shape (K,)
        Coordinates of the points.
    low, high : array_like of shape (K,), optional
        Lower and upper end of a band around `y`. A band needs both.
    kind : {"line", "dashed", "points"}, default "line"
        "dashed" is for exact values and bounds, as opposed to measurements.
    colour : str, optional
        Colour as #rrggbb; by default the next free one of the palette.
    """

    name: str
    x: ArrayLike
    y: ArrayLike
    low: ArrayLike | None = None
    high: ArrayLike | None = None
    kind: str = "line"
    colour: str | None = None


class Chart(NamedTuple):
    """Several series over the same axes.

    Parameters
    ----------
    title : str
        Title of the chart; may be empty.
    x, y : str
        Labels of the horizontal and the vertical axis.
    series : sequence of Series
        What is drawn, in the order of the legend.
    x_log, y_log : bool, default False
        Whether the axis is logarithmic.
    """

    title: str
    x: str
    y: str
    series: Sequence[Series]
    x_log: bool = False
    y_log: bool = False


class Table(NamedTuple):
    """Rows of numbers and words.

    Parameters
    ----------
    title : str
        Title of the table.
    columns : sequence of str
        Names of the columns.
    rows : sequence of sequences of str, number or None
        One cell per column; the first cell names the row, and None is an empty cell.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]


def band(
    name: str, x: ArrayLike, replicates: Array, level: float = 0.1, kind: str = "line", colour: str | None = None
) -> Series:
    """Return the mean over replicates as a series with a quantile band.

    Parameters
    ----------
    name : str
        Entry in the legend.
    x : array_like of shape (K,)
        Where the replicates were recorded.
    replicates : ndarray of shape (replicates, K)
        One row per replicate.
    level : float, default 0.1
        Fraction of the replicates outside the band on each side; 0 gives the full range.
    kind, colour : str
        As for `Series`.

    Returns
    -------
    Series
        The mean, with the `level` and 1 − `level` quantiles as band.
    """
    low, high = np.quantile(replicates, [level, 1 - level], axis=0)
    return Series(name, x, replicates.mean(axis=0), low, high, kind, colour)
