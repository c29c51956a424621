"""A private sketch of the gradients at the start: how long they are, how fast they change, and their mean.

Each record has two numbers that no other record changes: the length of its gradient at θ_0, and the trace of its
gradient's derivative there. Quantiles of both are found by noisy counts (`clipsilon.privacy.quantiles`). One of them is
the clip of the mean gradient, to which noise is added.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from clipsilon.engine.exact_noise import clip_to_grid, draw_whole, release
from clipsilon.engine.means import gradient_norms, record_gradients
from clipsilon.privacy.quantiles import answer_error, balances, search, values
from clipsilon.problems.problem import Problem
from clipsilon.rules.clipping import Unclipped

Array = NDArray[np.float64]

_QUESTIONS = 12  # per quantile: 6 for the octave, 4 within it, 2 for the tails
ASKED = 3 * _QUESTIONS
"""The number of noisy counts of a sketch."""

_STEEP = 0.9  # fraction of records whose gradient changes less fast than the sketch says
_DIFFERENCE = 1e-4  # relative step for derivatives


class Sketch(NamedTuple):
    """What a private tuning knows about the records.

    Attributes
    ----------
    typical : float
        About the median length of a gradient at the start.
    longest : float
        About the quantile of these lengths that was asked for.
    curvature : float
        About the 0.9-quantile of the traces of the derivatives of single gradients.
    common : float
        About the length of the mean of the gradients, clipped to `longest`; not below that of its noise.
    """

    typical: float
    longest: float
    curvature: float
    common: float


def take_sketch(
    problem: Problem, start: Array, quantile: float, std: float, multiplier: float, noise: Generator
) -> Sketch:
    """Ask for three quantiles, by `ASKED` noisy counts, and for the mean of the clipped gradients.

    Parameters
    ----------
    problem : Problem
        The records, with a response that is not random.
    start : array of shape (d,)
        θ_0, which is public and which the records react to.
    quantile : float
        The fraction of gradients that are shorter than `longest`, between ½ and 1.
    std : float
        Standard deviation of the noise on each count.
    multiplier : float
        Standard deviation of the noise on the sum of the clipped gradients, in units of the clip.
    noise : Generator
        Source of the noise.

    Returns
    -------
    Sketch
        The quantiles, 0 for what is too small to measure, and the length of the mean.

    Formal guarantee
    ----------------
    If one record is zeroed out, the sketch is μ-GDP with μ² = ASKED/std² + 1/multiplier²; if it is replaced, 2μ-GDP.
    """
    lengths = _counted(problem, gradient_norms(problem, start, start, 1)[:, 0])
    traces = _counted(problem, curvatures(problem, start))
    asked = [(lengths, 0.5), (lengths, quantile), (traces, _STEEP)]
    typical, longest, curvature = (float(private_quantiles(table, level, std, noise)[0]) for table, level in asked)
    common = _mean_length(problem, start, longest or 1.0, multiplier, noise)
    return Sketch(typical, longest, curvature, common)


def _mean_length(problem: Problem, start: Array, clip: float, multiplier: float, noise: Generator) -> float:
    """Return about the length of the mean of the clipped gradients, by a noisy sum."""
    multiplier = max(multiplier, 2.0**-29 * problem.records)  # else sums of 64 bits might overflow
    gradients = record_gradients(problem, start, Unclipped())
    gradients[~np.isfinite(gradients).all(axis=1)] = 0.0
    total = clip_to_grid(gradients, clip, clip * multiplier).sum(axis=0)
    square = float(np.sum(release(total, clip * multiplier, noise) ** 2))
    from_noise = start.size * (clip * multiplier) ** 2
    return float(np.sqrt(max(square - from_noise, from_noise))) / problem.records


def _counted(problem: Problem, numbers: Array) -> Array:
    """Return one number per record as a column, NaN for records of weight 0, which are zeroed out: counted nowhere."""
    column, weights = numbers[:, np.newaxis], problem.weights
    if weights is None:
        return column
    if problem.starts is not None:  # a person is zeroed out if all rows are
        weights = np.add.reduceat(weights, problem.starts[:-1])
    return np.where(weights[:, np.newaxis] > 0, column, np.nan)


def private_quantiles(table: Array, quantile: float, std: float, noise: Generator) -> Array:
    """Return a quantile of each column of numbers that are not negative, by noisy counts.

    Parameters
    ----------
    table : array of shape (records, columns)
        The numbers; a NaN is counted nowhere.
    quantile : float
        The fraction of numbers below the quantile; at most what the noise lets distinguish from all.
    std : float
        Standard deviation of the noise on each count.
    noise : Generator
        Source of the noise.

    Returns
    -------
    array
        One quantile per column.
    """
    records, columns = table.shape
    error = answer_error(std, records)

    def fraction_below(thresholds: Array) -> Array:
        # Balances are whole numbers, and so is the exact noise: no low-order digits reveal either.
        return np.asarray(0.5 + (balances(table, thresholds) + draw_whole(noise, std, columns)) / (2 * records))

    level = min(quantile, 1.0 - 6.0 * error)  # else answers about thresholds far above could be mistaken for it
    return values(search(fraction_below, columns, level, error, _QUESTIONS, lowest=0.0)[1])


def curvatures(problem: Problem, theta: Array) -> Array:
    """Return, per record, the size of the trace of its gradient's derivative while it reacts to θ."""
    size = _DIFFERENCE * (1.0 + float(np.linalg.norm(theta)))
    traces = np.zeros(problem.records)
    for j, kick in enumerate(size * np.eye(theta.size)):
        after, before = (record_gradients(problem, theta + sign * kick, Unclipped())[:, j] for sign in (1.0, -1.0))
        with np.errstate(all="ignore"):  # a warning would reveal that some gradient is not finite
            traces += (after - before) / (2.0 * size)
    return np.abs(traces)
