"""What the private estimators share: from records to labels, from settings to a rule, from a run to coefficients."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from joblib import effective_n_jobs
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.extmath import safe_sparse_dot
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from clipsilon._core import checks
from clipsilon._core.rows import with_ones
from clipsilon.engine import run
from clipsilon.engine.remote import RemoteProblem
from clipsilon.estimators import chunks, methods
from clipsilon.estimators import fit_counter as family
from clipsilon.estimators import rescaling as length
from clipsilon.estimators.methods import Budget, Choices, Plan
from clipsilon.estimators.rescaling import another_seed
from clipsilon.estimators.targets import Labels
from clipsilon.privacy.accounting.profiles import worst
from clipsilon.privacy.certificate import Certificate
from clipsilon.privacy.statement import SEEDED, Statement, about_seed, account
from clipsilon.privacy.warning import PrivacyWarning
from clipsilon.problems.losses.base import label_kind
from clipsilon.problems.problem import Problem
from clipsilon.rules.rule import Rule

Array = NDArray[np.float64]

_PARALLEL = "partial_fit: a record must be in one call only; this is the call that spends most (parallel composition)."


class Reading(NamedTuple):
    """How y is read."""

    read: Callable[[Any, Array | None], Labels]  # from y and weights to what the loss sees
    learnt: tuple[str, ...]  # what was learnt from the records without budget, in sentences


class Trained(NamedTuple):
    """What a run leaves behind."""

    theta: Array
    plan: Plan
    records: int
    notes: tuple[str, ...]  # what its statement does not cover, in sentences


class PrivateEstimator(family.Counted, BaseEstimator, ABC):  # type: ignore[misc]
    """The shared fit. A class says how y becomes labels, which loss they have, and what θ means.

    A fit is five steps, in memory (`_train_on_tables`) or where Dask's chunks are (`_train_on_chunks`): check the
    records and take the `_tally` of y; `_read` it (how y becomes labels); `_plan` (a calibrated rule); train (θ);
    `_account` for it and `_publish` the attributes.
    """

    # The parameters, which the classes' own constructors set.
    epsilon: float
    delta: float
    method: Any
    random_state: Any
    clip: float | None
    batch: int | None
    epochs: float | None
    step: Any
    fit_intercept: bool
    response: Any
    adjacency: str
    n_jobs: int | None
    progress: bool | None
    # What a fit leaves behind.
    theta_: Array
    coef_: Array
    intercept_: Any
    n_iter_: int
    statement_: Statement

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Any:
        """Fit the model to one release of the records.

        Parameters
        ----------
        X
            Array, data frame or sparse matrix of numbers, one row a record; or a Dask array or data frame, which stays
            where it is (docs/how-to/dask.md).
        y
            One target a record.
        sample_weight
            Weights of at least 0, which multiply a record's loss before it is clipped, so that they change nothing
            about its privacy.
        """
        return self._learn(X, y, sample_weight, self._known(), afresh=True)

    def _learn(self, X: Any, y: Any, sample_weight: Any, known: Any, afresh: bool) -> Any:
        """Fit, afresh or from the present θ, with what is known of y beforehand."""
        self._check_settings(afresh)
        with rollback_on_error(self):
            train_on = self._train_on_chunks if chunks.is_chunked(X) else self._train_on_tables
            trained = train_on(X, y, sample_weight, known, afresh)
            self._account(trained, afresh)
            self.theta_ = trained.theta
            self._publish(trained.theta)
        return self

    def _check_settings(self, afresh: bool) -> None:
        """Refuse settings that do not go together, or not with those of an earlier call."""
        checks.flag("fit_intercept", self.fit_intercept)
        threads(self.n_jobs)
        if self.progress is not None:
            checks.flag("progress", self.progress)
        if self.fit_intercept and self.response is not None:
            raise ValueError(
                "fit_intercept must be False with a response: the column of ones would react to the model, too."
            )
        for name in () if afresh else ("delta", "adjacency"):
            now, first = getattr(self, name), getattr(self.statement_, name)
            if not isinstance(now, type(first)) or now != first:
                raise ValueError(f"{name} must stay what it was at the first call of partial_fit ({first}), got {now}.")

    def _train_on_tables(self, X: Any, y: Any, sample_weight: Any, known: Any, afresh: bool) -> Trained:
        features, y, weights = self._validated(X, y, sample_weight, afresh)
        read, learnt = self._read(self._tally()(y, weights), known)
        weighted = weights is not None
        labels, weights = read(y, weights)
        loss = self._loss()
        problem = Problem(features, labels, loss=loss, response=self.response, weights=weights)
        plan = self._plan(problem.records, features.shape[1], kind(loss), weighted)
        beginning = self._beginning(afresh, problem.dimension)
        notes = learnt + self._count(afresh)
        theta = train(problem, plan, *beginning, self.n_jobs, self.progress)
        return Trained(theta, plan, problem.records, notes)

    def _train_on_chunks(self, X: Any, y: Any, sample_weight: Any, known: Any, afresh: bool) -> Trained:
        data = chunks.chunked(X, y, sample_weight)
        validate_data(self, data.sample, reset=afresh, skip_check_array=True)
        sizes, tally = chunks.survey(data, self._tally(), self._numeric_targets())
        read, learnt = self._read(tally, known)
        loss, columns = self._loss(), data.sample.shape[1] + self.fit_intercept
        problem = RemoteProblem(sum(sizes), columns, loss=loss, response=self.response)
        plan = self._plan(problem.records, columns, kind(loss), sample_weight is not None)
        how = problem, plan, *self._beginning(afresh, problem.dimension), self.progress
        notes = learnt + self._count(afresh)
        theta = chunks.train(data, sizes, read, self.fit_intercept, *how)
        return Trained(theta, plan, problem.records, notes)

    # -- records ------------------------------------------------------------------------------------------------------

    def _validated(self, X: Any, y: Any, sample_weight: Any, afresh: bool) -> tuple[Any, Any, Array | None]:
        """Features with their column of ones, y and weights, or scikit-learn's own errors."""
        X, y = validate_data(
            self, X, y, reset=afresh, accept_sparse="csr", dtype=[np.float64, np.float32], order="C",
            y_numeric=self._numeric_targets(),
        )  # fmt: skip
        weights = None
        if sample_weight is not None:
            weights = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        return (with_ones(X) if self.fit_intercept else X), y, weights

    @abstractmethod
    def _numeric_targets(self) -> bool:
        """Whether y must be numbers."""

    @abstractmethod
    def _known(self) -> Any:
        """What the user told about y: its classes or its range, or None."""

    @abstractmethod
    def _tally(self) -> Callable[[Any, Array | None], Any]:
        """What counts y, or a chunk of it, for `_read`."""

    @abstractmethod
    def _read(self, tally: Any, known: Any) -> Reading:
        """How y becomes labels; sets what is needed to read predictions."""

    @abstractmethod
    def _loss(self) -> Any:
        """The loss, once the targets are known."""

    # -- rule ---------------------------------------------------------------------------------------------------------

    def _plan(self, records: int, columns: int, loss: str, weighted: bool) -> Plan:
        """The calibrated rule for so many records, and how long it runs."""
        choices = Choices(self.clip, self.batch, self.epochs, self.step)
        budget = Budget(self.epsilon, self.delta, self.adjacency)
        weight = self._largest_weight() or (1.0 if weighted else None)
        how = self._stretches(), weight, self.fit_intercept, self.response is not None
        return methods.plan(self.method, choices, budget, records, columns, loss, *how)

    def _stretches(self) -> bool:
        """Whether a factor of θ would change nothing but probabilities, so that the last steps may look for it."""
        return False

    def _largest_weight(self) -> float | None:
        """The largest weight of a class; None if classes have none."""
        return None

    def _beginning(self, afresh: bool, dimension: int) -> tuple[int | None, Any]:
        """The seed and θ_0; a later call gets a seed of its own, since the same noise twice would not average out."""
        seed = seed_of(self.random_state)
        if afresh:
            return seed, 0.0
        if self.theta_.size != dimension:
            raise ValueError("fit_intercept and loss must stay what they were at the first call of partial_fit.")
        return another_seed(seed, self.n_iter_), self.theta_

    # -- statement ----------------------------------------------------------------------------------------------------

    def _account(self, trained: Trained, afresh: bool) -> None:
        """Set the statement, and warn of what it does not cover."""
        plan, notes = trained.plan, trained.notes
        call = account(plan.rule, trained.records, plan.all_steps, self.delta, self.adjacency)
        call = about_seed(call, self.random_state is not None)
        if plan.closing is not None:
            call = replace(call, reasons=(*call.reasons, length.note(plan.closing_steps, plan.intercept)))
        for note in notes:
            warnings.warn(note, PrivacyWarning, stacklevel=4)
        if not afresh:
            notes = tuple(dict.fromkeys((*self.statement_.notes, *notes, _PARALLEL)))
            call = _either(call, self.statement_)
        self.n_iter_ = plan.all_steps if afresh else self.n_iter_ + plan.all_steps
        self.statement_ = replace(call, reasons=(*call.reasons, *notes), notes=notes)

    # -- predictions --------------------------------------------------------------------------------------------------

    @abstractmethod
    def _publish(self, theta: Array) -> None:
        """Set coef_ and intercept_ from θ."""

    def _scores(self, X: Any) -> Array:
        """⟨x, coef_⟩ + intercept_."""
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, accept_sparse="csr", dtype=[np.float64, np.float32])
        return np.asarray(safe_sparse_dot(X, self.coef_.T, dense_output=True) + self.intercept_)

    def _split(self, theta: Array) -> tuple[Array, Any]:
        """The coefficients and the intercept of rows of θ."""
        return (theta[..., :-1], theta[..., -1]) if self.fit_intercept else (theta, np.zeros(theta.shape[:-1]))

    def __sklearn_tags__(self) -> Any:
        """Sparse input is welcome."""
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


