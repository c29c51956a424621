"""A private score of a model on held-out records: the mean of one bounded number per record, with exact noise.

`PrivateSearchCV` compares models by it. It is one Gaussian mechanism on one sum, and any other score with a certificate
could stand in its place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from clipsilon._core import checks
from clipsilon._core.grouping import group_rows
from clipsilon.engine import exact_noise
from clipsilon.estimators.inputs import Array

_UNIT = 2**16  # a record's score is a whole number of parts of this size
_WORST_LOG_LOSS = 8.0  # a smaller probability than e^−8 counts as this
_UNIT_ORDER = -2.0, 2.0  # range of targets of unit order
SMALLEST_MU = 2.0**-15  # of a score; with less, its noise would be too large for whole numbers


class Scoring(NamedTuple):
    """A measure that is the mean of one number per record.

    Parameters
    ----------
    for_classes : bool
        Whether it is for classifiers, and not for regressors.
    per_record : callable
        From a model, features and targets to one number in [0, 1] per record; 1 is best.
    worst, best : callable, float
        The measure of a model whose numbers are all 0, given the model, and all 1.
    """

    for_classes: bool
    per_record: Callable[[Any, Any, NDArray[Any]], Array]
    worst: Callable[[Any], float]
    best: float = 0.0


def _correct(model: Any, X: Any, y: NDArray[Any]) -> Array:
    return np.asarray(model.predict(X) == y, dtype=np.float64)


def _likelihood(model: Any, X: Any, y: NDArray[Any]) -> Array:
    codes = np.minimum(np.searchsorted(model.classes_, y), len(model.classes_) - 1)
    of_own_class = model.predict_proba(X)[np.arange(len(y)), codes]
    is_known = model.classes_[codes] == y  # a row of another class must not stop the search, which would show it
    with np.errstate(divide="ignore"):
        return np.asarray(np.where(is_known, 1 + np.log(of_own_class) / _WORST_LOG_LOSS, 0.0))


def _width(model: Any) -> float:
    low, high = getattr(model, "target_range_", _UNIT_ORDER)
    return float(high - low)


def _small_error(model: Any, X: Any, y: NDArray[Any]) -> Array:
    return np.asarray(1 - np.abs(model.predict(X) - y) / _width(model))


def _small_square(model: Any, X: Any, y: NDArray[Any]) -> Array:
    return np.asarray(1 - ((model.predict(X) - y) / _width(model)) ** 2)


#: The measures by scikit-learn's names. Log losses end at 8, errors at the width of the range of targets.
SCORINGS = {
    "accuracy": Scoring(True, _correct, lambda model: 0.0, best=1.0),
    "neg_log_loss": Scoring(True, _likelihood, lambda model: -_WORST_LOG_LOSS),
    "neg_mean_squared_error": Scoring(False, _small_square, lambda model: -(_width(model) ** 2)),
    "neg_mean_absolute_error": Scoring(False, _small_error, lambda model: -_width(model)),
}


class Privacy(NamedTuple):
    """How private a score is.

    Parameters
    ----------
    mu : float
        The score is μ-GDP for the held-out records; at least `SMALLEST_MU`.
    adjacency : str
        "zero-out" or "replace-one".
    noise : Generator
        Source of the noise.
    """

    mu: float
    adjacency: str
    noise: Generator


def private_score(
    model: Any,
    X: Any,
    y: NDArray[Any],
    scoring: Scoring,
    privacy: Privacy,
    groups: NDArray[np.int64] | None = None,
) -> float:
    """Return the noisy score of a fitted model on records that did not train it.

    Parameters
    ----------
    model : estimator
        A fitted model.
    X, y : array
        The held-out records. Their number is public.
    scoring : Scoring
        What is measured.
    privacy : Privacy
        How private it is.
    groups : array, optional
        The person of each row, if records are people: each counts alike, by the mean over the rows.

    Returns
    -------
    float
        The score.

    Formal guarantee
    ----------------
    Given the model, the score is μ-GDP: a record adds a whole number between −2^15 and 2^15 to the sum, or nothing if
    it is zeroed out, and the noise is exact.
    """
    numbers = scoring.per_record(model, X, y)
    if numbers.shape != (len(y),):  # more numbers than records would need more noise
        raise ValueError(f"y must be a vector for a score, got shape {np.shape(y)}.")
    numbers = np.clip(np.nan_to_num(numbers, nan=0.0, posinf=0.0, neginf=0.0), 0.0, 1.0)
    parts = np.rint((numbers - 0.5) * _UNIT).astype(np.int64)
    if groups is not None:  # means of whole numbers do not depend on the order of the rows
        order, starts = group_rows(checks.people("groups", groups, len(y)), None)
        parts = np.rint(np.add.reduceat(parts[order], starts[:-1]) / np.diff(starts)).astype(np.int64)
    total = int(parts.sum())
    change = _UNIT if privacy.adjacency == "replace-one" else _UNIT // 2
    noise = exact_noise.draw_whole(privacy.noise, change / privacy.mu * (1 + 2.0**-50), 1)
    mean = 0.5 + (total + int(noise[0])) / (_UNIT * parts.size)
    worst = scoring.worst(model)
    return worst + (scoring.best - worst) * mean
