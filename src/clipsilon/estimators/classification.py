"""Private logistic regression for two classes or more."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from scipy.special import softmax
from sklearn.base import ClassifierMixin

from clipsilon._core import checks
from clipsilon.estimators.base import Array, PrivateEstimator, Reading
from clipsilon.estimators.chunks import chunkwise
from clipsilon.estimators.targets import Census, census, encode_labels, resolve_classes
from clipsilon.problems.losses import Logistic, Softmax


class PrivateLogisticRegression(ClassifierMixin, PrivateEstimator):  # type: ignore[misc]
    """Logistic regression with differential privacy, for two classes or more.

    Parameters
    ----------
    epsilon, delta
        The budget of one fit.
    method
        The algorithm, a name in `clipsilon.estimators.METHODS`; or a `clipsilon.Rule`, whose noise is then set.
    random_state
        None for cryptographic noise; a whole number or a `RandomState` repeats the fit, and is not for release.
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
    classes
        The labels there can be. None learns them from y, without budget: a `PrivacyWarning`.
    class_weight
        Weights {label: weight} of the classes, or "balanced", which looks at their frequencies without budget: a
        `PrivacyWarning`.
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
    coef_, intercept_, classes_, n_iter_, n_features_in_, feature_names_in_
        As of scikit-learn's LogisticRegression.
    statement_
        What the fit spends, a `clipsilon.Statement`.
    theta_
        Coefficients and intercept in one vector.

    Examples
    --------
    >>> import numpy as np
    >>> from clipsilon.estimators import PrivateLogisticRegression
    >>> X = np.random.default_rng(0).normal(size=(2000, 2))
    >>> y = X[:, 0] > 0
    >>> model = PrivateLogisticRegression(epsilon=1.0, random_state=0, classes=[False, True]).fit(X, y)
    >>> bool(model.score(X, y) > 0.9), bool(model.statement_.certified <= 1.0)
    (True, True)
    """

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        method: Any = "dpsgd",
        random_state: Any = None,
        *,
        clip: float | None = None,
        batch: int | None = None,
        epochs: float | None = None,
        step: Any = None,
        l2: float = 0.0,
        fit_intercept: bool = True,
        classes: Any = None,
        class_weight: Any = None,
        response: Any = None,
        adjacency: str = "zero-out",
        n_jobs: int | None = None,
        progress: bool | None = None,
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
        self.n_jobs = n_jobs
        self.progress = progress

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Any:
        """Go on from the present model with records of *other* people, at the same ε for each of them.

        `classes` must be given at the first call, if they are not a parameter already.
        """
        known, afresh = first_classes(self, classes)
        return self._learn(X, y, sample_weight, known, afresh)

    @chunkwise
    def decision_function(self, X: Any) -> Array:
        """⟨x, `coef_`⟩ + `intercept_`, of the second of two classes or of each of several."""
        scores = self._scores(X)
        return scores.ravel() if len(self.classes_) == 2 else scores

    @chunkwise
    def predict(self, X: Any) -> Any:
        """The likeliest class of each row."""
        scores = self.decision_function(X)
        return self.classes_[(scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(axis=1)]

    @chunkwise
    def predict_proba(self, X: Any) -> Array:
        """The chance of each class, in the order of `classes_`."""
        scores = self.decision_function(X)
        if scores.ndim == 1:
            scores = np.column_stack([np.zeros_like(scores), scores])
        return np.asarray(softmax(scores, axis=1))

    def _numeric_targets(self) -> bool:
        return False

    def _known(self) -> Any:
        return self.classes

    def _tally(self) -> Any:
        return census

    def _read(self, tally: Census, known: Any) -> Reading:
        self.classes_, learnt = resolve_classes(tally, known)
        self._of_class = None
        if self.class_weight is not None:
            self._of_class = _class_weights(self.class_weight, self.classes_, tally)
        if isinstance(self.class_weight, str):
            learnt += ("class_weight='balanced' looked at the frequencies of the classes without budget.",)
        return Reading(partial(encode_labels, self.classes_, self._of_class), learnt)

    def _stretches(self) -> bool:
        return len(self.classes_) == 2 and self.l2 == 0 and self.response is None

    def _largest_weight(self) -> float | None:
        return self._of_class if self._of_class is None else float(self._of_class.max())

    def _loss(self) -> Any:
        several = len(self.classes_)
        return Logistic(self.l2) if several == 2 else Softmax(several, self.l2)

    def _publish(self, theta: Array) -> None:
        rows = theta.reshape(1 if len(self.classes_) == 2 else len(self.classes_), -1)
        self.coef_, self.intercept_ = self._split(rows)

    def __sklearn_tags__(self) -> Any:
        """One of scikit-learn's checks asks for quality on 50 records whose columns are far from unit order."""
        tags = super().__sklearn_tags__()
        tags.classifier_tags.poor_score = True
        return tags


def first_classes(estimator: Any, classes: Any) -> tuple[Any, bool]:
    """The classes that `partial_fit` goes by, and whether it starts afresh."""
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


def _told_weights(class_weight: dict[Any, Any], classes: list[Any]) -> Array:
    """Those that the user gives; 1 for the others."""
    weights = np.ones(len(classes))
    for label, weight in class_weight.items():
        if label not in classes:
            raise ValueError(f"class_weight must be for the classes {classes}, got {label!r}.")
        weights[classes.index(label)] = checks.nonnegative(f"class_weight[{label!r}]", weight)
    if not weights.any():
        raise ValueError(f"class_weight must leave some class a weight above 0, got {class_weight!r}.")
    return weights


def _class_weights(class_weight: Any, classes: Any, tally: Census) -> Array:
    """The weight of each class, in the order of `classes`."""
    if isinstance(class_weight, dict):
        return _told_weights(class_weight, classes.tolist())
    checks.choice("class_weight", class_weight, {"balanced": None})
    counts = np.zeros(len(classes))
    counts[np.searchsorted(classes, tally.labels)] = tally.counts
    return np.asarray(counts.sum() / (len(classes) * np.maximum(counts, 1)))
