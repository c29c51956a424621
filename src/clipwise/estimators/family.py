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
