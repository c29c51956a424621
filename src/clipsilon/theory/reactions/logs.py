"""Logs: which models were deployed, and what people sent under each of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clipsilon._core import checks
from clipsilon._core.rows import dense

Array = NDArray[np.float64]


class Deployment(NamedTuple):
    """A deployed model, and what people sent while it was deployed.

    Parameters
    ----------
    theta : array-like
        θ_j, one number per feature; without the intercept, which nobody reacts to.
    features : array-like
        One row per person.
    labels : array-like, optional
        One label per person: 0, 1, …. Leave out if all people react alike.
    people : array-like, optional
        The id of each person, by which it is checked that nobody is in the logs twice.
    """

    theta: ArrayLike
    features: ArrayLike
    labels: ArrayLike | None = None
    people: ArrayLike | None = None


class Logs(NamedTuple):
    """Checked logs.

    Parameters
    ----------
    models : ndarray of shape (J, d)
        The deployed models.
    features : list of ndarray
        What was sent under each of them.
    labels : list of ndarray of int
        The class of each row; 0 for all if there are no labels.
    """

    models: Array
    features: list[Array]
    labels: list[NDArray[np.int64]]

    @property
    def records(self) -> int:
        """The number of people."""
        return sum(map(len, self.features))


def check_logs(logs: Sequence[Deployment | tuple[ArrayLike, ...]], classes: int) -> Logs:
    """Return logs whose deployments fit together.

    Parameters
    ----------
    logs : sequence of Deployment or tuple
        One entry (theta, features, labels) per deployed model.
    classes : int
        The number of classes; with 1, labels are ignored.

    Returns
    -------
    Logs
        The logs.

    Raises
    ------
    ValueError
        If there are fewer than two deployments, their sizes differ, or somebody is in them twice.
    """
    entries = [_deployment(f"logs[{j}]", entry) for j, entry in enumerate(logs)]
    if len(entries) < 2:
        raise ValueError(f"logs must hold at least 2 deployments, got {len(entries)}.")
    tables = [
        np.asarray(dense(checks.records(f"features of logs[{j}]", one.features))) for j, one in enumerate(entries)
    ]
    columns = tables[0].shape[1]
    for j, table in enumerate(tables):
        if table.shape[1] != columns:
            raise ValueError(f"features of logs[{j}] must have {columns} columns, got {table.shape[1]}.")
    models = [checks.vector(f"theta of logs[{j}]", one.theta, columns) for j, one in enumerate(entries)]
    labels = [_classes(j, one.labels, len(tables[j]), classes) for j, one in enumerate(entries)]
    _check_people(entries, tables)
    return Logs(np.stack(models), tables, labels)


def _deployment(name: str, entry: object) -> Deployment:
    if not isinstance(entry, tuple | list) or not 2 <= len(entry) <= 4:
        raise ValueError(f"{name} must be (theta, features, labels), got {checks.short_repr(entry)}.")
    return Deployment(*entry)


def _classes(j: int, labels: ArrayLike | None, rows: int, classes: int) -> NDArray[np.int64]:
    name = f"labels of logs[{j}]"
    if classes == 1:
        return np.zeros(rows, dtype=np.int64)
    if labels is None:
        raise ValueError(f"{name} must be given for {classes} classes, got None.")
    return checks.labels(name, labels, rows, classes).astype(np.int64)


def _check_people(entries: list[Deployment], tables: list[Array]) -> None:
    """Raise ValueError if somebody is in the logs twice: the deployments would not compose in parallel."""
    given = [one.people is not None for one in entries]
    if not any(given):
        return
    if not all(given):
        raise ValueError(f"people must be given for all deployments or for none, got {sum(given)} of {len(given)}.")
    for j, one in enumerate(entries):
        checks.people(f"people of logs[{j}]", one.people, len(tables[j]))  # one per row, and no gaps
    # As objects: joined as text, the number 1.0 of one deployment and the text "1" of another would be two people.
    ids = np.concatenate([np.asarray(one.people).astype(object) for one in entries])
    known = checks.people("people", ids, ids.size)
    twice = known.size - np.unique(known).size
    if twice:
        raise ValueError(f"people must be in the logs once each, got {twice} row(s) of people who are in them already.")
