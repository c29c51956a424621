"""Private quantile regression."""

from __future__ import annotations

from os import PathLike
from typing import TYPE_CHECKING, Any

from numpy.typing import ArrayLike
from sklearn.metrics import d2_pinball_score

from clipsilon.estimators.target_range import TargetRangeRegressor
from clipsilon.privacy.budget import Budget
from clipsilon.problems.losses import Pinball
from clipsilon.problems.losses.base import Loss
from clipsilon.problems.responses import Response
from clipsilon.rules.rule import Rule
from clipsilon.rules.schedules import Schedule

if TYPE_CHECKING:
    from clipsilon.estimators.inputs import RandomState, Table


class PrivateQuantileRegressor(TargetRangeRegressor):
    """Regression of a quantile with differential privacy, by the pinball loss.

    Targets are measured as by `PrivateLinearRegression`. Where a prediction equals its target, the loss has a kink, and
    its subgradient 0 is used.

    Parameters
    ----------
    epsilon, delta, method, random_state
        As for `PrivateLinearRegression`.
    quantile : float, default 0.5
        The quantile that the model predicts, above 0 and below 1.
    target_range, clip, batch, epochs, step, l2, fit_intercept, response, adjacency, max_rows, n_jobs, progress,
    budget
        As for `PrivateLinearRegression`.

    Attributes
    ----------
    coef_, intercept_, n_iter_, n_features_in_, feature_names_in_, statement_, target_range_, theta_
        As for `PrivateLinearRegression`.

    Examples
    --------
    >>> import numpy as np
    >>> from clipsilon.estimators import PrivateQuantileRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(5000, 2))
    >>> y = 50 + 3 * X[:, 0] + 4 * rng.normal(size=5000)
    >>> model = PrivateQuantileRegressor(random_state=0, quantile=0.9, target_range=(40, 60)).fit(X, y)
    >>> bool(0.88 < np.mean(y < model.predict(X)) < 0.92)
    True
    """

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        method: str | Rule = "dpsgd",
        random_state: RandomState = None,
        *,
        quantile: float = 0.5,
        target_range: ArrayLike | None = None,
        clip: float | None = None,
        batch: int | None = None,
        epochs: float | None = None,
        step: float | Schedule | None = None,
        l2: float = 0.0,
        fit_intercept: bool = True,
        response: Response | None = None,
        adjacency: str = "zero-out",
        max_rows: int | None = None,
        n_jobs: int | None = None,
        progress: bool | None = None,
        budget: Budget | str | PathLike[str] | None = None,
    ):
        super().__init__(
            epsilon,
            delta,
            method,
            random_state,
            target_range=target_range,
            clip=clip,
            batch=batch,
            epochs=epochs,
            step=step,
            l2=l2,
            fit_intercept=fit_intercept,
            response=response,
            adjacency=adjacency,
            max_rows=max_rows,
            n_jobs=n_jobs,
            progress=progress,
            budget=budget,
        )
        self.quantile = quantile

    def score(self, X: Table, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """Return D², the fraction of the pinball loss that the model explains (scikit-learn's own returns R²).

        Parameters
        ----------
        X, y : array-like
            Records and their true targets.
        sample_weight : array-like, optional
            One weight per record.

        Returns
        -------
        float
            At most 1; 0 for a model that always predicts the quantile of y. The score is not private.
        """
        return float(d2_pinball_score(y, self.predict(X), sample_weight=sample_weight, alpha=self.quantile))

    def __sklearn_tags__(self) -> Any:
        """Return scikit-learn's tags: one of its checks expects a score above 0.5 on 200 records, and means R²."""
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True
        return tags

    def _loss(self) -> Loss:
        return Pinball(self.quantile, self.l2)
