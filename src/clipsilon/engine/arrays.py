"""A problem as compiled code takes it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clipsilon._core.checks import frozen
from clipsilon._core.rows import stored
from clipsilon.problems.problem import Problem


class ProblemArrays(NamedTuple):
    """The arrays and parts of a problem."""

    features: Any  # a dense array, or `rows.Sparse`
    labels: NDArray[np.float64]
    weights: Any  # an array, or None
    loss: object
    response: object
    region: object


def problem_arrays(problem: Problem) -> ProblemArrays:
    """The problem's arrays and parts."""
    weights = None if problem.weights is None else frozen(problem.weights)
    return ProblemArrays(
        stored(problem.features), frozen(problem.labels), weights, problem.loss, problem.response, problem.region
    )
