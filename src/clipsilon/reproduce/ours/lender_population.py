"""Applicants of a lender, week by week: real credit records, and a reaction to the deployed model that takes time."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from clipsilon.datasets.base import Dataset
from clipsilon.problems.responses import MatrixShift
from clipsilon.reproduce.problems import all_credit_data

Array = NDArray[np.float64]

WEEKS = 52
PER_WEEK = 500
COLUMNS = (0, 2, 6, 8)  # what credit repair changes: the use of credit lines, and late payments on file
STRENGTH = 0.75  # of the reaction of those who will default
SPEED = 0.5  # the fraction of the way that people go towards their full reaction in a week
APPROVED = 0.75  # the fraction of applications that is approved
_LARGEST = 3.0  # standardised features are cut off here
_DEFAULTS = 0.25  # fraction of applicants who will default


@cache
def applicants() -> Dataset:
    """Return a year's applicants in a random order, before any reaction: logarithms of features, standardised.

    A quarter of them will default: there are few such records, so all of the others are not used.
    """
    data = all_credit_data()
    rng = np.random.default_rng(2026)
    chosen = []
    for label, fraction in ((1.0, _DEFAULTS), (0.0, 1.0 - _DEFAULTS)):
        rows = np.flatnonzero(data.labels == label)
        chosen.append(rng.permutation(rows)[: round(fraction * WEEKS * PER_WEEK)])
    order = rng.permutation(np.concatenate(chosen))
    features = np.sign(data.features[order]) * np.log1p(np.abs(data.features[order]))
    features = np.clip((features - features.mean(axis=0)) / features.std(axis=0), -_LARGEST, _LARGEST)
    return Dataset(features, data.labels[order], data.columns, data.source, data.real)


def reaction() -> MatrixShift:
    """Return how applicants react in the end: those who will default move what they can change against the model."""
    columns = applicants().features.shape[1]
    moves = np.zeros((2, columns, columns))
    moves[1, COLUMNS, COLUMNS] = STRENGTH
    return MatrixShift(moves)


def sent(week: int, followed: Array) -> tuple[Array, Array]:
    """Return the features and labels of a week's applications from people who react to `followed`."""
    rows = slice(week * PER_WEEK, (week + 1) * PER_WEEK)
    return moved(applicants().features[rows], applicants().labels[rows], followed), applicants().labels[rows]


def moved(features: Array, labels: Array, followed: Array) -> Array:
    """Return features after the reaction.

    Parameters
    ----------
    features, labels : array
        The records before the reaction.
    followed : array
        The model that people react to, without intercept.

    Returns
    -------
    array
    """
    shifts = reaction().strengths @ followed
    return np.asarray(features - shifts[labels.astype(np.int64)])


def follow(before: Array, deployed: Array) -> Array:
    """Return what people react to after another week: part of the way from what it was to the deployed model."""
    return np.asarray((1.0 - SPEED) * before + SPEED * deployed)
