"""Risks and rates of models on a whole data set that reacts to them.

Each function takes one model or an array of models, such as `trace.theta`; the result has the same
leading shape, and is NaN for models that are not finite. For held-out data pass
`problem.on(features, labels)`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clipsilon._core import checks
from clipsilon.engine.means import count_signs, mean_gradient, mean_loss
from clipsilon.problems.losses.base import is_linear, label_kind
from clipsilon.problems.problem import Problem

__all__ = ["decoupled_risk", "performative_risk", "stationarity", "true_negative_rate", "true_positive_rate"]

Array = NDArray[np.float64]


def performative_risk(problem: Problem, theta: ArrayLike, draws: int = 100) -> Any:
    """Return f(θ; θ) = E_{Z ~ D(θ)} ℓ(θ; Z), the mean loss after the reaction to θ (paper 1, eq. 2).

    Parameters
    ----------
    problem : Problem
        The problem.
    theta : array-like of shape (…, d)
        One model, or an array of models.
    draws : int, default 100
        The number of reactions averaged per record if the response is random.

    Returns
    -------
    float or ndarray of shape (…)
        The risk of each model.
    """
    checks.count("draws", draws)
    return _each(problem, theta, lambda model: mean_loss(problem, model, model, draws))


def decoupled_risk(problem: Problem, theta: ArrayLike, deployed: ArrayLike, draws: int = 100) -> Any:
    """Return f(θ; φ) = E_{Z ~ D(φ)} ℓ(θ; Z), the mean loss of θ while φ is deployed (paper 1, eq. 10).

    Parameters
    ----------
    problem : Problem
        The problem.
    theta : array-like of shape (…, d)
        One model, or an array of models.
    deployed : float or array-like of shape (d,)
        φ, the model that the records react to.
    draws : int, default 100
        The number of reactions averaged per record if the response is random.

    Returns
    -------
    float or ndarray of shape (…)
        The risk of each model.
    """
    checks.count("draws", draws)
    checks.instance("problem", problem, Problem)
    fixed = checks.vector("deployed", deployed, problem.dimension)
    return _each(problem, theta, lambda model: mean_loss(problem, model, fixed, draws))


def stationarity(problem: Problem, theta: ArrayLike, draws: int = 100) -> Any:
    """Return ‖∇f(θ; θ)‖², which is at most δ for a δ-SPS solution (paper 2).

    The gradient is taken in the first θ, so the value is 0 if θ is optimal for the data it causes. The region is
    ignored.

    Parameters
    ----------
    problem : Problem
        The problem.
    theta : array-like of shape (…, d)
        One model, or an array of models.
    draws : int, default 100
        The number of reactions averaged per record if the response is random. The error of their mean increases the
        result on average.

    Returns
    -------
    float or ndarray of shape (…)
        The squared norm for each model.
    """
    checks.count("draws", draws)
    return _each(problem, theta, lambda model: float(np.sum(mean_gradient(problem, model, model, draws) ** 2)))


def true_positive_rate(problem: Problem, theta: ArrayLike, draws: int = 100) -> Any:
    """Return the fraction of records with label 1 for which ⟨x, θ⟩ > 0 after the reaction to θ.

    Parameters
    ----------
    problem : Problem
        A problem whose loss depends on a margin and takes labels 0 and 1.
    theta : array-like of shape (…, d)
        One model, or an array of models.
    draws : int, default 100
        The number of reactions per record if the response is random.

    Returns
    -------
    float or ndarray of shape (…)
        The rate of each model; NaN if no record has label 1.
    """
    return _rate(problem, theta, draws, 1)


def true_negative_rate(problem: Problem, theta: ArrayLike, draws: int = 100) -> Any:
    """Return the fraction of records with label 0 for which ⟨x, θ⟩ ≤ 0 after the reaction to θ.

    Parameters
    ----------
    problem : Problem
        A problem whose loss depends on a margin and takes labels 0 and 1.
    theta : array-like of shape (…, d)
        One model, or an array of models.
    draws : int, default 100
        The number of reactions per record if the response is random.

    Returns
    -------
    float or ndarray of shape (…)
        The rate of each model; NaN if no record has label 0.
    """
    return _rate(problem, theta, draws, 0)


def _rate(problem: Problem, theta: ArrayLike, draws: int, label: int) -> Any:
    checks.count("draws", draws)
    checks.instance("problem", problem, Problem)
    if not is_linear(problem.loss) or label_kind(problem.loss) != "binary":
        raise ValueError(f"loss must depend on a margin and take labels 0 and 1, got {problem.loss}.")

    def rate(model: Array) -> float:
        total, right = count_signs(problem, model, model, draws)[:, label]
        return right / total if total else np.nan

    return _each(problem, theta, rate)


def _each(problem: Problem, theta: ArrayLike, measure: Callable[[Array], float]) -> Any:
    checks.instance("problem", problem, Problem)
    models = checks.floats("theta", theta)
    if models.ndim == 0 or models.shape[-1] != problem.dimension:
        raise ValueError(f"theta must hold models of {problem.dimension} numbers, got shape {models.shape}.")
    flat = np.ascontiguousarray(models.reshape(-1, problem.dimension))
    values = [measure(model) if np.isfinite(model).all() else np.nan for model in flat]
    return np.asarray(values).reshape(models.shape[:-1])[()]
