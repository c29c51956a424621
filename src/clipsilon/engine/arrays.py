"""A problem and the arrays of a step, in the form that compiled code takes."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import types
from numba.extending import overload
from numpy.typing import NDArray

from clipsilon._core.checks import frozen
from clipsilon._core.options import INLINE
from clipsilon._core.parts import all_ours, read_only
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
    """The records before they react.

    Attributes
    ----------
    features : array of shape (rows, columns) or rows.Sparse
        One row per record, or several.
    labels : array of shape (rows,)
        One label per row.
    weights : array of shape (rows,) or None
        Factors of the rows' gradients; None for 1.
    starts : array of shape (m + 1,) or None
        Record i is a person with the rows starts[i], …, starts[i + 1] − 1; None if each record is one row.
    """

    features: Any
    labels: Array
    weights: Array | None
    starts: Indices | None = None


class ProblemArrays(NamedTuple):
    """The arrays and parts of a problem.

    Attributes
    ----------
    records : Records
        The records before they react.
    loss : Loss
        The loss of one record.
    response : Response
        How records react to the deployed model.
    region : Region
        Where θ may be.
    """

    records: Records
    loss: Loss
    response: Response
    region: Region


class RecordParts(NamedTuple):
    """The parts that turn one record into its contribution to a step.

    Attributes
    ----------
    loss : Loss
        The loss of one record.
    response : Response
        How the record reacts to the deployed model.
    clip : Clip
        The clip in force in the step.
    feedback : Feedback
        The treatment of what the clip removes.
    """

    loss: Loss
    response: Response
    clip: Clip
    feedback: Feedback


class Models(NamedTuple):
    """θ, and the model that records react to: θ itself under greedy deployment.

    Losses and responses see these arrays, which are read-only where they can be of the user's own: what a record wrote
    into θ would be released without noise.
    """

    theta: Array
    deployed: Array


class Span(NamedTuple):
    """The records drawn[first:last] of a step.

    Attributes
    ----------
    drawn : array of int
        The records that take part in the step.
    first, last : int
        The places in `drawn` at which the span begins and ends.
    """

    drawn: Indices
    first: int
    last: int


class Sums(NamedTuple):
    """Sums over the records of a step, or of a part of it; all but the counts in units of the step's grid.

    Attributes
    ----------
    v : array of shape (d,)
        (1/B) Σ clip(g_i).
    kept : array
        (1/B) Σ cap(g_i) for the feedback; empty without feedback.
    penalties : array of shape (2,)
        The factors of l2·θ that are still to be added to v and to kept.
    counts : array
        What the clip counts; empty for clips that do not adapt.
    """

    v: Array
    kept: Array
    penalties: Array
    counts: Array


def visible_models(problem: Problem, theta: Array, deployed: Array) -> Models:
    """Return θ and the deployed model as losses and responses see them.

    Parameters
    ----------
    problem : Problem
        The problem, whose loss and response see the models.
    theta, deployed : array of shape (d,)
        The arrays of the state.

    Returns
    -------
    Models
        The arrays themselves if loss and response are the package's own, which do not write to them; else read-only
        views.
    """
    if all_ours(problem.loss) and all_ours(problem.response):
        return Models(theta, deployed)
    return Models(frozen(theta), frozen(deployed))


def problem_arrays(problem: Problem) -> ProblemArrays:
    """Return the problem's arrays and its parts, read-only. (What was pickled is writable again.)"""
    loss, response = read_only("loss", problem.loss), read_only("response", problem.response)
    table = records(problem.features, problem.labels, problem.weights, problem.starts)
    return ProblemArrays(table, loss, response, problem.region)


def records(features: Any, labels: Array, weights: Array | None, starts: Indices | None = None) -> Records:
    """Return a table of records as read-only arrays.

    Parameters
    ----------
    features : array or sparse matrix of shape (rows, columns)
        One row per record, or several.
    labels : array of shape (rows,)
        One label per row.
    weights : array of shape (rows,) or None
        One factor per row.
    starts : array of shape (m + 1,) or None
        Where the rows of each person begin, and where the last ones end; None if each record is one row.

    Returns
    -------
    Records
        Dense features as an array, sparse ones as `rows.Sparse`.
    """
    own = None if weights is None else frozen(weights)
    return Records(stored(features), frozen(labels), own, None if starts is None else frozen(starts))


# The next two are for compiled code, too.


def count_records(labels: Array, starts: Indices | None) -> int:
    """Return the number of records: of people, or of rows without people."""
    return labels.size if starts is None else starts.size - 1


def first_row(starts: Indices | None, i: int) -> int:
    """Return the first row of record i."""
    return i if starts is None else int(starts[i])


@overload(count_records, jit_options=INLINE)
def _count_of(labels, starts):  # type: ignore[no-untyped-def]
    if isinstance(starts, types.Array):
        return lambda labels, starts: starts.size - 1
    return lambda labels, starts: labels.size


@overload(first_row, jit_options=INLINE)
def _first_of(starts, i):  # type: ignore[no-untyped-def]
    return (lambda starts, i: starts[i]) if isinstance(starts, types.Array) else (lambda starts, i: i)
