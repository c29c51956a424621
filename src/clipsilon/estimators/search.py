"""A search among settings whose choice is private, too: only the best of a random number of trials is released."""

from __future__ import annotations

import warnings
from dataclasses import replace
from os import PathLike
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, MetaEstimatorMixin, is_classifier
from sklearn.utils import _safe_indexing
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted, column_or_1d, indexable

from clipsilon._core import checks
from clipsilon.engine.streams import spawn
from clipsilon.estimators.base import SEED_ADVICE, PrivateEstimator, rollback_on_error, seed_from
from clipsilon.estimators.chunks import is_chunked
from clipsilon.estimators.fit_counter import FitCounterMixin, record_copy
from clipsilon.estimators.held_out import SCORINGS, Privacy, Scoring, private_score
from clipsilon.estimators.seen_rows import identify_rows
from clipsilon.estimators.training import derive_seed
from clipsilon.estimators.trials import (
    Distributions,
    TrialBudget,
    calibrate_trials,
    list_candidates,
    make_candidate,
)
from clipsilon.privacy.accounting.selection import TrialCount, trial_count
from clipsilon.privacy.budget import Budget, charge_to
from clipsilon.privacy.certificate import Certificate, require_public_size
from clipsilon.privacy.statement import SEEDED, Statement, about_seed, fail_closed
from clipsilon.privacy.warning import PrivacyWarning, warn_about_delta

if TYPE_CHECKING:
    from clipsilon.estimators.inputs import Column, RandomState, Table


class _Rows(NamedTuple):
    """Some rows of the table, with the people whose they are, if there are groups."""

    X: Any
    y: NDArray[Any]
    groups: NDArray[np.int64] | None

    @property
    def records(self) -> int:
        """The number of rows, or of people."""
        return len(self.y) if self.groups is None else int(np.unique(self.groups).size)


class _Split(NamedTuple):
    """The rows that train, and those that score."""

    train: _Rows
    held: _Rows


class _Trial(NamedTuple):
    """A candidate that was trained and scored; no model if its training failed."""

    score: float
    candidate: int
    model: PrivateEstimator | None


def _best_has(name: str) -> Any:
    """Make a method available where the estimator has it."""
    return available_if(lambda search: hasattr(getattr(search, "best_estimator_", search.estimator), name))


