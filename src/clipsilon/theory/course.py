"""The course of a clipped rule when its steps are small: where its mean goes, and how far runs scatter around it.

With F(θ) the mean clipped gradient over the records that react to θ, and τ = γ_1 + … + γ_t as time, the mean follows
θ' = −F(θ), and a deviation ξ from it is linear: dξ = −F'(θ)·ξ·dτ plus a noise of covariance γ·(S(θ)/B + s²·I)·dτ, with
S the covariance of one record's clipped gradient, B the batch and s the deviation of the noise (the theory of
stochastic approximation with small steps). So E‖θ_T − target‖² ≈ ‖θ(τ_T) − target‖² + the trace of the covariance of ξ.
A prediction, not a bound: that theory is exact in the limit of small steps, and knows the data where the theorems know
constants only. Here, F' is constant between a few points of the path, and its symmetric part stands for it (the two
differ if records react or gradients are clipped); batches are as if drawn with replacement, anew at every step; and the
mean path keeps to the region, but its scatter does not, which is too much of it where the path ends on the border.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.integrate import solve_ivp
from scipy.special import digamma

from clipsilon.engine.means import mean_gradient, record_gradients
from clipsilon.problems.problem import Problem
from clipsilon.problems.regions import project
from clipsilon.rules.clipping import Norm
from clipsilon.rules.schedules import Constant, InverseTime

__all__ = ["Course", "Forecast", "course", "decay_rates", "elapsed", "forecast"]

Array = NDArray[np.float64]

_POINTS = 400  # points of the mean path
_KNOTS = 10  # those at which the field is linearised
_DIFFERENCE = 1e-4  # a step for the derivatives of a field that has kinks
_DRAWS = 20  # reactions averaged, if the response is random
_RETURN = 1e4  # how fast a path that leaves the region is drawn back, in units of one over the horizon


class Course(NamedTuple):
    """The mean path of a rule with one clipping threshold, and the field around it."""

    clip: float  #: the threshold
    times: Array  #: (N,) τ, from 0
    path: Array  #: (N, d) θ(τ)
    knots: Array  #: (K,) the τ at which the field was linearised
    rates: Array  #: (K, d) eigenvalues of the symmetric part of F'(θ(τ))
    axes: Array  #: (K, d, d) their eigenvectors, in columns
    scatter: Array  #: (K, d, d) S: the covariance of one record's clipped gradient

    def at(self, time: float) -> Array:
        """θ(τ)."""
        return np.array([np.interp(time, self.times, values) for values in self.path.T])


class Forecast(NamedTuple):
    """E‖θ_T − target‖², in parts."""

    bias: float  #: of the mean path: what is left of the way, and what clipping adds
    scatter: float  #: from drawing records
    noise: float  #: from the noise
    lag: float = 0.0  #: from what error feedback has not fed back yet

    @property
    def gap(self) -> float:
        """The sum."""
        return self.bias + self.scatter + self.noise + self.lag


def course(problem: Problem, clip: float, start: Array, horizon: float) -> Course:
    """Follow θ' = −F(θ) from `start` up to τ = `horizon`, and linearise F along the way.

    Costs some hundred passes over the data, and 20 more for each coordinate of θ.
    """
    times = np.concatenate([[0.0], np.geomspace(horizon / 1e4, horizon, _POINTS)])

    def field(theta: Array) -> Array:
        return mean_gradient(problem, theta, theta, _DRAWS, Norm(clip))

    def inside(theta: Array) -> Array:
        result = np.array(theta)  # a copy: projecting is done in place
        project(problem.region, result)
        return result

    def velocity(_: float, theta: Array) -> Array:
        """On the border it is projected, too: without the way back, θ would go on outside, and the path stay behind."""
        within = inside(theta)
        return _RETURN / horizon * (within - theta) - field(within)

    solved = solve_ivp(velocity, (0.0, horizon), start, "LSODA", times, rtol=1e-4)
    path = np.stack([inside(theta) for theta in solved.y.T])
    knots = np.unique(np.r_[0, np.linspace(_POINTS // 5, _POINTS, _KNOTS).astype(int)])
    rates, axes = zip(*(np.linalg.eigh(_symmetric_slope(field, theta)) for theta in path[knots]), strict=True)
    scatter = [_covariance(record_gradients(problem, theta, Norm(clip))) for theta in path[knots]]
    return Course(clip, times, path, times[knots], np.stack(rates), np.stack(axes), np.stack(scatter))


def decay_rates(problem: Problem, theta: Array) -> Array:
    """The eigenvalues of the symmetric part of ∇F at θ, without clipping: how fast a deviation from θ dies out."""
    slope = _symmetric_slope(lambda at: mean_gradient(problem, at, at, _DRAWS), theta)
    return np.asarray(np.linalg.eigvalsh(slope), float)


def forecast(
    along: Course, target: Array, step: Constant | InverseTime, steps: int, noise_std: float, batch: int
) -> Forecast:
    """E‖θ_T − target‖² of a run of `steps` steps on the course."""
    end = elapsed(step, steps)
    records, draws = _spread(along, step, steps, end)
    return Forecast(float(np.sum((along.at(end) - target) ** 2)), records / batch, draws * noise_std**2)


def elapsed(step: Constant | InverseTime, steps: int) -> float:
    """τ_T = γ_1 + … + γ_T."""
    if isinstance(step, Constant):
        return float(step.gamma * steps)
    return float(step.a0 * (digamma(step.a1 + steps + 1.0) - digamma(step.a1 + 1.0)))


def _spread(along: Course, step: Constant | InverseTime, steps: int, end: float) -> tuple[float, float]:
    """The trace of the covariance of ξ at the end: from S, and from a noise of deviation one.

    Goes backwards from the end: Q, which starts as I, says what a kick at τ contributes to the squared distance at
    the end. Between two nodes F' is constant; in its own axes the integral over the kicks is a closed form, as
    γ(τ) = γ_T·exp((τ_T − τ)/a_0).
    """
    last = step.gamma if isinstance(step, Constant) else step.a0 / (step.a1 + steps)
    growth = 0.0 if isinstance(step, Constant) else 1.0 / step.a0
    weight = np.eye(along.path.shape[1])
    records = draws = 0.0
    ends = np.append(along.knots[1:], np.inf)
    for k in range(int(np.searchsorted(along.knots, end)) - 1, -1, -1):
        first, until = along.knots[k], min(ends[k], end)
        axes, rates = along.axes[k], along.rates[k]
        inner = axes.T @ weight @ axes
        kicks = last * np.exp(growth * (end - until)) * _integral(np.add.outer(rates, rates) - growth, until - first)
        records += float(np.sum(kicks * inner * (axes.T @ along.scatter[k] @ axes)))
        draws += float(np.trace(kicks * inner))
        decay = np.exp(-rates * (until - first))
        weight = axes @ (decay[:, np.newaxis] * inner * decay) @ axes.T
    return records, draws


def _integral(rates: Array, length: float) -> Array:
    """∫_0^length exp(−rate·u) du."""
    safe = np.where(np.abs(rates) * length < 1e-9, 1.0, rates)
    return np.where(safe == rates, -np.expm1(-safe * length) / safe, length)


def _covariance(rows: Array) -> Array:
    centred = rows - rows.mean(axis=0)
    return np.asarray(centred.T @ centred / len(rows))


def _symmetric_slope(field: Any, theta: Array) -> Array:
    """The symmetric part of F'(θ), by central differences."""
    size = _DIFFERENCE * (1.0 + float(np.linalg.norm(theta)))
    columns = [field(theta + kick) - field(theta - kick) for kick in size * np.eye(theta.size)]
    slope = np.stack(columns, axis=1) / (2.0 * size)
    return np.asarray(0.5 * (slope + slope.T))
