"""What a model costs and gets right on a whole data set that reacts to it.

Each function takes one model or an array of them, such as `trace.theta`: the result has the same
leading shape. For held-out data pass `problem.on(features, labels)`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clipsilon._core import checks
from clipsilon.engine.means import count_signs, mean_gradient, mean_loss
from clipsilon.problems.losses.base import is_linear, label_kind
from clipsilon.problems.problem import Problem

__all__ = ["decoupled_risk", "performative_risk", "stationarity", "true_negative_rate", "true_positive_rate"]

Array = NDArray[np.float64]


def performative_risk(problem: Problem, theta: Any, draws: int = 100) -> Any:
    """f(θ; θ) = E_{Z ~ D(θ)} ℓ(θ; Z): the loss once the records have reacted to θ (paper 1, eq. 2).

    `draws` reactions of each record are averaged if the response is random.
    """
    checks.count("draws", draws)
    return _each(problem, theta, lambda model: mean_loss(problem, model, model, draws))


def decoupled_risk(problem: Problem, theta: Any, deployed: Any, draws: int = 100) -> Any:
    """f(θ; φ) = E_{Z ~ D(φ)} ℓ(θ; Z): the loss of θ while φ is deployed (paper 1, eq. 10)."""
    checks.count("draws", draws)
    checks.instance("problem", problem, Problem)
    fixed = checks.vector("deployed", deployed, problem.dimension)
    return _each(problem, theta, lambda model: mean_loss(problem, model, fixed, draws))


def stationarity(problem: Problem, theta: Any, draws: int = 100) -> Any:
    """‖∇f(θ; θ)‖²: how far θ is from being optimal for the data it causes (paper 2: at most δ for a δ-SPS solution).

    The gradient is that in the first θ, and a region is not looked at. With a random response, the error of the mean
    over `draws` reactions of each record adds to it on average.
    """
    checks.count("draws", draws)
    return _each(problem, theta, lambda model: float(np.sum(mean_gradient(problem, model, model, draws) ** 2)))


def true_positive_rate(problem: Problem, theta: Any, draws: int = 100) -> Any:
    """The share of records with label 1 that sign⟨x, θ⟩ finds, after they have reacted to θ."""
    return _rate(problem, theta, draws, 1)


def true_negative_rate(problem: Problem, theta: Any, draws: int = 100) -> Any:
    """The share of records with label 0 that sign⟨x, θ⟩ clears, after they have reacted to θ."""
    return _rate(problem, theta, draws, 0)


def _rate(problem: Problem, theta: Any, draws: int, label: int) -> Any:
    checks.count("draws", draws)
    checks.instance("problem", problem, Problem)
    if not is_linear(problem.loss) or label_kind(problem.loss) != "binary":
        raise ValueError(f"loss must be one of a margin with labels 0 and 1, got {problem.loss}.")

    def rate(model: Array) -> float:
        total, right = count_signs(problem, model, model, draws)[:, label]
        return right / total if total else np.nan

    return _each(problem, theta, rate)


def _each(problem: Problem, theta: Any, measure: Callable[[Array], float]) -> Any:
    checks.instance("problem", problem, Problem)
    models = checks.floats("theta", theta)
    if models.ndim == 0 or models.shape[-1] != problem.dimension:
        raise ValueError(f"theta must hold models of {problem.dimension} numbers, got shape {models.shape}.")
    flat = np.ascontiguousarray(models.reshape(-1, problem.dimension))
    values = [measure(model) if np.isfinite(model).all() else np.nan for model in flat]
    return np.array(values).reshape(models.shape[:-1])[()]
