"""Canaries: neighbouring data sets on which one record stands out as far as a rule allows.

All other records have gradient zero, so that nothing hides the canary. The loss is linear: a record's gradient is the
record itself, whatever the model.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from clipsilon._core.parts import implements, traits
from clipsilon.problems.losses.base import gradient, value
from clipsilon.problems.problem import Problem


@traits(labels="none")
class Linear(NamedTuple):
    """ℓ(θ; z) = ⟨θ, z⟩: the gradient is z."""


@implements(value, Linear)
def _(loss, theta, features, label):
    total = 0.0
    for j in range(theta.size):
        total += theta[j] * features[j]
    return total


@implements(gradient, Linear)
def _(loss, theta, features, label, out):
    for j in range(theta.size):
        out[j] = features[j]


class Pair(NamedTuple):
    """Neighbouring problems, without and with the canary."""

    absent: Problem
    present: Problem


def canary_pair(records: int, size: float, adjacency: str, *, counted: bool = False) -> Pair:
    """Return neighbouring problems of one column, in which all records but the first are zero.

    Parameters
    ----------
    records : int
        The number of records of each problem.
    size : float
        The first record with the canary.
    adjacency : str
        Without the canary, the first record is −size for "replace-one", and zero otherwise.
    counted : bool, default False
        Whether the rule counts records. A record that is zeroed out has weight 0 then: one that is zero would be
        counted.

    Returns
    -------
    Pair
        The problems without and with the canary.
    """
    present, absent = np.zeros((2, records))
    present[0] = size
    absent[0] = -size if adjacency == "replace-one" else 0.0
    if not counted:
        return Pair(Problem(absent, loss=Linear()), Problem(present, loss=Linear()))
    weights = np.ones((2, records))
    weights[0, 0] = 1.0 if adjacency == "replace-one" else 0.0
    return Pair(Problem(absent, loss=Linear(), weights=weights[0]), Problem(present, loss=Linear(), weights=weights[1]))
