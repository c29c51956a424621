"""Read a user's table from a file: features and a target. Each fault is refused in one sentence."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clipsilon._core import checks
from clipsilon.cli.columns import Column, Missing, column_names, finite, read_columns

if TYPE_CHECKING:  # scikit-learn is slow to import
    from clipsilon.tables import SchemaEncoder

Array = NDArray[np.float64]


class Table(NamedTuple):
    """A user's table.

    Parameters
    ----------
    features : array of shape (rows, columns)
        All columns but the target.
    target : array of length rows
        Numbers if all its cells are, otherwise text.
    columns : tuple of str
        Names of the features.
    target_name : str
        Name of the target.
    encoder : SchemaEncoder or None
        What made the features of the columns; None if they are the columns themselves.
    people : array of int, or None
        A number for the person of each row, if a column names them.
    notes : tuple of str
        What the schema does not cover.
    """

    features: Array
    target: NDArray[Any]
    columns: tuple[str, ...]
    target_name: str
    encoder: SchemaEncoder | None = None
    people: NDArray[np.int64] | None = None
    notes: tuple[str, ...] = ()


def read_table(
    path: str | Path,
    target: str,
    ignore: Sequence[str] = (),
    advice: str = "encode or drop these columns",
    group: str | None = None,
) -> Table:
    """Read a table from a CSV or Parquet file.

    A CSV file has a header row, and commas, semicolons or tabs between its cells. Messages number the rows as a
    spreadsheet does: the header is row 1.

    Parameters
    ----------
    path : str or Path
        The file.
    target : str
        The column to predict. All others are features and must hold finite numbers.
    ignore : sequence of str, optional
        Columns to leave out, which may hold anything.
    advice : str, optional
        What to do about columns with gaps, text or dates, for the message.
    group : str, optional
        The column that names the person of a row, which is not a feature.

    Returns
    -------
    Table

    Raises
    ------
    ValueError
        If a cell has no value, a feature is not a finite number, or the target takes one value only. All columns with
        such cells are named.
    """
    path = Path(path)
    names = column_names(path)
    checks.choice("target", target, dict.fromkeys(names))
    for name in ignore:
        checks.choice("ignore", name, dict.fromkeys(other for other in names if other != target))
    people = None if group is None else read_people(path, group, target)
    ignore = (*ignore, *filter(None, [group]))
    features = [name for name in names if name != target and name not in ignore]
    if not features:
        raise ValueError(f"{path} must have columns besides the target {target!r}, got none.")
    columns = read_columns(path, [name for name in names if name not in ignore], as_text=target)
    outcome = columns.pop(target)
    values = _finite_features(path, columns, advice)
    return Table(values, labels_of(target, outcome), tuple(features), target, people=people)


def labels_of(target: str, outcome: Column) -> NDArray[Any]:
    """Return the cells of the target as numbers or text, or raise ValueError if there are gaps or a single value."""
    if outcome.missing is not None:
        raise ValueError(f"target {target!r} must have a value in every row, got {_gap(outcome.missing)}.")
    labels = outcome.text if outcome.numbers is None else outcome.numbers
    assert labels is not None
    if np.unique(labels).size == 1:
        first = f"{labels[0]:g}" if labels.dtype.kind == "f" else str(labels[0])
        raise ValueError(f"target {target!r} must take more than one value, got {first!r} in every row.")
    return labels


def read_features(path: str | Path, columns: Sequence[str]) -> Array:
    """Return the columns of these names, in this order; all others are ignored."""
    path = Path(path)
    absent = set(columns) - set(column_names(path))
    if absent:
        named = ", ".join(repr(name) for name in columns if name in absent)
        raise ValueError(f"{path} must have the columns of the model, got none named {named}.")
    return _finite_features(path, read_columns(path, columns), "the model was fitted without a schema that could help")


def read_people(path: str | Path, group: str, target: str) -> NDArray[np.int64]:
    """Return the number of each row's person, from the column of their ids.

    Parameters
    ----------
    path : str or Path
        A CSV or Parquet file.
    group : str
        The column; a row without a value is refused.
    target : str
        The column to predict, which must be another one.
    """
    path = Path(path)
    checks.choice("group", group, {name: None for name in column_names(path) if name != target})
    found = read_columns(path, [group], as_text=group)[group]
    if found.missing is not None:
        raise ValueError(f"group {group!r} must have a value in every row, got {_gap(found.missing)}.")
    ids = found.text if found.numbers is None else found.numbers
    assert ids is not None
    return checks.people("group", ids, len(ids))


def read_bounds(path: Path, columns: Sequence[str]) -> tuple[list[float], list[float]]:
    """Return the lows and highs of `columns` from a file with the columns column, low and high."""
    names = column_names(path)
    for name in ("column", "low", "high"):
        if name not in names:
            raise ValueError(f"bounds in {path} must have the columns column, low and high, got {', '.join(names)}.")
    found = read_columns(path, ("column", "low", "high"), as_text="column")
    low, high, named = found["low"].numbers, found["high"].numbers, found["column"].text
    if low is None or high is None or named is None:
        raise ValueError(f"bounds in {path} must name columns, with finite numbers as low and high.")
    bounds = {name: (a, b) for name, a, b in zip(named.tolist(), low.tolist(), high.tolist(), strict=True)}
    for name in columns:
        if name not in bounds:
            raise ValueError(f"bounds in {path} must have a row for every feature, got none for {name!r}.")
        if not bounds[name][0] < bounds[name][1]:
            raise ValueError(f"bounds of column {name!r} must have low below high, got {bounds[name]}.")
    return [bounds[name][0] for name in columns], [bounds[name][1] for name in columns]


def binary_labels(table: Table) -> tuple[Array, str]:
    """Return labels 0 and 1 for a target of two values, in sorted order, and the value that became 1."""
    values = np.unique(table.target)
    if values.size != 2:
        raise ValueError(f"target {table.target_name!r} must take two values for labels 0 and 1, got {values.size}.")
    one = values[1]
    return (table.target == one).astype(float), f"{one:g}" if table.target.dtype.kind == "f" else str(one)


def real_labels(table: Table) -> Array:
    """Return the target as numbers."""
    if table.target.dtype.kind != "f":
        raise ValueError(
            f"target {table.target_name!r} must hold numbers, got text such as {_first_text(table.target)!r}."
        )
    return np.asarray(table.target, dtype=np.float64)


def _finite_features(path: Path, columns: dict[str, Column], advice: str) -> Array:
    """Return the columns as a matrix; if some are not numbers, name each of them with an example."""
    numbers = [column.numbers for column in columns.values() if column.numbers is not None]
    if len(numbers) < len(columns):
        odd = {name: column for name, column in columns.items() if column.numbers is None}
        named = ", ".join(f"{name!r} ({_fault(column)})" for name, column in odd.items())
        raise ValueError(f"features in {path} must be finite numbers, got other values in {named}: {advice}.")
    return np.stack(numbers, axis=1)


def _fault(column: Column) -> str:
    """Describe the cells that are not finite numbers."""
    text = None if column.odd is None else f"such as {column.odd!r}"
    return "; ".join(filter(None, (text, column.missing and _gap(column.missing))))


def _gap(missing: Missing) -> str:
    count, cell, row = missing
    return f"{count} gap(s), the first {cell!r} in row {row}"


def _first_text(column: NDArray[Any]) -> str:
    return next(str(cell) for cell in column if finite([str(cell)]) is None)
