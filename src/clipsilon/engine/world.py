"""A problem as compiled code takes it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clipsilon.checks import frozen
from clipsilon.problem import Problem
from clipsilon.rows import stored


class World(NamedTuple):
    """The arrays and parts of a problem."""

    features: Any  # a dense array, or `rows.Sparse`
    labels: NDArray[np.float64]
    weights: Any  # an array, or None
    loss: object
    response: object
    region: object


def world(problem: Problem) -> World:
    """The problem's arrays and parts."""
    weights = None if problem.weights is None else frozen(problem.weights)
    return World(
        stored(problem.features), frozen(problem.labels), weights, problem.loss, problem.response, problem.region
    )
