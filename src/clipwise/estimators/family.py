"""Tuning spends budget: how often an estimator and its copies were fitted, and what that spends together.

`sklearn.base.clone` tells of copies, a fit of itself, and pickling of estimators that leave for other processes before
they were fitted: there they will be, out of sight, so that each counts as one fit. An estimator that has copies does
not: a search sends it along with them as a template.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, WeakSet

from sklearn.base import _clone_parametrized


class Spent(NamedTuple):
    """What a family of estimators spends, by basic composition."""

    fits: int
    epsilon: float
    delta: float


@dataclass
class _Family:
    fits: int = 0
    epsilon: float = 0.0
    delta: float = 0.0
    away: int = 0  # how many left unfitted
    known: WeakSet[Any] = field(default_factory=WeakSet)  # these, and those that were copied


# Beside the estimators and not in them: a family is no parameter, and is neither pickled nor sent to other processes.
_families: WeakKeyDictionary[Any, _Family] = WeakKeyDictionary()
_lock = threading.Lock()


class Counted:
    """What makes an estimator count its fits; to be named before `BaseEstimator` among the bases."""

    epsilon: Any
    delta: Any

    def _count(self) -> tuple[str, ...]:
        """Count a fit before it runs: one that is interrupted spends, too. A sentence if there are more than one."""
        return _together(fitted(self, self.epsilon, self.delta))

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
        _of(original).known.add(original)


def sent(estimator: Any) -> None:
    """Count an estimator that leaves for another process, once."""
    with _lock:
        family = _of(estimator)
        if estimator not in family.known:
            family.known.add(estimator)
            family.away += 1


def fitted(estimator: Any, epsilon: float, delta: float) -> Spent:
    """Count a fit; what the whole family spends if those that were sent away spend as much each."""
    with _lock:
        family = _of(estimator)
        family.fits += 1
        family.epsilon += epsilon
        family.delta += delta
        away = family.away
        return Spent(family.fits + away, family.epsilon + away * epsilon, family.delta + away * delta)


def _of(estimator: Any) -> _Family:
    return _families.setdefault(estimator, _Family())


def _together(spent: Spent) -> tuple[str, ...]:
    """The sentence about more fits than one."""
    if spent.fits == 1:
        return ()
    return (
        f"This estimator and its copies stand for {spent.fits} fits: on the records that they share they spend "
        f"ε = {spent.epsilon:g}, δ = {spent.delta:g} together (basic composition), and whoever chooses between them by "
        "their scores on private records spends more.",
    )
