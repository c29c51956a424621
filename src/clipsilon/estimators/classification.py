"""Private logistic regression for two classes or more."""

from __future__ import annotations

from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import softmax
from sklearn.base import ClassifierMixin

from clipsilon._core import checks
from clipsilon.estimators.base import Encoding, PrivateEstimator
from clipsilon.estimators.chunkwise import chunkwise
from clipsilon.estimators.inputs import Array
from clipsilon.estimators.targets import ClassCounts, count_classes, encode_labels, resolve_classes
from clipsilon.privacy.budget import Budget
from clipsilon.problems.losses import Logistic, Softmax
from clipsilon.problems.losses.base import Loss
from clipsilon.problems.responses import Response
from clipsilon.rules.rule import Rule
from clipsilon.rules.schedules import Schedule

if TYPE_CHECKING:
    from clipsilon.estimators.glm import PrivateGLM
    from clipsilon.estimators.inputs import Column, RandomState, Table


class PrivateLogisticRegression(ClassifierMixin, PrivateEstimator):  # type: ignore[misc]
    """Logistic regression with differential privacy, for two classes or more.

    Parameters
    ----------
    epsilon, delta : float
        The budget of one fit.
    method : str or Rule, default "dpsgd"
        The algorithm, a name in `clipsilon.estimators.METHODS`; or a `clipsilon.Rule`, whose noise is then set.
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
    l2 : float, default 0.0
        Weight of ½‖θ‖² in the loss, the intercept included.
    fit_intercept : bool, default True
        Whether to append a column of ones.
    classes : array-like, optional
        All labels that y can have. None learns them from y, without budget, with a `PrivacyWarning`.
    class_weight : dict or "balanced", optional
        Weights {label: weight} of the classes; or "balanced", which uses their frequencies without budget, with a
        `PrivacyWarning`.
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
        As in scikit-learn's LogisticRegression.
    statement_ : Statement
        What the fit spends.
    theta_ : array
        Coefficients and intercept in one vector.

    Examples
    --------
    >>> import numpy as np
    >>> from clipsilon.estimators import PrivateLogisticRegression
    >>> X = np.random.default_rng(0).normal(size=(2000, 2))
    >>> y = X[:, 0] > 0
    >>> model = PrivateLogisticRegression(epsilon=1.0, random_state=0, classes=[False, True]).fit(X, y)
    >>> bool(model.score(X, y) > 0.9), bool(model.statement_.nominal <= 1.0)  # seeded
    (True, True)
    """

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        method: str | Rule = "dpsgd",
        random_state: RandomState = None,
        *,
        clip: float | None = None,
        batch: int | None = None,
        epochs: float | None = None,
        step: float | Schedule | None = None,
        l2: float = 0.0,
        fit_intercept: bool = True,
        classes: ArrayLike | None = None,
        class_weight: dict[Any, float] | str | None = None,
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
        self.clip = clip
        self.batch = batch
        self.epochs = epochs
        self.step = step
        self.l2 = l2
        self.fit_intercept = fit_intercept
        self.classes = classes
        self.class_weight = class_weight
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
            All labels that y can have; required at the first call unless they are a parameter of the estimator.

        Returns
        -------
        self
            The fitted estimator.
        """
        known, reset = first_classes(self, classes)
        return self._learn(X, y, sample_weight, known, reset, groups)

    @chunkwise
    def decision_function(self, X: Table) -> Array:
        """Return ⟨x, `coef_`⟩ + `intercept_` for the second of two classes, or for each of several."""
        scores = self._scores(X)
        return scores.ravel() if len(self.classes_) == 2 else scores

    @chunkwise
    def predict(self, X: Table) -> NDArray[Any]:
        """Return the most probable class of each row."""
        scores = self.decision_function(X)
        codes = (scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(axis=1)
        return np.asarray(self.classes_[codes])

    @chunkwise
    def predict_proba(self, X: Table) -> Array:
        """Return the probability of each class, in the order of `classes_`."""
        scores = self.decision_function(X)
        if scores.ndim == 1:
            scores = np.column_stack([np.zeros_like(scores), scores])
        return np.asarray(softmax(scores, axis=1))

    def _has_numeric_targets(self) -> bool:
        return False

    def _declared_targets(self) -> ArrayLike | None:
        return self.classes

    def _summarizer(self) -> Any:
        return count_classes

    def _encode(self, summary: ClassCounts, known: ArrayLike | None) -> Encoding:
        self.classes_, notes = resolve_classes(summary, known)
        self._class_weights = None
        if self.class_weight is not None:
            self._class_weights = _class_weights(self.class_weight, self.classes_, summary)
        if isinstance(self.class_weight, str):
            notes += ("class_weight='balanced' looked at the frequencies of the classes without budget.",)
        return Encoding(partial(encode_labels, self.classes_, self._class_weights), notes)

    def _is_rescalable(self) -> bool:
        return len(self.classes_) == 2 and self.l2 == 0 and self.response is None

    def _largest_class_weight(self) -> float | None:
        return None if self._class_weights is None else float(self._class_weights.max())

    def _loss(self) -> Loss:
        classes = len(self.classes_)
        return Logistic(self.l2) if classes == 2 else Softmax(classes, self.l2)

    def _set_coefficients(self, theta: Array) -> None:
        rows = theta.reshape(1 if len(self.classes_) == 2 else len(self.classes_), -1)
        self.coef_, self.intercept_ = self._split_intercept(rows)

    def __sklearn_tags__(self) -> Any:
        """Return scikit-learn's tags: one of its checks expects accuracy on 50 records of columns not of unit order."""
        tags = super().__sklearn_tags__()
        tags.classifier_tags.poor_score = True
        return tags


def first_classes(
    estimator: PrivateLogisticRegression | PrivateGLM, classes: ArrayLike | None
) -> tuple[ArrayLike, bool]:
    """Return the classes for a call of `partial_fit`, and whether it is the first call."""
    if hasattr(estimator, "theta_"):
        if classes is not None and not np.array_equal(np.unique(classes), estimator.classes_):
            raise ValueError(
                f"classes must be those of the first call ({estimator.classes_.tolist()}) or left out, got {classes!r}."
            )
        return estimator.classes_, False
    known = estimator.classes if classes is None else classes
    if known is None:
        raise ValueError("classes must be passed on the first call to partial_fit, got None.")
    return known, True


def _class_weights(class_weight: dict[Any, float] | str, classes: NDArray[Any], counts: ClassCounts) -> Array:
    """Return the weight of each class, in the order of `classes`."""
    if isinstance(class_weight, dict):
        return _given_weights(class_weight, classes.tolist())
    checks.choice("class_weight", class_weight, {"balanced": None})
    records = np.zeros(len(classes))
    records[np.searchsorted(classes, counts.labels)] = counts.counts
    return np.asarray(records.sum() / (len(classes) * np.maximum(records, 1)))


def _given_weights(class_weight: dict[Any, float], classes: list[Any]) -> Array:
    """Return the weights that the user gave, and 1 for the other classes."""
    weights = np.ones(len(classes))
    for label, weight in class_weight.items():
        if label not in classes:
            raise ValueError(f"class_weight must be for the classes {classes}, got {label!r}.")
        weights[classes.index(label)] = checks.nonnegative(f"class_weight[{label!r}]", weight)
    if not weights.any():
        raise ValueError(f"class_weight must leave some class a weight above 0, got {class_weight!r}.")
    return weights
