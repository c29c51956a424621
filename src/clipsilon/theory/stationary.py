"""Private gradient descent on smooth losses, convex or not: how short a gradient it finds (paper 5, section 4).

The algorithm takes T noisy steps of size 1/β on all records, and releases the model among θ_0, …, θ_{T−1} whose
gradient is shortest, up to Laplace noise on the lengths: the preset `NoisySelection`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import gammainccinv

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
    """The numbers of a problem on which the bounds rest.

    Attributes
    ----------
    excess : float
        L(θ_0) − inf L, or an upper bound on it.
    smoothness : float
        β, of the mean loss.
    rank : int
        The rank of the features.
    """

    excess: float
    smoothness: float
    rank: int


def landscape(problem: Problem, start: ArrayLike = 0.0, floor: float = 0.0) -> Landscape:
    """Return the landscape of a smooth loss of the margin, without penalty or region.

    β is the largest eigenvalue of (1/m)·Σ a·x·xᵀ, with a the largest absolute value of φ''.

    Parameters
    ----------
    problem : Problem
        The problem. Its records must not react, and some feature must not be zero.
    start : array_like, default 0.0
        θ_0; one number stands for all coordinates.
    floor : float, default 0.0
        Any lower bound on the mean loss; the package's losses are at least 0.

    Returns
    -------
    Landscape
        L(θ_0) − floor, β and the rank.
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


def mean_square_gradient(landscape: Landscape, noise_std: float, steps: int) -> float:
    """Return a bound on E[(1/T)·Σ ‖∇L(θ_t)‖²] over θ_0, …, θ_{T−1}, for steps of size 1/β (paper 5, eq. 13).

    The bound is 2β·(L(θ_0) − inf L)/T + rank·noise_std².

    Parameters
    ----------
    landscape : Landscape
        The numbers of the problem.
    noise_std : float
        The standard deviation of the noise on each coordinate of the mean gradient.
    steps : int
        T.

    Returns
    -------
    float
        The bound.
    """
    noise_std, steps = checks.nonnegative("noise_std", noise_std), checks.count("steps", steps)
    return 2 * landscape.smoothness * landscape.excess / steps + landscape.rank * noise_std**2


def selected_gradient(
    landscape: Landscape, noise_std: float, steps: int, selection_scale: float, failure: float
) -> float:
    """Return a bound on ‖∇L‖ at the selected model that holds with probability 1 − γ (paper 5, Theorem 4.1, corrected).

    The bound is √(2β·(L(θ_0) − inf L)/T + noise_std²·χ/T) + s·(log(2/γ) + log(2T/γ)), where a chi-squared variable with
    rank·T degrees of freedom exceeds χ with probability γ/2.

    Parameters
    ----------
    landscape, noise_std, steps
        As in `mean_square_gradient`.
    selection_scale : float
        s, the scale of the Laplace noise on the lengths.
    failure : float
        γ, the largest probability with which the bound may fail, above 0 and below 1.

    Returns
    -------
    float
        The bound.

    Notes
    -----
    The printed bound, O(L·√(rank·log(1/δ))·log(T/γ)/(εn)) for T of the order (εn)², does not hold: eq. 14 omits that
    the variance of private noise grows with T. `private_steps` states what does hold.
    """
    noise_std, steps = checks.nonnegative("noise_std", noise_std), checks.count("steps", steps)
    gamma, scale = checks.open_fraction("failure", failure), checks.positive("selection_scale", selection_scale)
    energy = noise_std**2 * 2.0 * float(gammainccinv(landscape.rank * steps / 2, gamma / 2))
    found = math.sqrt((2 * landscape.smoothness * landscape.excess + energy) / steps)
    return found + scale * (math.log(2 / gamma) + math.log(2 * steps / gamma))


def selection_scale(lipschitz: float, records: int, epsilon: float) -> float:
    """Return the scale of the Laplace noise for an ε-private selection, 4L/(nε): twice the sensitivity 2L/n, over ε.

    Parameters
    ----------
    lipschitz : float
        L, a bound on the gradient of every record.
    records : int
        n.
    epsilon : float
        The privacy of the selection alone, if one record is replaced by another.

    Returns
    -------
    float
        The scale.

    Formal guarantee
    ----------------
    Given iterates that are released anyway, selecting the one with the smallest noisy length is ε-differentially
    private if one record is replaced by another. The proof is in `docs/privacy.md`.
    """
    lipschitz, epsilon = checks.positive("lipschitz", lipschitz), checks.positive("epsilon", epsilon)
    return Selected(epsilon).on(lipschitz, checks.count("records", records)).scale


def private_steps(landscape: Landscape, lipschitz: float, epsilon: float, delta: float, records: int) -> int:
    """Return the number of steps that minimises `mean_square_gradient` with noise for (ε, δ).

    The variance of that noise is T·τ², with τ of the order L·√log(1/δ)/(εn). So T is next to √(2β·(L(θ_0) − inf
    L)/rank)/τ, and the bound is 2τ·√(2β·(L(θ_0) − inf L)·rank): the gradient falls as (√rank/(εn))^½, where Theorem 4.1
    states √rank/(εn).

    Parameters
    ----------
    landscape : Landscape
        The numbers of the problem.
    lipschitz : float
        L, a bound on the gradient of every record.
    epsilon, delta : float
        The privacy target for the descent, as in `glm.private_noise`.
    records : int
        n.

    Returns
    -------
    int
        T.
    """
    once = private_noise(lipschitz, epsilon, delta, records, 1)
    square = 2 * landscape.smoothness * landscape.excess / landscape.rank / once**2
    return max(1, math.ceil(math.sqrt(square + 0.25) - 0.5))  # the smallest integer T with T·(T + 1) ≥ square


def _smoothness(problem: Problem) -> float:
    """Return β; raise ValueError if the loss is not smooth."""
    rows = np.linalg.norm(problem.table(), axis=1) > 0  # a zero row adds no curvature, whatever the bound
    high = problem.loss.bounds(np.full(int(rows.sum()), np.inf), problem.labels[rows]).high
    if not np.isfinite(high).all():
        raise ValueError(f"problem must have a smooth loss, got {problem.loss}.")
    weighted = problem.table()[rows] * np.sqrt(high / problem.records)[:, np.newaxis]
    return float(np.linalg.norm(weighted, 2) ** 2)
