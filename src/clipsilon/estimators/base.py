"""The fit that all private estimators share: from records to labels, from a task to a plan, from θ to coefficients."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
from joblib import effective_n_jobs
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.extmath import safe_sparse_dot
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from clipsilon._core import checks
from clipsilon._core.rows import with_ones
from clipsilon.estimators import chunks
from clipsilon.estimators.chunk_runner import Encoder, make_runner
from clipsilon.estimators.fit_counter import FitCounterMixin
from clipsilon.estimators.frames import naming_columns
from clipsilon.estimators.inputs import Array
from clipsilon.estimators.methods import Budget as FitBudget
from clipsilon.estimators.methods import Choices
from clipsilon.estimators.people import advise_groups, find_repeated_ids, hash_people
from clipsilon.estimators.plans import Task, TrainingPlan, make_plan, statement_of
from clipsilon.estimators.seen_rows import Digests, compute_digests, identify_rows, merge_digests, remember_rows
from clipsilon.estimators.training import MemoryRunner, Runner, derive_seed, execute
from clipsilon.privacy.accounting.profiles import worst
from clipsilon.privacy.budget import Budget, charge_to
from clipsilon.privacy.certificate import Certificate
from clipsilon.privacy.statement import SEEDED, Statement, about_noise, about_people, about_seed, fail_closed
from clipsilon.privacy.warning import PrivacyWarning, warn_about_delta
from clipsilon.problems.losses.base import Loss, label_kind
from clipsilon.problems.problem import Problem
from clipsilon.problems.responses import FixedIntercept, Response
from clipsilon.rules.rule import Rule
from clipsilon.rules.schedules import Schedule

if TYPE_CHECKING:
    from clipsilon.estimators.inputs import Column, DaskColumn, DaskTable, RandomState, Table

_PARALLEL = "partial_fit: a record must be in one call only; this is the call that spends most (parallel composition)."
_WEIGHTED = "sample_weight: the weight of a record must be public or depend on this record alone, which is not checked."
SEED_ADVICE = "Leave random_state at None for a release; nothing is certified of this fit."


class Encoding(NamedTuple):
    """How y becomes labels."""

    encode: Encoder
    learnt: tuple[str, ...]  # what was learnt from the records without budget, in sentences


class _Prepared(NamedTuple):
    """Records that were checked and encoded, ready for a plan."""

    runner: Runner
    columns: int  # with the column of ones
    weighted: bool
    learnt: tuple[str, ...]  # of the encoding
    digests: Digests  # of the rows, or of the people
    identify: Callable[[int], str | None]  # from a key to a digest of all rows, if they are in memory
    unit: str = "record"  # or "person"
    advice: tuple[str, ...] = ()  # about columns that look like ids of people


class PrivateEstimator(FitCounterMixin, BaseEstimator, ABC):  # type: ignore[misc]
    """The shared fit. Subclasses define how y becomes labels, which loss is used, and what θ means.

    A fit has five steps: check the records and summarize y, in memory (`_prepare_tables`) or in Dask's chunks
    (`_prepare_chunks`); encode y (`_encode`); plan (`make_plan`); train (`execute`); state the privacy
    (`_set_statement`) and set the attributes (`_set_coefficients`).
    """

    # Parameters, set by the constructors of the subclasses.
    epsilon: float
    delta: float
    method: str | Rule
    random_state: RandomState
    clip: float | None
    batch: int | None
    epochs: float | None
    step: float | Schedule | None
    fit_intercept: bool
    response: Response | None
    adjacency: str
    n_jobs: int | None
    progress: bool | None
    max_rows: int | None = None
    budget: Budget | str | PathLike[str] | None = None
    # Attributes of a fitted model.
    theta_: Array
    coef_: Array
    intercept_: Any
    n_iter_: int
    statement_: Statement

    def fit(self, X: Table, y: Column, sample_weight: Column | None = None, groups: Column | None = None) -> Self:
        """Fit the model to one release of the records.

        Parameters
        ----------
        X : array-like, data frame, sparse matrix, or Dask array or data frame
            One row of numbers per record. Dask collections stay where they are (docs/how-to/dask.md).
        y : array-like
            One target per record.
        sample_weight : array-like, optional
            One weight of at least 0 per record, by which its loss is multiplied before its gradient is clipped, so
            that weights do not change its privacy. Weights that depend on other records, such as those that balance
            classes, do: nothing covers that.
        groups : array-like, optional
            The id of each row's person, a number or text, for people with several rows (docs/how-to/people.md). What is
            protected is then a person with all rows: people are sampled, and the mean of the gradients of a person's
            rows is clipped. By default each row is protected by itself.

        Returns
        -------
        self
            The fitted estimator.
        """
        return self._learn(X, y, sample_weight, self._declared_targets(), reset=True, groups=groups)

    def _learn(
        self,
        X: Table,
        y: Column,
        sample_weight: Column | None,
        known: ArrayLike | None,
        reset: bool,
        groups: Column | None = None,
    ) -> Self:
        """Fit from θ = 0 (`reset`) or from the present θ, with what is known about y beforehand."""
        self._check_settings(reset)
        self._check_groups(groups, reset)
        with rollback_on_error(self):
            data = self._prepare(X, y, sample_weight, groups, known, reset)
            plan = make_plan(self._task(data))
            seed, start = self._initial(reset, data.runner.problem.dimension)
            call = self._state_call(plan, data)
            charge_to(self.budget, call, data.identify)
            counted = self._count_fit(reset)
            theta = execute(plan, data.runner, seed=seed, start=start)
            self._set_statement(call, data, counted, reset)
            self.theta_ = theta
            self._set_coefficients(theta)
            self._warn(data, counted, remember_rows(self, data.digests, reset))
        return self

    def _check_settings(self, reset: bool) -> None:
        """Raise ValueError for settings that contradict each other, or those of an earlier call."""
        checks.flag("fit_intercept", self.fit_intercept)
        thread_count(self.n_jobs)
        if self.progress is not None:
            checks.flag("progress", self.progress)
        for name in () if reset else ("delta", "adjacency"):
            now, first = getattr(self, name), getattr(self.statement_, name)
            if not isinstance(now, type(first)) or now != first:
                raise ValueError(f"{name} must stay what it was at the first call of partial_fit ({first}), got {now}.")

    def plan_statement(self, X: Table, y: Column, groups: Column | None = None) -> Statement:
        """State what a fit to these records would spend, without training or changing the estimator.

        Parameters
        ----------
        X, y, groups
            As for `fit`.

        Returns
        -------
        Statement
        """
        self._check_settings(reset=True)
        self._check_groups(groups, reset=True)
        before = dict(vars(self))
        try:
            data = self._prepare(X, y, None, groups, self._declared_targets(), reset=True)
            return self._state_call(make_plan(self._task(data)), data)
        finally:
            self.__dict__ = before

    def _check_groups(self, groups: Column | None, reset: bool) -> None:
        """Raise ValueError if `max_rows` has no groups, or if earlier calls had groups and this one has not."""
        if self.max_rows is not None:
            checks.count("max_rows", self.max_rows)
            if groups is None:
                raise ValueError(f"max_rows must be None without groups, got {self.max_rows!r}.")
        if not reset and (self.statement_.unit == "person") != (groups is not None):
            raise ValueError("groups must be given in all calls of partial_fit or in none, got a call that differs.")

    # -- records ------------------------------------------------------------------------------------------------------

    def _prepare(
        self,
        X: Table,
        y: Column,
        sample_weight: Column | None,
        groups: Column | None,
        known: ArrayLike | None,
        reset: bool,
    ) -> _Prepared:
        prepare = self._prepare_chunks if chunks.is_chunked(X) else self._prepare_tables
        return prepare(X, y, sample_weight, groups, known, reset)

    def _prepare_tables(
        self,
        X: Table,
        y: Column,
        sample_weight: Column | None,
        groups: Column | None,
        known: ArrayLike | None,
        reset: bool,
    ) -> _Prepared:
        advice = _advice(X) if groups is None else ()
        features, targets, weights = self._validated(X, y, sample_weight, reset)
        encode, learnt = self._encode(self._summarizer()(targets, weights), known)
        labels, all_weights = encode(targets, weights)
        problem = Problem(
            features,
            labels,
            loss=self._loss(),
            response=self._reaction(),
            weights=all_weights,
            groups=groups,
            max_rows=self.max_rows,
        )
        runner = MemoryRunner(problem, thread_count(self.n_jobs), self.progress)
        if groups is None:
            digests, unit = compute_digests(features, self.n_features_in_), "record"
        else:
            digests, unit = merge_digests([np.unique(hash_people(groups, features.shape[0]))]), "person"
        identify = partial(identify_rows, features, columns=self.n_features_in_)
        return _Prepared(runner, features.shape[1], weights is not None, learnt, digests, identify, unit, advice)

    def _prepare_chunks(
        self,
        X: DaskTable,
        y: DaskColumn,
        sample_weight: DaskColumn | None,
        groups: DaskColumn | None,
        known: ArrayLike | None,
        reset: bool,
    ) -> _Prepared:
        data = chunks.to_chunks(X, y, sample_weight, groups)
        validate_data(self, data.sample, reset=reset, skip_check_array=True)
        survey = chunks.survey(data, self._summarizer(), self._has_numeric_targets())
        encode, learnt = self._encode(survey.summary, known)
        runner = make_runner(
            data,
            survey,
            encode,
            loss=self._loss(),
            response=self._reaction(),
            has_intercept=self.fit_intercept,
            progress=self.progress,
            max_rows=self.max_rows,
        )
        columns, unit = data.sample.shape[1] + self.fit_intercept, "record" if groups is None else "person"
        return _Prepared(runner, columns, sample_weight is not None, learnt, survey.digests, lambda key: None, unit)

    def _validated(
        self, X: Table, y: Column, sample_weight: Column | None, reset: bool
    ) -> tuple[Any, NDArray[Any], Array | None]:
        """Return features with their column of ones, y and weights, or raise scikit-learn's own errors."""
        with naming_columns(X):
            X, y = validate_data(
                self, X, y, reset=reset, accept_sparse="csr", dtype=[np.float64, np.float32], order="C",
                y_numeric=self._has_numeric_targets(),
            )  # fmt: skip
        weights = None
        if sample_weight is not None:
            weights = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        return (with_ones(X) if self.fit_intercept else X), y, weights

    @abstractmethod
    def _has_numeric_targets(self) -> bool:
        """Whether y must be numbers."""

    @abstractmethod
    def _declared_targets(self) -> ArrayLike | None:
        """Return what the user declared about y: its classes or its range, or None."""

    @abstractmethod
    def _summarizer(self) -> Callable[[Any, Array | None], Any]:
        """Return the function that summarizes y, or a chunk of it, for `_encode`."""

    @abstractmethod
    def _encode(self, summary: Any, known: ArrayLike | None) -> Encoding:
        """Return how y becomes labels, and set the attributes needed to decode predictions."""

    @abstractmethod
    def _loss(self) -> Loss:
        """Return the loss; called after `_encode`."""

    def _reaction(self) -> Response | None:
        """Return how records react: a column of ones, if there is one, does not; called after `_encode`."""
        if self.response is None or not self.fit_intercept:
            return self.response
        if label_kind(self._loss()) == "class":
            raise ValueError("fit_intercept must be False with a response and more than two classes, got True.")
        return FixedIntercept(self.response)

    # -- plan ---------------------------------------------------------------------------------------------------------

    def _task(self, data: _Prepared) -> Task:
        """Describe this fit by public facts."""
        return Task(
            method=self.method,
            budget=FitBudget(self.epsilon, self.delta, self.adjacency),
            records=data.runner.problem.records,
            columns=data.columns,
            loss=data.runner.problem.loss,
            choices=Choices(self.clip, self.batch, self.epochs, self.step),
            largest_weight=self._largest_class_weight() or (1.0 if data.weighted else None),
            has_intercept=self.fit_intercept,
            reacts=self.response is not None,
            is_rescalable=self._is_rescalable(),
        )

    def _is_rescalable(self) -> bool:
        """Whether scaling θ changes the predicted probabilities only, so that the last steps may do so."""
        return False

    def _largest_class_weight(self) -> float | None:
        """Return the largest weight of a class; None if classes have none."""
        return None

    def _initial(self, reset: bool, dimension: int) -> tuple[int | None, float | Array]:
        """Return the seed and θ_0; each call has its own seed, since the same noise twice would not average out."""
        seed = seed_from(self.random_state)
        if reset:
            return seed, 0.0
        if self.theta_.size != dimension:
            raise ValueError("fit_intercept and loss must stay what they were at the first call of partial_fit.")
        return derive_seed(seed, self.n_iter_), self.theta_

    # -- statement ----------------------------------------------------------------------------------------------------

    def _state_call(self, plan: TrainingPlan, data: _Prepared) -> Statement:
        """State what one call of `fit` or `partial_fit` spends, before it is made."""
        call = statement_of(plan, data.runner.problem.records, self.delta, self.adjacency)
        call = about_people(call, self.max_rows) if data.unit == "person" else call
        call = about_noise(about_seed(call, self.random_state is not None), plan.rule)
        for fault in reversed(data.learnt):
            call = fail_closed(call, fault)
        return call

    def _set_statement(self, call: Statement, data: _Prepared, counted: tuple[str, ...], reset: bool) -> None:
        """Set the statement and the number of steps; `counted` are notes about other fits."""
        steps = call.steps
        notes = data.learnt + counted
        if not reset:
            notes = tuple(dict.fromkeys((*self.statement_.notes, *notes, _PARALLEL)))
            call = _compose_in_parallel(call, self.statement_)
        self.n_iter_ = steps if reset else self.n_iter_ + steps
        others = [note for note in (*notes, *[_WEIGHTED] * data.weighted) if note not in call.reasons]
        self.statement_ = replace(call, reasons=(*call.reasons, *others), notes=notes)

    def _warn(self, data: _Prepared, counted: tuple[str, ...], seen: int) -> None:
        """Warn about what the fit revealed, or may have revealed, outside its statement."""
        notes = [f"{SEEDED} {SEED_ADVICE}"] if self.random_state is not None else []
        if seen:
            who = "people were in" if data.unit == "person" else "rows equal rows of"
            notes.append(
                f"partial_fit: {seen} of {data.runner.problem.records} {who} earlier calls. Whoever is in several "
                "calls spends the sum of their ε, which the statement does not count: use other people's rows."
            )
        for note in (*notes, *data.learnt, *counted, *data.advice):
            warnings.warn(note, PrivacyWarning, stacklevel=4)
        warn_about_delta(self.delta, data.runner.problem.records, stacklevel=4, unit=data.unit)

    # -- predictions --------------------------------------------------------------------------------------------------

    @abstractmethod
    def _set_coefficients(self, theta: Array) -> None:
        """Set coef_ and intercept_ from θ."""

    def _scores(self, X: Table) -> Array:
        """Return ⟨x, coef_⟩ + intercept_ for each row."""
        check_is_fitted(self)
        with naming_columns(X):
            X = validate_data(self, X, reset=False, accept_sparse="csr", dtype=[np.float64, np.float32])
        return np.asarray(safe_sparse_dot(X, self.coef_.T, dense_output=True) + self.intercept_)

    def _split_intercept(self, theta: Array) -> tuple[Array, Any]:
        """Split rows of θ into coefficients and intercepts, which are 0 if none were fitted."""
        return (theta[..., :-1], theta[..., -1]) if self.fit_intercept else (theta, np.zeros(theta.shape[:-1]))

    def __sklearn_tags__(self) -> Any:
        """Return scikit-learn's tags: sparse input is supported."""
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


