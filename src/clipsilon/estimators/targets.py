"""From y to the labels of a loss: first a summary, which can be merged over chunks of y; then each label by itself."""

from __future__ import annotations

from functools import reduce
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.multiclass import check_classification_targets

from clipsilon._core.checks import floats
from clipsilon.estimators.inputs import Array, Labels


class ClassCounts(NamedTuple):
    """The distinct labels of y.

    Parameters
    ----------
    labels : array
        The labels in order.
    counts : array of int
        How many records have each label.
    weighted : array of int
        How many of these have a weight above 0.
    """

    labels: NDArray[Any]
    counts: NDArray[np.int64]
    weighted: NDArray[np.int64]

    def merge(self, other: ClassCounts) -> ClassCounts:
        """Return the counts of both."""
        labels, codes = np.unique(np.concatenate([self.labels, other.labels]), return_inverse=True)
        added = (
            np.bincount(codes, np.concatenate(pair)).astype(np.int64) for pair in zip(self[1:], other[1:], strict=True)
        )
        return ClassCounts(labels, *added)


class Moments(NamedTuple):
    """The moments of real targets.

    Parameters
    ----------
    size : int
        The number of targets.
    mean, variance : float
        Their mean, and their mean squared deviation from it.
    """

    size: int
    mean: float
    variance: float

    def merge(self, other: Moments) -> Moments:
        """Return the moments of both."""
        size = self.size + other.size
        difference = other.mean - self.mean
        mean = self.mean + difference * other.size / size
        between = difference * difference * self.size * other.size / size  # infinite on overflow; a power would raise
        return Moments(size, mean, (self.variance * self.size + other.variance * other.size + between) / size)


Summary = TypeVar("Summary", ClassCounts, Moments)


def count_classes(y: NDArray[Any], weights: Array | None) -> ClassCounts:
    """Count the labels of y, or raise ValueError if they are not classes."""
    check_classification_targets(y)
    if weights is None:
        labels, counts = np.unique(y, return_counts=True)
        return ClassCounts(labels, counts, counts)
    labels, codes, counts = np.unique(y, return_inverse=True, return_counts=True)
    return ClassCounts(labels, counts, np.bincount(codes[weights > 0], minlength=len(labels)))


def compute_moments(y: ArrayLike, weights: Array | None) -> Moments:
    """Compute the moments of y; weights play no part."""
    y = floats("y", y)
    with np.errstate(over="ignore", invalid="ignore"):
        return Moments(len(y), float(np.mean(y)), float(np.var(y)))


def compute_nonnegative_moments(model: str, positive: bool, y: ArrayLike, weights: Array | None) -> Moments:
    """Compute the moments of y, or raise ValueError if a target is negative.

    Parameters
    ----------
    model : str
        What needs such targets, for the message.
    positive : bool
        Whether 0 is refused as well.
    y, weights
        As for `compute_moments`.

    Returns
    -------
    Moments
    """
    least = np.min(floats("y", y))
    if least < 0 or (positive and least == 0):
        allowed = "above 0" if positive else "of at least 0"
        raise ValueError(f"y must hold numbers {allowed} for {model}, got {least:g}.")
    return compute_moments(y, weights)


def merge(summaries: list[Summary]) -> Summary:
    """Merge the summaries of several chunks, in their order."""
    return reduce(lambda one, other: one.merge(other), summaries)


def resolve_classes(counts: ClassCounts, known: ArrayLike | None) -> tuple[NDArray[Any], tuple[str, ...]]:
    """Return the classes in order, and notes about what was learnt for them without budget.

    Raises ValueError if y has labels that are not among the known classes.
    """
    notes: tuple[str, ...] = ()
    if known is None:
        known = counts.labels[counts.weighted > 0]
        notes = ("The classes were learnt from y without budget; give them as classes=.",)
        if len(known) < 2:
            raise ValueError(f"y must hold at least two classes with weight, got one class: {known.tolist()}.")
    classes = _check_classes(known)
    allowed = set(classes.tolist())
    for label in counts.labels.tolist():
        if label not in allowed:
            raise ValueError(f"y must hold the classes {classes.tolist()} only, got {label!r}.")
    return classes, notes


def _check_classes(known: Any) -> NDArray[Any]:
    """Return the distinct classes in order, or raise ValueError unless they are a list of two or more."""
    classes = np.asarray(known)
    mixed = classes.dtype.kind in "US" and not all(isinstance(label, str | bytes) for label in known)
    if classes.ndim != 1 or mixed or len(np.unique(classes)) < 2:
        raise ValueError(f"classes must be a list of two or more labels of one kind, got {known!r}.")
    return np.unique(classes)


def encode_labels(classes: NDArray[Any], class_weights: Array | None, y: NDArray[Any], weights: Array | None) -> Labels:
    """Encode labels as indices, and multiply weights by those of the classes.

    Parameters
    ----------
    classes : array
        All classes, in order.
    class_weights : array or None
        One weight per class.
    y : array
        One label per record, each of them a class.
    weights : array or None
        One weight per record.

    Returns
    -------
    labels : array
        The index of each label in `classes`.
    weights : array or None
        One weight per record; None if neither classes nor records have weights.
    """
    values, inverse = np.unique(y, return_inverse=True)
    index = {label: k for k, label in enumerate(classes.tolist())}
    codes = np.array([index[value] for value in values.tolist()], dtype=np.int64)[inverse]
    if class_weights is not None:
        weights = class_weights[codes] * (1.0 if weights is None else weights)
    return codes.astype(np.float64), weights


def scale_targets(center: float, scale: float, y: ArrayLike, weights: Array | None) -> Labels:
    """Centre and scale real targets; weights stay as they are.

    Parameters
    ----------
    center, scale : float
        (y − center)/scale is of unit order.
    y : array-like
        One target per record.
    weights : array or None
        One weight per record.

    Returns
    -------
    labels : array
        The scaled targets.
    weights : array or None
        The weights.
    """
    with np.errstate(over="ignore"):  # labels are checked where they are used
        return (np.asarray(y, dtype=np.float64) - center) / scale, weights
