"""Private linear regression."""

from __future__ import annotations

from os import PathLike
from typing import TYPE_CHECKING

from numpy.typing import ArrayLike

from clipsilon._core import checks
from clipsilon.estimators.target_range import TargetRangeRegressor
from clipsilon.privacy.budget import Budget
from clipsilon.problems.losses import Huber, SquaredError
from clipsilon.problems.losses.base import Loss
from clipsilon.problems.responses import Response
from clipsilon.rules.rule import Rule
from clipsilon.rules.schedules import Schedule

if TYPE_CHECKING:
    from clipsilon.estimators.inputs import RandomState

_LOSSES = {"squared": SquaredError, "huber": Huber}


class PrivateLinearRegression(TargetRangeRegressor):
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
    budget : Budget or path, optional
        A budget file, which each fit is charged to before it trains (`clipsilon.Budget`).

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
        self.loss = loss

    def _loss(self) -> Loss:
        loss: Loss = checks.choice("loss", self.loss, _LOSSES)(l2=self.l2)
        return loss
