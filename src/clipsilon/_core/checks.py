"""The one place that validates arguments.

Each function takes the name and the value of an argument and returns the value in the form that the
library works with. Otherwise it raises a `ValueError` of one sentence, which states the argument,
what was expected, and the value.
"""

from __future__ import annotations

import math
import operator
import unicodedata
from decimal import Decimal
from numbers import Real
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

Array = NDArray[np.float64]
Value = TypeVar("Value")

LARGEST = 2**62
_MAX_CHARACTERS = 80
_SHORTEST_TOKEN = 16


def short_repr(value: object) -> str:
    """Return the repr of a value for a message: on one line, and shortened if it is long."""
    text = " ".join(repr(value).split())
    if len(text) <= _MAX_CHARACTERS:
        return text
    shape = getattr(value, "shape", None)
    return f"{text[: _MAX_CHARACTERS - 1]}…" if shape is None else f"{type(value).__name__} of shape {shape}"


def number(name: str, value: object) -> float:
    """Return a finite real number."""
    try:
        result = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        result = math.nan
    if isinstance(value, str | bytes | bool) or not math.isfinite(result):
        raise ValueError(f"{name} must be a finite number, got {short_repr(value)}.")
    return result


def positive(name: str, value: object) -> float:
    """Return a finite number above zero."""
    result = number(name, value)
    if result <= 0:
        raise ValueError(f"{name} must be a number above 0, got {short_repr(value)}.")
    return result


def positive_or_infinite(name: str, value: object) -> float:
    """Return a number above zero, or infinity."""
    return np.inf if isinstance(value, float) and value == np.inf else positive(name, value)


def nonnegative(name: str, value: object) -> float:
    """Return a finite number of at least zero."""
    result = number(name, value)
    if result < 0:
        raise ValueError(f"{name} must be a number of at least 0, got {short_repr(value)}.")
    return result


def public_variance(name: str, value: object) -> float:
    """Return a number of at least zero, infinity, or NaN, which is to be replaced by the largest variance possible."""
    is_special = isinstance(value, float) and (value == np.inf or np.isnan(value))
    return float(value) if is_special else nonnegative(name, value)  # type: ignore[arg-type]


def at_least(name: str, value: object, least: float) -> float:
    """Return a finite number of at least `least`."""
    result = number(name, value)
    if result < least:
        raise ValueError(f"{name} must be a number of at least {least:g}, got {short_repr(value)}.")
    return result


def fraction(name: str, value: object) -> float:
    """Return a number in [0, 1)."""
    result = number(name, value)
    if not 0 <= result < 1:
        raise ValueError(f"{name} must be a number in [0, 1), got {short_repr(value)}.")
    return result


def below_half(name: str, value: object) -> float:
    """Return a number of at least 0 and below 1/2."""
    result = nonnegative(name, value)
    if result >= 0.5:
        raise ValueError(f"{name} must be at least 0 and below 0.5, got {value!r}.")
    return result


def rate(name: str, value: object) -> float:
    """Return a number above 0 and at most 1."""
    result = number(name, value)
    if not 0 < result <= 1:
        raise ValueError(f"{name} must be a number above 0 and at most 1, got {short_repr(value)}.")
    return result


def count_noise(name: str, value: object) -> float:
    """Return the deviation of noise on a count, from 1/32 to 2³⁰, for which 64-bit integers suffice."""
    result = number(name, value)
    if not 2.0**-5 <= result <= 2.0**30:
        raise ValueError(f"{name} must be a number between 1/32 and 2**30, got {short_repr(value)}.")
    return result


def flag(name: str, value: object) -> bool:
    """Return True or False."""
    if not isinstance(value, bool | np.bool_):
        raise ValueError(f"{name} must be True or False, got {short_repr(value)}.")
    return bool(value)


def path(name: str, value: object) -> Path:
    """Return the path of a file or folder, which need not exist."""
    if not isinstance(value, str | PathLike):
        raise ValueError(f"{name} must be the name of a file, got {short_repr(value)}.")
    return Path(value)


