"""Private gradient descent on generalised linear models: excess risk by rank, not by dimension (paper 5).

The algorithm is paper 5's Algorithm 1, θ_{t+1} = θ_t − step·(∇L(θ_t) + N(0, noise_std²·I)) for T steps on all records,
which releases the mean of θ_1, …, θ_T: `Full` sampling and `Average` output. Noise outside the row space of the
features changes no margin, so only its component inside counts.
"""

from __future__ import annotations

import math
import warnings
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clipsilon._core import checks
from clipsilon.analysis.fixed_points import stable_point
from clipsilon.privacy.calibration import calibrate
from clipsilon.problems.losses.base import is_convex, is_linear, is_margin_loss, penalty
from clipsilon.problems.losses.clipped import Clipped, clipped_loss
from clipsilon.problems.problem import Problem
from clipsilon.problems.regions import Everywhere, project
from clipsilon.problems.responses import Identity
from clipsilon.rules.noise import std_of
from clipsilon.rules.presets import DPGD
from clipsilon.rules.schedules import Constant

__all__ = [
    "Geometry",
    "ambient",
    "best_population_step",
    "best_step",
    "clipped_problem",
    "data_lipschitz",
    "excess_risk",
    "population_risk",
    "private_excess_risk",
    "private_noise",
    "row_basis",
    "row_space",
    "stability",
]

Array = NDArray[np.float64]


class Geometry(NamedTuple):
    """The numbers on which the bounds rest: where noise counts, how far away the start is, and how steep the loss is.

    Attributes
    ----------
    dimension : int
        The dimension of the space in which noise counts: p, or the rank of the features.
    distance : float
        ‖θ_0 − θ*‖ in that space.
    lipschitz : float
        L, a bound on the gradient of every record.
    """

    dimension: int
    distance: float
    lipschitz: float


def ambient(
    problem: Problem, start: ArrayLike = 0.0, minimiser: ArrayLike | None = None, *, lipschitz: float | None = None
) -> Geometry:
    """Return the geometry of Theorem 2.7 (paper 5): all p dimensions count.

    The theorem holds for any convex loss and convex region, and for records that do not react.

    Parameters
    ----------
    problem : Problem
        The problem.
    start : array_like, default 0.0
        θ_0, in the region; one number stands for all coordinates.
    minimiser : array_like, optional
        θ*, found numerically by default. Any other model of the region may take its place; the bounds then compare with
        that model.
    lipschitz : float, optional
        L. Required if the loss states no bounds.

    Returns
    -------
    Geometry
        p, ‖θ_0 − θ*‖ and L.
    """
    _check(problem)
    theta = _minimiser(problem, minimiser)
    begin = _inside("start", start, problem)
    steepness = _region_lipschitz(problem) if lipschitz is None else checks.positive("lipschitz", lipschitz)
    return Geometry(problem.dimension, float(np.linalg.norm(begin - theta)), steepness)


def row_space(
    problem: Problem, start: ArrayLike = 0.0, minimiser: ArrayLike | None = None, *, lipschitz: float | None = None
) -> Geometry:
    """Return the geometry of Theorem 3.1 (paper 5): only the row space of the features counts.

    The theorem holds for convex losses of the margin without penalty or region, and for records that do not react. M,
    the projector onto the span of the records' features, gives the rank and the seminorm ‖θ_0 − θ*‖_M, in which all
    minimisers are equally far from θ_0.

    Parameters
    ----------
    problem, start, minimiser, lipschitz
        As in `ambient`.

    Returns
    -------
    Geometry
        The rank, ‖θ_0 − θ*‖_M and L.
    """
    _check(problem)
    _check_linear(problem)
    basis = row_basis(problem.table())
    theta = _minimiser(problem, minimiser)
    begin = checks.vector("start", start, problem.dimension)
    steepness = data_lipschitz(problem) if lipschitz is None else checks.positive("lipschitz", lipschitz)
    return Geometry(len(basis), float(np.linalg.norm(basis @ (begin - theta))), steepness)


