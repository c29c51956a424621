"""Means over all records at one model, compiled: what metrics and fixed points are made of.

Every function takes a `deployed` model that the records react to and a θ that they are judged by;
the two are the same for performative quantities. A random response is averaged over a stated number
of draws, the same ones at every call, so that the result is a smooth function of θ.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.random import SFC64, Generator
from numpy.typing import NDArray

from clipsilon.clipping import Unclipped, add_clipped
from clipsilon.engine.cache import kernel
from clipsilon.engine.world import World, world
from clipsilon.losses.base import gradient, value
from clipsilon.problem import Problem
from clipsilon.responses import is_random, respond
from clipsilon.rows import row, weigh, weight_of, width
from clipsilon.vectors import norm

Array = NDArray[np.float64]


def mean_loss(problem: Problem, theta: Array, deployed: Array, draws: int) -> float:
    """f(θ; deployed) = E_{Z ~ D(deployed)} ℓ(θ; Z) (paper 1, eq. 10)."""
    return float(_mean_loss(world(problem), theta, deployed, _repeats(problem, draws), _generator()))


def mean_gradient(problem: Problem, theta: Array, deployed: Array, draws: int, clip: Any = None) -> Array:
    """∇_θ f(θ; deployed), or the mean of the records' clipped gradients."""
    part = Unclipped() if clip is None else clip
    return np.asarray(_mean_gradient(world(problem), part, theta, deployed, _repeats(problem, draws), _generator()))


def record_gradients(problem: Problem, theta: Array, clip: Any) -> Array:
    """Each record's clipped gradient at a deployed θ, (m, d); of a random response, one reaction."""
    return np.asarray(_record_gradients(world(problem), clip, theta, _generator()))


def gradient_norms(problem: Problem, theta: Array, deployed: Array, draws: int) -> Array:
    """‖∇ℓ(θ; Z)‖ of every record, and of every draw of its reaction: (records, draws)."""
    return np.asarray(_gradient_norms(world(problem), theta, deployed, _repeats(problem, draws), _generator()))


def count_signs(problem: Problem, theta: Array, deployed: Array, draws: int) -> Array:
    """Counts of (negatives, positives) and of those among them that sign⟨x, θ⟩ gets right, per draw."""
    return np.asarray(_count_signs(world(problem), theta, deployed, _repeats(problem, draws), _generator()))


def _repeats(problem: Problem, draws: int) -> int:
    return draws if is_random(problem.response) else 1


def _generator() -> Generator:
    return Generator(SFC64(0))


@kernel
def _mean_loss(world: World, theta: Array, deployed: Array, repeats: int, rng: Generator) -> float:
    features, labels, weights = world.features, world.labels, world.weights
    moved, room = np.empty(width(features)), np.empty(width(features))
    total = 0.0
    for i in range(labels.size):
        for _ in range(repeats):
            label = respond(world.response, deployed, row(features, i, room), labels[i], moved, rng)
            total += weight_of(weights, i) * value(world.loss, theta, moved, label)
    return total / (labels.size * repeats)


@kernel
def _mean_gradient(world: World, clip: Any, theta: Array, deployed: Array, repeats: int, rng: Generator) -> Array:
    features, labels, weights = world.features, world.labels, world.weights
    moved, room = np.empty(width(features)), np.empty(width(features))
    gradient_i = np.empty(theta.size)
    total = np.zeros(theta.size)
    weight = 1.0 / (labels.size * repeats)
    for i in range(labels.size):
        for _ in range(repeats):
            label = respond(world.response, deployed, row(features, i, room), labels[i], moved, rng)
            gradient(world.loss, theta, moved, label, gradient_i)
            weigh(weights, i, gradient_i)
            add_clipped(clip, gradient_i, weight, total)
    return total


@kernel
def _record_gradients(world: World, clip: Any, theta: Array, rng: Generator) -> Array:
    features, labels, weights = world.features, world.labels, world.weights
    moved, room = np.empty(width(features)), np.empty(width(features))
    gradient_i = np.empty(theta.size)
    out = np.zeros((labels.size, theta.size))
    for i in range(labels.size):
        label = respond(world.response, theta, row(features, i, room), labels[i], moved, rng)
        gradient(world.loss, theta, moved, label, gradient_i)
        weigh(weights, i, gradient_i)
        add_clipped(clip, gradient_i, 1.0, out[i])
    return out


@kernel
def _gradient_norms(world: World, theta: Array, deployed: Array, repeats: int, rng: Generator) -> Array:
    features, labels, weights = world.features, world.labels, world.weights
    moved, room = np.empty(width(features)), np.empty(width(features))
    gradient_i = np.empty(theta.size)
    norms = np.empty((labels.size, repeats))
    for i in range(labels.size):
        for k in range(repeats):
            label = respond(world.response, deployed, row(features, i, room), labels[i], moved, rng)
            gradient(world.loss, theta, moved, label, gradient_i)
            weigh(weights, i, gradient_i)
            norms[i, k] = norm(gradient_i)
    return norms


@kernel
def _count_signs(world: World, theta: Array, deployed: Array, repeats: int, rng: Generator) -> Array:
    features, labels = world.features, world.labels
    moved, room = np.empty(width(features)), np.empty(width(features))
    counts = np.zeros((2, 2))
    for i in range(labels.size):
        for _ in range(repeats):
            label = respond(world.response, deployed, row(features, i, room), labels[i], moved, rng)
            margin = 0.0
            for j in range(theta.size):
                margin += moved[j] * theta[j]
            actual = 1 if label > 0.5 else 0
            counts[0, actual] += 1.0
            if (margin > 0.0) == (actual == 1):
                counts[1, actual] += 1.0
    return counts