def instance(name: str, value: object, kind: type) -> None:
    """Raise TypeError if `value` is not an instance of `kind`."""
    if not isinstance(value, kind):
        raise TypeError(f"{name} must be a {kind.__name__}, got {value if isinstance(value, type) else type(value)!r}.")


def open_fraction(name: str, value: object) -> float:
    """Return a number above 0 and below 1."""
    result = number(name, value)
    if not 0 < result < 1:
        raise ValueError(f"{name} must be a number above 0 and below 1, got {short_repr(value)}.")
    return result


def integer(name: str, value: object, least: int) -> int:
    """Return a whole number from `least` to 2⁶²."""
    try:
        result = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        result = least - 1
    if isinstance(value, bool) or result < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, got {short_repr(value)}.")
    if result > LARGEST:
        raise ValueError(f"{name} must be at most {LARGEST}, got a number of {len(str(result))} digits.")
    return result


def count(name: str, value: object) -> int:
    """Return a whole number of at least one."""
    return integer(name, value, least=1)


def choice(name: str, value: object, allowed: dict[str, Value]) -> Value:
    """Return the entry of `allowed` whose key is `value`."""
    if not isinstance(value, str) or value not in allowed:
        names = ", ".join(repr(key) for key in allowed)
        raise ValueError(f"{name} must be one of {names}, got {short_repr(value)}.")
    return allowed[value]


def budgets(name: str, value: object) -> Array:
    """Return a read-only vector of finite numbers above zero; a single number becomes a vector of length one."""
    result = np.atleast_1d(floats(name, value))
    if result.ndim != 1 or not result.size or not (np.isfinite(result).all() and (result > 0).all()):
        raise ValueError(f"{name} must be one or more numbers above 0, got {short_repr(value)}.")
    return frozen(result.copy())  # a copy, so that the budgets accounted for are those of the run


def buffers(name: str, value: object) -> Array:
    """Return pairs of a decay between 0 and 1 and a positive weight, of a sum of at most 1, as a read-only array."""
    result = floats(name, value)
    is_pairs = result.ndim == 2 and result.shape[1] == 2 and bool(((result > 0) & (result < 1)).all())
    if not is_pairs or result[:, 1].sum() > 1:
        raise ValueError(
            f"{name} must be pairs of a decay and a weight between 0 and 1, with weights of at most 1 in total, got "
            f"{short_repr(value)}."
        )
    return frozen(result.copy())


def columns(name: str, value: object) -> NDArray[np.int64]:
    """Return distinct column numbers as a read-only array."""
    result = integers(value)
    if result is None or result.min() < 0 or np.unique(result).size != result.size:
        raise ValueError(f"{name} must be distinct column numbers from 0 up, got {short_repr(value)}.")
    return frozen(result)


def matrices(name: str, value: object) -> Array:
    """Return one or more finite square matrices of equal size as a read-only array; a single one becomes the first."""
    result = floats(name, value)
    result = result[np.newaxis] if result.ndim == 2 else result
    if result.ndim != 3 or not result.size or result.shape[1] != result.shape[2]:
        raise ValueError(f"{name} must be one or more square matrices, got shape {np.shape(result)}.")
    return frozen(_finite(name, result).copy())


def integers(value: object) -> NDArray[np.int64] | None:
    """Return one or more whole numbers as a vector, or None if `value` is anything else."""
    try:
        result = np.atleast_1d(np.asarray(sorted(value) if isinstance(value, set | frozenset) else value))
    except (TypeError, ValueError):
        return None
    whole = result.dtype.kind in "iu" and result.ndim == 1 and result.size > 0
    return result.astype(np.int64) if whole else None


def text(name: str, value: object, longest: int = 200) -> str:
    """Return a string of 1 to `longest` printable characters."""
    if not isinstance(value, str) or not (0 < len(value) <= longest and value.isprintable()):
        raise ValueError(f"{name} must be 1 to {longest} printable characters, got {short_repr(value)}.")
    return value


