"""Scores of canaries by a trained model: the higher, the more likely the canary was among the records."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]

_SMALLEST = 1e-300  # a probability of zero counts as this


def default_score(model: Any, features: Any, labels: NDArray[Any]) -> Array:
    """Score records by how well a model predicts their labels.

    Parameters
    ----------
    model : object
        With `predict_proba` and `classes_`, or `predict`, as in scikit-learn, or a function of the features.
    features, labels : arrays
        The records.

    Returns
    -------
    array of float
        The logarithm of the label's probability, or minus the squared error.
    """
    if hasattr(model, "predict_proba") and hasattr(model, "classes_"):
        return log_probability(model.predict_proba(features), model.classes_, labels)
    predict = getattr(model, "predict", model)
    if not callable(predict):
        raise TypeError(
            "train must return a model with predict_proba or predict, a function of the features, or one score per "
            f"canary, got {type(model).__name__}; for other models give `score`."
        )
    return closeness(predict(features), labels)


def log_probability(probabilities: ArrayLike, classes: ArrayLike, labels: NDArray[Any]) -> Array:
    """Return the logarithm of the probability that is given to each label.

    Parameters
    ----------
    probabilities : array_like of shape (records, classes)
        One row per record.
    classes : array_like
        The class of each column. A label that is not among them has probability zero.
    labels : array
        One label per record.

    Returns
    -------
    array of float
    """
    matches = labels[:, np.newaxis] == np.asarray(classes)
    chances = np.asarray(probabilities, dtype=np.float64)
    if chances.shape != matches.shape:
        raise ValueError(f"probabilities must have shape {matches.shape}, got {chances.shape}.")
    found: Array = np.log(np.maximum(np.where(matches, chances, 0.0).sum(axis=1), _SMALLEST))
    return found


def closeness(predictions: ArrayLike, labels: NDArray[Any]) -> Array:
    """Return minus the squared error of each prediction; of labels that are not numbers, −1 for a wrong one."""
    predicted = np.asarray(predictions)
    if predicted.shape == (labels.size, 1):
        predicted = predicted[:, 0]
    if predicted.shape != labels.shape:
        raise ValueError(f"predictions must be one per record, shape {labels.shape}, got {predicted.shape}.")
    if predicted.dtype.kind in "biuf" and labels.dtype.kind in "biuf":
        return -np.square(predicted.astype(np.float64) - labels.astype(np.float64))
    return np.where(predicted == labels, 0.0, -1.0)
