"""What an evaluation looks at: for each row, the cell of the model's score or error, and the outcome."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, is_classifier
from sklearn.pipeline import Pipeline

from clipsilon._core import checks
from clipsilon._core.checks import short_repr
from clipsilon.estimators.evaluation.grids import error_cells, score_cells

if TYPE_CHECKING:
    from clipsilon.estimators.inputs import Column, Table

Array = NDArray[np.float64]
Integers = NDArray[np.int64]


class Scored(NamedTuple):
    """The rows as they are counted.

    Parameters
    ----------
    kind : {"binary", "ranking", "classes", "numbers"}
        Two classes with probabilities or without, more classes, or numbers.
    cells : array of int
        The cell of each row: of the log-odds of the positive class (of the true class with several), or of the error.
    outcomes : array of int
        With two classes 1 for the positive one, with several 1 if the prediction is right; 0 for numbers.
    positive : str
        Name of the positive class; "" unless there are two.
    width : float
        Width of the range of the targets; 1 for classes.
    """

    kind: str
    cells: Integers
    outcomes: Integers
    positive: str = ""
    width: float = 1.0


def score_rows(model: BaseEstimator, X: Table, y: Column, target_range: Sequence[float] | None) -> Scored:
    """Let the model predict, and reduce each row to a cell and an outcome.

    Parameters
    ----------
    model : estimator
        A fitted classifier or regressor, or a pipeline that ends in one.
    X, y : array-like
        The rows and their targets.
    target_range : pair of numbers, optional
        For numbers: the public range of the targets; by default the model's `target_range_`.

    Returns
    -------
    Scored
    """
    if is_classifier(model):
        if target_range is not None:
            raise ValueError(f"target_range must be left out for a classifier, got {short_repr(target_range)}.")
        return _score_classes(model, X, y)
    if not hasattr(model, "predict"):
        raise ValueError(f"model must be a fitted classifier or regressor, got {type(model).__name__}.")
    width = _range_width(model, target_range)
    predicted = np.asarray(model.predict(X), dtype=np.float64)
    targets = checks.labels("y", np.asarray(y), len(predicted), None)
    errors = _finite(np.abs(predicted - targets)) / width
    return Scored("numbers", error_cells(errors), np.zeros(len(targets), dtype=np.int64), width=width)


def _score_classes(model: BaseEstimator, X: Table, y: Column) -> Scored:
    classes, probabilities = model.classes_, None
    if hasattr(model, "predict_proba"):
        probabilities = _finite(model.predict_proba(X))
    elif len(classes) > 2:
        raise ValueError("model must have predict_proba for more than two classes, got one without.")
    scores = probabilities if probabilities is not None else _finite(model.decision_function(X))
    codes = _codes(y, classes, len(scores))
    if len(classes) == 2:
        kind = "ranking" if probabilities is None else "binary"
        odds = scores if probabilities is None else _log_odds(scores[:, 1], scores[:, 0])
        return Scored(kind, score_cells(odds), codes, positive=str(classes[1]))
    true = scores[np.arange(len(codes)), codes]
    right = (scores.argmax(axis=1) == codes).astype(np.int64)
    return Scored("classes", score_cells(_log_odds(true, 1.0 - true)), right)


def _log_odds(one: Array, other: Array) -> Array:
    with np.errstate(divide="ignore"):
        return np.log(one) - np.log(other)


def _finite(values: Any) -> Array:
    found = np.asarray(values, dtype=np.float64)
    if not np.isfinite(found).all():
        raise ValueError("model must predict finite numbers for every row, got NaN or infinity.")
    return found


def _codes(y: Column, classes: NDArray[Any], rows: int) -> Integers:
    """Return the place of each label among the classes."""
    labels = np.asarray(y)
    if labels.shape != (rows,):
        raise ValueError(f"y must hold one label for each of {rows} rows, got shape {labels.shape}.")
    places = {label: place for place, label in enumerate(classes.tolist())}
    given = labels.tolist()
    unknown = set(given) - set(places)
    if unknown:
        first = next(label for label in given if label in unknown)
        raise ValueError(f"y must hold the model's classes {short_repr(classes.tolist())} only, got {first!r}.")
    return np.array([places[label] for label in given], dtype=np.int64)


def _range_width(model: BaseEstimator, target_range: Sequence[float] | None) -> float:
    """Return the width of the public range of the targets."""
    last = model[-1] if isinstance(model, Pipeline) else model
    given = getattr(last, "target_range_", None) if target_range is None else target_range
    if given is None:
        raise ValueError(
            f"target_range must be given for {type(last).__name__}, which knows no public range of its targets."
        )
    low, high = checks.vector("target_range", given, 2).tolist()
    if not low < high:
        raise ValueError(f"target_range must be a low and a high number, in this order, got {short_repr(given)}.")
    return float(high - low)
