"""The ROC curve and the calibration curve, with their intervals, from noisy counts."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clipsilon.estimators.evaluation.ratios import CONFIDENCE, Counts, ratio

Array = NDArray[np.float64]

_POINTS = np.linspace(0.0, 1.0, 101)
_GROUPS = 10  # of people in the calibration curve


class Curve(NamedTuple):
    """A curve with a 95 % confidence interval at each point.

    Parameters
    ----------
    x, y : array
        The points. ROC: false and true positive rate. Calibration: predicted and observed frequency.
    low, high : array
        The interval for `y` at each point. It accounts for the noise and for sampling.
    """

    x: Array
    y: Array
    low: Array
    high: Array


def roc_curve(noisy: Counts) -> Curve:
    """Return the ROC curve at 101 false positive rates.

    At the edge of each bin the interval is a rectangle, which holds both rates with a confidence of 95 %; the band
    goes through the corners of the rectangles.
    """
    size = noisy.counts.size // 2
    negative = np.repeat([1.0, 0.0], size)
    each = 1 - (1 - CONFIDENCE) / 2
    corners = []
    for edge in range(1, size):
        above = np.tile(np.arange(size) >= edge, 2).astype(float)
        corners.append([ratio(noisy, above, own, each) for own in (negative, 1 - negative)])
    false, true = (np.array([pair[k] for pair in corners]).T[:, ::-1] for k in (0, 1))
    middle, low, high = (_interpolate(false[x], true[y]) for x, y in ((0, 0), (2, 1), (1, 2)))
    return Curve(_POINTS, np.clip(middle, low, high), low, high)


def _interpolate(x: Array, y: Array) -> Array:
    """Return a curve from (0, 0) to (1, 1) that falls nowhere, at `_POINTS`; points that noise hides are left out."""
    known = np.isfinite(x) & np.isfinite(y)
    across = np.maximum.accumulate(np.concatenate([[0.0], x[known], [1.0]]))
    upwards = np.maximum.accumulate(np.concatenate([[0.0], y[known], [1.0]]))
    return np.asarray(np.interp(_POINTS, across, upwards))


def calibration_curve(noisy: Counts, probabilities: Array) -> Curve:
    """Compare predicted probabilities with the frequency of the positive class, in up to ten groups of people.

    Parameters
    ----------
    noisy : Counts
        Counts of the negative class in each bin, then of the positive one.
    probabilities : array
        The predicted probability in each bin.

    Returns
    -------
    Curve
    """
    size = probabilities.size
    people = np.maximum(noisy.counts[:size] + noisy.counts[size:], 0.0)
    below = np.cumsum(people) - people / 2
    group = np.minimum((_GROUPS * below / max(people.sum(), 1e-9)).astype(int), _GROUPS - 1)
    is_positive = np.repeat([0.0, 1.0], size)
    found = []
    for k in np.unique(group):
        own = (group == k).astype(float)
        weights = own * people if (own * people).sum() > 0 else own
        found.append((float(np.average(probabilities, weights=weights)), *ratio(noisy, is_positive, np.tile(own, 2))))
    x, y, low, high = np.array(found).T
    return Curve(x, y, low, high)
