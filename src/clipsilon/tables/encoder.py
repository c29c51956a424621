"""A scikit-learn transformer that encodes tables by a schema. It learns nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array, hstack
from sklearn.base import BaseEstimator, TransformerMixin

from clipsilon._core import checks
from clipsilon._core.checks import short_repr
from clipsilon.tables.cells import Array, Cells, as_cells
from clipsilon.tables.schema import Schema

if TYPE_CHECKING:  # optional
    import pandas

    RawTable: TypeAlias = Mapping[str, ArrayLike] | pandas.DataFrame

_MOST_DENSE = 200  # columns from which on a sparse table is smaller and faster


class SchemaEncoder(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Encode the columns of a table as numbers, by a public schema.

    Numbers, dates and yes/no columns become numbers in [−1, 1], categories become blocks of zeros with a single one.
    Each row is encoded by itself and nothing is learnt, so encoding spends no budget: `total_privacy` counts it as
    nothing, unless the schema is only `proposed`, and `fit` only checks that the columns are there.

    Parameters
    ----------
    schema : Schema
        What the columns hold.
    sparse_output : bool or None, default None
        Whether to return a sparse table (CSR); None does so for more than 200 columns.

    Attributes
    ----------
    feature_names_in_ : array of str
        The columns that are encoded; others are ignored.

    Examples
    --------
    >>> import clipsilon as cs
    >>> schema = cs.Schema({"age": cs.tables.Number(20, 80), "member": cs.tables.YesNo()})
    >>> cs.SchemaEncoder(schema).fit_transform({"age": [50, 99], "member": ["no", "Yes"]}).tolist()
    [[0.0, -1.0], [1.0, 1.0]]
    """

    def __init__(self, schema: Schema, sparse_output: bool | None = None) -> None:
        self.schema = schema
        self.sparse_output = sparse_output

    def fit(self, X: RawTable, y: object = None) -> SchemaEncoder:
        """Check that a data frame, or a dict of columns, has the columns of the schema; y is ignored."""
        find_columns(self._checked(), X)
        self.n_features_in_ = len(self.schema.columns)
        self.feature_names_in_ = np.array(list(self.schema.columns), dtype=object)
        return self

    def transform(self, X: RawTable) -> Array | csr_array:
        """Return one row of numbers for each row of a data frame or of a dict of columns."""
        return encode(self._checked(), find_columns(self.schema, X), sparse_output=self.sparse_output)

    def get_feature_names_out(self, input_features: object = None) -> NDArray[Any]:
        """Return the names of the encoded columns, such as "age (missing)" and "region=north"."""
        return np.array(self._checked().feature_names(), dtype=object)

    def count_uncovered(self, X: RawTable) -> dict[str, int]:
        """Return how many cells of each column have a level that is not listed, or lie outside the range.

        The counts are those of the rows, without noise, and so not private. Columns without such cells are left out.
        """
        return count_uncovered(self._checked(), find_columns(self.schema, X))

    def _checked(self) -> Schema:
        checks.instance("schema", self.schema, Schema)
        if self.sparse_output is not None:
            checks.flag("sparse_output", self.sparse_output)
        return self.schema

    def __sklearn_tags__(self) -> Any:
        """Return scikit-learn's tags: text and gaps are allowed, and `transform` needs no `fit`."""
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = False
        tags.input_tags.string = tags.input_tags.categorical = tags.input_tags.allow_nan = True
        tags.requires_fit = False
        return tags


def find_columns(schema: Schema, table: RawTable) -> dict[str, Cells]:
    """Return the cells of each column of the schema, or raise ValueError if a column is not there."""
    if not (isinstance(table, Mapping) or hasattr(table, "columns")) or hasattr(table, "dask"):
        raise ValueError(f"X must be a data frame in memory or a dict of columns, got {short_repr(table)}.")
    absent = [name for name in schema.columns if name not in table]
    if absent:
        raise ValueError(f"X must have the columns of the schema, got none named {', '.join(map(repr, absent))}.")
    columns = {name: as_cells(table[name], f"column {name!r} of X") for name in schema.columns}
    sizes = {cells.size for cells in columns.values()}
    if len(sizes) > 1:
        raise ValueError(f"columns of X must have the same number of rows, got {', '.join(map(str, sorted(sizes)))}.")
    return columns


def encode(
    schema: Schema, columns: Mapping[str, Cells], source: str = "X", sparse_output: bool | None = None
) -> Array | csr_array:
    """Encode columns by a schema.

    Parameters
    ----------
    schema : Schema
        What the columns hold.
    columns : mapping of arrays
        The cells of each column of the schema.
    source : str, default "X"
        Where they come from, for messages.
    sparse_output : bool or None, default None
        Whether to return a sparse table; None does so for more than 200 columns.

    Returns
    -------
    array or csr_array
        One row per row, in the order of `schema.feature_names()`.

    Raises
    ------
    ValueError
        If a cell is not of the kind that the schema states, or is a gap where it allows none. All such columns are
        named.
    """
    blocks, faults = [], []
    for name, kind in schema.columns.items():
        try:
            blocks.append(kind.encode(columns[name], f"column {name!r} of {source}"))
        except ValueError as fault:
            faults.append(str(fault).removesuffix("."))
    if faults:
        raise ValueError(f"{'; '.join(faults)}.")
    table = csr_array(hstack(blocks, format="csr"))
    is_sparse = table.shape[1] > _MOST_DENSE if sparse_output is None else sparse_output
    return table if is_sparse else table.toarray()


def count_uncovered(schema: Schema, columns: Mapping[str, Cells]) -> dict[str, int]:
    """Return how many cells of each column are encoded as other levels or cut off; without columns that have none."""
    found = {
        name: int(np.count_nonzero(~kind.is_covered(columns[name], f"column {name!r}")))
        for name, kind in schema.columns.items()
    }
    return {name: count for name, count in found.items() if count}
