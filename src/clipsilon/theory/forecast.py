"""Forecast of a clipped rule with small steps: the path of its mean, and the spread of runs around it.

With F(θ) the mean clipped gradient over the records that react to θ, and τ = γ_1 + … + γ_t as time, the mean follows
θ' = −F(θ), and a deviation ξ from it is linear: dξ = −F'(θ)·ξ·dτ plus noise of covariance γ·(S(θ)/B + s²·I)·dτ, with
S the covariance of one record's clipped gradient, B the batch and s the standard deviation of the noise (the theory of
stochastic approximation with small steps). So E‖θ_T − target‖² ≈ ‖θ(τ_T) − target‖² + the trace of the covariance of ξ.

This is a prediction, not a bound: the theory is exact in the limit of small steps. It uses the data, where the theorems
use constants only. Approximations: F' is constant between a few points of the path and is replaced by its symmetric
part (the two differ if records react or gradients are clipped); batches are treated as drawn with replacement, anew at
each step; and the mean path is kept in the region but its spread is not, which overstates the spread where the path
ends on the border.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.integrate import solve_ivp
from scipy.special import digamma

from clipsilon.engine.means import mean_gradient, record_gradients
from clipsilon.problems.problem import Problem
from clipsilon.problems.regions import project
from clipsilon.rules.clipping import Norm
from clipsilon.rules.schedules import Constant, InverseTime

__all__ = ["Forecast", "MeanPath", "decay_rates", "elapsed", "forecast", "mean_path"]

Array = NDArray[np.float64]

_POINTS = 400  # points of the mean path
_KNOTS = 10  # points at which the field is linearised
_DIFFERENCE = 1e-4  # relative step for derivatives of a field that has kinks
_DRAWS = 20  # reactions averaged per record if the response is random
_RETURN = 1e4  # rate at which a path outside the region is pulled back, in units of 1/horizon


class MeanPath(NamedTuple):
    """The mean path of a rule with one clipping threshold, and the linearised field around it.

    N is the number of points of the path, K the number of knots, d the number of coordinates of θ.

    Attributes
    ----------
    clip : float
        The clipping threshold.
    times : array of shape (N,)
        τ, from 0.
    theta : array of shape (N, d)
        θ(τ).
    knots : array of shape (K,)
        The τ at which the field was linearised.
    rates : array of shape (K, d)
        The eigenvalues of the symmetric part of F'(θ(τ)).
    axes : array of shape (K, d, d)
        Their eigenvectors, in columns.
    scatter : array of shape (K, d, d)
        S, the covariance of one record's clipped gradient.
    """

    clip: float
    times: Array
    theta: Array
    knots: Array
    rates: Array
    axes: Array
    scatter: Array

    def at(self, time: float) -> Array:
        """Return θ(τ), interpolated linearly."""
        return np.array([np.interp(time, self.times, values) for values in self.theta.T])


class Forecast(NamedTuple):
    """E‖θ_T − target‖², in parts.

    Attributes
    ----------
    bias : float
        Of the mean path: the distance that is left, and what clipping adds.
    scatter : float
        From drawing records.
    noise : float
        From the privacy noise.
    lag : float, default 0.0
        From the error that has not been fed back yet.
    spread : float, default 0.0
        From records and noise together, where simulations do not tell them apart.
    """

    bias: float
    scatter: float
    noise: float
    lag: float = 0.0
    spread: float = 0.0

    @property
    def gap(self) -> float:
        """The sum of all parts."""
        return self.bias + self.scatter + self.noise + self.lag + self.spread


def mean_path(problem: Problem, clip: float, start: Array, horizon: float) -> MeanPath:
    """Follow θ' = −F(θ) from `start` up to τ = `horizon`, and linearise F along the path.

    This takes several hundred passes over the data, and 20 more per coordinate of θ.

    Parameters
    ----------
    problem : Problem
        The problem, with its response and region.
    clip : float
        The clipping threshold of F.
    start : array of shape (d,)
        θ(0), in the region.
    horizon : float
        The last τ, above 0.

    Returns
    -------
    MeanPath
        The path, and the field around it.
    """
    times = np.concatenate([[0.0], np.geomspace(horizon / 1e4, horizon, _POINTS)])

    def field(theta: Array) -> Array:
        return mean_gradient(problem, theta, theta, _DRAWS, Norm(clip))

    def inside(theta: Array) -> Array:
        result = np.array(theta)  # `project` works in place
        project(problem.region, result)
        return result

    def velocity(_: float, theta: Array) -> Array:
        """Return θ' at the projected θ, plus a pull back into the region.

        Without the pull, θ would move on outside the region while its projection, the path, stays behind.
        """
        within = inside(theta)
        return _RETURN / horizon * (within - theta) - field(within)

    solved = solve_ivp(velocity, (0.0, horizon), start, "LSODA", times, rtol=1e-4)
    thetas = np.stack([inside(theta) for theta in solved.y.T])
    knots = np.unique(np.r_[0, np.linspace(_POINTS // 5, _POINTS, _KNOTS).astype(int)])
    rates, axes = zip(*(np.linalg.eigh(_symmetric_slope(field, theta)) for theta in thetas[knots]), strict=True)
    scatter = [_covariance(record_gradients(problem, theta, Norm(clip))) for theta in thetas[knots]]
    return MeanPath(clip, times, thetas, times[knots], np.stack(rates), np.stack(axes), np.stack(scatter))


def decay_rates(problem: Problem, theta: Array) -> Array:
    """Return the eigenvalues of the symmetric part of F'(θ) without clipping: how fast a deviation from θ decays."""
    slope = _symmetric_slope(lambda at: mean_gradient(problem, at, at, _DRAWS), theta)
    return np.asarray(np.linalg.eigvalsh(slope), float)


