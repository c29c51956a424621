"""Descent towards the performative optimum while the reaction is not known, as the field's simulators have it.

Both functions use all records under each deployed model, without noise, as `repeated_gradient` does. Slow reactions
count as settled: records are seen after they have adapted to each deployed model. For private runs
with a known or estimated reaction, give `clipsilon.losses.Anticipating` to a problem.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clipsilon._core import checks
from clipsilon.analysis.fixed_points import check_start, projected
from clipsilon.engine.means import mean_gradient, mean_loss, moved_features
from clipsilon.problems.losses.anticipating import Anticipating
from clipsilon.problems.losses.base import label_kind
from clipsilon.problems.problem import Problem
from clipsilon.problems.responses import MatrixShift

Array = NDArray[np.float64]

_TRIED = 1e-6  # a direction whose singular value is below this fraction of the largest was not tried
_POINTS = {1: 1, 2: 2}


def performative_gradient(
    problem: Problem,
    step: float,
    rounds: int,
    start: ArrayLike = 0.0,
    *,
    memory: int | None = None,
    wander: float = 0.0,
    draws: int = 100,
    seed: int = 0,
) -> Array:
    """Descend the performative risk with a reaction that is estimated along the way (PerfGD: Izzo et al., 2021).

    Each round deploys θ_k and keeps the mean of what was sent, by class for labels 0 and 1. A linear reaction is fitted
    to the changes of these means over the last deployments; directions that these did not try count as ones without a
    reaction, so the first round is one of `repeated_gradient`.

    Parameters
    ----------
    problem : Problem
        The problem; its response is used for the records to react, and not looked at otherwise.
    step : float
        The step size, above 0.
    rounds : int
        The number of steps.
    start : float or array-like, default 0
        θ_0: one number for all coordinates, or one per coordinate.
    memory : int, optional
        The number of earlier deployments that are used, at least 1. The default is 2·d.
    wander : float, default 0
        The standard deviation of a random move of each deployed model, which makes later models span all directions.
    draws : int, default 100
        The number of reactions averaged per record if the response is random.
    seed : int, default 0
        The seed of the random moves.

    Returns
    -------
    ndarray of shape (rounds + 1, d)
        θ_0, θ_1, …
    """
    checks.count("rounds", rounds)
    checks.positive("step", step)
    checks.nonnegative("wander", wander)
    theta = check_start(problem, start, draws)
    kept = 2 * theta.size if memory is None else checks.count("memory", memory)
    rng = np.random.default_rng(checks.integer("seed", seed, least=0))
    classes = 2 if label_kind(problem.loss) == "binary" else 1
    iterates, sent = [theta], [_sent(problem, theta, classes)]
    for _ in range(rounds):
        response = MatrixShift(_reaction(iterates[-kept - 1 :], sent[-kept - 1 :]))
        aware = _with_loss(problem, Anticipating(problem.loss, response))
        move = step * mean_gradient(aware, theta, theta, draws) + wander * rng.standard_normal(theta.size)
        theta = projected(problem, theta - move)
        iterates.append(theta)
        sent.append(_sent(problem, theta, classes))
    return np.stack(iterates)


def derivative_free(
    problem: Problem,
    step: float,
    rounds: int,
    start: ArrayLike = 0.0,
    *,
    radius: float = 0.1,
    points: int = 2,
    draws: int = 100,
    seed: int = 0,
) -> Array:
    """Descend the performative risk by its values at random models around θ alone (DFO: Flaxman et al., 2005).

    With u uniform on the sphere, the gradient is estimated by d/(2r)·(f(θ + ru) − f(θ − ru))·u, from two deployed
    models per round, or from one by d/r·f(θ + ru)·u, whose variance grows as the radius r falls.

    Parameters
    ----------
    problem : Problem
        The problem.
    step : float
        The step size, above 0.
    rounds : int
        The number of steps.
    start : float or array-like, default 0
        θ_0: one number for all coordinates, or one per coordinate.
    radius : float, default 0.1
        r, how far the deployed models are from θ. They may leave a region by this.
    points : {1, 2}, default 2
        The number of models deployed per round.
    draws : int, default 100
        The number of reactions averaged per record if the response is random.
    seed : int, default 0
        The seed of the directions.

    Returns
    -------
    ndarray of shape (rounds + 1, d)
        θ_0, θ_1, …
    """
    checks.count("rounds", rounds)
    checks.positive("step", step)
    checks.positive("radius", radius)
    if points not in _POINTS:
        raise ValueError(f"points must be 1 or 2, got {checks.short_repr(points)}.")
    theta = check_start(problem, start, draws)
    rng = np.random.default_rng(checks.integer("seed", seed, least=0))
    iterates = [theta]
    for _ in range(rounds):
        direction = rng.standard_normal(theta.size)
        direction *= radius / np.linalg.norm(direction)
        change = mean_loss(problem, theta + direction, theta + direction, draws)
        if points == 2:
            change = (change - mean_loss(problem, theta - direction, theta - direction, draws)) / 2
        theta = projected(problem, theta - step * theta.size * change / radius**2 * direction)
        iterates.append(theta)
    return np.stack(iterates)


def _sent(problem: Problem, deployed: Array, classes: int) -> Array:
    """Return the mean of the features after the reaction to a model, by class; NaN for a class without records."""
    moved, weights = moved_features(problem, deployed), np.ones(problem.rows)
    if problem.weights is not None:
        weights = problem.weights
    means = np.full((classes, moved.shape[1]), np.nan)
    for k in range(classes):
        own = weights * (problem.labels == k) if classes > 1 else weights
        if own.sum() > 0.0:
            means[k] = own @ moved / own.sum()
    return means


def _with_loss(problem: Problem, loss: Anticipating) -> Problem:
    """Return the same problem with another loss."""
    labels = None if label_kind(loss) == "none" else problem.labels
    return Problem(
        *(problem.features, labels),
        loss=loss,
        response=problem.response,
        region=problem.region,
        weights=problem.weights,
        groups=problem.groups,
    )


def _reaction(models: list[Array], sent: list[Array]) -> Array:
    """Return one matrix per class, of the smallest norm that explains how the means changed since the last model."""
    changes = np.stack(models[:-1]) - models[-1] if len(models) > 1 else np.zeros((1, models[-1].size))
    moves = np.stack(sent[:-1]) - sent[-1] if len(sent) > 1 else np.zeros((1, *sent[-1].shape))
    inverse = np.linalg.pinv(changes, rcond=_TRIED)
    return np.asarray(np.nan_to_num(-np.einsum("ij,jkf->kfi", inverse, moves)))
