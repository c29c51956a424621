"""A problem and the arrays of a step, as compiled code takes them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clipsilon._core.checks import frozen
from clipsilon._core.rows import stored
from clipsilon.problems.losses.base import Loss
from clipsilon.problems.problem import Problem
from clipsilon.problems.regions import Region
from clipsilon.problems.responses import Response
from clipsilon.rules.clipping import Clip
from clipsilon.rules.feedback import Feedback

Array = NDArray[np.float64]
Indices = NDArray[np.int64]


class Records(NamedTuple):
    """The records before they react."""

    features: Any  # a dense array, or `rows.Sparse`
    labels: Array
    weights: Array | None


class ProblemArrays(NamedTuple):
    """The arrays and parts of a problem."""

    records: Records
    loss: Loss
    response: Response
    region: Region


class RecordParts(NamedTuple):
    """The parts that turn one record into its contribution to a step."""

    loss: Loss
    response: Response
    clip: Clip  # the clip in force in the step
    feedback: Feedback


class Models(NamedTuple):
    """θ, and the model that records react to: θ itself under greedy deployment."""

    theta: Array
    deployed: Array


class Span(NamedTuple):
    """The records drawn[first:last] of a step."""

    drawn: Indices
    first: int
    last: int


class Sums(NamedTuple):
    """What the records of a step add up to."""

    v: Array  # (1/B) Σ clip(g_i)
    kept: Array  # (1/B) Σ cap(g_i) for the feedback; empty without
    counts: Array  # what the clip counts; empty for most


def problem_arrays(problem: Problem) -> ProblemArrays:
    """Return the problem's arrays, read-only, and its parts."""
    return ProblemArrays(
        records(problem.features, problem.labels, problem.weights), problem.loss, problem.response, problem.region
    )


def records(features: Any, labels: Array, weights: Array | None) -> Records:
    """Return a table of records as read-only arrays."""
    return Records(stored(features), frozen(labels), None if weights is None else frozen(weights))
