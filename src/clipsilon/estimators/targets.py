"""From y to the labels of a loss: first a tally, which adds up over chunks of y; then each label by itself."""

from __future__ import annotations

from functools import reduce
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.multiclass import check_classification_targets

from clipsilon._core.checks import floats

Array = NDArray[np.float64]
Labels = tuple[Array, Array | None]  # what the loss sees of y, and weights


class Census(NamedTuple):
    """Which labels there are, how many records have each, and how many of those have weight."""

    labels: Any
    counts: NDArray[np.int64]
    weighted: NDArray[np.int64]

    def plus(self, other: Census) -> Census:
        """The census of both."""
        labels, places = np.unique(np.concatenate([self.labels, other.labels]), return_inverse=True)
        added = (
            np.bincount(places, np.concatenate(pair)).astype(np.int64) for pair in zip(self[1:], other[1:], strict=True)
        )
        return Census(labels, *added)


class Spread(NamedTuple):
    """How many targets there are, their mean and their variance."""

    size: int
    mean: float
    variance: float

    def plus(self, other: Spread) -> Spread:
        """The spread of both."""
        size = self.size + other.size
        apart = other.mean - self.mean
        mean = self.mean + apart * other.size / size
        between = apart * apart * self.size * other.size / size  # infinite if too large, where a power would raise
        return Spread(size, mean, (self.variance * self.size + other.variance * other.size + between) / size)


def census(y: Any, weights: Array | None) -> Census:
    """The tally of classes; refuse what is no class."""
    check_classification_targets(y)
    if weights is None:
        labels, counts = np.unique(y, return_counts=True)
        return Census(labels, counts, counts)
    labels, places, counts = np.unique(y, return_inverse=True, return_counts=True)
    return Census(labels, counts, np.bincount(places[weights > 0], minlength=len(labels)))


def spread(y: Any, weights: Array | None) -> Spread:
    """The tally of numbers."""
    y = floats("y", y)
    with np.errstate(over="ignore", invalid="ignore"):
        return Spread(len(y), float(np.mean(y)), float(np.var(y)))


def together(tallies: list[Any]) -> Any:
    """One tally of all."""
    return reduce(lambda one, other: one.plus(other), tallies)


def resolve_classes(tally: Census, known: Any) -> tuple[Any, tuple[str, ...]]:
    """The classes, and what was learnt for them without budget; refuse labels that are none of them."""
    learnt: tuple[str, ...] = ()
    if known is None:
        known = tally.labels[tally.weighted > 0]
        learnt = ("The classes were learnt from y without budget; give them as classes=.",)
        if len(known) < 2:
            raise ValueError(f"y must hold at least two classes with weight, got one class: {known.tolist()}.")
    classes = _distinct(known)
    allowed = set(classes.tolist())
    for label in tally.labels.tolist():
        if label not in allowed:
            raise ValueError(f"y must hold the classes {classes.tolist()} only, got {label!r}.")
    return classes, learnt


def _distinct(known: Any) -> Any:
    """The classes in order, each once; refuse what is no list of two or more."""
    given = np.asarray(known)
    mixed = given.dtype.kind in "US" and not all(isinstance(label, str | bytes) for label in known)
    if given.ndim != 1 or mixed or len(np.unique(given)) < 2:
        raise ValueError(f"classes must be a list of two or more labels of one kind, got {known!r}.")
    return np.unique(given)


def encode_labels(classes: Any, of_class: Array | None, y: Any, weights: Array | None) -> Labels:
    """The place of each label among the classes, and weights that count in those of the classes."""
    values, inverse = np.unique(y, return_inverse=True)
    place = {label: k for k, label in enumerate(classes.tolist())}
    places = np.array([place[value] for value in values.tolist()], dtype=np.int64)[inverse]
    if of_class is not None:
        weights = of_class[places] * (1.0 if weights is None else weights)
    return places.astype(np.float64), weights


def in_units(middle: float, unit: float, y: Any, weights: Array | None) -> Labels:
    """Each target's distance from the middle, in units."""
    with np.errstate(over="ignore"):  # labels are checked where they are used
        return (np.asarray(y, dtype=np.float64) - middle) / unit, weights