def person(name: str, value: object) -> str:
    """Return the name of a person, as `text`, in the form NFC: names that look the same are the same."""
    return unicodedata.normalize("NFC", text(name, value))


def token(name: str, value: str) -> str:
    """Return a secret of at least 16 printable ASCII characters, which messages do not quote."""
    if len(value.strip()) < _SHORTEST_TOKEN or value != value.strip() or not (value.isascii() and value.isprintable()):
        raise ValueError(f"{name} must be at least {_SHORTEST_TOKEN} printable ASCII characters without spaces around.")
    return value


def full_vector(name: str, value: object, size: int) -> Array:
    """Return a finite vector of `size` entries; a single number is no vector."""
    result = floats(name, value)
    if result.shape != (size,):
        raise ValueError(f"{name} must be a list of {size} number(s), got shape {result.shape}.")
    return _finite(name, result).copy()


def vector(name: str, value: object, size: int) -> Array:
    """Return a finite vector of `size` entries; a single number is repeated."""
    result = floats(name, value)
    if result.ndim == 0:
        result = np.full(size, result)
    if result.shape != (size,):
        raise ValueError(f"{name} must be a number or {size} number(s), got shape {result.shape}.")
    return _finite(name, result).copy()


def records(name: str, value: object) -> Any:
    """Return a finite, non-empty table with one row per record; a vector becomes a single column.

    A float32 table stays float32, and a sparse table is converted to compressed rows.
    """
    if sparse.issparse(value):
        return _sparse_records(name, value)
    result = np.asarray(value if getattr(value, "dtype", None) == np.float32 else floats(name, value))
    if result.ndim == 1:
        result = result[:, np.newaxis]
    if result.ndim != 2 or result.size == 0:
        raise ValueError(f"{name} must be a non-empty table of rows, got shape {result.shape}.")
    return frozen(_finite(name, result))


def _sparse_records(name: str, value: sparse.spmatrix | sparse.sparray) -> sparse.csr_array:
    if value.ndim != 2 or 0 in value.shape:
        raise ValueError(f"{name} must be a non-empty table of rows, got shape {value.shape}.")
    table = compressed(sparse.csr_array(value))
    if table.dtype != np.float32:
        table = sparse.csr_array((floats(name, table.data), table.indices, table.indptr), shape=table.shape)
    _finite(name, table.data)
    return table


def compressed(table: sparse.csr_array) -> sparse.csr_array:
    """Return a table of compressed rows in canonical format: sorted entries without duplicates.

    ‖x‖² is summed entry by entry, which duplicates would make wrong.
    """
    # A new object, since the flags of `table` may be out of date.
    own = sparse.csr_array((table.data, table.indices, table.indptr), shape=table.shape)
    if not own.has_canonical_format:
        own = own.copy()
        own.sum_duplicates()
    return own


def weights(name: str, value: object, size: int) -> Array:
    """Return one finite weight of at least zero per record."""
    result = floats(name, value)
    if result.shape != (size,):
        raise ValueError(f"{name} must hold one weight for each of {size} records, got shape {result.shape}.")
    if (_finite(name, result) < 0).any():
        raise ValueError(f"{name} must be at least 0, got {result.min():g}.")
    return frozen(result)


def labels(name: str, value: object, size: int, classes: int | None, least: float = -np.inf) -> Array:
    """Return one finite label per record: 0, 1, …, `classes` − 1; without `classes`, any number from `least` on."""
    result = floats(name, value)
    if result.shape != (size,):
        raise ValueError(f"{name} must hold one label for each of {size} records, got shape {result.shape}.")
    _finite(name, result)
    if classes is not None:
        wrong = result[~np.isin(result, np.arange(classes))]
        if wrong.size:
            known = "0 and 1" if classes == 2 else f"0 to {classes - 1}"
            raise ValueError(f"{name} must hold labels {known} only, got {wrong[0]:g}.")
    if result.size and result.min() < least:
        raise ValueError(f"{name} must hold numbers of at least {least:g}, got {result.min():g}.")
    return frozen(result)


