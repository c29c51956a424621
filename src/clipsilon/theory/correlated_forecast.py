"""Forecast of a rule with correlated noise that takes records in a fixed order and releases the mean of its last half.

The mean follows the path of `clipsilon.theory.forecast`. A deviation from it is linear: in each eigendirection i of the
field, the noise of step t moves the released mean by r_it (`clipsilon.correlation.average_response`). So correlated
noise C⁻¹w contributes s²·Σ_i ‖C⁻ᵀ r_i‖², with s the standard deviation of w.

A pass has b batches of B records, in an order shuffled before the run. Over all passes, batch j has the weight
w_ij = Σ_k r_i(j + k·b). Equal weights would make the deviations of all records cancel, so drawing them in this order
adds S_i/B·(Σ_j w_ij² − (Σ_j w_ij)²/b), S_i being the variance of one record's clipped gradient in direction i.

Single iterates may wander much farther than their mean. Where the field F is not linear over such distances, its mean
over the iterates differs from F by δ = E F(θ + ξ) − F(θ), a force that moves the released mean by −Σ_t r_it·δ_i.

Approximations, besides those of `forecast`: the field is linearised at one point, the knot of the path that is closest
to the middle of the iterates that are averaged, and δ is that of the middle one.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import make_interp_spline
from scipy.special import ndtri

from clipsilon.engine.means import mean_gradient
from clipsilon.problems.problem import Problem
from clipsilon.problems.regions import project
from clipsilon.rules.clipping import Norm
from clipsilon.rules.correlation import average_response, output_norm
from clipsilon.rules.noise import Correlated
from clipsilon.rules.schedules import Constant, InverseTime
from clipsilon.theory.forecast import Forecast, MeanPath, elapsed

__all__ = ["correlated_forecast", "response_table", "tail_bias", "tail_directions"]

Array = NDArray[np.float64]

_POINTS = 40  # iterates at which the average of the mean path is evaluated
_NODES = 25  # rates at which a response is tabulated
_WANDERERS = 32  # pairs of points over which the field is averaged


def correlated_forecast(
    path: MeanPath,
    target: Array,
    step: Constant | InverseTime,
    steps: int,
    noise: Correlated,
    batch: int,
    problem: Problem,
    *,
    records: int | None = None,
) -> Forecast:
    """Forecast E‖θ̄ − target‖² for the mean θ̄ of the last half of the iterates of a run along a mean path.

    Parameters
    ----------
    path : MeanPath
        The path.
    target : array of shape (d,)
        The point to which distances are measured.
    step : Constant or InverseTime
        The step sizes γ_t.
    steps : int
        T.
    noise : Correlated
        The noise, with the standard deviation of w.
    batch : int
        B; the order of the records is that of `sampling.SinglePass` or `sampling.Cyclic`.
    problem : Problem
        The problem of the path.
    records : int, optional
        The number of records per pass, of which those of the problem are a sample; by default, they are all of them.

    Returns
    -------
    Forecast
        The expected squared distance, in parts. It is a prediction, not a bound.
    """
    noises = scatter = 0.0
    pulls, deviations = [], []
    slots = -(-(problem.records if records is None else records) // batch)
    for rate, variance in zip(*tail_directions(path, step, steps), strict=True):
        response = average_response(step, rate, steps, steps // 2)
        middle = average_response(step, rate, _middle(steps), _middle(steps) - 1)
        noises += (noise.std * output_norm(noise.buffers, response)) ** 2
        scatter += float(variance) / batch * _unevenness(response, slots)
        wandering = (noise.std * output_norm(noise.buffers, middle)) ** 2 + variance / batch * float(middle @ middle)
        deviations.append(np.sqrt(wandering))
        pulls.append(response.sum())
    k = _tail_knot(path, step, steps)
    force = path.axes[k].T @ _force(problem, path, k, np.array(deviations))
    shift = path.axes[k] @ (np.array(pulls) * force)
    return Forecast(tail_bias(path, target + shift, step, steps), scatter, noises)


def tail_bias(path: MeanPath, target: Array, step: Constant | InverseTime, steps: int) -> float:
    """Return the squared distance of the mean of the last half of a mean path to a target.

    Parameters
    ----------
    path : MeanPath
        The path.
    target : array of shape (d,)
        The target.
    step : Constant or InverseTime
        The step sizes γ_t.
    steps : int
        T.

    Returns
    -------
    float
        The distance, squared.
    """
    first = steps // 2 + 1
    tail = np.linspace(first, steps, min(_POINTS, steps + 1 - first)).round()
    times = [elapsed(step, int(t)) for t in tail]
    mean = [np.interp(times, path.times, values).mean() for values in path.theta.T]
    return float(np.sum((mean - target) ** 2))


def tail_directions(path: MeanPath, step: Constant | InverseTime, steps: int) -> tuple[Array, Array]:
    """Return the rates of the field and the variances S_i of one record's clipped gradient, in each eigendirection.

    Parameters
    ----------
    path : MeanPath
        The path.
    step : Constant or InverseTime
        The step sizes γ_t.
    steps : int
        T; the field is linearised at the knot closest to step 3T/4.

    Returns
    -------
    rates, variances : array of shape (d,)
        One per direction.
    """
    k = _tail_knot(path, step, steps)
    axes = path.axes[k]
    return path.rates[k], np.einsum("ji,jk,ki->i", axes, path.scatter[k], axes)


def _tail_knot(path: MeanPath, step: Constant | InverseTime, steps: int) -> int:
    return int(np.abs(path.knots - elapsed(step, _middle(steps))).argmin())


def _middle(steps: int) -> int:
    """Return the number of the iterate in the middle of those that are averaged."""
    return max(3 * steps // 4, 1)


def _force(problem: Problem, path: MeanPath, k: int, deviations: Array) -> Array:
    """Return E F(θ + ξ) − F(θ) at a knot, for ξ normal with these standard deviations in its eigendirections."""
    from scipy.stats import qmc  # slow to import

    theta = path.at(path.knots[k])
    normals = ndtri(qmc.Sobol(theta.size, rng=0).random(_WANDERERS))
    total = np.zeros(theta.size)
    for kick in (normals * deviations) @ path.axes[k].T:
        for sign in (1.0, -1.0):
            at = theta + sign * kick
            project(problem.region, at)
            total += mean_gradient(problem, at, at, 1, Norm(path.clip))
    return total / (2 * _WANDERERS) - mean_gradient(problem, theta, theta, 1, Norm(path.clip))


def response_table(
    step: Constant | InverseTime, steps: int, buffers: Array, slots: int
) -> Callable[[Array], tuple[Array, Array]]:
    """Tabulate what noise and records contribute in a direction, as functions of its rate, for fast searches.

    Parameters
    ----------
    step : Constant or InverseTime
        Step sizes of which the first is 1.
    steps : int
        T.
    buffers : array of shape (k, 2)
        The matrix C of the noise.
    slots : int
        b, the number of batches per pass.

    Returns
    -------
    callable
        From γ_1·μ, between 0 and 1, to ‖C⁻ᵀr‖² and Σ_j w_j² − (Σ_j w_j)²/b, both in units of γ_1².
    """
    places = np.linspace(0.0, np.log1p(steps), _NODES)
    rates = np.expm1(places) / steps
    found = []
    for rate in rates:
        response = average_response(step, rate, steps, steps // 2)
        found.append((output_norm(buffers, response) ** 2, _unevenness(response, slots)))
    spline = make_interp_spline(places, np.log(np.maximum(found, 1e-300)))

    def energies(rate: Array) -> tuple[Array, Array]:
        values = np.exp(spline(np.log1p(np.clip(rate, 0.0, 1.0) * steps)))
        return values[..., 0], values[..., 1]

    return energies


def _unevenness(response: Array, slots: int) -> float:
    """Return Σ_j w_j² − (Σ_j w_j)²/b, with w_j the sum of the response over the steps of batch j."""
    padded = np.append(response, np.zeros(-response.size % slots))
    weights = padded.reshape(-1, slots).sum(axis=0)
    return float(np.sum((weights - weights.mean()) ** 2))
