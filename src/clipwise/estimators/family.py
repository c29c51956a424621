"""Tuning spends budget: how often an estimator and its copies were fitted, and what that spends together.

`sklearn.base.clone` tells `copied`, and a fit tells `fitted`. A copy that has not been fitted here counts as one fit:
cross-validation makes its copies in this process and may fit them in others. A copy that was only copied again, such
as the template that a search works with, does not.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary


class Spent(NamedTuple):
    """What a family of estimators spends, by basic composition."""

    fits: int
    epsilon: float
    delta: float


@dataclass
class _Family:
    spent: Spent = Spent(0, 0.0, 0.0)
    expected: int = 0  # copies that may have been fitted elsewhere


@dataclass
class _Member:
    family: _Family
    expected: bool = False


# Beside the estimators and not in them: a family is no parameter, and is neither pickled nor sent to other processes.
_members: WeakKeyDictionary[Any, _Member] = WeakKeyDictionary()
_lock = threading.Lock()


def copied(original: Any, copy: Any) -> None:
    """Take `copy` into the family of `original`."""
    with _lock:
        family = _met(original)
        _members[copy] = _Member(family, expected=True)
        family.expected += 1


def fitted(estimator: Any, epsilon: float, delta: float) -> Spent:
    """Count a fit; what the whole family spends if copies elsewhere spend as much each."""
    with _lock:
        family = _met(estimator)
        fits, spent, failed = family.spent
        family.spent = Spent(fits + 1, spent + epsilon, failed + delta)
        away = family.expected
        return Spent(fits + 1 + away, spent + (1 + away) * epsilon, failed + (1 + away) * delta)


def _met(estimator: Any) -> _Family:
    """The family of an estimator that is at hand, and so is no longer expected elsewhere."""
    member = _members.setdefault(estimator, _Member(_Family()))
    member.family.expected -= member.expected
    member.expected = False
    return member.family
