"""Noise that later steps take back in part: the matrices of correlated noise, by a few buffers.

A run releases x = v + C⁻¹w with w independent normal and C lower triangular and Toeplitz, c_0 = 1 and
c_k = Σ_i ω_i·θ_i^(k−1). (Such a C is called a BLT, a buffered linear Toeplitz matrix.) C⁻¹w needs one vector of memory
per pair (θ_i, ω_i), however long the run is. The pairs are the rows of an array, `buffers`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from clipsilon._core import checks
from clipsilon.rules.schedules import Schedule, sizes

__all__ = [
    "average_response",
    "coefficients",
    "fit",
    "inverse_modes",
    "output_norm",
    "rounding",
    "shift_norm",
    "square_root",
]

Array = NDArray[np.float64]

LARGEST = 2.0**42
"""Where entries of buffers are cut off, in units: a thousand standard deviations of w."""

_ROUNDING = 2.0**-36  # more than the arithmetic below loses, relatively
_BLOCK = 2**21  # numbers per pair of buffers that are held at a time
_SHORTEST = 0.4  # of the lifetimes of buffers, in steps
_POLES = 160  # at which products with filtered responses are tabulated
_DIFFERENCE = 1e-6  # for derivatives of the cost of a fit


def coefficients(buffers: Array, steps: int) -> Array:
    """Return c_0, …, c_{T−1}."""
    decays, weights = buffers.T
    powers = np.exp(np.outer(np.arange(max(steps - 1, 0)), _logarithms(decays)))
    return np.concatenate([[1.0], powers @ weights])[:steps]


def inverse_modes(buffers: Array) -> tuple[Array, Array]:
    """Return λ and η of the inverse matrix, whose coefficients are 1 and −Σ_j η_j·λ_j^(k−1) for k ≥ 1."""
    decays, weights = buffers.T
    roots = np.sqrt(weights)
    found, modes = np.linalg.eigh(np.diag(decays) - np.outer(roots, roots))
    return found, (roots @ modes) ** 2


def shift_norm(buffers: Array, steps: int, participations: int = 1, separation: int = 1) -> float:
    """Return the largest norm of C·u for one record, whose contributions to steps are vectors of norm 1 at most.

    Parameters
    ----------
    buffers : array of shape (k, 2)
        θ_i and ω_i.
    steps : int
        T, the length of the run.
    participations : int, default 1
        K, the largest number of steps in which a record takes part.
    separation : int, default 1
        b, the smallest number of steps from one participation to the next.

    Returns
    -------
    float
        ‖Σ_{j<K} C·e_{jb}‖ over T steps, rounded up.

    Notes
    -----
    C has no negative entry, so equal directions are worst, and as c_k never increases, so are the earliest steps, as
    close to each other as possible (docs/proofs.md, "Correlated noise").
    """
    participations = min(participations, -(-steps // separation))
    energy = 0.0
    for numbers in _blocks(participations, max(_BLOCK // max(len(buffers), 1) ** 2, 1)):
        energy += float(np.sum(_energies(buffers, steps, participations, separation, numbers)))
    return float(np.sqrt(energy)) * (1.0 + _ROUNDING)


def rounding(buffers: Array, steps: int) -> float:
    """Return what rounding may add to the shift of one coordinate in one step of a run of T, in units of the grid.

    Two neighbouring data sets round what is taken back to whole numbers, and compute it from buffers whose entries are
    at most `LARGEST` in size (docs/proofs.md, "Correlated noise").
    """
    decays, weights = buffers.T
    lifetimes = _geometric(_logarithms(decays), np.array(steps))  # 1 + θ + … + θ^(T−1)
    stored = 2.0**-52 * LARGEST * float(np.sum(weights * lifetimes))
    added = 2.0**-53 * LARGEST * (len(buffers) + 2) * float(weights.sum())
    return 1.0 + 2.0 * (stored + added) * (1.0 + _ROUNDING)


def square_root(steps: int, count: int = 5) -> Array:
    """Return buffers for which C is close to the square root of the matrix of prefix sums, for runs of up to T steps.

    Its coefficients are c_k = c_{k−1}·(2k − 1)/(2k): for noise in sums over steps this is nearly the best choice.

    Parameters
    ----------
    steps : int
        T, at least 1. The buffers serve shorter runs as well.
    count : int, default 5
        The number of buffers.

    Returns
    -------
    array of shape (at most count, 2)
        θ_i and ω_i.
    """
    from scipy.optimize import nnls

    steps, count = max(checks.count("steps", steps), 4), checks.count("count", count)
    lags = np.unique(np.geomspace(1, steps, 400).round())
    wanted = np.exp(_log_central(lags))
    decays = np.exp(-1.0 / np.geomspace(_SHORTEST, 0.7 * steps, count))
    powers = np.exp(np.outer(lags - 1.0, np.log(decays)))
    weights, _ = nnls(powers / wanted[:, None], np.ones(lags.size))
    return np.asarray(np.column_stack([decays, weights])[weights > 0])


def fit(response: Array, participations: int = 1, separation: int = 1, count: int = 4) -> Array:
    """Return buffers for the least noise in released numbers, at equal privacy.

    Parameters
    ----------
    response : array of shape (T,) or (numbers, T)
        How much the noise of each step moves the number, or each of several whose squared errors add up.
    participations, separation : int, default 1
        As in `shift_norm`.
    count : int, default 4
        The number of buffers.

    Returns
    -------
    array of shape (at most count, 2)
        θ_i and ω_i.
    """
    from scipy.optimize import minimize

    steps = response.shape[-1]
    participations = min(participations, -(-steps // separation))
    numbers, lengths = _thinned(participations)
    output_energy = _output_energy(response)

    def cost(place: Array) -> float:
        buffers = _from_place(place)
        shift_energy = float(lengths @ _energies(buffers, steps, participations, separation, numbers))
        return float(np.log(shift_energy) + np.log(output_energy(buffers)))

    start = _to_place(square_root(steps, count))
    limits = [(-12.0, 18.0)] * (start.size // 2) + [(-18.0, 18.0)] * (start.size // 2)
    found = minimize(cost, start, method="L-BFGS-B", bounds=limits, options={"eps": _DIFFERENCE})
    return _from_place(min((start, found.x), key=cost))


def output_norm(buffers: Array, response: Array) -> float:
    """Return the standard deviation of a released number, in units of that of w.

    Parameters
    ----------
    buffers : array of shape (k, 2)
        θ_i and ω_i.
    response : array of shape (T,) or (numbers, T)
        How much the noise of each step moves the number. The variances of several numbers are added.
    """
    from scipy.signal import lfilter

    backwards = response[..., ::-1]
    left = backwards.copy()
    for pole, weight in zip(*inverse_modes(buffers), strict=True):
        left -= lfilter([0.0, weight], [1.0, -pole], backwards)
    return float(np.linalg.norm(left))


def average_response(step: Schedule, curvature: float, steps: int, begin: int) -> Array:
    """Return how much the noise of each step moves the mean of the iterates after step `begin`.

    Parameters
    ----------
    step : Schedule
        Step sizes γ_t.
    curvature : float
        μ, by which steps contract: θ − θ* becomes (1 − γ_t·μ)·(θ − θ*).
    steps : int
        T.
    begin : int
        The number of iterates that are left out.

    Returns
    -------
    array of shape (T,)
        The derivatives with respect to the noise of the steps 1, …, T.
    """
    gammas = sizes(step, steps)
    contractions = np.append(0.0, 1.0 - gammas[:0:-1] * curvature)  # from the last step backwards
    counted = np.where(np.arange(steps, 0, -1) > begin, 1.0, 0.0)
    return np.asarray(gammas * _recursion(contractions, counted)[::-1] / (steps - begin))


def _recursion(factors: Array, terms: Array) -> Array:
    """Return x_0, x_1, … with x_k = factors_k·x_{k−1} + terms_k and x_{−1} = 0, by doubling."""
    factors, result, shift = factors.copy(), terms.copy(), 1
    while shift < result.size and factors[shift:].any():
        result[shift:] += factors[shift:] * result[:-shift]
        factors[shift:] *= factors[:-shift]
        shift *= 2
    return result


def _energies(
    buffers: Array, steps: int, participations: int, separation: int, numbers: Array | NDArray[np.int64]
) -> Array:
    """Return the energy of Σ_j C·e_{jb} from one participation to the next, for participations of these numbers."""
    decays, weights = buffers.T
    logs = _logarithms(decays)
    before = np.exp((separation - 1) * logs) * _geometric(logs * separation, numbers[:, None])
    lengths = np.where(numbers < participations - 1, separation, steps - separation * numbers)
    after = 1.0 + decays * before  # the buffers after the participation, times what they decay by until the next
    tails = _geometric(np.add.outer(logs, logs), (lengths - 1)[:, None, None])
    later = np.outer(weights, weights) * tails * after[:, :, None] * after[:, None, :]
    return np.asarray((1.0 + before @ weights) ** 2 + later.sum(axis=(1, 2)))


def _thinned(count: int) -> tuple[Array, Array]:
    """Return numbers from 0 to count − 1, few of them large, and how many numbers each of them stands for."""
    edges = np.unique(np.append(np.arange(min(count, 32)), np.geomspace(1, count, 200).astype(np.int64) - 1))
    lengths = np.diff(edges, append=count).astype(np.float64)
    return edges + 0.5 * (lengths - 1.0), lengths


def _output_energy(response: Array) -> Callable[[Array], float]:
    """Return a function from buffers to the square of `output_norm`, without a pass over the steps.

    With x_λ the response, backwards, filtered by a pole λ, that square is a sum over the inverse modes of products of
    the response r and the x_λ. Summing the recursion x_{λ,t+1} = λ·x_{λ,t} + r_t squared gives (1 − λλ')·⟨x_λ, x_λ'⟩ =
    λ·⟨r, x_λ⟩ + λ'·⟨r, x_λ'⟩ + ‖r‖² minus the product of the last values. So two functions of one pole are enough,
    and both are smooth in the logarithm of 1/(1 − λ), the lifetime.
    """
    from scipy.interpolate import make_interp_spline
    from scipy.signal import lfilter

    backwards = np.atleast_2d(response)[:, ::-1]
    total = float(np.sum(backwards**2))
    lifetimes = np.linspace(-0.69, 18.3, _POLES)  # logarithms, for poles from −0.99 to what `_from_place` can give
    table = np.empty((_POLES, 1 + len(backwards)))
    for row, lifetime in zip(table, np.exp(lifetimes), strict=True):
        filtered, last = lfilter([0.0, 1.0], [1.0, 1.0 / lifetime - 1.0], backwards, zi=np.zeros((len(backwards), 1)))
        row[:] = np.append(np.sum(backwards * filtered), last) / lifetime
    spline = make_interp_spline(lifetimes, table, k=7)

    def energy(buffers: Array) -> float:
        poles, weights = inverse_modes(buffers)
        rest = 1.0 - poles
        values = spline(np.maximum(-np.log(rest), lifetimes[0])) / rest[:, None]
        inner, ends = values[:, 0], values[:, 1:]
        squares = np.add.outer(poles * inner, poles * inner) + total - ends @ ends.T
        squares /= rest[:, None] + poles[:, None] * rest  # 1 − λλ'
        return float(max(total - 2.0 * weights @ inner + weights @ squares @ weights, 1e-12 * total))

    return energy


def _logarithms(decays: Array) -> Array:
    """Return log θ; 1 − θ is exact for θ ≥ ½, and rounds to 1 for very small θ."""
    return np.where(decays < 0.5, np.log(decays), np.log1p(-np.minimum(1.0 - decays, 0.5)))


def _geometric(logs: Array, count: Array | NDArray[np.int64]) -> Array:
    """Return 1 + r + … + r^(count − 1) for r = exp(logs), which is below 1."""
    return np.expm1(count * logs) / np.expm1(logs)


def _blocks(count: int, size: int) -> Iterator[NDArray[np.int64]]:
    for first in range(0, count, size):
        yield np.arange(first, min(first + size, count))


def _log_central(lags: Array) -> Array:
    """Return the logarithms of binomial(2k, k)/4^k."""
    from scipy.special import gammaln

    return np.asarray(gammaln(lags + 0.5) - gammaln(lags + 1.0) - 0.5 * np.log(np.pi))


def _to_place(buffers: Array) -> Array:
    """Return buffers as numbers without constraints: logits of θ, and logarithms of ω over what is left of 1."""
    decays, weights = buffers.T
    rest = max(1.0 - weights.sum(), 1e-6)
    return np.concatenate([-np.log(1.0 / decays - 1.0), np.log(np.maximum(weights, 1e-9) / rest)])


def _from_place(place: Array) -> Array:
    half = place.size // 2
    shares = np.exp(place[half:])
    return np.column_stack([1.0 / (1.0 + np.exp(-place[:half])), shares / (1.0 + shares.sum()) * (1.0 - 1e-9)])