@contextmanager
def rollback_on_error(estimator: Any) -> Iterator[None]:
    """Whatever fails within, be it a warning that is an error, leaves the model what it was."""
    before = dict(vars(estimator))
    try:
        yield
    except BaseException:
        estimator.__dict__ = before
        raise


def train(problem: Problem, plan: Plan, seed: int | None, start: Any, n_jobs: Any, progress: bool | None) -> Array:
    """θ of one run; `n_jobs` is as scikit-learn has it, where None is one thread."""
    workers = threads(n_jobs)

    def run_part(rule: Rule, steps: int, seed: int | None, start: Any, directions: Array | None) -> Array:
        case = problem
        if directions is not None:
            margins = length.margins(problem.features, directions)
            case = Problem(margins, problem.labels, loss=problem.loss, weights=problem.weights)
        trace = run(case, rule, steps, start, seed=seed, record=[steps], n_jobs=workers, progress=progress)
        return np.array(trace.output[0])

    return methods.execute(plan, run_part, seed, start)


def threads(n_jobs: Any) -> int:
    """The number of threads; None is one, and −1 all processors."""
    if n_jobs is None:
        return 1
    if isinstance(n_jobs, bool) or not isinstance(n_jobs, int | np.integer) or n_jobs == 0:
        raise ValueError(f"n_jobs must be None or a whole number other than 0, got {n_jobs!r}.")
    return int(effective_n_jobs(int(n_jobs)))


def seed_of(random_state: Any) -> int | None:
    """A seed from a seed or a generator; None stays None: noise that nobody can repeat."""
    if random_state is None:
        return None
    if isinstance(random_state, np.random.RandomState):
        return int(random_state.randint(2**31 - 1))
    return checks.integer("random_state", random_state, least=0)


def kind(loss: Any) -> str:
    """Which of the default rules a loss goes by: that for classes, or that for numbers."""
    return "logistic" if label_kind(loss) in ("binary", "class") else "squared"


def _either(call: Statement, earlier: Statement) -> Statement:
    """What holds for the records of a call and of those before it, each in one of them only; without the notes."""
    earlier = replace(earlier, reasons=tuple(reason for reason in earlier.reasons if reason not in earlier.notes))
    larger, other = sorted((call, earlier), key=lambda statement: -statement.certified)
    if SEEDED in other.reasons and SEEDED not in larger.reasons:
        larger = replace(larger, reasons=(*larger.reasons, SEEDED))
    curves = [statement.certificate.profile for statement in (call, earlier)]
    if curves[0] is None or curves[1] is None:
        return larger
    return replace(larger, certificate=Certificate(worst(curves[0], curves[1]), larger.certificate.reasons))
