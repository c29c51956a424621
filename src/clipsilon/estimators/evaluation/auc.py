"""The area under the ROC curve, from noisy counts of both classes in bins of the score.

With c₀ and c₁ the counts, A = Σ U[i, j]·c₁[i]·c₀[j]/(Σc₁·Σc₀), where U is 1 for i > j and ½ for i = j: the area under
straight lines between the points of the curve. Its error falls with the square of the bins' size, so a third of the
change from bins twice as large corrects it (Richardson). The interval holds every a for which c₁ᵀ(U − a)c₀ is within
1.96 of its standard deviations from 0, as in `ratios`. The variance of sampling is the larger one of two: Hanley and
McNeil's at a, and what the counts say.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from clipsilon.estimators.evaluation.ratios import Counts, Figure, deviations

Array = NDArray[np.float64]

_CANDIDATES = np.linspace(0.0, 1.0, 4001)
_FEWEST = 2.0  # people of a class for whom sampling variances are computed


def area(noisy: Counts) -> Figure:
    """Return the AUC; the first half of the counts is of the negative class, the second of the positive one."""
    size = noisy.counts.size // 2
    order, correction = _comparison(size)
    forms = [_form(order + correction), _form(np.ones((size, size)))]
    means, noise = _moments(noisy, forms)
    negatives, positives = noisy.counts[:size], noisy.counts[size:]
    pairs = float(means[1])
    value = means[0] / pairs if pairs > 0 else np.nan
    sampling = _sampling(negatives, positives, order + correction, _CANDIDATES)
    accepted = (means[0] - _CANDIDATES * pairs) ** 2 <= deviations() ** 2 * (noise + sampling)
    if not np.isfinite(value) or not accepted.any():
        return Figure(float("nan"), 0.0, 1.0)
    kept = _CANDIDATES[accepted]
    # Where scores are tied, the lines are right as they are: the interval covers both cases.
    doubt = abs(float(positives @ correction @ negatives)) / pairs
    low, high = max(float(kept[0]) - doubt, 0.0), min(float(kept[-1]) + doubt, 1.0)
    return Figure(float(np.clip(value, low, high)), low, high)


def _comparison(size: int) -> tuple[Array, Array]:
    """Return U, positives by negatives, and a third of what it would change by if bins were twice as large."""
    bins = np.arange(size)
    order = (np.sign(bins[:, np.newaxis] - bins) + 1) / 2
    pairs = bins // 2
    coarse = (np.sign(pairs[:, np.newaxis] - pairs) + 1) / 2
    return order, (order - coarse) / 3


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
    above, below = a / (2 - a), 2 * a**2 / (1 + a)
    formula = a * (1 - a) + (n1 - 1) * (above - a**2) + (n0 - 1) * (below - a**2)
    # Each person's own effect, from counts without negative ones.
    c0, c1 = (np.maximum(own, 0.0) for own in (negatives, positives))
    c0, c1 = c0 * n0 / max(c0.sum(), 1e-9), c1 * n1 / max(c1.sum(), 1e-9)
    gain, loss = order @ c0, order.T @ c1
    mean = float(c1 @ gain) / (n0 * n1)
    own = float(c1 @ (gain - mean * n0) ** 2 + c0 @ (loss - mean * n1) ** 2)
    return np.maximum(formula * n0 * n1, own)
