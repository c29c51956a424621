"""A user's table: read from a file, with whatever is wrong in it said in one sentence."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clipwise import checks

Array = NDArray[np.float64]

_DELIMITERS = ",;\t"
_MISSING = {"", "na", "n/a", "nan", "null", "none"}


class Table(NamedTuple):
    """Features as numbers, and the target as it is: numbers if all its cells are, else text."""

    features: Array
    target: NDArray[Any]
    columns: tuple[str, ...]  # of the features
    target_name: str


def read_table(path: str | Path, target: str) -> Table:
    """Read a CSV file with a header row, separated by commas, semicolons or tabs; `target` is a column of it.

    All other columns are features and must hold finite numbers. Rows are counted as a spreadsheet counts
    them: the header is row 1.
    """
    names, rows = _cells(Path(path))
    checks.choice("target", target, dict.fromkeys(names))
    if len(names) == 1:
        raise ValueError(f"{path} must have columns besides the target {target!r}, got none.")
    numbers = list(rows)  # of the rows in the file
    cells = dict(zip(names, zip(*rows.values(), strict=True), strict=True))
    _refuse_missing(cells, numbers)
    values = {name: _numbers(column) for name, column in cells.items()}
    labels = values.pop(target)
    _refuse_text(path, {name: cells[name] for name, column in values.items() if column is None})
    features = np.stack([column for column in values.values() if column is not None], axis=1)
    outcome = np.array(cells[target]) if labels is None else labels
    if np.unique(outcome).size == 1:
        raise ValueError(f"target {target!r} must take more than one value, got {cells[target][0]!r} in every row.")
    return Table(features, outcome, tuple(values), target)


def binary_labels(table: Table) -> tuple[Array, str]:
    """Labels 0 and 1 from a target of two values, in sorted order, and the value that is 1."""
    values = np.unique(table.target)
    if values.size != 2:
        raise ValueError(f"target {table.target_name!r} must take two values for labels 0 and 1, got {values.size}.")
    one = values[1]
    return (table.target == one).astype(float), f"{one:g}" if table.target.dtype.kind == "f" else str(one)


def real_labels(table: Table) -> Array:
    """The target as numbers."""
    if table.target.dtype.kind != "f":
        raise ValueError(f"target {table.target_name!r} must hold numbers, got text such as {_text(table.target)!r}.")
    return np.asarray(table.target, dtype=np.float64)


def _cells(path: Path) -> tuple[list[str], dict[int, list[str]]]:
    """The header, and the cells of every row that is not blank by its number in the file."""
    if not path.is_file():
        raise FileNotFoundError(f"path must name a file, got {path}, where there is none.")
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            delimiter = _delimiter(file.readline())
            file.seek(0)
            rows = dict(enumerate(csv.reader(file, delimiter=delimiter), start=1))
    except (UnicodeDecodeError, csv.Error):
        raise ValueError(f"path must be a CSV file in UTF-8, got {path}, which is not one.") from None
    names = [name.strip() for name in rows.pop(1, [])]
    _check_header(path, names)
    full = {number: [cell.strip() for cell in row] for number, row in rows.items() if row}
    for number, row in full.items():
        if len(row) != len(names):
            raise ValueError(f"row {number} of {path} must have {len(names)} cells, as the header, got {len(row)}.")
    if not full:
        raise ValueError(f"{path} must have rows below its header, got none.")
    return names, full


def _delimiter(header: str) -> str:
    """The one that makes most columns of the header."""
    return max(_DELIMITERS, key=lambda mark: len(next(csv.reader([header], delimiter=mark), [])))


def _check_header(path: Path, names: list[str]) -> None:
    if not names or _numbers(tuple(names)) is not None:
        raise ValueError(f"the first row of {path} must name the columns, got {', '.join(names) or 'nothing'}.")
    for k, name in enumerate(names):
        if not name:
            raise ValueError(f"column {k + 1} of {path} must have a name, got none (is it an index? take it out).")
        if name in names[:k]:
            raise ValueError(f"the columns of {path} must have different names, got {name!r} twice.")


def _numbers(column: tuple[str, ...]) -> Array | None:
    """The cells as finite numbers, or None if some are not."""
    try:
        values = np.array(column).astype(np.float64)
    except ValueError:
        return None
    return values if np.isfinite(values).all() else None


def _refuse_missing(cells: dict[str, tuple[str, ...]], numbers: list[int]) -> None:
    for name, column in cells.items():
        for number, cell in zip(numbers, column, strict=True):
            if cell.lower() in _MISSING:
                raise ValueError(f"column {name!r} must have a value in every row, got {cell!r} in row {number}.")


def _refuse_text(path: str | Path, text: dict[str, tuple[str, ...]]) -> None:
    """Name every column that is not numbers, with a cell that is not."""
    if text:
        named = ", ".join(f"{name!r} (such as {_text(column)!r})" for name, column in text.items())
        raise ValueError(f"features in {path} must be finite numbers, got others in {named}: encode or remove.")


def _text(column: Any) -> str:
    return next(str(cell) for cell in column if _numbers((str(cell),)) is None)
