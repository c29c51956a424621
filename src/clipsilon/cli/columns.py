"""Read the columns of a CSV or Parquet file as numbers, or find the cell that is not one."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clipsilon._core.extras import needs_package
from clipsilon.tables.cells import GAPS

Array = NDArray[np.float64]

_DELIMITERS = ",;\t"
_PARQUET = {".parquet", ".parq", ".pq"}
_CHUNK = 20_000  # rows of a CSV file that are held as text at the same time
_INDEX = "__index_level_"  # prefix of an index that pandas writes to Parquet as a column


class Missing(NamedTuple):
    """The cells of a column that have no value.

    Parameters
    ----------
    cells : int
        How many there are.
    cell, row : str, int
        The first of them as it is written, and its row in the file.
    """

    cells: int
    cell: str
    row: int


class Column(NamedTuple):
    """One column of a file.

    Parameters
    ----------
    numbers : array of float, or None
        The cells, if all of them are finite numbers.
    text : array of str, or None
        The cells as text, if this was requested and they are not all numbers.
    odd : str or None
        The first cell that is neither a finite number nor a gap.
    missing : Missing or None
        The cells without a value, if there are any.
    """

    numbers: Array | None
    text: NDArray[np.str_] | None
    odd: str | None
    missing: Missing | None


class Cells(NamedTuple):
    """The cells of a CSV file as they are written.

    Parameters
    ----------
    header : list of str
        The first row.
    rows : list of list of str
        All others, except blank ones.
    delimiter : str
        What separates the cells.
    """

    header: list[str]
    rows: list[list[str]]
    delimiter: str


def column_names(path: Path) -> list[str]:
    """Return the names of the columns of a file, in order."""
    if not path.is_file():
        raise FileNotFoundError(f"path must be an existing file, got {path}.")
    names = _parquet_names(path) if _is_parquet(path) else _csv_names(path)
    for k, name in enumerate(names):
        if not name:
            raise ValueError(f"column {k + 1} of {path} must have a name, got none (if it is an index, remove it).")
        if name in names[:k]:
            raise ValueError(f"the columns of {path} must have distinct names, got {name!r} twice.")
    return names


def read_columns(path: Path, wanted: Sequence[str], as_text: str | None = None) -> dict[str, Column]:
    """Read the columns of a file.

    Rows are numbered as in a spreadsheet: in a CSV file the header is row 1.

    Parameters
    ----------
    path : Path
        A CSV or Parquet file.
    wanted : sequence of str
        Names of the columns to read.
    as_text : str, optional
        The one of them whose cells are kept as text, too.

    Returns
    -------
    dict of Column
        By name, in the order of `wanted`.

    Raises
    ------
    ValueError
        If the file has no rows, or cannot be read.
    """
    read = _read_parquet if _is_parquet(path) else _read_csv
    found = read(path, wanted, as_text)
    if not found:
        raise ValueError(f"{path} must have rows below its header, got none.")
    return found


def read_raw(path: Path, wanted: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Return the cells of columns as they are: text from CSV files, any type from Parquet files; by name."""
    read = _read_raw_parquet if _is_parquet(path) else _read_raw_csv
    found = read(path, wanted)
    if not found:
        raise ValueError(f"{path} must have rows below its header, got none.")
    return found


def read_cells(path: Path) -> Cells:
    """Return all cells of a CSV file as they are written; raise ValueError as `read_columns` does."""
    column_names(path)
    if _is_parquet(path):
        raise ValueError(f"path must be a CSV file here, got {path}.")
    with _open_csv(path) as file:
        delimiter = _delimiter(file)
        reader = csv.reader(file, delimiter=delimiter)
        header = next(reader)
        rows = [row for chunk, _ in _chunks(reader, len(header), path) for row in chunk]
    if not rows:
        raise ValueError(f"{path} must have rows below its header, got none.")
    return Cells(header, rows, delimiter)


def finite(cells: Sequence[str]) -> Array | None:
    """Return the cells as finite numbers, None if one of them is not."""
    try:
        values = np.fromiter(map(float, cells), np.float64, len(cells))
    except ValueError:
        return None
    return values if np.isfinite(values).all() else None


def _is_parquet(path: Path) -> bool:
    return path.suffix.lower() in _PARQUET


def _text_column(cells: Sequence[str], rows: Sequence[int], keep: bool) -> Column:
    """Return a column from cells of text; `rows` are their row numbers in the file."""
    numbers = finite(cells)
    # Kept even if all cells are numbers, because a later chunk may hold text.
    text = np.array([cell.strip() for cell in cells]) if keep else None
    if numbers is not None:
        return Column(numbers, text, None, None)
    cells = [cell.strip() for cell in cells]
    gaps = [k for k, cell in enumerate(cells) if cell.lower() in GAPS]
    missing = Missing(len(gaps), cells[gaps[0]], rows[gaps[0]]) if gaps else None
    odd = next((cell for cell in cells if cell.lower() not in GAPS and finite([cell]) is None), None)
    return Column(None, text, odd, missing)


# -- CSV ------------------------------------------------------------------------------------------------------------


def _csv_names(path: Path) -> list[str]:
    with _open_csv(path) as file:
        names = [name.strip() for name in next(_reader(file), [])]
    if not names or finite(names) is not None:
        raise ValueError(f"the first row of {path} must name the columns, got {', '.join(names) or 'nothing'}.")
    return names


