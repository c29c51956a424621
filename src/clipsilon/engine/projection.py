"""The projection of records on a few directions."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from clipsilon._core.kernel_cache import kernel
from clipsilon._core.rows import Rows, Table, margin, stored

Array = NDArray[np.float64]


def project(features: Table, directions: Array) -> Array:
    """Return ⟨x, direction⟩ for each row and each column of `directions`, in float64 and finite.

    A row's products depend on the row and the directions alone. With BLAS their last bits would also depend on how many
    rows there are, so that a record could change what the others add to a step.
    """
    found = np.empty((features.shape[0], directions.shape[1]))
    _project(stored(features), np.ascontiguousarray(directions.T).ravel(), directions.shape[0], found)
    return np.nan_to_num(found)  # what is too large is clipped in any case


@kernel
def _project(features: Rows, directions: Array, columns: int, found: Array) -> None:
    for i in range(found.shape[0]):
        for k in range(found.shape[1]):
            found[i, k] = margin(features, i, directions, k * columns)
