"""What a loader returns, and the two things everybody does with it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clipsilon._core import checks

Array = NDArray[np.float64]


class Dataset(NamedTuple):
    """Records with labels, the names of their columns, and where they came from."""

    features: Array
    labels: Array
    columns: tuple[str, ...]
    source: str
    real: bool  #: False for a generated stand-in

    def standardised(self) -> Dataset:
        """Columns with mean 0 and deviation 1. The means are taken from the data: this is not private."""
        spread = self.features.std(axis=0)
        centred = self.features - self.features.mean(axis=0)
        return self._replace(features=centred / np.where(spread > 0, spread, 1.0))

    def split(self, share: float = 0.7, seed: int = 0) -> tuple[Dataset, Dataset]:
        """A random share of the records, and the rest."""
        checks.positive("share", share)
        order = np.random.default_rng(seed).permutation(self.labels.size)
        cut = round(checks.fraction("share", share) * order.size)
        return self._rows(order[:cut]), self._rows(order[cut:])

    def first(self, rows: int) -> Dataset:
        """The first rows, in the order of the file."""
        if checks.count("rows", rows) > self.labels.size:
            raise ValueError(f"rows must be at most {self.labels.size}, got {rows}.")
        return self._rows(slice(rows))

    def _rows(self, rows: slice | NDArray[np.int64]) -> Dataset:
        return self._replace(features=self.features[rows], labels=self.labels[rows])
