"""Private regression of a mean exp(⟨x, `coef_`⟩ + `intercept_`): Poisson for counts, Gamma for amounts."""

from __future__ import annotations

from abc import abstractmethod
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.metrics import d2_tweedie_score

from clipsilon.estimators.chunkwise import chunkwise
from clipsilon.estimators.inputs import Array
from clipsilon.estimators.target_range import TargetRangeRegressor
from clipsilon.estimators.targets import Moments, compute_nonnegative_moments
from clipsilon.problems.losses import GammaDeviance, PoissonDeviance
from clipsilon.problems.losses.base import Loss

if TYPE_CHECKING:
    from clipsilon.estimators.inputs import Table

_LARGEST_SCORE = 700.0  # exp of a larger one would overflow


class _LogLinkRegressor(TargetRangeRegressor):
    """A regressor of a mean above 0."""

    @chunkwise
    def predict(self, X: Table) -> Array:
        """Return the mean exp(⟨x, `coef_`⟩ + `intercept_`) for each row."""
        return np.asarray(np.exp(np.minimum(self._scores(X), _LARGEST_SCORE)))

    def score(self, X: Table, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """Return D², the fraction of the deviance that the model explains, as scikit-learn's own regressors do.

        Parameters
        ----------
        X, y : array-like
            Records and their true targets.
        sample_weight : array-like, optional
            One weight per record.

        Returns
        -------
        float
            At most 1; 0 for a model that always predicts the mean. The score is not private.
        """
        return float(d2_tweedie_score(y, self.predict(X), sample_weight=sample_weight, power=self._power()))

    @abstractmethod
    def _power(self) -> int:
        """Return the power of the mean to which the variance is proportional."""

    def _margin_units(self) -> tuple[float, float]:
        return float(np.log(self._label_units()[1])), 1.0

    def __sklearn_tags__(self) -> Any:
        """Return scikit-learn's tags: targets must not be negative.

        One of its checks expects a score above 0.5 on 200 records whose targets are linear, not log-linear.
        """
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = True
        tags.regressor_tags.poor_score = True
        return tags


class PrivatePoissonRegressor(_LogLinkRegressor):
    """Poisson regression with differential privacy, for counts: log E[y] = ⟨x, `coef_`⟩ + `intercept_`.

    Targets are measured in units of u = (low + high)/4 for the ends of `target_range`, so that they are of unit order;
    `coef_`, `intercept_` and predictions are in the units of y. A gradient of a target above the range is shortened,
    so that the model predicts less than the mean of such targets: take a range that few exceed.

    Parameters
    ----------
    epsilon, delta : float
        The budget of one fit.
    method : str or Rule, default "dpsgd"
        The algorithm, a name in `clipsilon.estimators.METHODS`; or a `clipsilon.Rule`, whose noise is then set.
    random_state : int, RandomState or None, default None
        None for cryptographic noise. A whole number or a `RandomState` makes the fit repeatable, and unfit for release.
    target_range : (float, float), optional
        (low, high) between which most targets lie, low at least 0. None learns it from y (0 to four times the mean),
        without budget, with a `PrivacyWarning`.
    clip, batch, epochs, step, response, adjacency, max_rows, n_jobs, progress, budget
        As for `PrivateLinearRegression`.
    l2 : float, default 0.0
        Weight of ½‖θ‖² in the loss, the intercept (relative to log u) included.
    fit_intercept : bool, default True
        Whether to append a column of ones; without one the intercept is log u.

    Attributes
    ----------
    coef_, intercept_, n_iter_, n_features_in_, feature_names_in_
        As in scikit-learn's linear models.
    statement_ : Statement
        What the fit spends.
    target_range_ : (float, float)
        The range that was used.
    theta_ : array
        The model as `clipsilon.run` releases it, for targets in units of u.

    Examples
    --------
    >>> import numpy as np
    >>> from clipsilon.estimators import PrivatePoissonRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(5000, 2))
    >>> y = rng.poisson(np.exp(0.5 * X[:, 0] + 1.0))
    >>> model = PrivatePoissonRegressor(random_state=0, target_range=(0, 10)).fit(X, y)
    >>> bool(abs(model.intercept_ - 1.0) < 0.1)
    True
    """

    def _summarizer(self) -> Any:
        return partial(compute_nonnegative_moments, "Poisson regression", False)

    def _power(self) -> int:
        return 1

    def _learnt_range(self, moments: Moments) -> tuple[float, float]:
        return 0.0, 4.0 * moments.mean or 4.0

    def _lowest(self) -> tuple[float, str]:
        return 0.0, " of at least 0"

    def _label_units(self) -> tuple[float, float]:
        low, high = self.target_range_
        return 0.0, (low + high) / 4

    def _loss(self) -> Loss:
        return PoissonDeviance(self.l2)


class PrivateGammaRegressor(_LogLinkRegressor):
    """Gamma regression with differential privacy, for amounts above 0: log E[y] = ⟨x, `coef_`⟩ + `intercept_`.

    The deviation of a target is taken to be proportional to its mean, as of prices, costs and durations. Targets are
    measured in units of u = √(low·high) for the ends of `target_range`. Gradients of targets of more than about five
    times their mean are shortened, so that the model predicts less than the mean where the tail is heavy.

    Parameters
    ----------
    epsilon, delta, method, random_state, l2, fit_intercept
        As for `PrivatePoissonRegressor`.
    target_range : (float, float), optional
        (low, high) between which most targets lie, low above 0; a factor of two does no harm. None learns it from y (a
        quarter of the mean to four times the mean), without budget, with a `PrivacyWarning`.
    clip, batch, epochs, step, response, adjacency, max_rows, n_jobs, progress, budget
        As for `PrivateLinearRegression`.

    Attributes
    ----------
    coef_, intercept_, n_iter_, n_features_in_, feature_names_in_, statement_, target_range_, theta_
        As for `PrivatePoissonRegressor`.

    Examples
    --------
    >>> import numpy as np
    >>> from clipsilon.estimators import PrivateGammaRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(5000, 2))
    >>> y = rng.gamma(4.0, np.exp(0.5 * X[:, 0] + 5.0) / 4.0)
    >>> model = PrivateGammaRegressor(random_state=0, target_range=(20, 1000)).fit(X, y)
    >>> bool(abs(model.intercept_ - 5.0) < 0.1)
    True
    """

    def _summarizer(self) -> Any:
        return partial(compute_nonnegative_moments, "Gamma regression", True)

    def _power(self) -> int:
        return 2

    def _learnt_range(self, moments: Moments) -> tuple[float, float]:
        return moments.mean / 4, 4 * moments.mean

    def _lowest(self) -> tuple[float, str]:
        return float(np.finfo(np.float64).tiny), " above 0"

    def _label_units(self) -> tuple[float, float]:
        low, high = self.target_range_
        return 0.0, float(np.sqrt(low) * np.sqrt(high))

    def _loss(self) -> Loss:
        return GammaDeviance(self.l2)
