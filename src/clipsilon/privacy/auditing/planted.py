"""Canaries among a user's own records: which rows are in all runs, and which are in a run by the toss of a coin."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clipsilon._core import checks

Rows = NDArray[np.int64]


class Planted(NamedTuple):
    """A table of all rows that a run may contain, and what decides which of them it contains.

    Attributes
    ----------
    features : array or data frame
        The features of all rows.
    labels : array
        Their labels.
    base : array of int
        The rows that are in every run.
    canaries : array of int
        The row of each canary, which is in a run if its coin is True.
    others : array of int, or None
        The row that takes the place of each canary if its coin is False ("replace-one"); None leaves the place empty
        ("add-remove").
    """

    features: Any
    labels: NDArray[Any]
    base: Rows
    canaries: Rows
    others: Rows | None

    def records(self, coins: NDArray[np.bool_]) -> tuple[Any, NDArray[Any]]:
        """Return copies of the features and labels of a run; canaries come last."""
        drawn = self.canaries[coins] if self.others is None else np.where(coins, self.canaries, self.others)
        return self.rows(np.concatenate([self.base, drawn]))

    def rows(self, numbers: Rows) -> tuple[Any, NDArray[Any]]:
        """Return copies of the features and labels of these rows."""
        return _take(self.features, numbers), self.labels[numbers]


def plant(features: Any, labels: Any, canaries: Any, adjacency: str) -> Planted:
    """Choose canaries among the records, or add those of the user.

    By default the canaries are the records that stand out most (by the length of their standardised numbers), with the
    label that is farthest from their own in sorted order. Under "replace-one", each takes turns with the record that it
    was made from; under "add-remove", that record is left out.

    Parameters
    ----------
    features : array or data frame
        One row per record.
    labels : array_like
        One label per record.
    canaries : int, or tuple of features and labels
        How many to make, or the user's own. Under "replace-one", the user's first canary takes turns with the first
        record, and so on.
    adjacency : {"add-remove", "replace-one"}
        How neighbouring data sets differ.

    Returns
    -------
    Planted
    """
    table = features if _is_frame(features) else np.asarray(features)
    if table.ndim == 0 or len(table) < 2:
        raise ValueError(f"X must have a row for each of at least 2 records, got {checks.short_repr(features)}.")
    known = _labels("y", labels, len(table))
    if isinstance(canaries, tuple):
        return _plant_own(table, known, canaries, adjacency)
    number = checks.count("canaries", canaries)
    if number >= len(table):
        raise ValueError(f"canaries must be fewer than the {len(table)} records, got {number}.")
    unusual = _most_unusual(table, number)
    base = np.setdiff1d(np.arange(len(table)), unusual)
    added = np.arange(len(table), len(table) + number)
    both = np.concatenate([known, _farthest_labels(known)[unusual]])
    return Planted(_stack(table, _take(table, unusual)), both, base, added, unusual if _swaps(adjacency) else None)


def _plant_own(table: Any, labels: NDArray[Any], own: tuple[Any, ...], adjacency: str) -> Planted:
    """Add the user's canaries to the table."""
    if len(own) != 2:
        raise ValueError(f"canaries must be a whole number or a pair of features and labels, got {len(own)} items.")
    extra = own[0] if _is_frame(table) and _is_frame(own[0]) else np.asarray(own[0])
    if _is_frame(table) != _is_frame(extra) or extra.shape[1:] != table.shape[1:] or not len(extra):
        raise ValueError(
            f"canaries must have features like those of X, of shape (…, {str(table.shape[1:])[1:-1].rstrip(',')}), "
            f"got {type(own[0]).__name__} of shape {extra.shape}."
        )
    both = np.concatenate([labels, _labels("labels of canaries", own[1], len(extra)).astype(labels.dtype)])
    swaps = _swaps(adjacency)
    if swaps and len(extra) > len(table):
        raise ValueError(f"canaries must be at most the {len(table)} records that they replace, got {len(extra)}.")
    everyone, added = np.arange(len(table)), np.arange(len(table), len(table) + len(extra))
    others = everyone[: len(extra)] if swaps else None
    return Planted(_stack(table, extra), both, everyone[len(extra) :] if swaps else everyone, added, others)


def _swaps(adjacency: str) -> bool:
    return adjacency == "replace-one"


def _labels(name: str, value: Any, size: int) -> NDArray[Any]:
    labels = np.asarray(value)
    if labels.shape != (size,):
        raise ValueError(f"{name} must hold one label for each of {size} records, got shape {labels.shape}.")
    return labels


def _farthest_labels(labels: NDArray[Any]) -> NDArray[Any]:
    """Return the first or the last of the sorted labels for each record, whichever is farther from its own."""
    values, places = np.unique(labels, return_inverse=True)
    if values.size == 1:
        raise ValueError(f"y must take more than one value, got {checks.short_repr(values[0])} for every record.")
    return np.asarray(values[np.where(2 * places > values.size - 1, 0, -1)])


def _most_unusual(table: Any, number: int) -> Rows:
    """Return the rows with the longest standardised numbers, the longest first."""
    numbers = _numbers(table)
    centred = numbers - numbers.mean(axis=0)
    spread = centred.std(axis=0)
    distances = ((centred / np.where(spread > 0, spread, 1.0)) ** 2).sum(axis=1)
    return np.argsort(-distances, kind="stable")[:number]


def _numbers(table: Any) -> NDArray[np.float64]:
    """Return the columns that hold finite numbers only; a column of zeros if there is none."""
    cells = np.asarray(table).reshape(len(table), -1)
    found = [column for column in map(_as_numbers, cells.T) if column is not None]
    return np.stack(found, axis=1) if found else np.zeros((len(table), 1))


def _as_numbers(column: NDArray[Any]) -> NDArray[np.float64] | None:
    try:
        numbers = column.astype(np.float64)
    except (TypeError, ValueError):
        return None
    return numbers if np.isfinite(numbers).all() else None


def _is_frame(table: Any) -> bool:
    return hasattr(table, "iloc")


def _take(table: Any, rows: Rows) -> Any:
    return table.iloc[rows].reset_index(drop=True) if _is_frame(table) else table[rows]


def _stack(table: Any, extra: Any) -> Any:
    if not _is_frame(table):
        return np.concatenate([table, extra])
    from pandas import concat

    return concat([table, extra], ignore_index=True)
