"""The cells of a column as text, numbers or days, whatever they were read from. Each cell is converted by itself."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Mapping
from datetime import date, datetime
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clipsilon._core import checks
from clipsilon._core.checks import short_repr

Array = NDArray[np.float64]
Cells = NDArray[Any]

#: Words that stand for a gap, in lower case.
GAPS = frozenset({"", "?", "na", "n/a", "nan", "null", "none"})

_EPOCH = date(1970, 1, 1).toordinal()
_DAY = 86_400.0


def as_cells(values: ArrayLike, where: str) -> Cells:
    """Return the cells of a column as a vector; `where` names the column in the error if they are not one."""
    cells = np.asarray(values)
    if cells.ndim != 1:
        raise ValueError(f"{where} must be one value per row, got shape {cells.shape}.")
    # NumPy would turn numbers beside text into text of its own making.
    return np.array(values, dtype=object) if cells.dtype.kind == "U" and isinstance(values, list | tuple) else cells


def to_texts(cells: Cells, words: Collection[str] = ()) -> list[str | None]:
    """Return each cell as text, and None for a gap, unless the word for the gap is among `words`."""
    memory: dict[str, str | None] = {}
    found = []
    for cell in _plain(cells):
        if type(cell) is not str:
            found.append(_text(cell, words))
        else:
            if cell not in memory:
                memory[cell] = _text(cell, words)
            found.append(memory[cell])
    return found


def to_numbers(cells: Cells, where: str) -> Array:
    """Return each cell as a number, NaN for a gap; `where` names the column in the error if one is neither."""
    if cells.dtype.kind in "biuf":
        return np.asarray(cells, dtype=np.float64)
    return np.array([_number(cell, where) for cell in _plain(cells)], dtype=np.float64)


def to_days(cells: Cells, pattern: str | None, where: str) -> Array:
    """Return each cell as a day number, with the time of day as a fraction, and NaN for a gap.

    Parameters
    ----------
    cells : array
        Dates, times, or text.
    pattern : str or None
        How text is written, as for `datetime.strptime`; None for ISO 8601, such as 2024-12-31.
    where : str
        Names the column in the error if a cell is none of these.

    Returns
    -------
    array of float
        Days as `date.toordinal` counts them.
    """
    if cells.dtype.kind == "M":
        days = (cells - np.datetime64("1970-01-01")) / np.timedelta64(1, "D")
        return np.asarray(days + _EPOCH, dtype=np.float64)
    memory: dict[str, float] = {}
    found = []
    for cell in _plain(cells):
        if type(cell) is not str:
            found.append(_days(cell, pattern, where))
        else:
            if cell not in memory:
                memory[cell] = _days(cell, pattern, where)
            found.append(memory[cell])
    return np.array(found, dtype=np.float64)


def to_people(values: ArrayLike, where: str) -> NDArray[np.int64]:
    """Return a number from 0 up for each row, the same for rows of the same person; a gap is an error."""
    texts = to_texts(as_cells(values, where))
    return checks.people(where, np.array(texts, dtype=object), len(texts))


def identify_cells(columns: Mapping[str, ArrayLike], key: int) -> str:
    """Return a digest of all rows together, whatever their order."""
    secret = key.to_bytes(16, "little")
    texts = [to_texts(as_cells(cells, f"column {name!r}")) for name, cells in columns.items()]
    rows = (repr(row).encode() for row in zip(*texts, strict=True))
    digests = sorted(hashlib.blake2b(row, digest_size=8, key=secret).digest() for row in rows)
    return hashlib.blake2b(b"".join(digests), digest_size=16).hexdigest()


def is_gap(cell: object, words: Collection[str] = ()) -> bool:
    """Return whether a cell has no value: None, NaN, or a word for a gap that is not among `words`."""
    if isinstance(cell, str):
        text = cell.strip()
        return text.lower() in GAPS and text not in words
    # pandas.NA has no truth value, and neither it nor NaT can be imported here.
    return cell is None or type(cell).__name__ in ("NAType", "NaTType") or (isinstance(cell, float) and cell != cell)


def text_of(value: object) -> str:
    """Return a value as a CSV file has it: whole numbers without a point."""
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    return str(value).strip()


def _plain(cells: Cells) -> list[Any]:
    """Return the cells as Python objects."""
    if cells.dtype.kind == "M":
        cells = cells.astype("datetime64[us]")
    plain: list[Any] = cells.tolist()
    return plain


def _text(cell: Any, words: Collection[str]) -> str | None:
    return None if is_gap(cell, words) else text_of(cell)


def _number(cell: Any, where: str) -> float:
    if is_gap(cell):
        return math.nan
    try:
        return float(cell)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{where} must hold numbers, got {short_repr(cell)}.") from None


def _days(cell: Any, pattern: str | None, where: str) -> float:
    if is_gap(cell):
        return math.nan
    if pattern is not None and not isinstance(cell, date):
        cell = text_of(cell)  # such as the number 20241231
    if isinstance(cell, str):
        try:
            text = cell.strip()
            cell = datetime.fromisoformat(text) if pattern is None else datetime.strptime(text, pattern)
        except ValueError:
            how = "such as 2024-12-31" if pattern is None else f"written as {pattern}"
            raise ValueError(f"{where} must hold dates {how}, got {short_repr(cell)}.") from None
    if not isinstance(cell, date):
        raise ValueError(f"{where} must hold dates, got {short_repr(cell)}.")
    seconds = cell.hour * 3600 + cell.minute * 60 + cell.second if isinstance(cell, datetime) else 0
    return cell.toordinal() + seconds / _DAY
