"""Models around one that is deployed, which differ in every direction, and what deploying them costs."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clipsilon._core import checks
from clipsilon.engine.means import mean_loss
from clipsilon.problems.problem import Problem

Array = NDArray[np.float64]


class Exploration(NamedTuple):
    """Models to deploy in turn, and their cost.

    Parameters
    ----------
    models : ndarray of shape (J, d)
        The models; their mean is the model around which they lie, and they differ in every direction.
    cost : float or None
        The mean of their performative risks minus that of the model around which they lie, on the given problem and
        with the reaction that it assumes; None without a problem.
    """

    models: Array
    cost: float | None


def explore(
    theta: ArrayLike, size: float, deployments: int, *, problem: Problem | None = None, seed: int = 0
) -> Exploration:
    """Return models around θ that span all directions, so that a reaction can be estimated from their logs.

    Models come in pairs θ ± δ with |δ_j| = size in every coordinate. Signs are random, which does not have to be
    secret. The first models span all directions if there are at least twice as many as coordinates; fewer are refused.

    Parameters
    ----------
    theta : array-like
        The model around which to explore.
    size : float
        How far each coordinate is moved, above 0.
    deployments : int
        The number of models, even and at least 2·d.
    problem : Problem, optional
        A problem on which the cost is computed, by its records and its response; without noise, so the cost is not
        private.
    seed : int, default 0
        The seed of the signs.

    Returns
    -------
    Exploration
        The models and their cost. For a risk with a second derivative of at most L, the cost is at most
        L·d·size²/2, because the models come in pairs.
    """
    center = np.atleast_1d(checks.floats("theta", theta))
    center = checks.vector("theta", center, center.size)
    size, count = checks.positive("size", size), checks.count("deployments", deployments)
    if count % 2 or count < 2 * center.size:
        raise ValueError(
            f"deployments must be even and at least {2 * center.size}, twice the number of coordinates, got {count}."
        )
    signs = _spanning_signs(count // 2, center.size, np.random.default_rng(checks.integer("seed", seed, least=0)))
    models = center + size * np.stack([signs, -signs], axis=1).reshape(count, center.size)
    return Exploration(models, None if problem is None else _cost(problem, center, models))


def _spanning_signs(rows: int, columns: int, rng: np.random.Generator) -> Array:
    """Return signs of full column rank: of several random tables, the one with the largest least singular value."""
    tables = rng.choice([-1.0, 1.0], size=(100, rows, columns))
    tables[0] = np.where(np.arange(rows)[:, np.newaxis] % columns == np.arange(columns), -1.0, 1.0)
    if columns == 2:  # the signs (−1, 1) and (1, −1) of the table above span one direction only
        tables[0, ::2] = 1.0
    least = np.linalg.svd(tables, compute_uv=False)[:, -1]
    return np.asarray(tables[int(least.argmax())])


def _cost(problem: Problem, center: Array, models: Array) -> float:
    checks.instance("problem", problem, Problem)
    if problem.dimension != center.size:
        raise ValueError(f"theta must have {problem.dimension} entries for this problem, got {center.size}.")
    risks = [mean_loss(problem, model, model, 100) for model in models]
    return float(np.mean(risks)) - mean_loss(problem, center, center, 100)