def clipped_problem(problem: Problem, clip: float) -> Problem:
    """Return the problem that clipped descent solves (paper 5, Corollary 5.2): the same data with the clipped loss.

    The corollary is `excess_risk` of `row_space` of this problem: it bounds the excess of the *clipped* risk over its
    own minimum, with the clip in place of the Lipschitz constant.
    """
    checks.instance("problem", problem, Problem)
    loss = clipped_loss(problem.loss, clip)
    return Problem(
        problem.features,
        problem.labels,
        loss=loss,
        response=problem.response,
        region=problem.region,
        weights=problem.weights,
    )


def row_basis(features: ArrayLike) -> Array:
    """Return an orthonormal basis of the span of the rows, one vector per row: V with M = VᵀV in Theorem 3.1.

    Columns and rows are rescaled before the rank is determined, so that a column in large units hides no other.
    """
    table = checks.records("features", features)
    columns = _sizes(table, axis=0)
    even = table / columns
    _, sizes, rows = np.linalg.svd(even / _sizes(even, axis=1), full_matrices=False)
    span = rows[sizes > sizes[0] * max(table.shape) * np.finfo(float).eps] * (columns / columns.max())
    return np.asarray(np.linalg.qr(span.T)[0].T)


def _sizes(table: Array, axis: int) -> Array:
    """Return the largest absolute entry of each column or row, or 1 where all entries are zero."""
    largest = np.abs(table).max(axis=axis, keepdims=True)
    return np.where(largest > 0, largest, 1.0)


def data_lipschitz(problem: Problem) -> float:
    """Return L, the length of the longest gradient that any of the problem's records can have, at any model."""
    loss, clip = (problem.loss.loss, problem.loss.clip) if isinstance(problem.loss, Clipped) else (problem.loss, np.inf)
    norms = np.linalg.norm(problem.table(), axis=1)
    rows = norms > 0
    longest = np.inf
    if not rows.any():
        longest = 0.0
    elif is_margin_loss(loss) and hasattr(loss, "bounds") and penalty(loss) == 0.0:
        bounds = loss.bounds(np.full(int(rows.sum()), np.inf), problem.labels[rows])
        longest = float(np.max(bounds.slope * norms[rows]))
    if not min(longest, clip) < np.inf:
        raise ValueError(f"lipschitz must be given, or the loss be clipped: nothing bounds the gradients of {loss}.")
    return min(longest, clip)


def excess_risk(geometry: Geometry, noise_std: float, steps: int, step: float | None = None) -> float:
    """Return a bound on E[L(θ̄)] − L(θ*) for the average of T noisy steps of one size (paper 5, Theorems 2.7 and 3.1).

    The bound is ‖θ_0 − θ*‖²/(2ηT) + (η/2)·(1 + 1/T)·(L² + dimension·noise_std²).

    Parameters
    ----------
    geometry : Geometry
        From `ambient` (Theorem 2.7) or `row_space` (Theorem 3.1).
    noise_std : float
        The standard deviation of the noise on each coordinate of the mean gradient.
    steps : int
        T.
    step : float, optional
        η; the best one (`best_step`) by default.

    Returns
    -------
    float
        The bound, in units of the loss.

    Notes
    -----
    This is eq. 6 except for 1 + 1/T: the paper's proof bounds the mean of θ_0, …, θ_{T−1}, but Algorithm 1 releases the
    mean of θ_1, …, θ_T.

    Examples
    --------
    >>> import clipsilon as cs
    >>> problem = cs.Problem([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]], [1, 1, 0], loss=cs.losses.Logistic())
    >>> print(round(excess_risk(row_space(problem), noise_std=0.1, steps=100), 4))
    0.07
    """
    noise_std, steps = checks.nonnegative("noise_std", noise_std), checks.count("steps", steps)
    if step is None:
        return geometry.distance * math.sqrt((1 + 1 / steps) * _energy(geometry, noise_std) / steps)
    size = checks.positive("step", step)
    return geometry.distance**2 / (2 * size * steps) + size / 2 * (1 + 1 / steps) * _energy(geometry, noise_std)


