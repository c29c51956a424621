"""A private sketch of the gradients at the start: how long they are, and how fast they change.

Each record has two numbers that no other record changes: the length of its gradient at θ_0, and the trace of its
gradient's derivative there. Quantiles of both are found by noisy counts (`clipsilon.privacy.quantiles`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from clipsilon.engine.exact_noise import draw_whole
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
    """

    typical: float
    longest: float
    curvature: float


def take_sketch(problem: Problem, start: Array, quantile: float, std: float, noise: Generator) -> Sketch:
    """Ask for three quantiles, by `ASKED` noisy counts.

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
    noise : Generator
        Source of the noise.

    Returns
    -------
    Sketch
        The quantiles; 0 for what is too small to measure.

    Formal guarantee
    ----------------
    If zeroing out one record changes a count by 1, replacing it by 2, the sketch is μ-GDP with μ = √ASKED/std, or twice
    that for replacements.
    """
    lengths = _counted(problem, gradient_norms(problem, start, start, 1)[:, 0])
    traces = _counted(problem, curvatures(problem, start))
    asked = [(lengths, 0.5), (lengths, quantile), (traces, _STEEP)]
    return Sketch(*(float(private_quantiles(table, level, std, noise)[0]) for table, level in asked))


def _counted(problem: Problem, numbers: Array) -> Array:
    """Return one number per record as a column, NaN for records of weight 0, which are zeroed out: counted nowhere."""
    column = numbers[:, np.newaxis]
    return column if problem.weights is None else np.where(problem.weights[:, np.newaxis] > 0, column, np.nan)


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
