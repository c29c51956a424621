"""A problem and the arrays of a step, in the form that compiled code takes."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clipsilon._core.checks import frozen
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
    features : array of shape (m, columns) or rows.Sparse
        One row per record.
    labels : array of shape (m,)
        One label per record.
    weights : array of shape (m,) or None
        Factors of the records' gradients; None for 1.
    """

    features: Any
    labels: Array
    weights: Array | None


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
    return ProblemArrays(records(problem.features, problem.labels, problem.weights), loss, response, problem.region)


def records(features: Any, labels: Array, weights: Array | None) -> Records:
    """Return a table of records as read-only arrays.

    Parameters
    ----------
    features : array or sparse matrix of shape (m, columns)
        One row per record.
    labels : array of shape (m,)
        One label per record.
    weights : array of shape (m,) or None
        One factor per record.

    Returns
    -------
    Records
        Dense features as an array, sparse ones as `rows.Sparse`.
    """
    return Records(stored(features), frozen(labels), None if weights is None else frozen(weights))
