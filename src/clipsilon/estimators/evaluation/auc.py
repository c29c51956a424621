"""The area under the ROC curve, from noisy counts of both classes in bins of the score.

With c₀ and c₁ the counts, A = Σ U[i, j]·c₁[i]·c₀[j]/(Σc₁·Σc₀), where U is 1 for i > j and ½ for i = j: the area under
straight lines between the points of the curve. Its error falls with the square of the bins' size, so a third of the
change from bins twice as large corrects it (Richardson). Scores beyond the grid are all in its first and last cell,
and widen the interval by what their order could change. The interval holds every a for which c₁ᵀ(U − a)c₀ is within
2.04 of its standard deviations from 0, as in `ratios`. The variance of sampling is the larger one of two:
Newcombe's at a, and what the counts say.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from clipsilon.estimators.evaluation.means import Histograms
from clipsilon.estimators.evaluation.ratios import Counts, Figure, deviations

Array = NDArray[np.float64]

_CANDIDATES = np.linspace(0.0, 1.0, 4001)
_FEWEST = 2.0  # people of a class for whom sampling variances are computed


def area(both: Histograms) -> Figure:
    """Return the AUC; the first half of all counts is of the negative class, the second of the positive one."""
    noisy = both.bins
    size = noisy.counts.size // 2
    order, corrections = _comparison(size)
    comparison = order + corrections.mean(axis=0)
    forms = [_form(comparison), _form(np.ones((size, size)))]
    means, noise = _moments(noisy, forms)
    negatives, positives = noisy.counts[:size], noisy.counts[size:]
    pairs = float(means[1])
    value = means[0] / pairs if pairs > 0 else np.nan
    sampling = _sampling(negatives, positives, comparison, _CANDIDATES)
    accepted = (means[0] - _CANDIDATES * pairs) ** 2 <= deviations() ** 2 * (noise + sampling)
    if not np.isfinite(value) or not accepted.any():
        return Figure(float("nan"), 0.0, 1.0)
    kept = _CANDIDATES[accepted]
    # Where scores are tied, the lines are right without the correction: the interval covers both cases.
    tied = 2 * float(np.abs(positives @ corrections @ negatives).max())
    doubt = np.hypot(tied, _pairs_beyond(both)) / pairs
    low, high = (value + side * np.hypot(doubt, value - end) for side, end in ((-1, kept[0]), (1, kept[-1])))
    return Figure(*np.clip([value, low, high], 0.0, 1.0).tolist())


def _comparison(size: int) -> tuple[Array, Array]:
    """Return U, positives by negatives, and a third of what it changes by if bins are joined in pairs, in both ways."""
    bins = np.arange(size)
    joined = np.stack([bins // 2, (bins + 1) // 2])
    order, *coarse = ((np.sign(own[:, np.newaxis] - own) + 1) / 2 for own in (bins, *joined))
    return order, (order - np.array(coarse)) / 3


def _pairs_beyond(both: Histograms) -> float:
    """Return the number of pairs that the first cell and the last hold: scores beyond the grid are there in any order.

    They count half in the area, so this is twice what it may be off by.
    """
    ends = np.array([[0, -1]] * 2)
    in_cells, in_bins = (np.take_along_axis(own.counts.reshape(2, -1), ends, axis=1) for own in both[:2])
    people = np.maximum(np.minimum(in_cells, in_bins), 0.0)  # the bins have less noise, and hold the cells
    return float(people[0] @ people[1])


def _form(matrix: Array) -> Array:
    """Return the symmetric Q with cᵀQc = c₁ᵀ·matrix·c₀, for c = (c₀, c₁)."""
    zeros = np.zeros_like(matrix)
    return np.block([[zeros, matrix.T / 2], [matrix / 2, zeros]])


def _moments(noisy: Counts, forms: list[Array]) -> tuple[Array, Array]:
    """Return unbiased estimates of two forms, and the variance of the noise in first − a·second for each candidate."""
    counts, covariance = noisy
    slopes, spreads = [form @ counts for form in forms], [form @ covariance for form in forms]
    means = [counts @ form @ counts - np.trace(spread) for form, spread in zip(forms, spreads, strict=True)]
    pairs = ((0, 0, 1.0), (0, 1, -2.0), (1, 1, 1.0))
    powers = np.array([_CANDIDATES**power for power in range(3)])
    linear = np.array([4 * c * float(slopes[i] @ covariance @ slopes[j]) for i, j, c in pairs]) @ powers
    square = np.array([2 * c * float(np.sum(spreads[i] * spreads[j].T)) for i, j, c in pairs]) @ powers
    # The variance is 4·cᵀQKQc + 2·tr(QKQK); with noisy counts in the place of c, the first term is too large.
    return np.array(means), np.maximum(linear - square, square)


def _sampling(negatives: Array, positives: Array, order: Array, candidates: Array) -> Array:
    """Return the variance of c₁ᵀ(U − a)c₀ over samples of people, for each a."""
    n0, n1 = (max(float(own.sum()), _FEWEST) for own in (negatives, positives))
    a = candidates
    # Newcombe (2006, method 5): Hanley and McNeil's variance, made symmetric in the classes.
    formula = a * (1 - a) * (1 + ((n0 + n1) / 2 - 1) * ((1 - a) / (2 - a) + a / (1 + a)))
    # Each person's own effect. Linear in the counts of the own class, so that noise does not make it larger.
    wins = np.clip(order @ negatives / n0, 0.0, 1.0), np.clip(order.T @ positives / n1, 0.0, 1.0)
    spreads = [_variance(own, won) for own, won in zip((positives, negatives), wins, strict=True)]
    return np.maximum(formula, n0 * spreads[0] + n1 * spreads[1]) * n0 * n1


def _variance(counts: Array, values: Array) -> float:
    """Return the variance of values over people, between 0 and its largest possible value."""
    people = max(float(counts.sum()), _FEWEST)
    mean = float(np.clip(counts @ values / people, 0.0, 1.0))
    return float(np.clip(counts @ (values - mean) ** 2 / people, 0.0, mean * (1 - mean)))