def best_step(geometry: Geometry, noise_std: float, steps: int) -> float:
    """Return the step size that minimises `excess_risk`, ‖θ_0 − θ*‖/√((T + 1)·(L² + dimension·noise_std²)).

    Parameters
    ----------
    geometry, noise_std, steps
        As in `excess_risk`.

    Returns
    -------
    float
        η.
    """
    noise_std, steps = checks.nonnegative("noise_std", noise_std), checks.count("steps", steps)
    return _best(geometry, (steps + 1) * _energy(geometry, noise_std))


def private_excess_risk(
    geometry: Geometry, epsilon: float, delta: float, records: int, *, how: str = "certified"
) -> float:
    """Return `excess_risk` of T = ⌈(nε)²⌉ steps at the best step, with noise for (ε, δ) (Theorem 3.1, Corollary 5.2).

    Parameters
    ----------
    geometry : Geometry
        From `row_space` or `ambient`.
    epsilon, delta : float
        The privacy target.
    records : int
        n.
    how : {"certified", "paper"}, default "certified"
        As in `private_noise`. With "paper" the bound is L·‖θ*‖_M·√(1 + 2·rank·log(1/δ))/(εn) as printed, times √(1 +
        1/T).

    Returns
    -------
    float
        The bound, in units of the loss.
    """
    steps = math.ceil((checks.count("records", records) * checks.positive("epsilon", epsilon)) ** 2)
    return excess_risk(geometry, private_noise(geometry.lipschitz, epsilon, delta, records, steps, how=how), steps)


def private_noise(
    lipschitz: float, epsilon: float, delta: float, records: int, steps: int, *, how: str = "certified"
) -> float:
    """Return the noise on the mean gradient for which T steps on all records are (ε, δ)-private (paper 5, Theorem 2.6).

    Parameters
    ----------
    lipschitz : float
        L, a bound on the gradient of every record. For a run to be private it must be known beforehand;
        `data_lipschitz` reads the records.
    epsilon, delta : float
        The privacy target.
    records, steps : int
        n and T.
    how : {"certified", "paper"}, default "certified"
        "paper" takes the formula of Theorem 2.6.

    Returns
    -------
    float
        The standard deviation of the noise on each coordinate of the mean gradient.

    Formal guarantee
    ----------------
    With how="certified", T steps on all records with gradients of length at most `lipschitz` are (ε, δ)-differentially
    private if one record is replaced by another, provided that `lipschitz` was chosen without looking at the records.
    With how="paper" there is no guarantee: the noise of Theorem 2.6 does not give (ε, δ) when records are replaced.
    """
    rule = DPGD(Constant(1.0), lipschitz, noise_std=1.0)
    return std_of(calibrate(rule, epsilon, delta, records, steps, how).noise)


def population_risk(geometry: Geometry, records: int, noise_std: float, steps: int, step: float | None = None) -> float:
    """Return a bound on E[L_pop(θ̄)] − L_pop(θ*) for n records drawn from a population (paper 5, Theorem 3.2).

    The bound is `excess_risk`, of dimension min{rank, n}, plus L times `stability`.

    Parameters
    ----------
    geometry : Geometry
        The geometry of the population: θ* is the population's minimiser, and L holds for all of its records.
    records : int
        n.
    noise_std, steps
        As in `excess_risk`.
    step : float, optional
        η; the best one (`best_population_step`) by default.

    Returns
    -------
    float
        The bound, in units of the loss.
    """
    noise_std, steps = checks.nonnegative("noise_std", noise_std), checks.count("steps", steps)
    cost = _population_cost(geometry, records, noise_std, steps)
    if step is None:
        return geometry.distance * math.sqrt(2 * cost / steps)
    return geometry.distance**2 / (2 * checks.positive("step", step) * steps) + step * cost


def best_population_step(geometry: Geometry, records: int, noise_std: float, steps: int) -> float:
    """Return the step size that minimises `population_risk`.

    Parameters
    ----------
    geometry, records, noise_std, steps
        As in `population_risk`.

    Returns
    -------
    float
        η.
    """
    noise_std, steps = checks.nonnegative("noise_std", noise_std), checks.count("steps", steps)
    return _best(geometry, 2 * steps * _population_cost(geometry, records, noise_std, steps))


