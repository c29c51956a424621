"""The means of what people sent, by deployed model and class: exact, or by noisy sums and counts."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from clipsilon.engine.exact_noise import clip_to_grid, draw_whole, release
from clipsilon.theory.reactions.logs import Logs

Array = NDArray[np.float64]

_COUNTED = 0.2  # the part of μ² that counts by class spend
_WATCHED = 0.05  # the part of μ² that counts of clipped rows spend
_SLACK = 1e-9  # relative, for the rounding of the deviations


class Means(NamedTuple):
    """What is known of each deployment.

    Parameters
    ----------
    means : ndarray of shape (J, classes, columns)
        The mean of what was sent; NaN where there are too few people.
    counts : ndarray of shape (J, classes)
        The numbers of people, perhaps noisy.
    clipped : ndarray of shape (classes,)
        The fraction of rows that were clipped, perhaps noisy, over the deployments that have a mean.
    clipped_error : ndarray of shape (classes,)
        The standard deviation of the noise in it.
    """

    means: Array
    counts: Array
    clipped: Array
    clipped_error: Array

    def clipped_at_most(self) -> Array:
        """Return an upper bound on the fractions of clipped rows, which noise passes in 2.3 % of all cases."""
        return np.minimum(self.clipped + 2.0 * self.clipped_error, 1.0)


class Question(NamedTuple):
    """What is asked of the logs; all of it is public.

    Parameters
    ----------
    columns : ndarray of int
        The columns that may move.
    classes : int
        The number of classes.
    center : ndarray
        A point in these columns, from which rows are measured.
    clip : float
        The largest distance of a row from `center`; rows beyond are moved towards it.
    """

    columns: NDArray[np.int64]
    classes: int
    center: Array
    clip: float


class Deviations(NamedTuple):
    """The standard deviations of the noise on sums, on counts, and on counts of clipped rows, all by class.

    Parameters
    ----------
    sums : float
        On each entry of a sum.
    counts : float
        On the number of people in a class; 0 for a count that is public.
    clipped : float
        On the number of clipped rows in a class.
    """

    sums: float
    counts: float
    clipped: float


def deviations(mu: float, clip: float, classes: int, change: float) -> Deviations:
    """Return the noise with which all that is released about one deployment is μ-GDP.

    Parameters
    ----------
    mu : float
        The μ of a deployment.
    clip : float
        The largest norm of a row.
    classes : int
        The number of classes; with 1 the count is public.
    change : float
        By how many contributions neighbouring data sets differ: 1, or 2 if a record is replaced.

    Returns
    -------
    Deviations
        With (clip/sums)² + (1/counts)² + (1/clipped)² ≤ (μ/change)².
    """
    counted = 0.0 if classes == 1 else _COUNTED
    own = mu / (change * (1.0 + _SLACK))
    summed = clip / (own * math.sqrt(1.0 - counted - _WATCHED))
    return Deviations(summed, 1.0 / (own * math.sqrt(counted)) if counted else 0.0, 1.0 / (own * math.sqrt(_WATCHED)))


def exact_means(logs: Logs, asked: Question) -> Means:
    """Return the means of what was sent, without noise and without clipping."""
    shape = len(logs.models), asked.classes
    means, counts = np.full((*shape, asked.columns.size), np.nan), np.zeros(shape)
    for j, (table, labels) in enumerate(zip(logs.features, logs.labels, strict=True)):
        for k in range(asked.classes):
            rows = table[labels == k][:, asked.columns]
            counts[j, k] = len(rows)
            if len(rows):
                means[j, k] = rows.mean(axis=0)
    return Means(means, counts, *np.zeros((2, asked.classes)))


def noisy_means(logs: Logs, asked: Question, noise: Deviations, rng: Generator) -> Means:
    """Return the means of clipped rows by noisy sums, divided by noisy counts.

    Parameters
    ----------
    logs : Logs
        The logs.
    asked : Question
        Columns, classes and clip.
    noise : Deviations
        The noise, which depends on nothing but public numbers.
    rng : Generator
        Source of the noise.

    Returns
    -------
    Means
        Means of fewer people than four deviations of their noisy count are NaN.

    Formal guarantee
    ----------------
    If one record is zeroed out, the result is μ-GDP with μ² = (clip/sums)² + (1/counts)² + (1/clipped)²; if it is
    replaced, 2μ-GDP (docs/proofs.md, "Reactions from logs").
    """
    found = [_noisy_deployment(*one, asked, noise, rng) for one in zip(logs.features, logs.labels, strict=True)]
    sums, counts, clipped = (np.stack(parts) for parts in zip(*found, strict=True))
    enough = counts >= max(1.0, 4.0 * noise.counts)
    with np.errstate(divide="ignore", invalid="ignore"):
        means = np.where(enough[:, :, np.newaxis], asked.center + sums / counts[:, :, np.newaxis], np.nan)
    people = np.maximum(counts.sum(axis=0, where=enough), 1.0)
    error = noise.clipped * np.sqrt(enough.sum(axis=0)) / people
    return Means(means, counts, np.clip(clipped.sum(axis=0, where=enough) / people, 0.0, 1.0), error)


def _noisy_deployment(
    table: Array, labels: NDArray[np.int64], asked: Question, noise: Deviations, rng: Generator
) -> tuple[Array, Array, Array]:
    """Return the noisy sums and counts by class, and the noisy numbers of clipped rows by class."""
    scale = max(noise.sums, asked.clip * 2.0**-29 * len(table))  # else sums of 64 bits might overflow
    with np.errstate(over="ignore"):  # a row that is too far away for a float is clipped, as others are
        rows = np.nan_to_num(table[:, asked.columns] - asked.center)
    on_grid = clip_to_grid(rows, asked.clip, scale)
    totals = [on_grid[labels == k].sum(axis=0) for k in range(asked.classes)]
    sums = release(np.concatenate(totals), scale, rng).reshape(asked.classes, -1)
    counts = np.bincount(labels, minlength=asked.classes).astype(np.int64)
    if noise.counts:
        counts = counts + draw_whole(rng, noise.counts, asked.classes)
    with np.errstate(over="ignore"):
        is_clipped = np.linalg.norm(rows, axis=1) > asked.clip
    clipped = np.bincount(labels[is_clipped], minlength=asked.classes) + draw_whole(rng, noise.clipped, asked.classes)
    return sums, counts.astype(np.float64), clipped.astype(np.float64)
