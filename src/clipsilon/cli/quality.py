"""Evaluate a model on held-out rows, beside the best constant for these rows. Not private."""

from __future__ import annotations

from functools import partial
from math import isfinite
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import accuracy_score, log_loss, mean_absolute_error, mean_pinball_loss, roc_auc_score
from sklearn.pipeline import Pipeline

from clipsilon.cli.model_kinds import predicts_classes
from clipsilon.estimators.model_files import Model

Array = NDArray[np.float64]


class Measure(NamedTuple):
    """One line of the quality table.

    Parameters
    ----------
    name : str
        What is measured.
    model, baseline : float
        The value for the model and for the best constant; NaN where the held-out rows do not determine it.
    """

    name: str
    model: float
    baseline: float


def measure_quality(model: Model, features: Array, labels: NDArray[Any]) -> tuple[Measure, ...]:
    """Evaluate a model and the best constant on the same rows.

    Parameters
    ----------
    model : Model
        The fitted model.
    features : array of shape (rows, columns)
        Held-out rows, in the units of the file.
    labels : array of length rows
        Their targets.

    Returns
    -------
    tuple of Measure
        Accuracy, AUC and log loss of a classifier; mean absolute error of a regression, after R², or D² for counts and
        amounts; D² and pinball loss of a quantile.
    """
    if predicts_classes(model.kind):
        return _classifier_quality(model.pipeline, features, labels)
    estimator, varies = model.pipeline.named_steps["model"], np.ptp(labels) > 0
    explained = model.pipeline.score(features, labels) if varies else np.nan
    name, constant, error = "mean absolute error", labels.mean(), mean_absolute_error
    if model.kind == "quantile":
        name, constant = "pinball loss", np.quantile(labels, estimator.quantile)
        error = partial(mean_pinball_loss, alpha=estimator.quantile)
    predicted, same = model.pipeline.predict(features), np.full(len(labels), constant)
    return (
        Measure("R²" if model.kind in ("linear", "huber") else "D²", explained, 0.0 if varies else np.nan),
        Measure(name, error(labels, predicted), error(labels, same)),
    )


def describe_baseline(kind: str, labels: NDArray[Any]) -> str:
    """Return which constant the model is compared with, "" without held-out rows."""
    if not labels.size:
        return ""
    if not predicts_classes(kind):
        return "always their quantile" if kind == "quantile" else "always their mean"
    values, counts = np.unique(labels, return_counts=True)
    return f"always {values[counts.argmax()]!s}"


def _classifier_quality(pipeline: Pipeline, features: Array, labels: NDArray[Any]) -> tuple[Measure, ...]:
    classes, probabilities = pipeline.classes_, pipeline.predict_proba(features)
    frequencies = np.array([np.mean(labels == label) for label in classes])
    constant = np.tile(frequencies, (len(labels), 1))
    accuracy = accuracy_score(labels, pipeline.predict(features))
    auc = np.nan
    if (frequencies > 0).all():
        scores = probabilities[:, 1] if len(classes) == 2 else probabilities
        auc = roc_auc_score(labels, scores, multi_class="ovr", labels=classes)
    losses = (log_loss(labels, given, labels=classes) for given in (probabilities, constant))
    return (
        Measure("accuracy", accuracy, float(frequencies.max())),
        Measure("AUC", auc, 0.5 if isfinite(auc) else np.nan),
        Measure("log loss", *losses),
    )
