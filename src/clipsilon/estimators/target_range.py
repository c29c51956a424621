"""What regressors share that are told where most targets lie: from a range to units of unit order, and back."""

from __future__ import annotations

from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import RegressorMixin

from clipsilon._core import checks
from clipsilon.estimators.base import Encoding, PrivateEstimator
from clipsilon.estimators.chunkwise import chunkwise
from clipsilon.estimators.inputs import Array
from clipsilon.estimators.targets import Moments, compute_moments, scale_targets
from clipsilon.privacy.budget import Budget
from clipsilon.problems.responses import Response
from clipsilon.rules.rule import Rule
from clipsilon.rules.schedules import Schedule

if TYPE_CHECKING:
    from clipsilon.estimators.inputs import Column, RandomState, Table


class TargetRangeRegressor(RegressorMixin, PrivateEstimator):  # type: ignore[misc]
    """A regressor with the parameter `target_range`. Subclasses define the loss, and what a margin means.

    Parameters
    ----------
    epsilon, delta, method, random_state, target_range, clip, batch, epochs, step, l2, fit_intercept, response
        As for `PrivateLinearRegression`.
    adjacency, max_rows, n_jobs, progress, budget
        As for `PrivateLinearRegression`.
    """

    target_range_: tuple[float, float]

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        method: str | Rule = "dpsgd",
        random_state: RandomState = None,
        *,
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
        self.epsilon = epsilon
        self.delta = delta
        self.method = method
        self.random_state = random_state
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
        self.budget = budget

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
            known = self._learnt_range(summary)
            notes = ("The range of the targets was learnt from y without budget; give it as target_range=.",)
        self.target_range_ = _check_range(known, *self._lowest())
        return Encoding(partial(scale_targets, *self._label_units()), notes)

    def _learnt_range(self, moments: Moments) -> tuple[float, float]:
        """Return a range for targets of which nothing was declared."""
        deviation = float(np.sqrt(moments.variance)) or 1.0
        return moments.mean - 2 * deviation, moments.mean + 2 * deviation

    def _lowest(self) -> tuple[float, str]:
        """Return the least number that a range may begin with, and the words for this in a message."""
        return -np.inf, ""

    def _label_units(self) -> tuple[float, float]:
        """Return the target that becomes the label 0, and the difference of targets whose labels differ by 1."""
        low, high = self.target_range_
        return (low + high) / 2, (high - low) / 4

    def _margin_units(self) -> tuple[float, float]:
        """Return the score whose margin ⟨x, θ⟩ is 0, and the difference of scores whose margins differ by 1."""
        return self._label_units()

    def _set_coefficients(self, theta: Array) -> None:
        origin, unit = self._margin_units()
        coefficients, intercept = self._split_intercept(theta)
        self.coef_, self.intercept_ = unit * coefficients, origin + unit * intercept


def _check_range(known: ArrayLike, least: float, limit: str) -> tuple[float, float]:
    bounds = checks.floats("target_range", known)
    if bounds.shape != (2,) or not np.isfinite(bounds).all() or not least <= bounds[0] < bounds[1]:
        raise ValueError(f"target_range must be a low and a high number{limit}, got {known!r}.")
    return float(bounds[0]), float(bounds[1])