class PrivateSearchCV(FitCounterMixin, MetaEstimatorMixin, BaseEstimator):  # type: ignore[misc]
    """Choose the settings of a private estimator within one privacy budget.

    A part of the rows is held out once. Then a random number of trials is made: each draws a candidate, with
    replacement, trains it on the other rows, and scores it on the held-out ones with noise. Only the best trial is
    released, with its score. After each trial, the search ends with a fixed, small probability; the number of trials is
    secret. The time that a search takes reveals something about it, and is not covered.

    Parameters
    ----------
    estimator : PrivateEstimator
        A private estimator of this package. Its `epsilon` and `delta` are set by the search.
    param_distributions : dict or list of dict
        Parameters and their values, as for scikit-learn's `GridSearchCV` and `RandomizedSearchCV`: lists, or
        distributions with a method `rvs`.
    epsilon, delta : float
        The budget of the whole search.
    n_candidates : int, optional
        Number of settings to draw from the distributions. By default all combinations of lists are candidates, and 20
        are drawn where there are distributions.
    n_iter : float, optional
        Mean number of trials; by default the number of candidates. A larger one costs little privacy, and time.
    scoring : str, optional
        "accuracy" or "neg_log_loss" (which ends at 8), "neg_mean_squared_error" or "neg_mean_absolute_error" (which
        end at the range of targets); by default the first for the kind of estimator.
    holdout : float, default 0.2
        Fraction of the rows to hold out.
    random_state : int, RandomState or None, default None
        None for cryptographic noise. A seed makes the search repeatable, and unfit for release.
    budget : Budget or path, optional
        A budget file to charge (`clipsilon.Budget`).

    Attributes
    ----------
    best_estimator_ : PrivateEstimator
        The model of the best trial, trained on the rows that were not held out. Its statement is that of the search.
    best_params_ : dict
        Its settings.
    best_score_ : float
        Its noisy score: the largest of several, and so rather too high.
    n_candidates_ : int
        Number of candidates.
    statement_ : Statement
        What the search spends.

    Formal guarantee
    ----------------
    Model, settings and score together are (epsilon, delta)-differentially private for data sets that are neighbours
    under the estimator's `adjacency`, on the terms that `statement_` states. Nothing of other trials is kept.

    Examples
    --------
    >>> import numpy as np
    >>> from clipsilon.estimators import PrivateLogisticRegression, PrivateSearchCV
    >>> X = np.random.default_rng(0).normal(size=(4000, 2))
    >>> model = PrivateLogisticRegression(classes=[False, True])
    >>> search = PrivateSearchCV(model, {"l2": [0.0, 10.0]}, epsilon=2.0, n_iter=8, random_state=1)
    >>> search = search.fit(X, X[:, 0] > 0)
    >>> search.best_params_, bool(search.statement_.nominal <= 2.0)  # seeded
    ({'l2': 0.0}, True)
    """

    def __init__(
        self,
        estimator: PrivateEstimator,
        param_distributions: Distributions,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        *,
        n_candidates: int | None = None,
        n_iter: float | None = None,
        scoring: str | None = None,
        holdout: float = 0.2,
        random_state: RandomState = None,
        budget: Budget | str | PathLike[str] | None = None,
    ) -> None:
        self.estimator = estimator
        self.param_distributions = param_distributions
        self.epsilon = epsilon
        self.delta = delta
        self.n_candidates = n_candidates
        self.n_iter = n_iter
        self.scoring = scoring
        self.holdout = holdout
        self.random_state = random_state
        self.budget = budget

    def fit(self, X: Table, y: Column, groups: Column | None = None) -> Self:
        """Search among the candidates, and keep the best trial.

        Parameters
        ----------
        X : array-like, data frame or sparse matrix
            One row of numbers per record, in memory.
        y : array-like
            One target per record.
        groups : array-like, optional
            The id of each row's person, as for the estimators' `fit`. People are held out with all rows, and each
            counts alike in the score.

        Returns
        -------
        self
            The fitted search.
        """
        scoring = self._check_settings(X)
        with rollback_on_error(self):
            seed = seed_from(self.random_state)
            settings = list_candidates(self.estimator, self.param_distributions, self.n_candidates, seed)
            split = _split(X, y, groups, checks.fraction("holdout", self.holdout), seed)
            count = _trial_count(len(settings) if self.n_iter is None else self.n_iter)
            candidates = self._candidates(settings, split, scoring)
            trial = calibrate_trials(candidates, split.train, count, self.epsilon, self.delta)
            statement = self._state(trial, count, split, candidates[0].adjacency)
            charge_to(self.budget, statement, lambda key: identify_rows(X, key))
            notes = self._count_fit()
            best = _run_trials(candidates, split, scoring, trial, count, seed)
            self._keep(best, settings, statement, notes)
            self._warn(statement, notes)
        return self

    def _check_settings(self, X: Table) -> Scoring:
        """Raise ValueError for settings that are wrong, before the records are looked at; return the scoring."""
        checks.positive("epsilon", self.epsilon)
        checks.open_fraction("delta", self.delta)
        if not isinstance(self.estimator, PrivateEstimator):
            raise ValueError(
                "estimator must be a private estimator of this package, on columns that are scaled already, got "
                f"{type(self.estimator).__name__}."
            )
        require_public_size(self.estimator.adjacency)
        if is_chunked(X):
            raise ValueError("X must be in memory for a search, got a Dask collection.")
        allowed = _scorings(self.estimator)
        return checks.choice("scoring", next(iter(allowed)) if self.scoring is None else self.scoring, allowed)

    def _candidates(self, settings: list[dict[str, Any]], split: _Split, scoring: Scoring) -> list[PrivateEstimator]:
        """Return one estimator per candidate, after the held-out rows were checked as those that train will be."""
        quiet = {"random_state": None, "progress": False, "budget": None}
        quiet = {name: value for name, value in quiet.items() if name in self.estimator.get_params(deep=False)}
        made = [make_candidate(self.estimator, one, **quiet) for one in settings]
        for place, one in enumerate(made):
            if scoring not in _scorings(one).values():
                raise ValueError(f"scoring must be one that all candidates have, got {settings[place]} without it.")
        make_candidate(made[0], {"batch": None}).plan_statement(*split.held)  # batches may be larger than this part
        return made

    def _state(self, trial: TrialBudget, count: TrialCount, split: _Split, adjacency: str) -> Statement:
        """State what the search spends; faults are those of any candidate."""
        unit = trial.statements[0].unit
        people = ("A record is a person with all their rows, who trains or is held out with all of them.",)
        reasons = (
            *(people if unit == "person" else ()),
            f"The best of a random number of trials, {count.mean:.4g} on average, each of which is "
            f"({trial.epsilon:.4g}, {trial.delta:.4g})-private: it trains on some rows, and has a noisy score on the "
            "held-out ones (docs/proofs.md).",
            "Model, settings and score of the best trial are covered. The number of trials is secret, and the time of "
            "the search, which depends on it, is not covered.",
            "The candidates, the number of records and the fraction held out are public. One search is covered.",
        )
        certificate = Certificate(trial.search, reasons)
        about = (
            type(self).__name__,
            split.train.records + split.held.records,
            max(one.steps for one in trial.statements),
            self.delta,
            adjacency,
        )
        certified = certificate.epsilon(self.delta)
        statement = Statement(*about, certified, None, None, reasons, certificate, unit=unit)
        for fault in dict.fromkeys(fault for one in trial.statements for fault in one.faults):
            statement = fail_closed(statement, fault)
        return about_seed(statement, self.random_state is not None)

    def _keep(self, best: _Trial, settings: list[dict[str, Any]], statement: Statement, notes: tuple[str, ...]) -> None:
        """Set the attributes of a fitted search."""
        if best.model is None:
            raise RuntimeError(
                "The best trial has no model, because no candidate's training came to its end; its budget is spent. "
                "Leave out settings that diverge, such as large steps."
            )
        self.statement_ = replace(statement, reasons=(*statement.reasons, *notes), notes=notes)
        self.best_estimator_, self.best_score_ = best.model, best.score
        self.best_estimator_.statement_ = self.statement_
        record_copy(self, self.best_estimator_)  # to fit it again spends on top of the search, not of one trial
        self.best_params_, self.n_candidates_ = settings[best.candidate], len(settings)

    def _warn(self, statement: Statement, notes: tuple[str, ...]) -> None:
        """Warn about what the search reveals outside its statement."""
        seeded = [f"{SEEDED} {SEED_ADVICE}"] if self.random_state is not None else []
        for note in dict.fromkeys((*seeded, *(one for one in statement.faults if one != SEEDED), *notes)):
            warnings.warn(note, PrivacyWarning, stacklevel=3)
        warn_about_delta(self.delta, statement.records, stacklevel=3, unit=statement.unit)

    # -- the best model -----------------------------------------------------------------------------------------------

    def predict(self, X: Table) -> NDArray[Any]:
        """Return the predictions of the best model."""
        return np.asarray(self._best().predict(X))

    @_best_has("predict_proba")  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Table) -> NDArray[Any]:
        """Return the probabilities that the best model predicts."""
        return np.asarray(self._best().predict_proba(X))

    @_best_has("decision_function")  # type: ignore[untyped-decorator]
    def decision_function(self, X: Table) -> NDArray[Any]:
        """Return the decision function of the best model."""
        return np.asarray(self._best().decision_function(X))

    def score(self, X: Table, y: Column) -> float:
        """Return the best model's own score, such as its accuracy; it is not private."""
        return float(self._best().score(X, y))

    def _best(self) -> Any:
        check_is_fitted(self, "best_estimator_")
        return self.best_estimator_

    @property
    def classes_(self) -> NDArray[Any]:
        """The classes of the best model."""
        return np.asarray(self._best().classes_)

    @property
    def n_features_in_(self) -> int:
        """The number of columns."""
        return int(self._best().n_features_in_)

    def __sklearn_tags__(self) -> Any:
        """Return scikit-learn's tags: those of the estimator."""
        tags = super().__sklearn_tags__()
        inner = self.estimator.__sklearn_tags__()
        tags.estimator_type, tags.classifier_tags, tags.regressor_tags = (
            inner.estimator_type,
            inner.classifier_tags,
            inner.regressor_tags,
        )
        tags.target_tags, tags.input_tags = inner.target_tags, inner.input_tags
        return tags


