"""Private linear regression."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import RegressorMixin

from clipsilon._core import checks
from clipsilon.estimators.base import Encoding, PrivateEstimator
from clipsilon.estimators.chunks import chunkwise
from clipsilon.estimators.inputs import Array
from clipsilon.estimators.targets import Moments, compute_moments, scale_targets
from clipsilon.problems.losses import Huber, SquaredError
from clipsilon.problems.losses.base import Loss
from clipsilon.problems.responses import Response
from clipsilon.rules.rule import Rule
from clipsilon.rules.schedules import Schedule

if TYPE_CHECKING:
    from clipsilon.estimators.inputs import Column, RandomState, Table

_LOSSES = {"squared": SquaredError, "huber": Huber}


class PrivateLinearRegression(RegressorMixin, PrivateEstimator):  # type: ignore[misc]
    """Linear regression with differential privacy, with squared error or Huber's loss.

    Targets are measured from the middle of `target_range` in units of a quarter of its width, so that they are of unit
    order; `coef_`, `intercept_` and predictions are in the units of y. Targets outside the range are allowed.

    Parameters
    ----------
    epsilon, delta : float
        The budget of one fit.
    method : str or Rule, default "dpsgd"
        The algorithm, a name in `clipsilon.estimators.METHODS`; or a `clipsilon.Rule`, whose noise is then set.
    random_state : int, RandomState or None, default None
        None for cryptographic noise. A whole number or a `RandomState` makes the fit repeatable, and unfit for release.
    loss : {"squared", "huber"}, default "squared"
        Squared error, or Huber's loss, which is less sensitive to outliers.
    target_range : (float, float), optional
        (low, high) between which most targets lie. None learns it from y (mean ± 2 standard deviations), without
        budget, with a `PrivacyWarning`.
    clip : float, optional
        The largest norm of the gradient of one record. None leaves this and the next three parameters to the default
        rule, which is for columns of unit order.
    batch : int, optional
        The expected batch size.
    epochs : float, optional
        Passes over the records.
    step : float or Schedule, optional
        A step size, or a part of `clipsilon.schedules`.
    l2 : float, default 0.0
        Weight of ½‖θ‖² in the loss, the intercept included.
    fit_intercept : bool, default True
        Whether to append a column of ones.
    response : Response, optional
        How records react to the model, a part of `clipsilon.responses`.
    adjacency : str, default "zero-out"
        What is hidden: "zero-out" (whether a record took part) or "replace-one". The number of records is public.
    max_rows : int, optional
        With `groups` in `fit`, the largest number of rows per person: the first ones are used. None uses all; privacy
        does not depend on it.
    n_jobs : int, optional
        Number of threads; None for one, −1 for all processors. The result does not depend on it.
    progress : bool, optional
        As in `clipsilon.run`.

    Attributes
    ----------
    coef_, intercept_, n_iter_, n_features_in_, feature_names_in_
        As in scikit-learn's linear models.
    statement_ : Statement
        What the fit spends.
    target_range_ : (float, float)
        The range that was used.
    theta_ : array
        The model as `clipsilon.run` releases it, for targets in units of a quarter of the range.

    Examples
    --------
    >>> import numpy as np
    >>> from clipsilon.estimators import PrivateLinearRegression
    >>> X = np.random.default_rng(0).normal(size=(2000, 2))
    >>> model = PrivateLinearRegression(random_state=0, target_range=(40, 60)).fit(X, 50 + X @ [3.0, -4.0])
    >>> model.coef_.round(), float(model.intercept_.round())
    (array([ 3., -4.]), 50.0)
    """

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        method: str | Rule = "dpsgd",
        random_state: RandomState = None,
        *,
        loss: str = "squared",
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
    ):
        self.epsilon = epsilon
        self.delta = delta
        self.method = method
        self.random_state = random_state
        self.loss = loss
        self.target_range = target_range
        self.clip = clip
        self.batch = batch
        self.epochs = epochs
        self.step = step
        self.l2 = l2
        self.fit_intercept = fit_intercept
        self.response = response
        self.adjacency = adjacency
        self.max_rows = max_rows
        self.n_jobs = n_jobs
        self.progress = progress

    def partial_fit(
        self, X: Table, y: Column, sample_weight: Column | None = None, groups: Column | None = None
    ) -> Self:
        """Continue from the present model with records of *other* people, at the same ε for each of them.

        Parameters
        ----------
        X, y, sample_weight, groups
            As for `fit`; groups are given in all calls or in none.

        Returns
        -------
        self
            The fitted estimator.
        """
        reset = not hasattr(self, "theta_")
        known = self._declared_targets() if reset else self.target_range_
        return self._learn(X, y, sample_weight, known, reset, groups)

    @chunkwise
    def predict(self, X: Table) -> Array:
        """Return ⟨x, `coef_`⟩ + `intercept_` for each row."""
        return self._scores(X)

    def _has_numeric_targets(self) -> bool:
        return True

    def _declared_targets(self) -> ArrayLike | None:
        return self.target_range

    def _summarizer(self) -> Any:
        return compute_moments

    def _encode(self, summary: Moments, known: ArrayLike | None) -> Encoding:
        notes: tuple[str, ...] = ()
        if known is None:
            known = _learnt_range(summary)
            notes = ("The range of the targets was learnt from y without budget; give it as target_range=.",)
        self.target_range_ = _check_range(known)
        return Encoding(partial(scale_targets, *self._units()), notes)

    def _units(self) -> tuple[float, float]:
        """Return the middle of the range and a quarter of its width."""
        low, high = self.target_range_
        return (low + high) / 2, (high - low) / 4

    def _loss(self) -> Loss:
        loss: Loss = checks.choice("loss", self.loss, _LOSSES)(l2=self.l2)
        return loss

    def _set_coefficients(self, theta: Array) -> None:
        middle, unit = self._units()
        coefficients, intercept = self._split_intercept(theta)
        self.coef_, self.intercept_ = unit * coefficients, middle + unit * intercept


def _learnt_range(moments: Moments) -> tuple[float, float]:
    deviation = float(np.sqrt(moments.variance)) or 1.0
    return moments.mean - 2 * deviation, moments.mean + 2 * deviation


def _check_range(known: ArrayLike) -> tuple[float, float]:
    bounds = checks.floats("target_range", known)
    if bounds.shape != (2,) or not np.isfinite(bounds).all() or not bounds[0] < bounds[1]:
        raise ValueError(f"target_range must be a low and a high number, got {known!r}.")
    return float(bounds[0]), float(bounds[1])
