"""Private training of any loss that sees a record through ⟨x, θ⟩."""

from __future__ import annotations

from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils import ClassifierTags, RegressorTags
from sklearn.utils.metaestimators import available_if

from clipsilon.estimators.base import Encoding, PrivateEstimator
from clipsilon.estimators.chunkwise import chunkwise
from clipsilon.estimators.classification import first_classes
from clipsilon.estimators.inputs import Array
from clipsilon.estimators.targets import (
    compute_moments,
    compute_nonnegative_moments,
    count_classes,
    encode_labels,
    resolve_classes,
    scale_targets,
)
from clipsilon.privacy.budget import Budget
from clipsilon.problems.losses import SquaredError
from clipsilon.problems.losses.base import Loss, is_linear, label_kind
from clipsilon.problems.responses import Response
from clipsilon.rules.rule import Rule
from clipsilon.rules.schedules import Schedule

if TYPE_CHECKING:
    from clipsilon.estimators.inputs import Column, RandomState, Table


def _classifies(estimator: BaseEstimator) -> bool:
    return label_kind(estimator.loss) == "binary"


class PrivateGLM(PrivateEstimator):
    """A linear model with differential privacy for any loss of the margin, from this package or your own.

    With a loss for labels 0 and 1 it is a classifier of two classes, otherwise a regressor.

    Parameters
    ----------
    loss : Loss, optional
        A part of `clipsilon.losses`, or one of your own (docs/how-to/add-a-loss.md), with its penalty; None for
        SquaredError. Real targets are not scaled, and should be of unit order.
    epsilon, delta : float
        The budget of one fit.
    method : str or Rule, default "dpsgd"
        The algorithm, a name in `clipsilon.estimators.METHODS`; or a `clipsilon.Rule`, whose noise is then set.
        "ldpsgd" and "ldpasgd" need a loss that knows its sensitivity and adjacency="replace-one".
    random_state : int, RandomState or None, default None
        None for cryptographic noise. A whole number or a `RandomState` makes the fit repeatable, and unfit for release.
    clip : float, optional
        The largest norm of the gradient of one record. None leaves this and the next three parameters to the default
        rule, which is for columns of unit order.
    batch : int, optional
        The expected batch size.
    epochs : float, optional
        Passes over the records.
    step : float or Schedule, optional
        A step size, or a part of `clipsilon.schedules`.
    fit_intercept : bool, default True
        Whether to append a column of ones.
    classes : array-like, optional
        The two labels, for a loss of labels 0 and 1. None learns them from y, without budget, with a `PrivacyWarning`.
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
    coef_, intercept_, classes_, n_iter_, n_features_in_, feature_names_in_
        As in scikit-learn's linear models.
    statement_ : Statement
        What the fit spends.
    theta_ : array
        The model as `clipsilon.run` releases it.

    Examples
    --------
    >>> import numpy as np
    >>> import clipsilon as cs
    >>> from clipsilon.estimators import PrivateGLM
    >>> X = np.random.default_rng(0).normal(size=(2000, 2))
    >>> model = PrivateGLM(cs.losses.Savage(), random_state=0, classes=["no", "yes"])
    >>> float(model.fit(X, np.where(X[:, 0] > 0, "yes", "no")).coef_.round()[0, 1])
    0.0
    """

    def __init__(
        self,
        loss: Loss | None = None,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        method: str | Rule = "dpsgd",
        random_state: RandomState = None,
        *,
        clip: float | None = None,
        batch: int | None = None,
        epochs: float | None = None,
        step: float | Schedule | None = None,
        fit_intercept: bool = True,
        classes: ArrayLike | None = None,
        response: Response | None = None,
        adjacency: str = "zero-out",
        max_rows: int | None = None,
        n_jobs: int | None = None,
        progress: bool | None = None,
        budget: Budget | str | PathLike[str] | None = None,
    ):
        self.loss = loss
        self.epsilon = epsilon
        self.delta = delta
        self.method = method
        self.random_state = random_state
        self.clip = clip
        self.batch = batch
        self.epochs = epochs
        self.step = step
        self.fit_intercept = fit_intercept
        self.classes = classes
        self.response = response
        self.adjacency = adjacency
        self.max_rows = max_rows
        self.n_jobs = n_jobs
        self.progress = progress
        self.budget = budget

    def partial_fit(
        self,
        X: Table,
        y: Column,
        classes: ArrayLike | None = None,
        sample_weight: Column | None = None,
        groups: Column | None = None,
    ) -> Self:
        """Continue from the present model with records of *other* people, at the same ε for each of them.

        Parameters
        ----------
        X, y, sample_weight, groups
            As for `fit`; groups are given in all calls or in none.
        classes : array-like, optional
            The two labels; required at the first call with a loss of labels 0 and 1, unless they are a parameter of
            the estimator.

        Returns
        -------
        self
            The fitted estimator.
        """
        if hasattr(self, "theta_") and _classifies(self) != (self.coef_.ndim == 2):
            kind = "real targets" if self.coef_.ndim == 1 else "two classes"
            raise ValueError(f"loss must stay one for {kind} after the first call of partial_fit, got {self.loss!r}.")
        if _classifies(self):
            known, reset = first_classes(self, classes)
            return self._learn(X, y, sample_weight, known, reset, groups)
        return self._learn(X, y, sample_weight, classes, not hasattr(self, "theta_"), groups)

    @available_if(_classifies)  # type: ignore[untyped-decorator]
    @chunkwise
    def decision_function(self, X: Table) -> Array:
        """Return ⟨x, `coef_`⟩ + `intercept_` for each row: above 0 for the second class."""
        return self._scores(X).ravel()

    @chunkwise
    def predict(self, X: Table) -> NDArray[Any]:
        """Return the class of each row, or its margin ⟨x, `coef_`⟩ + `intercept_`."""
        scores = self._scores(X)
        return np.asarray(self.classes_[(scores.ravel() > 0).astype(int)]) if _classifies(self) else scores

    def score(self, X: Table, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """Return the accuracy of a classifier, or the R² of a regressor.

        Parameters
        ----------
        X, y : array-like
            Records and their true targets.
        sample_weight : array-like, optional
            One weight per record.

        Returns
        -------
        float
            At most 1. The score is not private.
        """
        measure = accuracy_score if _classifies(self) else r2_score
        return float(measure(y, self.predict(X), sample_weight=sample_weight))

    def _has_numeric_targets(self) -> bool:
        return not _classifies(self)

    def _declared_targets(self) -> ArrayLike | None:
        return self.classes

    def _summarizer(self) -> Any:
        if _classifies(self):
            return count_classes
        if self.loss is not None and label_kind(self.loss) == "nonnegative":
            return partial(compute_nonnegative_moments, type(self.loss).__name__, False)
        return compute_moments

    def _encode(self, summary: Any, known: ArrayLike | None) -> Encoding:
        if not _classifies(self):
            if known is not None:
                raise ValueError(f"classes must be left out for a loss of real targets, got {known!r}.")
            return Encoding(partial(scale_targets, 0.0, 1.0), ())
        self.classes_, notes = resolve_classes(summary, known)
        if len(self.classes_) > 2:
            raise ValueError(
                "Only binary classification is supported. PrivateLogisticRegression takes more than two classes, got "
                f"{len(self.classes_)}."
            )
        return Encoding(partial(encode_labels, self.classes_, None), notes)

    def _loss(self) -> Loss:
        loss = SquaredError() if self.loss is None else self.loss
        if not is_linear(loss) and not hasattr(loss, "sensitivity"):
            raise ValueError(f"loss must be a loss of the margin ⟨x, θ⟩, got {loss!r}.")
        return loss

    def _set_coefficients(self, theta: Array) -> None:
        linear = theta[: self.n_features_in_ + self.fit_intercept]  # HuberRegression also learns a scale
        rows = linear[np.newaxis] if _classifies(self) else linear
        self.coef_, self.intercept_ = self._split_intercept(rows)

    def __sklearn_tags__(self) -> Any:
        """Return scikit-learn's tags: of a classifier or a regressor, depending on the loss."""
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        if _classifies(self):
            tags.estimator_type, tags.classifier_tags = "classifier", ClassifierTags(multi_class=False)
        else:
            tags.estimator_type, tags.regressor_tags = "regressor", RegressorTags()
        return tags
