"""The one place that validates arguments.

Every function takes the argument's name and value, returns the value in the form that the
library works with, or raises a `ValueError` of one sentence: the argument, its value, what
was expected.
"""

from __future__ import annotations

import operator
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

Array = NDArray[np.float64]

LARGEST = 2**62
_LONG = 80  # characters


def short_repr(value: Any) -> str:
    """A value as messages show it: on one line, and a long one in short."""
    text = " ".join(repr(value).split())
    if len(text) <= _LONG:
        return text
    shape = getattr(value, "shape", None)
    return f"{text[: _LONG - 1]}…" if shape is None else f"{type(value).__name__} of shape {shape}"


def number(name: str, value: Any) -> float:
    """A finite real number."""
    try:
        result = float(value)
    except (TypeError, ValueError, OverflowError):
        result = np.nan
    if isinstance(value, str | bytes | bool) or not np.isfinite(result):
        raise ValueError(f"{name} must be a finite number, got {short_repr(value)}.")
    return result


def positive(name: str, value: Any) -> float:
    """A finite number above zero."""
    result = number(name, value)
    if result <= 0:
        raise ValueError(f"{name} must be a number above 0, got {short_repr(value)}.")
    return result


def nonnegative(name: str, value: Any) -> float:
    """A finite number, zero or above."""
    result = number(name, value)
    if result < 0:
        raise ValueError(f"{name} must be a number of at least 0, got {short_repr(value)}.")
    return result


def fraction(name: str, value: Any) -> float:
    """A number in [0, 1)."""
    result = number(name, value)
    if not 0 <= result < 1:
        raise ValueError(f"{name} must be a number in [0, 1), got {short_repr(value)}.")
    return result


def flag(name: str, value: Any) -> bool:
    """True or False."""
    if not isinstance(value, bool | np.bool_):
        raise ValueError(f"{name} must be True or False, got {short_repr(value)}.")
    return bool(value)


def path(name: str, value: Any) -> Path:
    """The name of a file or a folder, which need not exist."""
    if not isinstance(value, str | PathLike):
        raise ValueError(f"{name} must be the name of a file, got {short_repr(value)}.")
    return Path(value)


def instance(name: str, value: Any, kind: type) -> None:
    """An object of the given class."""
    if not isinstance(value, kind):
        raise TypeError(f"{name} must be a {kind.__name__}, got {value if isinstance(value, type) else type(value)!r}.")


def open_fraction(name: str, value: Any) -> float:
    """A number above 0 and below 1."""
    result = number(name, value)
    if not 0 < result < 1:
        raise ValueError(f"{name} must be a number above 0 and below 1, got {short_repr(value)}.")
    return result


def integer(name: str, value: Any, least: int) -> int:
    """A whole number of at least `least`."""
    try:
        result = operator.index(value)
    except TypeError:
        result = least - 1
    if isinstance(value, bool) or result < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, got {short_repr(value)}.")
    if result > LARGEST:
        raise ValueError(f"{name} must be at most {LARGEST}, got a number of {len(str(result))} digits.")
    return result


def count(name: str, value: Any) -> int:
    """A whole number of at least one."""
    return integer(name, value, least=1)


def choice(name: str, value: Any, allowed: dict[str, Any]) -> Any:
    """The entry of `allowed` that `value` names."""
    if not isinstance(value, str) or value not in allowed:
        names = ", ".join(repr(key) for key in allowed)
        raise ValueError(f"{name} must be one of {names}, got {short_repr(value)}.")
    return allowed[value]


def budgets(name: str, value: Any) -> Array:
    """Finite numbers above zero in a vector, as a read-only array; one number is a vector of one."""
    result = np.atleast_1d(floats(name, value))
    if result.ndim != 1 or not result.size or not (np.isfinite(result).all() and (result > 0).all()):
        raise ValueError(f"{name} must be one or more numbers above 0, got {short_repr(value)}.")
    return frozen(result.copy())  # what is accounted for must be what runs


def columns(name: str, value: Any) -> NDArray[np.int64]:
    """Distinct column numbers, as a read-only array."""
    result = integers(value)
    if result is None or result.min() < 0 or np.unique(result).size != result.size:
        raise ValueError(f"{name} must be distinct column numbers from 0 up, got {short_repr(value)}.")
    return frozen(result)


