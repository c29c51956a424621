"""Data frames with columns that are no numbers: all of them are named, with what would help."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from clipsilon._core.checks import short_repr
from clipsilon.tables.cells import is_gap


@contextmanager
def naming_columns(X: Any) -> Iterator[None]:
    """Name the columns of a data frame that are not finite numbers, if what is done with it raises an error."""
    try:
        yield
    except (TypeError, ValueError):
        faults = _find_faults(X)
        if not faults:
            raise
        named = ", ".join(f"{name!r} ({fault})" for name, fault in faults.items())
        raise ValueError(
            f"columns of X must be finite numbers, got other values in {named}: describe them by a clipsilon.Schema, "
            "and encode X by clipsilon.SchemaEncoder first."
        ) from None


def _find_faults(X: Any) -> dict[str, str]:
    """Return what is no number in the columns of a data frame in memory; nothing of other tables."""
    is_frame = hasattr(X, "dtypes") and hasattr(X, "items") and getattr(X, "ndim", 0) == 2
    if not is_frame or hasattr(X, "dask"):
        return {}
    found = {str(name): _fault(list(column)) for name, column in X.items()}
    return {name: fault for name, fault in found.items() if fault}


def _fault(cells: list[Any]) -> str:
    """Describe the cells of a column that are not finite numbers; "" if all of them are."""
    gaps = sum(map(is_gap, cells))
    odd = next((f"such as {short_repr(cell)}" for cell in cells if not is_gap(cell) and not _is_finite(cell)), "")
    return "; ".join(filter(None, (odd, f"{gaps} gap(s)" if gaps else "")))


def _is_finite(cell: Any) -> bool:
    try:
        return bool(np.isfinite(float(cell)))
    except (TypeError, ValueError, OverflowError):
        return False
