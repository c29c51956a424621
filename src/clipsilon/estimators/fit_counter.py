"""Tuning spends budget: how often an estimator and its copies were fitted, and what that spends together.

`sklearn.base.clone` tells of copies, a fit of itself, and pickling of estimators that leave for other processes before
they were fitted: there they will be, out of sight, so that each counts as one fit whenever it leaves. An estimator that
has copies does not: a search sends it along with them as a template. One that arrives fitted, out of a file or from
another process, begins with the fit that its statement tells of.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, WeakSet

from sklearn.base import _clone_parametrized

from clipsilon.privacy.statement import shown


class Spent(NamedTuple):
    """What a family of estimators spends, by basic composition."""

    fits: int
    epsilon: float
    delta: float
    conditions: list[str]  # on which these are all


@dataclass
class _Family:
    fits: int = 0
    epsilon: float = 0.0
    delta: float = 0.0
    away: int = 0  # how often one of them left unfitted
    goes_on: bool = False  # by partial_fit
    templates: WeakSet[Any] = field(default_factory=WeakSet)  # those that were copied
    latest: WeakKeyDictionary[Any, float] = field(default_factory=WeakKeyDictionary)  # ε of each one's last fit


# Beside the estimators and not in them: a family is no parameter, and is neither pickled nor sent to other processes.
_families: WeakKeyDictionary[Any, _Family] = WeakKeyDictionary()
_lock = threading.Lock()


class Counted:
    """What makes an estimator count its fits; to be named before `BaseEstimator` among the bases."""

    epsilon: Any
    delta: Any

    def _count(self, afresh: bool = True) -> tuple[str, ...]:
        """Count a fit before it runs: one that is interrupted spends, too. A sentence if there are more than one."""
        return _together((fitted if afresh else went_on)(self, self.epsilon, self.delta))

    def __sklearn_clone__(self) -> Any:
        """A copy that knows its family."""
        copy = _clone_parametrized(self)
        copied(self, copy)
        return copy

    def __getstate__(self) -> Any:
        """The state to pickle; an estimator that leaves unfitted is taken to be fitted elsewhere."""
        if not hasattr(self, "statement_"):
            sent(self)
        return super().__getstate__()


def copied(original: Any, copy: Any) -> None:
    """Take `copy` into the family of `original`."""
    with _lock:
        _families[copy] = _of(original)
        _of(original).templates.add(original)


def sent(estimator: Any) -> None:
    """Count an estimator that leaves for another process."""
    with _lock:
        family = _of(estimator)
        family.away += estimator not in family.templates


def fitted(estimator: Any, epsilon: float, delta: float) -> Spent:
    """Count a fit; what the whole family spends if those that were sent away spend as much each."""
    with _lock:
        family = _of(estimator)
        family.fits += 1
        family.epsilon += epsilon
        family.delta += delta
        family.latest[estimator] = epsilon
        return _spent(family, epsilon, delta)


def went_on(estimator: Any, epsilon: float, delta: float) -> Spent | None:
    """Count another call of the last fit: with other records, so that only a larger ε than before spends more."""
    with _lock:
        family = _of(estimator)
        family.goes_on = True
        more = epsilon - family.latest.get(estimator, 0.0)
        if more <= 0:
            return None
        family.epsilon += more
        family.latest[estimator] = epsilon
        return _spent(family, epsilon, delta)


def _of(estimator: Any) -> _Family:
    if estimator not in _families:
        family = _families[estimator] = _Family()
        statement = getattr(estimator, "statement_", None)
        if statement is not None and statement.certified > 0:
            family.fits, family.epsilon, family.delta = 1, statement.certified, statement.delta
            family.latest[estimator] = statement.certified
    return _families[estimator]


def _spent(family: _Family, epsilon: float, delta: float) -> Spent:
    away, conditions = family.away, []
    if away:
        conditions.append(f"each of the {away} fitted elsewhere spent ε = {epsilon:g}, δ = {delta:g}")
    if family.goes_on:
        conditions.append("each record was in one call of partial_fit only")
    return Spent(family.fits + away, family.epsilon + away * epsilon, family.delta + away * delta, conditions)


def _together(spent: Spent | None) -> tuple[str, ...]:
    """The sentence about more fits than one."""
    if spent is None or spent.fits == 1:
        return ()
    condition = f", if {' and '.join(spent.conditions)}" if spent.conditions else ""
    return (
        f"This estimator and its copies stand for {spent.fits} fits: on the records that they share they spend "
        f"ε = {shown(spent.epsilon)}, δ = {spent.delta:g} together (basic composition){condition}, and whoever "
        "chooses between them by their scores on private records spends more.",
    )
