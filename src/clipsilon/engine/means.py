"""Compiled means over all records at one model, for metrics and fixed points.

The functions distinguish the `deployed` model, which the records react to, from θ, at which the loss is
evaluated; the two are equal for performative quantities. A random response is averaged over `draws` draws, which
are the same in every call, so that the result is a smooth function of θ.

What is returned per record depends on that record alone, also for losses and responses of users.
"""

from __future__ import annotations

import numpy as np
from numpy.random import SFC64, Generator
from numpy.typing import NDArray

from clipsilon._core.rows import row, weigh, weight_of, width
from clipsilon._core.vectors import norm
from clipsilon.engine.arrays import ProblemArrays, problem_arrays, visible_models
from clipsilon.engine.batch import forget
from clipsilon.engine.kernel_cache import kernel
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
    return float(_mean_loss(problem_arrays(problem), theta, deployed, _repeats(problem, draws), _generator()))


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
        Applied to the gradient of each record. The default does not clip.

    Returns
    -------
    ndarray of shape (d,)
        The mean gradient.
    """
    part = Unclipped() if clip is None else clip
    return np.asarray(
        _mean_gradient(problem_arrays(problem), part, theta, deployed, _repeats(problem, draws), _generator())
    )


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


def count_signs(problem: Problem, theta: Array, deployed: Array, draws: int) -> Array:
    """Count the negatives and positives, and how many of them the sign of ⟨x, θ⟩ classifies correctly.

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
    return np.asarray(_count_signs(problem_arrays(problem), theta, deployed, _repeats(problem, draws), _generator()))


def _repeats(problem: Problem, draws: int) -> int:
    return draws if is_random(problem.response) else 1


def _generator() -> Generator:
    return Generator(SFC64(0))


@kernel
def _mean_loss(arrays: ProblemArrays, theta: Array, deployed: Array, repeats: int, rng: Generator) -> float:
    features, labels, weights = arrays.records
    moved, stored_row = np.empty(width(features)), np.empty(width(features))
    total = 0.0
    for i in range(labels.size):
        for _ in range(repeats):
            label = respond(arrays.response, deployed, row(features, i, stored_row), labels[i], moved, rng)
            total += weight_of(weights, i) * value(arrays.loss, theta, moved, label)
    return total / (labels.size * repeats)


@kernel
def _mean_gradient(
    arrays: ProblemArrays, clip: Clip, theta: Array, deployed: Array, repeats: int, rng: Generator
) -> Array:
    features, labels, weights = arrays.records
    moved, stored_row = np.empty(width(features)), np.empty(width(features))
    gradient_i = np.empty(theta.size)
    total = np.zeros(theta.size)
    weight = 1.0 / (labels.size * repeats)
    for i in range(labels.size):
        for _ in range(repeats):
            label = respond(arrays.response, deployed, row(features, i, stored_row), labels[i], moved, rng)
            gradient(arrays.loss, theta, moved, label, gradient_i)
            weigh(weights, i, gradient_i)
            add_clipped(clip, gradient_i, weight, total)
    return total


@kernel
def _record_gradients(arrays: ProblemArrays, clip: Clip, theta: Array, rng: Generator) -> Array:
    features, labels, weights = arrays.records
    moved, stored_row = np.empty(width(features)), np.empty(width(features))
    gradient_i = np.empty(theta.size)
    out = np.zeros((labels.size, theta.size))
    for i in range(labels.size):
        forget(arrays.response, moved)
        label = respond(arrays.response, theta, row(features, i, stored_row), labels[i], moved, rng)
        forget(arrays.loss, gradient_i)
        gradient(arrays.loss, theta, moved, label, gradient_i)
        weigh(weights, i, gradient_i)
        add_clipped(clip, gradient_i, 1.0, out[i])
    return out


@kernel
def _gradient_norms(arrays: ProblemArrays, theta: Array, deployed: Array, repeats: int, rng: Generator) -> Array:
    features, labels, weights = arrays.records
    moved, stored_row = np.empty(width(features)), np.empty(width(features))
    gradient_i = np.empty(theta.size)
    norms = np.empty((labels.size, repeats))
    for i in range(labels.size):
        for k in range(repeats):
            forget(arrays.response, moved)
            label = respond(arrays.response, deployed, row(features, i, stored_row), labels[i], moved, rng)
            forget(arrays.loss, gradient_i)
            gradient(arrays.loss, theta, moved, label, gradient_i)
            weigh(weights, i, gradient_i)
            norms[i, k] = norm(gradient_i)
    return norms


@kernel
def _count_signs(arrays: ProblemArrays, theta: Array, deployed: Array, repeats: int, rng: Generator) -> Array:
    features, labels, _ = arrays.records
    moved, stored_row = np.empty(width(features)), np.empty(width(features))
    counts = np.zeros((2, 2))
    for i in range(labels.size):
        for _ in range(repeats):
            label = respond(arrays.response, deployed, row(features, i, stored_row), labels[i], moved, rng)
            margin = 0.0
            for j in range(theta.size):
                margin += moved[j] * theta[j]
            actual = 1 if label > 0.5 else 0
            counts[0, actual] += 1.0
            if (margin > 0.0) == (actual == 1):
                counts[1, actual] += 1.0
    return counts