def _read_csv(path: Path, wanted: Sequence[str], as_text: str | None) -> dict[str, Column]:
    """Read a CSV file in chunks, so that only a small part of it is held as text."""
    parts: dict[str, list[Column]] = {name: [] for name in wanted}
    with _open_csv(path) as file:
        reader = _reader(file)
        names = [name.strip() for name in next(reader)]
        for rows, numbers in _chunks(reader, len(names), path):
            cells = dict(zip(names, zip(*rows, strict=True), strict=True))
            for name in wanted:
                parts[name].append(_text_column(cells[name], numbers, name == as_text))
    return {name: _concatenate(chunks) for name, chunks in parts.items() if chunks}


def _read_raw_csv(path: Path, wanted: Sequence[str]) -> dict[str, NDArray[Any]]:
    parts: dict[str, list[NDArray[Any]]] = {name: [] for name in wanted}
    with _open_csv(path) as file:
        reader = _reader(file)
        names = [name.strip() for name in next(reader)]
        for rows, _ in _chunks(reader, len(names), path):
            cells = dict(zip(names, zip(*rows, strict=True), strict=True))
            for name in wanted:
                parts[name].append(np.array(cells[name]))
    return {name: np.concatenate(chunks) for name, chunks in parts.items() if chunks}


def _chunks(reader: Iterator[list[str]], width: int, path: Path) -> Iterator[tuple[list[list[str]], list[int]]]:
    """Yield chunks of rows that are not blank, and their numbers in the file."""
    first = 2
    while rows := list(islice(reader, _CHUNK)):
        numbers = [first + k for k, row in enumerate(rows) if row]
        full = [row for row in rows if row]
        for number, row in zip(numbers, full, strict=True):
            if len(row) != width:
                raise ValueError(f"row {number} of {path} must have {width} cells, like the header, got {len(row)}.")
        if full:
            yield full, numbers
        first += len(rows)


def _concatenate(parts: list[Column]) -> Column:
    numbers = [part.numbers for part in parts if part.numbers is not None]
    text = [part.text for part in parts if part.text is not None]
    gaps = [part.missing for part in parts if part.missing is not None]
    return Column(
        np.concatenate(numbers) if len(numbers) == len(parts) else None,
        np.concatenate(text) if text else None,
        next((part.odd for part in parts if part.odd is not None), None),
        gaps[0]._replace(cells=sum(gap.cells for gap in gaps)) if gaps else None,
    )


@contextmanager
def _open_csv(path: Path) -> Iterator[IO[str]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            yield file
    except (UnicodeDecodeError, csv.Error):
        raise ValueError(f"path must be a CSV file in UTF-8, got {path}, which is not one.") from None


def _reader(file: IO[str]) -> Iterator[list[str]]:
    return csv.reader(file, delimiter=_delimiter(file))


def _delimiter(file: IO[str]) -> str:
    """Return the delimiter that splits the header into the most columns."""
    header = file.readline()
    file.seek(0)
    return max(_DELIMITERS, key=lambda mark: len(next(csv.reader([header], delimiter=mark), [])))


# -- Parquet --------------------------------------------------------------------------------------------------------


@contextmanager
def _arrow(path: Path) -> Iterator[Any]:
    """Give the module that reads Parquet, and turn its errors into one sentence."""
    try:
        import pyarrow.parquet
    except ImportError:
        raise ValueError(needs_package(f"Reading {path}", "pyarrow", "clipsilon[parquet]")) from None
    try:
        yield pyarrow.parquet
    except (pyarrow.ArrowException, OSError):
        raise ValueError(f"path must be a Parquet file, got {path}, which is not one or is damaged.") from None


def _parquet_names(path: Path) -> list[str]:
    with _arrow(path) as parquet:
        names = [str(name) for name in parquet.read_schema(path).names]
    if not names:
        raise ValueError(f"{path} must have columns, got none.")
    return names


def _read_arrow(path: Path, wanted: Sequence[str]) -> Any:
    for name in wanted:
        if name.startswith(_INDEX):
            raise ValueError(f"column {name!r} of {path} is an index that pandas wrote: leave it out.")
    with _arrow(path) as parquet:
        return parquet.ParquetFile(path).read(columns=list(wanted))


def _read_raw_parquet(path: Path, wanted: Sequence[str]) -> dict[str, NDArray[Any]]:
    table = _read_arrow(path, wanted)
    if not table.num_rows:
        return {}
    return {name: np.array(table.column(name).to_pylist(), dtype=object) for name in wanted}


def _read_parquet(path: Path, wanted: Sequence[str], as_text: str | None) -> dict[str, Column]:
    table = _read_arrow(path, wanted)
    if not table.num_rows:
        return {}
    return {name: _arrow_column(table.column(name), name == as_text) for name in wanted}


def _arrow_column(values: Any, keep: bool) -> Column:
    """Return numbers as they are, and everything else as the text that a CSV file would have."""
    import pyarrow

    types, kind = pyarrow.types, values.type
    numeric = types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind)
    if numeric or (types.is_boolean(kind) and not keep):  # as labels, true and false are text
        return _number_column(values.cast(pyarrow.float64(), safe=False).to_numpy(), keep)
    cells = ["" if value is None else str(value) for value in values.to_pylist()]
    return _text_column(cells, range(1, len(cells) + 1), keep)


def _number_column(values: Array, keep: bool) -> Column:
    gaps = np.flatnonzero(np.isnan(values))
    infinite = np.flatnonzero(np.isinf(values))
    missing = Missing(gaps.size, "nan", int(gaps[0]) + 1) if gaps.size else None
    odd = f"{values[infinite[0]]:g}" if infinite.size else None
    if not gaps.size and not infinite.size:
        return Column(values, None, None, None)
    return Column(None, values.astype(str) if keep else None, odd, missing)
