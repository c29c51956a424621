"""The mean of a round of local reports: how much of the sampling error and of the noise is left in it.

A round averages b reports g_i + σ_i·ω_i, ω ~ N(0, I), σ_i = Δ/μ_i, with weights w_i that add up to 1. If budgets do not
depend on records, the mean is unbiased, and its mean square error is E[Σ w_i²·(V + d·σ_i²)], V being the variance of a
gradient. Equal weights make it the arithmetic mean of the V + d·σ_i², divided by b. It is smallest for
w_i ∝ 1/(V + d·σ_i²): then it is the harmonic mean, divided by b, in each round.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clipsilon._core import checks

__all__ = ["RoundMoments", "round_moments", "round_variance"]

Array = NDArray[np.float64]

_NODES = 4001  # of the trapezoidal rule, on a logarithmic scale
_AT_A_TIME = 2**20  # numbers: memory does not grow with nodes times budgets


class RoundMoments(NamedTuple):
    """What is left of one report's errors in the mean of a round.

    Attributes
    ----------
    share : float
        E[Σ w_i²], the factor of the sampling error: 1/b for equal weights.
    noise : float
        E[Σ w_i²/μ_i²], the variance of the noise per coordinate, in units of Δ².
    """

    share: float
    noise: float


def round_moments(
    budget: ArrayLike, batch: int, dimension: int, sensitivity: float, variance: float = np.nan
) -> RoundMoments:
    """Return the moments of the weights of a round whose b budgets are independent draws from a vector.

    Parameters
    ----------
    budget : float or array_like of float
        μ: one budget for all users, or a vector from which each user's budget is drawn.
    batch : int
        b, the number of reports per round.
    dimension : int
        d.
    sensitivity : float
        Δ, the sensitivity of the loss.
    variance : float, default NaN
        V of the weights 1/(V + d·(Δ/μ_i)²). NaN stands for (Δ/2)², infinity for equal weights.

    Returns
    -------
    RoundMoments
        Exact up to rounding. If users are drawn without replacement, E[Σ w_i²·(V + d·σ_i²)] is at most what follows
        from these moments.

    Notes
    -----
    With x = 1/(V + d·σ²) and S = Σ x_i, E[Σ a_i·x_i²/S²] = b·∫₀^∞ t·E[a·x²·e^(−tx)]·(E e^(−tx))^(b−1) dt, because
    1/S² = ∫₀^∞ t·e^(−tS) dt. The integral is taken on a logarithmic scale, where the trapezoidal rule is accurate to
    about 10⁻¹².
    """
    mus, counts = np.unique(checks.budgets("budget", budget), return_counts=True)
    b, d = checks.count("batch", batch), checks.count("dimension", dimension)
    delta, v = checks.positive("sensitivity", sensitivity), checks.public_variance("variance", variance)
    inverse, chances = mus**-2.0, counts / counts.sum()
    if b == 1 or v == np.inf or mus.size == 1:
        return RoundMoments(1.0 / b, float(chances @ inverse) / b)
    v = (delta / 2) ** 2 if np.isnan(v) else v
    x = 1.0 / (v + d * delta**2 * inverse)
    x /= x.max()  # weights are relative
    u = np.linspace(np.log(1e-9 / b), np.log(800.0 / x.min()), _NODES)
    t, values = np.exp(u), np.empty((2, _NODES))
    for some in np.array_split(np.arange(_NODES), -(-_NODES * x.size // _AT_A_TIME)):
        tails = chances * np.exp(-np.outer(t[some], x))
        values[:, some] = np.sum(tails, axis=1) ** (b - 1) * (tails @ np.stack((x**2, inverse * x**2)).T).T
    step = b * (u[1] - u[0])
    return RoundMoments(*(float(step * each) for each in values @ t**2))


def round_variance(
    budget: ArrayLike, batch: int, dimension: int, sensitivity: float, variance: float, weights: str = "budget"
) -> float:
    """Return the mean square error of the mean report of a round, E‖Σ w_i·r_i − ∇F‖².

    The gain by weights is the ratio of the two values. It is 1 if all budgets are equal, and large if a few tiny ones
    dominate the arithmetic mean of 1/μ².

    Parameters
    ----------
    budget, batch, dimension, sensitivity
        As in `round_moments`.
    variance : float
        V, the variance of a gradient E‖∇ℓ − ∇F‖², which the weights are made for; at least 0.
    weights : {"budget", "equal"}, default "budget"
        As in `clipsilon.LDPSGD`.

    Returns
    -------
    float
        The error, if budgets do not depend on records.

    Examples
    --------
    >>> equal, weighted = (round_variance([0.1, 1, 10], 100, 20, 1.0, 0.25, how) for how in ("equal", "budget"))
    >>> round(equal / weighted)
    500
    """
    v = checks.nonnegative("variance", variance)
    used = checks.choice("weights", weights, {"budget": v, "equal": np.inf})
    share, noise = round_moments(budget, batch, dimension, sensitivity, used)
    return share * v + dimension * sensitivity**2 * noise
