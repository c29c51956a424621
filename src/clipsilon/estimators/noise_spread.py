"""How far noise moves the coefficients of a private model, found without another look at the data.

The same fit is repeated on one made-up table: as many records, independent standard normal columns, targets drawn from
the released model. Since all of this follows from what is released, it costs no budget. The coefficients differ between
the fits by their noise and their batches alone. Correlated columns have more noise than this; what clipping and a small
number of steps change in every fit is not in it, and neither is what other people's records would change.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from scipy.special import softmax
from scipy.stats import t
from sklearn.base import BaseEstimator

from clipsilon.estimators.classification import PrivateLogisticRegression
from clipsilon.estimators.regression import PrivateLinearRegression

Array = NDArray[np.float64]

RUNS = 8
_MOST_NUMBERS = 2e7  # of the made-up table
_RESIDUAL = 1 / 8  # of the range of the targets


def noise_margins(estimator: BaseEstimator) -> tuple[Array, Array] | None:
    """Return half-widths of 95 % intervals for `coef_` and `intercept_` as they would be without noise.

    The coverage holds for tables like the made-up one. None for estimators other than PrivateLogisticRegression and
    PrivateLinearRegression, and for tables too large to repeat the fit.
    """
    records, columns = estimator.statement_.records, estimator.n_features_in_
    known = isinstance(estimator, PrivateLogisticRegression | PrivateLinearRegression)
    if not known or records * columns > _MOST_NUMBERS:
        return None
    rng = np.random.default_rng(0)
    X = rng.standard_normal((records, columns))
    y, targets = _draw_targets(estimator, X, rng)
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the seeds
        for seed in range(RUNS):
            own = {"random_state": seed, "progress": False, "budget": None, "max_rows": None}
            settings = {**estimator.get_params(), **targets, **own}
            found.append(type(estimator)(**settings).fit(X, y))
    deviations = float(t.ppf(0.975, RUNS - 1))
    return (
        np.asarray(deviations * np.std([fit.coef_ for fit in found], axis=0, ddof=1)),
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
