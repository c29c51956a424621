"""Predictions of Dask collections, chunk by chunk and not yet computed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from clipsilon.estimators.chunks import is_chunked, to_chunks
from clipsilon.estimators.dask_tasks import make_task

if TYPE_CHECKING:
    from clipsilon.estimators.inputs import DaskTable


def chunkwise(method: Callable[..., Any]) -> Callable[..., Any]:
    """Extend a method of one table to Dask collections, for which it returns a Dask array that is not yet computed."""

    @wraps(method)
    def extended(self: Any, X: Any) -> Any:
        return _map_lazily(partial(method, self), X, self) if is_chunked(X) else method(self, X)

    return extended


def _map_lazily(function: Callable[[Any], Any], X: DaskTable, estimator: BaseEstimator) -> Any:
    import dask.array

    check_is_fitted(estimator)
    chunks = to_chunks(X)
    like = function(chunks.sample)  # raises now if the columns are wrong
    rows = X.chunks[0] if hasattr(X, "chunks") else (np.nan,) * len(chunks.X)
    parts = [
        dask.array.from_delayed(make_task(partial(_apply, function, like[:0]), x), (size, *like.shape[1:]), like.dtype)
        for x, size in zip(chunks.X, rows, strict=True)
    ]
    return dask.array.concatenate(parts)


def _apply(function: Callable[[Any], Any], empty: Any, x: Any) -> Any:
    return function(x) if x.shape[0] else empty
