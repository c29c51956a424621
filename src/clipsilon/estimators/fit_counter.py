"""Tuning spends budget: count how often an estimator and its copies were fitted, and what these fits spend together.

`sklearn.base.clone` reports copies, and the estimators report their fits. An estimator that is pickled before it was
fitted is assumed to leave for another process and to be fitted there, out of sight, so each time it leaves counts as
one fit. An estimator that has copies does not count when it leaves: a search sends it along with them as a template.
One that arrives fitted, from a file or from another process, starts with the fit that its statement describes.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self
from weakref import WeakKeyDictionary, WeakSet

from sklearn.base import BaseEstimator, _clone_parametrized

from clipsilon.privacy.statement import format_epsilon


class Spent(NamedTuple):
    """What an estimator and its copies spend, by basic composition.

    Parameters
    ----------
    fits : int
        Number of fits, those elsewhere included.
    epsilon, delta : float
        The sums over all fits.
    conditions : list of str
        Assumptions under which these are the sums.
    """

    fits: int
    epsilon: float
    delta: float
    conditions: list[str]


@dataclass
class _FitCount:
    """The fits of one estimator and its copies."""

    fits: int = 0
    epsilon: float = 0.0
    delta: float = 0.0
    elsewhere: int = 0  # how often one of them left unfitted
    continued: bool = False  # by partial_fit
    templates: WeakSet[Any] = field(default_factory=WeakSet)  # estimators that were copied
    latest: WeakKeyDictionary[Any, float] = field(default_factory=WeakKeyDictionary)  # ε of the last fit of each


# Kept outside the estimators: a count is not a parameter, and is neither pickled nor sent to other processes.
_counts: WeakKeyDictionary[Any, _FitCount] = WeakKeyDictionary()
_lock = threading.Lock()


class FitCounterMixin:
    """Make an estimator count its fits; must precede `BaseEstimator` among the bases."""

    epsilon: Any
    delta: Any

    def _count_fit(self, reset: bool = True) -> tuple[str, ...]:
        """Count a fit before it runs, since an interrupted one spends, too; return a note if it is not the first."""
        return _note((record_fit if reset else record_partial_fit)(self, self.epsilon, self.delta))

    def __sklearn_clone__(self) -> Self:
        """Return a copy that shares the count."""
        copy: Self = _clone_parametrized(self)
        record_copy(self, copy)
        return copy

    def __getstate__(self) -> Any:
        """Return the state to pickle; an estimator that leaves unfitted is assumed to be fitted elsewhere."""
        if not hasattr(self, "statement_"):
            record_departure(self)
        return super().__getstate__()


def record_copy(original: BaseEstimator, copy: BaseEstimator) -> None:
    """Let `copy` share the count of `original`."""
    with _lock:
        _counts[copy] = _count_of(original)
        _count_of(original).templates.add(original)


def record_departure(estimator: BaseEstimator) -> None:
    """Count an estimator that leaves for another process, unless it is a template."""
    with _lock:
        count = _count_of(estimator)
        count.elsewhere += estimator not in count.templates


def record_fit(estimator: BaseEstimator, epsilon: float, delta: float) -> Spent:
    """Count a fit.

    Parameters
    ----------
    estimator : BaseEstimator
        The estimator that is fitted.
    epsilon, delta : float
        What the fit spends.

    Returns
    -------
    Spent
        What all fits spend together, if each fit elsewhere spends as much as this one.
    """
    with _lock:
        count = _count_of(estimator)
        count.fits += 1
        count.epsilon += epsilon
        count.delta += delta
        count.latest[estimator] = epsilon
        return _spent(count, epsilon, delta)


def record_partial_fit(estimator: BaseEstimator, epsilon: float, delta: float) -> Spent | None:
    """Count a later call of the last fit, on other records: only an ε larger than before spends more.

    Parameters
    ----------
    estimator : BaseEstimator
        The estimator that is fitted.
    epsilon, delta : float
        What the call spends.

    Returns
    -------
    Spent or None
        What all fits spend together; None if the call spends nothing more.
    """
    with _lock:
        count = _count_of(estimator)
        count.continued = True
        more = epsilon - count.latest.get(estimator, 0.0)
        if more <= 0:
            return None
        count.epsilon += more
        count.latest[estimator] = epsilon
        return _spent(count, epsilon, delta)


def _count_of(estimator: Any) -> _FitCount:
    """Return the count of an estimator; a new one starts with the fit that its statement describes, if any."""
    if estimator not in _counts:
        count = _counts[estimator] = _FitCount()
        statement = getattr(estimator, "statement_", None)
        if statement is not None and statement.nominal > 0:
            count.fits, count.epsilon, count.delta = 1, statement.nominal, statement.delta
            count.latest[estimator] = statement.nominal
    return _counts[estimator]


def _spent(count: _FitCount, epsilon: float, delta: float) -> Spent:
    elsewhere, conditions = count.elsewhere, []
    if elsewhere:
        conditions.append(f"each of the {elsewhere} fitted elsewhere spent ε = {epsilon:g}, δ = {delta:g}")
    if count.continued:
        conditions.append("each record was in one call of partial_fit only")
    total_epsilon, total_delta = count.epsilon + elsewhere * epsilon, count.delta + elsewhere * delta
    return Spent(count.fits + elsewhere, total_epsilon, total_delta, conditions)


def _note(spent: Spent | None) -> tuple[str, ...]:
    """Return a note about several fits; none for a single fit."""
    if spent is None or spent.fits == 1:
        return ()
    condition = f", if {' and '.join(spent.conditions)}" if spent.conditions else ""
    return (
        f"This estimator and its copies stand for {spent.fits} fits: on the records that they share they spend "
        f"ε = {format_epsilon(spent.epsilon)}, δ = {spent.delta:g} together (basic composition){condition}, and "
        "whoever chooses between them by their scores on private records spends more.",
    )
