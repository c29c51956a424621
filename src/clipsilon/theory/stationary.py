"""Private gradient descent on smooth losses, convex or not: how short a gradient it finds (paper 5, section 4).

The algorithm takes T noisy steps of size 1/β on all records, and releases that one of θ_0, …, θ_{T−1} whose gradient
is shortest, up to Laplace noise on the lengths: the preset `NoisySelection`.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import chi2

from clipsilon._core import checks
from clipsilon.analysis.metrics import performative_risk
from clipsilon.problems.losses.base import is_margin_loss, penalty
from clipsilon.problems.problem import Problem
from clipsilon.problems.regions import Everywhere
from clipsilon.problems.responses import Identity
from clipsilon.rules.outputs import Selected
from clipsilon.theory.glm import private_noise, row_basis

__all__ = ["Landscape", "landscape", "mean_square_gradient", "private_steps", "selected_gradient", "selection_scale"]


class Landscape(NamedTuple):
    """What the bounds need to know of a problem."""

    excess: float  #: L(θ_0) − inf L, or more
    smoothness: float  #: β of the mean loss
    rank: int  #: of the features


def landscape(problem: Problem, start: Any = 0.0, floor: float = 0.0) -> Landscape:
    """The landscape of a smooth loss of the margin, without penalty or region.

    `floor` is any number that the mean loss does not go below; the package's losses are not negative. β is the largest
    eigenvalue of (1/m)·Σ a·x·xᵀ, with a the largest absolute value of φ''.
    """
    checks.instance("problem", problem, Problem)
    if not isinstance(problem.response, Identity) or not isinstance(problem.region, Everywhere):
        raise ValueError(f"problem must have no region, and records that do not react, got {problem}.")
    if not (is_margin_loss(problem.loss) and hasattr(problem.loss, "bounds")) or penalty(problem.loss) != 0.0:
        raise ValueError(f"problem must have a loss of the margin with bounds and without penalty, got {problem.loss}.")
    if not problem.table().any():
        raise ValueError("problem must have features, got zeros only: every model is stationary.")
    theta = checks.vector("start", start, problem.dimension)
    excess = float(performative_risk(problem, theta)) - checks.number("floor", floor)
    return Landscape(
        checks.nonnegative("L(start) − floor", excess), _smoothness(problem), len(row_basis(problem.table()))
    )


def mean_square_gradient(place: Landscape, noise_std: float, steps: int) -> float:
    """A bound on E[(1/T)·Σ ‖∇L(θ_t)‖²] over θ_0, …, θ_{T−1}, for steps of size 1/β (paper 5, eq. 13).

    2β·(L(θ_0) − inf L)/T + rank·noise_std².
    """
    noise_std, steps = checks.nonnegative("noise_std", noise_std), checks.count("steps", steps)
    return 2 * place.smoothness * place.excess / steps + place.rank * noise_std**2


def selected_gradient(place: Landscape, noise_std: float, steps: int, selection_scale: float, failure: float) -> float:
    """A bound on ‖∇L‖ at the selected model, which fails with probability γ = `failure` at most (paper 5, Theorem 4.1).

    √(2β·(L(θ_0) − inf L)/T + noise_std²·χ/T) + s·(log(2/γ) + log(2T/γ)), where a chi-squared variable of rank·T degrees
    exceeds χ with probability γ/2, and s is the scale of the Laplace noise.

    The printed bound, O(L·√(rank·log(1/δ))·log(T/γ)/(εn)) for T of the order (εn)², does not hold: eq. 14 leaves out
    that the variance of private noise grows with T. `private_steps` says what does hold.
    """
    noise_std, steps = checks.nonnegative("noise_std", noise_std), checks.count("steps", steps)
    gamma, scale = checks.open_fraction("failure", failure), checks.positive("selection_scale", selection_scale)
    energy = noise_std**2 * float(chi2.isf(gamma / 2, place.rank * steps))
    found = math.sqrt((2 * place.smoothness * place.excess + energy) / steps)
    return found + scale * (math.log(2 / gamma) + math.log(2 * steps / gamma))


def selection_scale(lipschitz: float, records: int, epsilon: float) -> float:
    """The scale of the Laplace noise for an ε-private selection: 4L/(nε), twice the sensitivity 2L/n, over ε."""
    lipschitz, epsilon = checks.positive("lipschitz", lipschitz), checks.positive("epsilon", epsilon)
    return Selected(epsilon).on(lipschitz, checks.count("records", records)).scale


def private_steps(place: Landscape, lipschitz: float, epsilon: float, delta: float, records: int) -> int:
    """The number of steps that minimises `mean_square_gradient` when the noise is that for (ε, δ).

    Its variance is T·τ², with τ of the order L·√log(1/δ)/(εn). So T is next to √(2β·(L(θ_0) − inf L)/rank)/τ, and the
    bound is 2τ·√(2β·(L(θ_0) − inf L)·rank): the gradient falls as (√rank/(εn))^½, where Theorem 4.1 says √rank/(εn).
    """
    once = private_noise(lipschitz, epsilon, delta, records, 1)
    square = 2 * place.smoothness * place.excess / place.rank / once**2
    return max(1, math.ceil(math.sqrt(square + 0.25) - 0.5))  # the least whole T with T·(T + 1) ≥ square


def _smoothness(problem: Problem) -> float:
    rows = np.linalg.norm(problem.table(), axis=1) > 0  # others have no curvature, whatever the bound
    high = problem.loss.bounds(np.full(int(rows.sum()), np.inf), problem.labels[rows]).high
    if not np.isfinite(high).all():
        raise ValueError(f"problem must have a smooth loss, got {problem.loss}.")
    weighted = problem.table()[rows] * np.sqrt(high / problem.records)[:, np.newaxis]
    return float(np.linalg.norm(weighted, 2) ** 2)
