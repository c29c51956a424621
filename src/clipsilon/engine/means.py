"""Compiled means over all records at one model, for metrics and fixed points.

The functions distinguish the `deployed` model, which the records react to, from θ, at which the loss is
evaluated; the two are equal for performative quantities. A random response is averaged over `draws` draws, which
are the same in every call, so that the result is a smooth function of θ. If records are people with several rows, each
person counts alike: the objective is the mean over people of the mean over their rows.

What is returned per record depends on that record alone, also for losses and responses of users.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.extending import overload, register_jitable
from numpy.random import SFC64, Generator
from numpy.typing import NDArray

from clipsilon._core.checks import frozen
from clipsilon._core.kernel_cache import kernel
from clipsilon._core.options import INNER
from clipsilon._core.rows import row, weigh, weight_of, width
from clipsilon._core.vectors import norm
from clipsilon.engine.arrays import ProblemArrays, count_records, problem_arrays, visible_models
from clipsilon.engine.batch import forget
from clipsilon.problems.losses.base import gradient, value
from clipsilon.problems.problem import Problem
from clipsilon.problems.responses import is_random, respond
from clipsilon.rules.clipping import Clip, Unclipped, add_clipped

Array = NDArray[np.float64]


def mean_loss(problem: Problem, theta: Array, deployed: Array, draws: int) -> float:
    """Return f(θ; deployed) = E_{Z ~ D(deployed)} ℓ(θ; Z) (paper 1, eq. 10).

    Parameters
    ----------
    problem : Problem
        The problem, with its weights.
    theta, deployed : ndarray of shape (d,)
        The model that is evaluated, and the model that the records react to.
    draws : int
        The number of reactions averaged per record if the response is random.

    Returns
    -------
    float
        The mean loss.
    """
    return float(_mean_loss(_row_by_row(problem), theta, deployed, _repeats(problem, draws), _generator()))


def mean_gradient(problem: Problem, theta: Array, deployed: Array, draws: int, clip: Clip | None = None) -> Array:
    """Return ∇_θ f(θ; deployed), or the mean of the clipped gradients.

    Parameters
    ----------
    problem : Problem
        The problem, with its weights.
    theta, deployed : ndarray of shape (d,)
        The model that is evaluated, and the model that the records react to.
    draws : int
        The number of reactions averaged per record if the response is random.
    clip : Clip, optional
        Applied to the gradient of each record, of a person to the mean over the rows. The default does not clip.

    Returns
    -------
    ndarray of shape (d,)
        The mean gradient.
    """
    part = Unclipped() if clip is None else clip
    arrays = _row_by_row(problem) if clip is None else problem_arrays(problem)
    return np.asarray(_mean_gradient(arrays, part, theta, deployed, _repeats(problem, draws), _generator()))


def record_gradients(problem: Problem, theta: Array, clip: Clip) -> Array:
    """Return the clipped gradient of each record while θ is deployed.

    Parameters
    ----------
    problem : Problem
        The problem, with its weights.
    theta : ndarray of shape (d,)
        The deployed model, at which gradients are taken.
    clip : Clip
        Applied to each gradient.

    Returns
    -------
    ndarray of shape (m, d)
        The gradients; with a random response, after one reaction.
    """
    seen, _ = visible_models(problem, theta, theta)
    return np.asarray(_record_gradients(problem_arrays(problem), clip, seen, _generator()))


def gradient_norms(problem: Problem, theta: Array, deployed: Array, draws: int) -> Array:
    """Return ‖∇ℓ(θ; Z)‖ for every record and every draw of its reaction.

    Parameters
    ----------
    problem : Problem
        The problem, with its weights.
    theta, deployed : ndarray of shape (d,)
        The model that is evaluated, and the model that the records react to.
    draws : int
        The number of reactions per record if the response is random.

    Returns
    -------
    ndarray of shape (m, draws)
        The norms; a single column if the response is not random.
    """
    seen = visible_models(problem, theta, deployed)
    return np.asarray(_gradient_norms(problem_arrays(problem), *seen, _repeats(problem, draws), _generator()))


def moved_features(problem: Problem, deployed: Array) -> Array:
    """Return the features of all rows after one reaction to a model, as a dense table."""
    return np.asarray(_moved_features(problem_arrays(problem), deployed, _generator()))


def count_signs(problem: Problem, theta: Array, deployed: Array, draws: int) -> Array:
    """Count the negatives and positives, and how many of them the sign of ⟨x, θ⟩ classifies correctly.

    A row of a person with n rows counts as 1/n; weights do not matter.

    Parameters
    ----------
    problem : Problem
        A problem with labels 0 and 1.
    theta, deployed : ndarray of shape (d,)
        The model that is evaluated, and the model that the records react to.
    draws : int
        The number of reactions per record if the response is random.

    Returns
    -------
    ndarray of shape (2, 2)
        The numbers of negatives and positives, and below them those classified correctly, summed over draws.
    """
    arrays = problem_arrays(problem)
    alike = None if problem.starts is None else _shares(problem)
    arrays = arrays._replace(records=arrays.records._replace(weights=alike, starts=None))
    return np.asarray(_count_signs(arrays, theta, deployed, _repeats(problem, draws), _generator()))


def _row_by_row(problem: Problem) -> ProblemArrays:
    """Return a problem with one record per row, weighted so that means over rows are means over people."""
    arrays = problem_arrays(problem)
    if problem.starts is None:
        return arrays
    weights = _shares(problem) * (problem.rows / problem.records)
    if problem.weights is not None:
        weights = weights * problem.weights
    return arrays._replace(records=arrays.records._replace(weights=frozen(weights), starts=None))


def _shares(problem: Problem) -> Array:
    """Return 1/n for each row of a person with n rows."""
    assert problem.starts is not None
    counts = np.diff(problem.starts)
    return frozen(np.repeat(1.0 / counts, counts))


def _repeats(problem: Problem, draws: int) -> int:
    return draws if is_random(problem.response) else 1


def _generator() -> Generator:
    return Generator(SFC64(0))


@kernel
def _mean_loss(arrays: ProblemArrays, theta: Array, deployed: Array, repeats: int, rng: Generator) -> float:
    features, labels, weights, _ = arrays.records
    moved, stored_row = np.empty(width(features)), np.empty(width(features))
    total = 0.0
    for i in range(labels.size):
        for _ in range(repeats):
            label = respond(arrays.response, deployed, row(features, i, stored_row), labels[i], moved, rng)
            total += weight_of(weights, i) * value(arrays.loss, theta, moved, label)
    return total / (labels.size * repeats)


@kernel
def _moved_features(arrays: ProblemArrays, deployed: Array, rng: Generator) -> Array:
    features, labels, _, _ = arrays.records
    stored_row = np.empty(width(features))
    table = np.full((labels.size, stored_row.size), np.nan)
    for i in range(labels.size):
        respond(arrays.response, deployed, row(features, i, stored_row), labels[i], table[i], rng)
    return table


@kernel
def _mean_gradient(
    arrays: ProblemArrays, clip: Clip, theta: Array, deployed: Array, repeats: int, rng: Generator
) -> Array:
    space = _space(arrays.records.features, theta)
    gradient_i, total = np.empty(theta.size), np.zeros(theta.size)
    m = count_records(arrays.records.labels, arrays.records.starts)
    weight = 1.0 / (m * repeats)
    for i in range(m):
        for _ in range(repeats):
            _write_gradient(arrays, theta, deployed, i, space, gradient_i, rng)
            add_clipped(clip, gradient_i, weight, total)
    return total


@kernel
def _record_gradients(arrays: ProblemArrays, clip: Clip, theta: Array, rng: Generator) -> Array:
    space = _space(arrays.records.features, theta)
    gradient_i = np.empty(theta.size)
    m = count_records(arrays.records.labels, arrays.records.starts)
    out = np.zeros((m, theta.size))
    for i in range(m):
        _write_gradient(arrays, theta, theta, i, space, gradient_i, rng)
        add_clipped(clip, gradient_i, 1.0, out[i])
    return out


@kernel
def _gradient_norms(arrays: ProblemArrays, theta: Array, deployed: Array, repeats: int, rng: Generator) -> Array:
    space = _space(arrays.records.features, theta)
    gradient_i = np.empty(theta.size)
    m = count_records(arrays.records.labels, arrays.records.starts)
    norms = np.empty((m, repeats))
    for i in range(m):
        for k in range(repeats):
            _write_gradient(arrays, theta, deployed, i, space, gradient_i, rng)
            norms[i, k] = norm(gradient_i)
    return norms


@register_jitable(**INNER)  # type: ignore[untyped-decorator]
def _space(features: Any, theta: Array) -> tuple[Array, Array, Array]:
    """Return room for a row before and after its reaction, and for its gradient."""
    return np.empty(width(features)), np.empty(width(features)), np.empty(theta.size)


def _write_gradient(arrays, theta, deployed, i, space, out, rng):  # type: ignore[no-untyped-def]
    """Write the gradient of a record after one reaction: of its row, or the mean over the rows of a person."""


@overload(_write_gradient, jit_options=INNER)
def _gradient_of(arrays, theta, deployed, i, space, out, rng):  # type: ignore[no-untyped-def]
    def of_row(arrays, theta, deployed, i, space, out, rng):  # type: ignore[no-untyped-def]
        features, labels, weights, _ = arrays.records
        stored_row, moved, _ = space
        forget(arrays.response, moved)
        label = respond(arrays.response, deployed, row(features, i, stored_row), labels[i], moved, rng)
        forget(arrays.loss, out)
        gradient(arrays.loss, theta, moved, label, out)
        weigh(weights, i, out)

    def of_person(arrays, theta, deployed, i, space, out, rng):  # type: ignore[no-untyped-def]
        features, labels, weights, starts = arrays.records
        stored_row, moved, row_gradient = space
        out[:] = 0.0
        for k in range(starts[i], starts[i + 1]):
            forget(arrays.response, moved)
            label = respond(arrays.response, deployed, row(features, k, stored_row), labels[k], moved, rng)
            forget(arrays.loss, row_gradient)
            gradient(arrays.loss, theta, moved, label, row_gradient)
            share = weight_of(weights, k) / (starts[i + 1] - starts[i])
            for j in range(out.size):
                out[j] += share * row_gradient[j]

    return of_person if isinstance(arrays[0][3], types.Array) else of_row


@kernel
def _count_signs(arrays: ProblemArrays, theta: Array, deployed: Array, repeats: int, rng: Generator) -> Array:
    features, labels, weights, _ = arrays.records
    moved, stored_row = np.empty(width(features)), np.empty(width(features))
    counts = np.zeros((2, 2))
    for i in range(labels.size):
        for _ in range(repeats):
            label = respond(arrays.response, deployed, row(features, i, stored_row), labels[i], moved, rng)
            margin = 0.0
            for j in range(theta.size):
                margin += moved[j] * theta[j]
            actual = 1 if label > 0.5 else 0
            counts[0, actual] += weight_of(weights, i)
            if (margin > 0.0) == (actual == 1):
                counts[1, actual] += weight_of(weights, i)
    return counts
