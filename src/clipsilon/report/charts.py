"""What a result is made of: charts and tables, as numbers that are drawn later.

The same `Chart` becomes a picture for a paper (SVG, PNG), a drawing that a reader can touch (the page), and a table to
compute with (CSV).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["Chart", "Series", "Table", "band"]

Array = NDArray[np.float64]


class Series(NamedTuple):
    """One line or one set of points; NaN leaves a gap."""

    name: str
    x: Any  #: (K,) numbers
    y: Any  #: (K,) numbers
    low: Any = None  #: (K,) the lower end of a band around y, with `high`
    high: Any = None
    kind: str = "line"  #: "line", "dashed" (exact values and bounds, beside what was measured) or "points"
    colour: str | None = None  #: None: the next one of the palette


class Chart(NamedTuple):
    """Series over the same axes."""

    title: str
    x: str  #: what the horizontal axis shows
    y: str
    series: Sequence[Series]
    x_log: bool = False
    y_log: bool = False


class Table(NamedTuple):
    """Rows of numbers and words; the first column names the row."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]


def band(name: str, x: Any, replicates: Array, level: float = 0.1, **how: Any) -> Series:
    """The mean over replicates, (replicates, K), with the range that leaves out a share `level` on each side."""
    low, high = np.quantile(replicates, [level, 1 - level], axis=0)
    return Series(name, x, replicates.mean(axis=0), low, high, **how)