def integers(value: Any) -> NDArray[np.int64] | None:
    """One or more whole numbers as a vector, or None if that is not what they are."""
    try:
        result = np.atleast_1d(np.asarray(sorted(value) if isinstance(value, set | frozenset) else value))
    except (TypeError, ValueError):
        return None
    whole = result.dtype.kind in "iu" and result.ndim == 1 and result.size > 0
    return result.astype(np.int64) if whole else None


def vector(name: str, value: Any, size: int) -> Array:
    """A finite vector of `size` entries; one number stands for all of them."""
    result = floats(name, value)
    if result.ndim == 0:
        result = np.full(size, result)
    if result.shape != (size,):
        raise ValueError(f"{name} must be a number or {size} number(s), got shape {result.shape}.")
    return _finite(name, result).copy()


def records(name: str, value: Any) -> Any:
    """A finite, non-empty table: one row a record; a plain vector is one column.

    float32 stays float32, and a sparse table becomes one of compressed rows.
    """
    if sparse.issparse(value):
        return _sparse_records(name, value)
    result = value if getattr(value, "dtype", None) == np.float32 else floats(name, value)
    result = np.asarray(result)
    if result.ndim == 1:
        result = result[:, np.newaxis]
    if result.ndim != 2 or result.size == 0:
        raise ValueError(f"{name} must be a non-empty table of rows, got shape {result.shape}.")
    return frozen(_finite(name, result))


def _sparse_records(name: str, value: Any) -> Any:
    if value.ndim != 2 or 0 in value.shape:
        raise ValueError(f"{name} must be a non-empty table of rows, got shape {value.shape}.")
    table = compressed(sparse.csr_array(value))
    if table.dtype != np.float32:
        table = sparse.csr_array((floats(name, table.data), table.indices, table.indptr), shape=table.shape)
    _finite(name, table.data)
    return table


def compressed(table: Any) -> Any:
    """A table of compressed rows with its entries in order, and none twice: ‖x‖² is taken entry by entry."""
    own = sparse.csr_array((table.data, table.indices, table.indptr), shape=table.shape)  # trusts no flag of the table
    if not own.has_canonical_format:
        own = own.copy()
        own.sum_duplicates()
    return own


def weights(name: str, value: Any, size: int) -> Array:
    """One finite weight a record, zero or above."""
    result = floats(name, value)
    if result.shape != (size,):
        raise ValueError(f"{name} must hold one weight for each of {size} records, got shape {result.shape}.")
    if (_finite(name, result) < 0).any():
        raise ValueError(f"{name} must be at least 0, got {result.min():g}.")
    return frozen(result)


def labels(name: str, value: Any, size: int, classes: int | None) -> Array:
    """One finite label a record: 0, 1, …, `classes` − 1, or any number if that is None."""
    result = floats(name, value)
    if result.shape != (size,):
        raise ValueError(f"{name} must hold one label for each of {size} records, got shape {result.shape}.")
    _finite(name, result)
    if classes is not None:
        wrong = result[~np.isin(result, np.arange(classes))]
        if wrong.size:
            known = "0 and 1" if classes == 2 else f"0 to {classes - 1}"
            raise ValueError(f"{name} must hold labels {known} only, got {wrong[0]:g}.")
    return frozen(result)


def frozen(value: NDArray[Any]) -> NDArray[Any]:
    """A contiguous view that nobody can write through."""
    view = np.ascontiguousarray(value).view()
    view.flags.writeable = False
    return view


def floats(name: str, value: Any) -> Array:
    """Numbers in an array of any shape, finite or not."""
    try:
        given = np.asarray(value)
        if given.dtype.kind not in "biufO" or value is None or np.ma.is_masked(value):
            raise TypeError
        return given.astype(np.float64, copy=False)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{name} must hold numbers only, got {_kind(value)}.") from None


def _kind(value: Any) -> str:
    dtype = getattr(value, "dtype", None)
    return type(value).__name__ if dtype is None else f"{type(value).__name__} of {dtype}"


def _finite(name: str, value: Array) -> Array:
    bad = value.size - np.count_nonzero(np.isfinite(value))
    if bad:
        raise ValueError(f"{name} must be finite, got {bad} NaN or infinite value(s).")
    return value
