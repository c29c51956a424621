"""The type of a data set, with the usual ways to prepare it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clipsilon._core import checks

Array = NDArray[np.float64]


class Dataset(NamedTuple):
    """Records with labels.

    Parameters
    ----------
    features : ndarray of shape (m, d)
        One row per record.
    labels : ndarray of shape (m,)
        One label per record.
    columns : tuple of str
        The names of the features.
    source : str
        The name of the original data set, or "generated".
    real : bool
        False for generated records that stand in for the original data.
    """

    features: Array
    labels: Array
    columns: tuple[str, ...]
    source: str
    real: bool

    def standardised(self) -> Dataset:
        """Scale the columns to mean 0 and standard deviation 1.

        Means and deviations are computed from the data without noise, so the result is not private.
        """
        spread = self.features.std(axis=0)
        centred = self.features - self.features.mean(axis=0)
        return self._replace(features=centred / np.where(spread > 0, spread, 1.0))

    def split(self, share: float = 0.7, seed: int = 0) -> tuple[Dataset, Dataset]:
        """Split the records at random.

        Parameters
        ----------
        share : float, default 0.7
            The fraction of records in the first part, above 0 and below 1.
        seed : int, default 0
            The seed of the permutation.

        Returns
        -------
        first, rest : Dataset
            The two parts.
        """
        checks.positive("share", share)
        order = np.random.default_rng(seed).permutation(self.labels.size)
        cut = round(checks.fraction("share", share) * order.size)
        return self._rows(order[:cut]), self._rows(order[cut:])

    def first(self, rows: int) -> Dataset:
        """Return the first `rows` records, in the order of the file."""
        if checks.count("rows", rows) > self.labels.size:
            raise ValueError(f"rows must be at most {self.labels.size}, got {rows}.")
        return self._rows(slice(rows))

    def _rows(self, rows: slice | NDArray[np.int64]) -> Dataset:
        return self._replace(features=self.features[rows], labels=self.labels[rows])
