"""Private training of any loss that sees a record through ⟨x, θ⟩."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils import ClassifierTags, RegressorTags
from sklearn.utils.metaestimators import available_if

from clipsilon.estimators.base import Array, PrivateEstimator, Reading
from clipsilon.estimators.chunks import chunkwise
from clipsilon.estimators.classification import first_classes
from clipsilon.estimators.targets import census, encode_labels, in_units, resolve_classes, spread
from clipsilon.problems.losses import SquaredError
from clipsilon.problems.losses.base import is_linear, label_kind


def _classifies(estimator: BaseEstimator) -> bool:
    return label_kind(estimator.loss) == "binary"


class PrivateGLM(PrivateEstimator):
    """A linear model with differential privacy for any loss of the margin, the package's or your own.

    With a loss for labels 0 and 1 it is a classifier of two classes, else a regressor.

    Parameters
    ----------
    loss
        A part of `clipsilon.losses`, or one of your own (docs/how-to/add-a-loss.md), with its penalty; None is
        SquaredError. Real targets are taken as they are, and should be of unit order.
    epsilon, delta
        The budget of one fit.
    method
        The algorithm, a name in `clipsilon.estimators.METHODS`; or a `clipsilon.Rule`, whose noise is then set.
        "ldpsgd" and "ldpasgd" need a loss that knows its sensitivity and adjacency="replace-one".
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
    fit_intercept
        Whether to append a column of ones.
    classes
        The two labels, for a loss of labels 0 and 1. None learns them from y, without budget: a `PrivacyWarning`.
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
        As of scikit-learn's linear models.
    statement_
        What the fit spends, a `clipsilon.Statement`.
    theta_
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
        loss: Any = None,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        method: Any = "dpsgd",
        random_state: Any = None,
        *,
        clip: float | None = None,
        batch: int | None = None,
        epochs: float | None = None,
        step: Any = None,
        fit_intercept: bool = True,
        classes: Any = None,
        response: Any = None,
        adjacency: str = "zero-out",
        n_jobs: int | None = None,
        progress: bool | None = None,
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
        self.n_jobs = n_jobs
        self.progress = progress

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Any:
        """Go on from the present model with records of *other* people, at the same ε for each of them.

        `classes` must be given at the first call with a loss of two labels, if they are not a parameter already.
        """
        if hasattr(self, "theta_") and _classifies(self) != (self.coef_.ndim == 2):
            kind = "real targets" if self.coef_.ndim == 1 else "two classes"
            raise ValueError(f"loss must stay one for {kind} after the first call of partial_fit, got {self.loss!r}.")
        if _classifies(self):
            known, afresh = first_classes(self, classes)
        else:
            known, afresh = classes, not hasattr(self, "theta_")
        return self._learn(X, y, sample_weight, known, afresh)

    @available_if(_classifies)  # type: ignore[untyped-decorator]
    @chunkwise
    def decision_function(self, X: Any) -> Array:
        """⟨x, `coef_`⟩ + `intercept_`: above 0 for the second class."""
        return self._scores(X).ravel()

    @chunkwise
    def predict(self, X: Any) -> Any:
        """The class of each row, or its margin ⟨x, `coef_`⟩ + `intercept_`."""
        scores = self._scores(X)
        return self.classes_[(scores.ravel() > 0).astype(int)] if _classifies(self) else scores

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Accuracy, or R²."""
        measure = accuracy_score if _classifies(self) else r2_score
        return float(measure(y, self.predict(X), sample_weight=sample_weight))

    def _numeric_targets(self) -> bool:
        return not _classifies(self)

    def _known(self) -> Any:
        return self.classes

    def _tally(self) -> Any:
        return census if _classifies(self) else spread

    def _read(self, tally: Any, known: Any) -> Reading:
        if not _classifies(self):
            if known is not None:
                raise ValueError(f"classes must be left out for a loss of real targets, got {known!r}.")
            return Reading(partial(in_units, 0.0, 1.0), ())
        self.classes_, learnt = resolve_classes(tally, known)
        if len(self.classes_) > 2:
            raise ValueError(
                "Only binary classification is supported. PrivateLogisticRegression takes more than two classes, got "
                f"{len(self.classes_)}."
            )
        return Reading(partial(encode_labels, self.classes_, None), learnt)

    def _loss(self) -> Any:
        loss = SquaredError() if self.loss is None else self.loss
        if not is_linear(loss) and not hasattr(loss, "sensitivity"):
            raise ValueError(f"loss must be a loss of the margin ⟨x, θ⟩, got {loss!r}.")
        return loss

    def _publish(self, theta: Array) -> None:
        linear = theta[: self.n_features_in_ + self.fit_intercept]  # HuberRegression learns a scale besides
        rows = linear[np.newaxis] if _classifies(self) else linear
        self.coef_, self.intercept_ = self._split(rows)

    def __sklearn_tags__(self) -> Any:
        """A classifier or a regressor, as the loss says."""
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        if _classifies(self):
            tags.estimator_type, tags.classifier_tags = "classifier", ClassifierTags(multi_class=False)
        else:
            tags.estimator_type, tags.regressor_tags = "regressor", RegressorTags()
        return tags