def _advice(X: Any) -> tuple[str, ...]:
    """Return a sentence for each column of a data frame that looks like the id of a person."""
    names = [name for name in getattr(X, "columns", ()) if isinstance(name, str)]
    return tuple(map(advise_groups, find_repeated_ids({name: X[name] for name in names})))


@contextmanager
def rollback_on_error(estimator: BaseEstimator) -> Iterator[None]:
    """Restore all attributes of an estimator if the block raises, be it a warning turned into an error."""
    before = dict(vars(estimator))
    try:
        yield
    except BaseException:
        estimator.__dict__ = before
        raise


def thread_count(n_jobs: int | None) -> int:
    """Return the number of threads for scikit-learn's `n_jobs`: 1 for None, all processors for −1."""
    if n_jobs is None:
        return 1
    if isinstance(n_jobs, bool) or not isinstance(n_jobs, int | np.integer) or n_jobs == 0:
        raise ValueError(f"n_jobs must be None or a whole number other than 0, got {n_jobs!r}.")
    return int(effective_n_jobs(int(n_jobs)))


def seed_from(random_state: RandomState) -> int | None:
    """Return a seed for a seed or a generator; None, which makes noise unrepeatable, stays None."""
    if random_state is None:
        return None
    if isinstance(random_state, np.random.RandomState):
        return int(random_state.randint(2**31 - 1))
    return checks.integer("random_state", random_state, least=0)


def _compose_in_parallel(call: Statement, earlier: Statement) -> Statement:
    """Return what holds for the records of both statements, each of which is in one of them only; without notes."""
    one, other = _mended(call), _mended(earlier)
    joined = max(one, other, key=lambda statement: statement.certified)
    curves = one.certificate.profile, other.certificate.profile
    if curves[0] is not None and curves[1] is not None:
        joined = replace(joined, certificate=Certificate(worst(curves[0], curves[1]), joined.certificate.reasons))
    for fault in reversed(dict.fromkeys((*call.faults, *earlier.faults))):
        joined = fail_closed(joined, fault)
    return joined


def _mended(statement: Statement) -> Statement:
    """Return the statement of a fit without its faults and notes."""
    whole = statement if statement.mended is None else statement.mended
    return replace(whole, reasons=tuple(reason for reason in whole.reasons if reason not in statement.notes), notes=())
