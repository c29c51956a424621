"""Read a table by its schema: the features are what the schema makes of the columns."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clipsilon.cli.columns import column_names, read_columns, read_raw
from clipsilon.cli.tables import Table, labels_of, read_features
from clipsilon.tables.cells import to_people
from clipsilon.tables.schema import Schema

if TYPE_CHECKING:  # scikit-learn is slow to import
    from clipsilon.estimators.model_files import Model


def read_encoded(path: Path, schema: Schema, target: str) -> Table:
    """Read a table from a CSV or Parquet file and encode it.

    Parameters
    ----------
    path : Path
        The file.
    schema : Schema
        What its columns hold. Each column of the file must have a place in it.
    target : str
        The column to predict, which is not among those that the schema describes.

    Returns
    -------
    Table
        The features are encoded.

    Raises
    ------
    ValueError
        If schema and file do not fit. All columns that do not are named.
    """
    from clipsilon.tables.encoder import SchemaEncoder, count_uncovered, encode

    _check_columns(path, schema, target)
    outcome = read_columns(path, [target], as_text=target)[target]
    raw = read_raw(path, [*schema.columns, *filter(None, [schema.group])])
    people = None if schema.group is None else to_people(raw[schema.group], f"group {schema.group!r} of {path}")
    encoder = SchemaEncoder(schema).fit(raw)
    features = encode(schema, raw, str(path))
    notes = describe_uncovered(schema, count_uncovered(schema, raw), features.shape[0])
    labels = labels_of(target, outcome)
    return Table(features, labels, tuple(schema.columns), target, encoder, people, tuple(notes))


def read_inputs(path: Path, model: Model) -> tuple[Any, list[str]]:
    """Return the rows of a file as `model.learnt` takes them, and sentences about cells that its schema does not cover.

    Raises ValueError if the file does not have the columns of the model, or if their cells do not fit.
    """
    from clipsilon.tables.encoder import count_uncovered, encode

    if model.schema is None:
        return read_features(path, model.columns), []
    absent = set(model.columns) - set(column_names(path))
    if absent:
        raise ValueError(f"{path} must have the columns of the model, got none named {_listed(absent, model.columns)}.")
    raw = read_raw(path, model.columns)
    features = encode(model.schema, raw, str(path))
    return features, describe_uncovered(model.schema, count_uncovered(model.schema, raw), features.shape[0])


def describe_uncovered(schema: Schema, counts: dict[str, int], rows: int) -> list[str]:
    """Return a sentence for each column with cells that the schema does not cover.

    Parameters
    ----------
    schema : Schema
        What the columns hold.
    counts : dict of int
        How many cells of each column are not covered.
    rows : int
        Number of rows.

    Returns
    -------
    list of str
    """
    return [
        f"{count} of {rows} rows have a level of {name!r} that the schema does not list: they count as other (counted "
        "without noise: not private)."
        if schema.columns[name].name == "category"
        else f"{count} of {rows} rows are outside the range of {name!r} that the schema states: they are cut off "
        "(counted without noise: not private)."
        for name, count in counts.items()
    ]


def _check_columns(path: Path, schema: Schema, target: str) -> None:
    """Raise ValueError unless schema and file have the same columns."""
    names = column_names(path)
    wanted = [*schema.columns, target, *filter(None, [schema.group])]
    absent = set(wanted) - set(names)
    if absent:
        raise ValueError(f"{path} must have the columns of the schema, got none named {_listed(absent, wanted)}.")
    extra = set(names) - {*wanted, *schema.ignore}
    if extra:
        raise ValueError(
            f"each column of {path} must be in the schema, got none for {_listed(extra, names)}: describe or ignore it."
        )


def _listed(some: set[str], order: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in order if name in some)