def forecast(
    path: MeanPath, target: Array, step: Constant | InverseTime, steps: int, noise_std: float, batch: int
) -> Forecast:
    """Forecast E‖θ_T − target‖² of a run of `steps` steps along a mean path.

    Parameters
    ----------
    path : MeanPath
        The path; its horizon must not be below `elapsed(step, steps)`.
    target : array of shape (d,)
        The point to which distances are measured.
    step : Constant or InverseTime
        The step sizes γ_t.
    steps : int
        T.
    noise_std : float
        s, the standard deviation of the noise on each coordinate of the mean update.
    batch : int
        B, the number of records per step.

    Returns
    -------
    Forecast
        The expected squared distance, in parts. It is a prediction, not a bound.
    """
    end = elapsed(step, steps)
    records, draws = _spread(path, step, steps, end)
    return Forecast(float(np.sum((path.at(end) - target) ** 2)), records / batch, draws * noise_std**2)


def elapsed(step: Constant | InverseTime, steps: int) -> float:
    """Return τ_T = γ_1 + … + γ_T."""
    if isinstance(step, Constant):
        return float(step.gamma * steps)
    return float(step.a0 * (digamma(step.a1 + steps + 1.0) - digamma(step.a1 + 1.0)))


def _spread(path: MeanPath, step: Constant | InverseTime, steps: int, end: float) -> tuple[float, float]:
    """Return the trace of the covariance of ξ at the end: from S, and from noise of standard deviation one.

    The computation goes backwards from the end: Q, which starts as I, weighs what a kick at τ contributes to the
    squared distance at the end. Between two knots F' is constant; in its own axes the integral over the kicks has a
    closed form, as γ(τ) = γ_T·exp((τ_T − τ)/a_0).
    """
    last = step.gamma if isinstance(step, Constant) else step.a0 / (step.a1 + steps)
    growth = 0.0 if isinstance(step, Constant) else 1.0 / step.a0
    weight = np.eye(path.theta.shape[1])
    records = draws = 0.0
    ends = np.append(path.knots[1:], np.inf)
    for k in range(int(np.searchsorted(path.knots, end)) - 1, -1, -1):
        first, until = path.knots[k], min(ends[k], end)
        axes, rates = path.axes[k], path.rates[k]
        inner = axes.T @ weight @ axes
        kicks = last * np.exp(growth * (end - until)) * _integral(np.add.outer(rates, rates) - growth, until - first)
        records += float(np.sum(kicks * inner * (axes.T @ path.scatter[k] @ axes)))
        draws += float(np.trace(kicks * inner))
        decay = np.exp(-rates * (until - first))
        weight = axes @ (decay[:, np.newaxis] * inner * decay) @ axes.T
    return records, draws


def _integral(rates: Array, length: float) -> Array:
    """Return ∫_0^length exp(−rate·u) du."""
    safe = np.where(np.abs(rates) * length < 1e-9, 1.0, rates)
    return np.where(safe == rates, -np.expm1(-safe * length) / safe, length)


def _covariance(rows: Array) -> Array:
    """Return the covariance of the rows, divided by their number."""
    centred = rows - rows.mean(axis=0)
    return np.asarray(centred.T @ centred / len(rows))


def _symmetric_slope(field: Callable[[Array], Array], theta: Array) -> Array:
    """Return the symmetric part of F'(θ), by central differences."""
    size = _DIFFERENCE * (1.0 + float(np.linalg.norm(theta)))
    columns = [field(theta + kick) - field(theta - kick) for kick in size * np.eye(theta.size)]
    slope = np.stack(columns, axis=1) / (2.0 * size)
    return np.asarray(0.5 * (slope + slope.T))
