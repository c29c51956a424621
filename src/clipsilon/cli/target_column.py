"""The target of a table as `clipsilon fit` models it: classes for a logistic model, numbers for the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clipsilon.cli.columns import finite
from clipsilon.cli.model_kinds import MODELS, predicts_classes
from clipsilon.cli.tables import Table, real_labels
from clipsilon.problems.losses.base import label_kind


class Target(NamedTuple):
    """The target in the form that a model takes.

    Parameters
    ----------
    kind : str
        Kind of model, a key of `MODELS`.
    labels : array
        Integers or text for a logistic model, numbers for the others; one per row.
    settings : dict
        Arguments of the estimator that hold what the user stated about the target; what is missing is learnt.
    """

    kind: str
    labels: NDArray[Any]
    settings: dict[str, Any]


def read_target(
    table: Table, model: str | None, classes: Sequence[str] | None, target_range: Sequence[float] | None
) -> Target:
    """Choose the kind of model, and convert the labels to what it takes.

    Parameters
    ----------
    table : Table
        The user's table.
    model : str or None
        A key of `MODELS`; None chooses by the other arguments, or logistic for two values.
    classes : sequence of str, or None
        All possible labels, if the user stated them.
    target_range : sequence of two numbers, or None
        Where most targets lie, if the user stated it.

    Returns
    -------
    Target

    Raises
    ------
    ValueError
        If the labels are not what the kind of model takes, or do not fit `classes`.
    """
    kind = model or _natural_kind(table, classes, target_range)
    if not predicts_classes(kind):
        known = {} if target_range is None else {"target_range": tuple(target_range)}
        labels = real_labels(table)
        _check_sign(kind, labels, table.target_name)
        return Target(kind, labels, known)
    labels = whole_labels(table.target)
    if labels.dtype.kind == "f":
        raise ValueError(
            f"target {table.target_name!r} must hold classes for model 'logistic', got the number "
            f"{labels[labels != np.rint(labels)][0]:g}: use model 'linear' or 'huber'."
        )
    return Target(kind, labels, {} if classes is None else {"classes": _matching(classes, labels, table.target_name)})


def _check_sign(kind: str, labels: NDArray[np.float64], name: str) -> None:
    """Raise ValueError if a target is negative, or an amount is 0, for a kind of model that takes none such."""
    least = labels.min()
    if label_kind(MODELS[kind]) == "nonnegative" and (least < 0 or (kind == "gamma" and least == 0)):
        allowed = "above 0" if kind == "gamma" else "of at least 0"
        raise ValueError(f"target {name!r} must hold numbers {allowed} for model {kind!r}, got {least:g}.")


def check_split(target: Target, name: str, train: NDArray[np.int64], held_out: NDArray[np.int64]) -> None:
    """Raise ValueError if a class that is to be learnt is among the held-out rows only.

    Parameters
    ----------
    target : Target
        The target of all rows.
    name : str
        Its column, for the message.
    train, held_out : array of int
        Numbers of the training rows and of the held-out rows.
    """
    if not predicts_classes(target.kind) or target.settings:
        return
    unseen = np.setdiff1d(target.labels[held_out], target.labels[train])
    if unseen.size:
        raise ValueError(
            f"target {name!r} must have every class among the training rows, got {unseen[0]!s} among the "
            "held-out rows only: list the classes with --classes."
        )


def _natural_kind(table: Table, classes: Sequence[str] | None, target_range: Sequence[float] | None) -> str:
    """Return the kind of model that fits what the user stated, or two values of the target."""
    if target_range is not None:
        return "linear"
    several = np.unique(table.target).size
    if classes is None and several > 2:
        raise ValueError(
            f"model must be given for a target of more than two values, got none for {table.target_name!r}, "
            f"which has {several}: choose logistic (classes), linear or huber (numbers)."
        )
    return "logistic"


def whole_labels(target: NDArray[Any]) -> NDArray[Any]:
    """Return whole numbers as integers, and anything else as it is."""
    whole = target.dtype.kind == "f" and (np.abs(target) < 2**53).all() and (target == np.rint(target)).all()
    return target.astype(np.int64) if whole else target


def _matching(classes: Sequence[str], labels: NDArray[Any], name: str) -> list[Any]:
    """Return the stated classes in the type of the labels, all of which must be among them."""
    stated: Sequence[Any] = classes
    if labels.dtype.kind == "i":
        numbers = finite(classes)
        if numbers is None:
            raise ValueError(f"classes must be numbers, like target {name!r}, got {', '.join(classes)!r}.")
        stated = whole_labels(numbers).tolist()
    others = labels[~np.isin(labels, stated)]
    if others.size:
        named = ", ".join(map(str, stated))
        raise ValueError(f"target {name!r} must hold only the classes {named}, got {others[0]!s}.")
    return list(stated)
