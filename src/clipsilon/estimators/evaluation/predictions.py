"""What an evaluation looks at: for each row, the cell of the model's score or error, and the outcome.

Both must depend on the row and the model alone. A model that predicts a whole table rounds each row in a way that may
depend on the number of rows, so rows where rounding could matter are predicted again, each alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, is_classifier
from sklearn.pipeline import Pipeline
from sklearn.utils import _safe_indexing
from sklearn.utils.validation import _num_samples

from clipsilon._core import checks
from clipsilon._core.checks import short_repr
from clipsilon.estimators.evaluation.grids import (
    CELLS,
    COARSE,
    Grid,
    are_at_edges,
    locate_errors,
    locate_scores,
    to_cells,
)

if TYPE_CHECKING:
    from clipsilon.estimators.inputs import Column, Table

Array = NDArray[np.float64]
Integers = NDArray[np.int64]

_ROUNDING = 1e-3  # of a cell: far above what rounding does to a position
_CLOSE = 1e-6  # probabilities whose order rounding could change
_TRIED = 20  # rows that are predicted alone in any case


class _Located(NamedTuple):
    """Positions on the grid, outcomes, and which outcomes rounding could change."""

    positions: Array
    outcomes: Integers
    is_close: NDArray[np.bool_]


_Locate = Callable[["Table", Any], _Located]  # from rows and their targets


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


def score_rows(
    model: BaseEstimator, X: Table, y: Column, target_range: Sequence[float] | None, grid: Grid = COARSE
) -> Scored:
    """Let the model predict, and reduce each row to a cell and an outcome.

    Parameters
    ----------
    model : estimator
        A fitted classifier or regressor, or a pipeline that ends in one.
    X, y : array-like
        The rows and their targets.
    target_range : pair of numbers, optional
        For numbers: the public range of the targets; by default the model's `target_range_`.
    grid : Grid
        The cells of scores, for classes.

    Returns
    -------
    Scored
    """
    if is_classifier(model):
        if target_range is not None:
            raise ValueError(f"target_range must be left out for a classifier, got {short_repr(target_range)}.")
        return _score_classes(model, X, y, grid)
    if not hasattr(model, "predict"):
        raise ValueError(f"model must be a fitted classifier or regressor, got {type(model).__name__}.")
    width = _range_width(model, target_range)

    def locate(X: Table, targets: Any) -> _Located:
        errors = _finite(np.abs(np.asarray(model.predict(X), dtype=np.float64) - targets)) / width
        return _Located(locate_errors(errors), np.zeros(len(errors), dtype=np.int64), np.zeros(len(errors), dtype=bool))

    targets = checks.labels("y", np.asarray(y), _num_samples(X), None)
    return Scored("numbers", *_locate_alone(locate, X, targets, CELLS), width=width)


def _score_classes(model: BaseEstimator, X: Table, y: Column, grid: Grid) -> Scored:
    if not hasattr(model, "classes_"):
        raise ValueError(f"model must be a fitted classifier or regressor, got {type(model).__name__} before its fit.")
    classes, has_probabilities = model.classes_, hasattr(model, "predict_proba")
    if not has_probabilities and len(classes) > 2:
        raise ValueError("model must have predict_proba for more than two classes, got one without.")
    codes = _codes(y, classes, _num_samples(X))

    def locate_two(X: Table, codes: Any) -> _Located:
        if has_probabilities:
            scores = _finite(model.predict_proba(X))
            odds = _log_odds(scores[:, 1], scores[:, 0])
        else:
            odds = _finite(model.decision_function(X))
        return _Located(locate_scores(odds, grid), codes, np.zeros(len(codes), dtype=bool))

    def locate_true(X: Table, codes: Any) -> _Located:
        scores, rows = _finite(model.predict_proba(X)), np.arange(len(codes))
        true, others = scores[rows, codes], scores.copy()
        others[rows, codes] = -np.inf
        right = (scores.argmax(axis=1) == codes).astype(np.int64)
        is_close = np.abs(true - others.max(axis=1)) < _CLOSE
        return _Located(locate_scores(_log_odds(true, 1.0 - true), grid), right, is_close)

    if len(classes) == 2:
        kind = "binary" if has_probabilities else "ranking"
        return Scored(kind, *_locate_alone(locate_two, X, codes, grid.cells), positive=str(classes[1]))
    return Scored("classes", *_locate_alone(locate_true, X, codes, grid.cells))


def _locate_alone(locate: _Locate, X: Table, targets: NDArray[Any], cells: int) -> tuple[Integers, Integers]:
    """Return the cell and the outcome of each row as if it were predicted alone.

    Raises
    ------
    ValueError
        If a row's prediction depends on other rows: then one person would change what is counted of others.
    """
    positions, outcomes, is_close = locate(X, targets)
    outcomes = outcomes.copy()
    tried = np.zeros(len(positions), dtype=bool)
    tried[np.linspace(0, len(positions) - 1, min(len(positions), _TRIED)).astype(int)] = True
    for row in np.flatnonzero(tried | is_close | are_at_edges(positions, _ROUNDING, cells)).tolist():
        alone = locate(_safe_indexing(X, [row]), targets[[row]])
        if not np.abs(alone.positions[0] - positions[row]) < _ROUNDING:
            raise ValueError("model must predict each row by itself, got predictions that depend on other rows.")
        positions[row], outcomes[row] = alone.positions[0], alone.outcomes[0]
    return to_cells(positions, cells), outcomes


def _log_odds(one: Array, other: Array) -> Array:
    """Return the logarithm of the ratio of two probabilities; 0 where both are 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        odds = np.log(np.clip(one, 0.0, 1.0)) - np.log(np.clip(other, 0.0, 1.0))
    return np.where(np.isnan(odds), 0.0, odds)


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
