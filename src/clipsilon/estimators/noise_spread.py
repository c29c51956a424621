"""How far noise moves the coefficients of a private model, found without another look at the data.

The same fit is repeated on one made-up table: as many records, independent standard normal columns, targets drawn from
the released model. Since all of this follows from what is released, it costs no budget. The coefficients differ between
the fits by their noise and their batches alone. Nothing in the data holds a coefficient back whose column is rare or
follows from others, such as a category that does not occur; so some columns of the made-up table are empty, and every
coefficient gets at least their spread. What clipping and a small number of steps change in every fit is not in it, and
neither is what other people's records would change.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from scipy.special import softmax, stdtrit
from sklearn.base import BaseEstimator

from clipsilon.estimators.classification import PrivateLogisticRegression
from clipsilon.estimators.regression import PrivateLinearRegression

Array = NDArray[np.float64]

RUNS = 8
_MOST_NUMBERS = 2e7  # of the made-up table
_PLAIN = {"budget": None, "max_rows": None, "progress": False}  # made-up rows cost nothing, and are one per person
_RESIDUAL = 1 / 8  # of the range of the targets


def noise_margins(estimator: BaseEstimator) -> tuple[Array, Array] | None:
    """Return half-widths of 95 % intervals for `coef_` and `intercept_` as they would be without noise.

    The coverage holds where noise moves coefficients no further than in the made-up table. None for estimators other
    than PrivateLogisticRegression and PrivateLinearRegression, and for tables too large to repeat the fit.
    """
    records, columns = estimator.statement_.records, estimator.n_features_in_
    known = isinstance(estimator, PrivateLogisticRegression | PrivateLinearRegression)
    if not known or records * columns > _MOST_NUMBERS:
        return None
    rng = np.random.default_rng(0)
    X = rng.standard_normal((records, columns))
    empty = np.argsort(np.abs(np.atleast_2d(estimator.coef_)).sum(axis=0), kind="stable")[: columns // 4]
    X[:, empty] = 0.0
    y, targets = _draw_targets(estimator, X, rng)
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the seeds
        for seed in range(RUNS):
            settings = {**estimator.get_params(), **targets, **_PLAIN, "random_state": seed}
            found.append(type(estimator)(**settings).fit(X, y))
    deviations = float(stdtrit(RUNS - 1, 0.975))
    slopes = np.std([fit.coef_ for fit in found], axis=0, ddof=1)
    if empty.size:
        slopes = np.maximum(slopes, np.sqrt(np.mean(slopes[..., empty] ** 2)))
    return (
        np.asarray(deviations * slopes),
        np.asarray(deviations * np.std([fit.intercept_ for fit in found], axis=0, ddof=1)),
    )


def _draw_targets(estimator: BaseEstimator, X: Array, rng: Generator) -> tuple[NDArray[Any], dict[str, object]]:
    """Return targets as the model predicts them, and the setting by which a fit knows them beforehand."""
    margins = X @ estimator.coef_.T + estimator.intercept_
    if isinstance(estimator, PrivateLinearRegression):
        low, high = estimator.target_range_
        noise = rng.standard_normal(len(X)) * (high - low) * _RESIDUAL
        return margins + noise, {"target_range": (low, high)}
    scores = np.column_stack([np.zeros(len(X)), margins]) if margins.shape[1] == 1 else margins
    below = np.cumsum(softmax(scores, axis=1), axis=1)[:, :-1]
    codes = (rng.random((len(X), 1)) > below).sum(axis=1)
    return estimator.classes_[codes], {"classes": estimator.classes_}
