"""Private linear regression."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from sklearn.base import RegressorMixin

from clipsilon._core import checks
from clipsilon.estimators.base import Array, PrivateEstimator, Reading
from clipsilon.estimators.chunks import chunkwise
from clipsilon.estimators.targets import Spread, in_units, spread
from clipsilon.problems.losses import Huber, SquaredError

_LOSSES = {"squared": SquaredError, "huber": Huber}


class PrivateLinearRegression(RegressorMixin, PrivateEstimator):  # type: ignore[misc]
    """Linear regression with differential privacy, by squared error or Huber's loss.

    Targets are learnt in units of a quarter of `target_range`, counted from its middle, so that they are of unit order;
    `coef_`, `intercept_` and predictions are in the units of y. Targets outside the range are allowed.

    Parameters
    ----------
    epsilon, delta
        The budget of one fit.
    method
        The algorithm, a name in `clipsilon.estimators.METHODS`; or a `clipsilon.Rule`, whose noise is then set.
    random_state
        None for cryptographic noise; a whole number or a `RandomState` repeats the fit, and is not for release.
    loss
        "squared", or "huber", which outliers move less.
    target_range
        (low, high) between which most targets lie. None learns it from y (mean ± 2 deviations), without budget: a
        `PrivacyWarning`.
    clip
        The largest gradient of one record. None leaves this and the next three to the default rule, which is for
        columns of unit order.
    batch
        The expected batch size.
    epochs
        Passes over the records.
    step
        A number, or a part of `clipsilon.schedules`.
    l2
        Weight of ½‖θ‖² in the loss, the intercept included.
    fit_intercept
        Whether to append a column of ones.
    response
        How records react to the model, a part of `clipsilon.responses`.
    adjacency
        What is hidden: "zero-out" (whether a record took part), "add-remove" or "replace-one".
    n_jobs
        Threads; None for one, −1 for all processors. The result does not depend on it.
    progress
        As in `clipsilon.run`.

    Attributes
    ----------
    coef_, intercept_, n_iter_, n_features_in_, feature_names_in_
        As of scikit-learn's linear models.
    statement_
        What the fit spends, a `clipsilon.Statement`.
    target_range_
        The range that was used.
    theta_
        The model as `clipsilon.run` releases it, in the units of the range.

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
        method: Any = "dpsgd",
        random_state: Any = None,
        *,
        loss: str = "squared",
        target_range: Any = None,
        clip: float | None = None,
        batch: int | None = None,
        epochs: float | None = None,
        step: Any = None,
        l2: float = 0.0,
        fit_intercept: bool = True,
        response: Any = None,
        adjacency: str = "zero-out",
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
        self.n_jobs = n_jobs
        self.progress = progress

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Any:
        """Go on from the present model with records of *other* people, at the same ε for each of them."""
        afresh = not hasattr(self, "theta_")
        return self._learn(X, y, sample_weight, self._known() if afresh else self.target_range_, afresh)

    @chunkwise
    def predict(self, X: Any) -> Array:
        """⟨x, `coef_`⟩ + `intercept_` of each row."""
        return self._scores(X)

    def _numeric_targets(self) -> bool:
        return True

    def _known(self) -> Any:
        return self.target_range

    def _tally(self) -> Any:
        return spread

    def _read(self, tally: Spread, known: Any) -> Reading:
        learnt: tuple[str, ...] = ()
        if known is None:
            known = _learnt_range(tally)
            learnt = ("The range of the targets was learnt from y without budget; give it as target_range=.",)
        self.target_range_ = _checked_range(known)
        return Reading(partial(in_units, *self._units()), learnt)

    def _units(self) -> tuple[float, float]:
        """The middle of the range, and a quarter of its width."""
        low, high = self.target_range_
        return (low + high) / 2, (high - low) / 4

    def _loss(self) -> Any:
        return checks.choice("loss", self.loss, _LOSSES)(l2=self.l2)

    def _publish(self, theta: Array) -> None:
        middle, unit = self._units()
        coefficients, intercept = self._split(theta)
        self.coef_, self.intercept_ = unit * coefficients, middle + unit * intercept


def _learnt_range(tally: Spread) -> tuple[float, float]:
    deviation = float(np.sqrt(tally.variance)) or 1.0
    return tally.mean - 2 * deviation, tally.mean + 2 * deviation


def _checked_range(known: Any) -> tuple[float, float]:
    bounds = checks.floats("target_range", known)
    if bounds.shape != (2,) or not np.isfinite(bounds).all() or not bounds[0] < bounds[1]:
        raise ValueError(f"target_range must be a low and a high number, got {known!r}.")
    return float(bounds[0]), float(bounds[1])
