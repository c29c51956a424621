"""The types of what users pass to estimators, for type checkers and readers only."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Labels = tuple[Array, Array | None]  # labels as the loss takes them, and weights

if TYPE_CHECKING:  # these libraries are optional, or take long to load
    from typing import TypeAlias

    import dask.array
    import dask.dataframe
    import pandas
    from numpy.typing import ArrayLike
    from scipy import sparse

    DaskTable: TypeAlias = dask.array.Array | dask.dataframe.DataFrame
    DaskColumn: TypeAlias = dask.array.Array | dask.dataframe.Series
    Table: TypeAlias = ArrayLike | pandas.DataFrame | sparse.sparray | DaskTable
    Column: TypeAlias = ArrayLike | pandas.Series | DaskColumn
    RandomState: TypeAlias = int | np.random.RandomState | None