def people(name: str, value: object, size: int) -> NDArray[np.int64]:
    """Return the number of each row's person, counted from 0 in the order in which people first appear.

    Ids may be numbers or text; 1, 1.0 and "1" are one id, since tables that are read in pieces may hold all three. A
    gap (None, NaN, a blank text) is no id: its rows could belong to anybody.
    """
    ids = np.asarray(value)
    if ids.shape != (size,):
        raise ValueError(f"{name} must hold the id of a person for each of {size} rows, got shape {ids.shape}.")
    gaps = _count_gaps(value, ids)
    if gaps:
        raise ValueError(f"{name} must name the person of every row, got {gaps} row(s) without an id.")
    if ids.dtype.kind == "O":
        known: dict[object, int] = {}
        try:
            return np.array([known.setdefault(id_text(one), len(known)) for one in ids.tolist()], dtype=np.int64)
        except TypeError:
            raise ValueError(f"{name} must hold numbers or text, got {_kind(value)}.") from None
    if ids.dtype.kind not in "biufUS":
        raise ValueError(f"{name} must hold numbers or text, got {_kind(value)}.")
    _, first, codes = np.unique(ids, return_index=True, return_inverse=True)
    rank = np.empty(first.size, dtype=np.int64)
    rank[np.argsort(first)] = np.arange(first.size)
    return np.asarray(rank[codes])


def id_text(one: object) -> object:
    """Return an id as text if it is a number, so that equal numbers and their text are one id; else itself."""
    if type(one).__eq__ is object.__eq__:
        raise TypeError("an object that equals nothing else would make each row a person")
    if not isinstance(one, Real | Decimal):
        return one
    whole = math.trunc(one)
    return str(whole) if one == whole else str(float(one))


def _count_gaps(value: object, ids: NDArray[Any]) -> int:
    """Count the ids that are missing."""
    gaps = int(np.count_nonzero(np.ma.getmaskarray(value))) if np.ma.isMaskedArray(value) else 0
    if ids.dtype.kind == "f":
        gaps += int(np.count_nonzero(~np.isfinite(ids)))
    elif ids.dtype.kind in "US":
        gaps += int(np.count_nonzero(np.char.strip(ids) == ids.dtype.type()))
    elif ids.dtype.kind == "O":
        gaps += sum(map(_is_gap, ids.tolist()))
    return gaps


def _is_gap(one: object) -> bool:
    if isinstance(one, str | bytes):
        return not one.strip()
    try:
        # NaN and NaT differ from themselves, and infinity from what is finite.
        return one is None or not bool(one == one) or (isinstance(one, Real | Decimal) and abs(one) == np.inf)
    except (TypeError, ValueError):  # as pandas.NA, which is neither equal nor unequal
        return True


def frozen(value: NDArray[Any]) -> NDArray[Any]:
    """Return a contiguous, read-only view."""
    view = np.ascontiguousarray(value).view()
    view.flags.writeable = False
    return view


def floats(name: str, value: object) -> Array:
    """Return an array of numbers of any shape, finite or not."""
    try:
        array = np.asarray(value)
        if array.dtype.kind not in "biufO" or value is None or np.ma.is_masked(value):
            raise TypeError
        return array.astype(np.float64, copy=False)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{name} must hold numbers only, got {_kind(value)}.") from None


def _kind(value: object) -> str:
    dtype = getattr(value, "dtype", None)
    return type(value).__name__ if dtype is None else f"{type(value).__name__} of {dtype}"


def _finite(name: str, value: Array) -> Array:
    bad = value.size - np.count_nonzero(np.isfinite(value))
    if bad:
        raise ValueError(f"{name} must be finite, got {bad} NaN or infinite value(s).")
    return value