def _scorings(estimator: PrivateEstimator) -> dict[str, Scoring]:
    """Return the scorings that an estimator has, by name."""
    found = {name: one for name, one in SCORINGS.items() if one.for_classes == is_classifier(estimator)}
    if not hasattr(estimator, "predict_proba"):
        found.pop("neg_log_loss", None)
    return found


def _trial_count(mean: float) -> TrialCount:
    try:
        return trial_count(mean)
    except ValueError as error:
        raise ValueError(str(error).replace("mean must", "n_iter must", 1)) from None


def _split(X: Table, y: Column, groups: Column | None, holdout: float, seed: int | None) -> _Split:
    """Draw which rows train and which are held out, without looking at any row; a person's rows stay together."""
    X, y = indexable(X, y)
    y = column_or_1d(y)
    rows = X.shape[0] if hasattr(X, "shape") else len(X)
    people = np.arange(rows) if groups is None else checks.people("groups", groups, rows)
    records = int(people.max(initial=-1)) + 1
    held = round(holdout * records)
    if not 0 < held < records:
        what = "rows" if groups is None else "people"
        raise ValueError(
            f"holdout must leave {what} for training and for the score, got {holdout:g} of {records} {what}."
        )
    order = spawn(None if seed is None else derive_seed(seed, 1), 1)[0].records.permutation(records)
    is_held = np.isin(people, order[:held])

    def take(chosen: NDArray[np.bool_]) -> _Rows:
        places = np.flatnonzero(chosen)
        own = None if groups is None else people[places]
        return _Rows(_safe_indexing(X, places), y[places], own)

    return _Split(take(~is_held), take(is_held))