def _best(geometry: Geometry, cost: float) -> float:
    """Return distance/√cost, the minimiser of distance²/(2ηT) + η·cost/(2T); raise ValueError if the cost is zero."""
    if cost == 0.0:
        raise ValueError(f"geometry must have gradients or noise for a step to be best, got {geometry}.")
    return geometry.distance / math.sqrt(cost)


def _population_cost(geometry: Geometry, records: int, noise_std: float, steps: int) -> float:
    """Return the cost per unit of step size: half of the energy, plus the loss of stability."""
    drawn = geometry._replace(dimension=min(geometry.dimension, checks.count("records", records)))
    unstable = geometry.lipschitz * stability(geometry.lipschitz, 1.0, steps, records)
    return (1 + 1 / steps) * _energy(drawn, noise_std) / 2 + unstable


def stability(lipschitz: float, step: float, steps: int, records: int) -> float:
    """Return how far the released model can move when one record is replaced, at equal noise (paper 5, Lemma A.2).

    2·L·step·(√T + T/n), in the seminorm of the features: half of what the lemma states, by the same proof.

    Parameters
    ----------
    lipschitz : float
        L, a bound on the gradient of every record.
    step : float
        η.
    steps, records : int
        T and n.

    Returns
    -------
    float
        The distance.
    """
    lipschitz, step = checks.nonnegative("lipschitz", lipschitz), checks.nonnegative("step", step)
    steps, records = checks.count("steps", steps), checks.count("records", records)
    return 2 * lipschitz * step * (math.sqrt(steps) + steps / records)


def _energy(geometry: Geometry, noise_std: float) -> float:
    """Return a bound on the mean square of the noisy gradient in the space that counts."""
    return geometry.lipschitz**2 + geometry.dimension * noise_std**2


def _region_lipschitz(problem: Problem) -> float:
    """Return L over the region, or over all models if the region is unbounded."""
    radius = problem.region.radius(problem.dimension) if hasattr(problem.region, "radius") else np.inf
    if not np.isfinite(radius):
        return data_lipschitz(problem)
    constants = problem.constants(radius)
    if "gradient_bound" in constants.estimated:
        raise ValueError(f"lipschitz must be given: {problem.loss} states no bounds.")
    return constants.gradient_bound


def _minimiser(problem: Problem, given: ArrayLike | None) -> Array:
    """Return the given model, or solve for the minimiser."""
    if given is not None:
        return _inside("minimiser", given, problem)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        point = stable_point(problem)
    if not point.converged:
        raise ValueError(f"minimiser must be given: none was found, with a residual of {point.residual:.1e}.")
    return point.theta


def _inside(name: str, value: ArrayLike, problem: Problem) -> Array:
    """Return a model in the problem's region; raise ValueError for others, from which a projection may lead away."""
    theta = checks.vector(name, value, problem.dimension)
    nearest = theta.copy()
    project(problem.region, nearest)
    if not np.allclose(nearest, theta, rtol=1e-12, atol=1e-12):
        raise ValueError(f"{name} must lie in the region {problem.region}, got {value!r}.")
    return theta


def _check(problem: Problem) -> None:
    """Raise an error unless records do not react and the loss is convex."""
    checks.instance("problem", problem, Problem)
    if not isinstance(problem.response, Identity):
        raise ValueError(f"problem must have records that do not react, got {problem.response}.")
    some = np.unique(np.quantile(problem.labels, [0.0, 0.25, 0.5, 0.75, 1.0], method="nearest"))
    if is_margin_loss(problem.loss) and not is_convex(problem.loss, some):
        raise ValueError(f"problem must have a convex loss, got {problem.loss}.")


def _check_linear(problem: Problem) -> None:
    """Raise ValueError unless the loss depends on the margin only and there is no penalty and no region."""
    if not is_linear(problem.loss) or penalty(problem.loss) != 0.0:
        raise ValueError(f"problem must have a loss of the margin without penalty (l2 = 0), got {problem.loss}.")
    if not isinstance(problem.region, Everywhere):
        raise ValueError(f"problem must have no region, got {problem.region}.")