def _run_trials(
    candidates: list[PrivateEstimator],
    split: _Split,
    scoring: Scoring,
    trial: TrialBudget,
    count: TrialCount,
    seed: int | None,
) -> _Trial:
    """Run the secret number of trials and return the best; nothing else leaves this function.

    A trial whose training fails is one with the lowest score: an error, a warning or a message would reveal a trial
    that was not the best. NumPy's errors are off, too: they would make a score fail because of one held-out row.
    """
    streams = spawn(None if seed is None else derive_seed(seed, 2), 1)[0]
    privacy = Privacy(trial.mu, candidates[0].adjacency, streams.noise)
    best = _Trial(-np.inf, 0, None)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        for number in range(count.draw(streams.records)):
            place = int(streams.records.integers(len(candidates)))
            seeded = None if seed is None else derive_seed(seed, 3 + number)
            budget = {"epsilon": trial.epsilon, "delta": trial.delta}
            model = make_candidate(candidates[place], budget, random_state=seeded)
            score = _try(model, split, scoring, privacy)
            if score > best.score:
                best = _Trial(score, place, model)
    if best.model is not None:
        best.model.random_state = None
    return best


def _try(model: PrivateEstimator, split: _Split, scoring: Scoring, privacy: Privacy) -> float:
    """Train and score a model; return −∞ if its training fails.

    These rows were checked for each candidate when it was planned. What fails now fails because of noisy numbers, such
    as a θ that diverged. A score that failed would fail because of the held-out rows, so its errors are not caught.
    """
    try:
        model.fit(split.train.X, split.train.y, groups=split.train.groups)
    except Exception:  # whatever it is must not be shown
        return -np.inf
    return private_score(model, split.held.X, split.held.y, scoring, privacy, split.held.groups)
