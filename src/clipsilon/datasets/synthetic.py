"""The papers' synthetic data."""

from __future__ import annotations

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from scipy.special import expit

from clipsilon._core import checks

Array = NDArray[np.float64]


def bernoulli(records: int, p: float, scale: float = 1.0, seed: int = 0) -> Array:
    """Draw z̄_i = scale·Z̃_i with Z̃_i ~ Bernoulli(p), the data of paper 1's quadratic problem (eq. 24, b = scale).

    Parameters
    ----------
    records : int
        The number of records.
    p : float
        The probability of a record that is not 0, in [0, 1).
    scale : float, default 1
        The value of these records.
    seed : int, default 0
        The seed of the generator.

    Returns
    -------
    ndarray of shape (records,)
        The records.
    """
    draws = np.random.default_rng(seed).random(checks.count("records", records))
    return np.where(draws < checks.fraction("p", p), checks.number("scale", scale), 0.0)


def linear(records: int, dimension: int, noise: float = 2.0, seed: int | Generator = 0) -> tuple[Array, Array]:
    """Draw features x = (1, z) with z ~ N(0, I) and labels ⟨x, 1⟩ + N(0, noise²) (paper 4, section 5.1).

    Parameters
    ----------
    records : int
        The number of records.
    dimension : int
        The length of z.
    noise : float, default 2
        The standard deviation of the labels around ⟨x, 1⟩.
    seed : int or Generator, default 0
        The seed of the generator, or the generator itself.

    Returns
    -------
    features : ndarray of shape (records, dimension + 1)
        The rows x, each beginning with 1.
    labels : ndarray of shape (records,)
        The labels.
    """
    rng = np.random.default_rng(seed)
    features = _with_intercept(records, dimension, rng)
    return features, features.sum(axis=1) + checks.nonnegative("noise", noise) * rng.standard_normal(len(features))


def logistic(records: int, dimension: int, seed: int | Generator = 0) -> tuple[Array, Array]:
    """Draw features x = (1, z) with z ~ N(0, I) and labels 1 with probability 1/(1 + exp(−⟨x, 1⟩)).

    This is the logistic data of paper 4, section 5.2.

    Parameters
    ----------
    records : int
        The number of records.
    dimension : int
        The length of z.
    seed : int or Generator, default 0
        The seed of the generator, or the generator itself.

    Returns
    -------
    features : ndarray of shape (records, dimension + 1)
        The rows x, each beginning with 1.
    labels : ndarray of shape (records,)
        The labels, 0 or 1.
    """
    rng = np.random.default_rng(seed)
    features = _with_intercept(records, dimension, rng)
    return features, (rng.random(len(features)) < expit(features.sum(axis=1))).astype(float)


def _with_intercept(records: int, dimension: int, rng: np.random.Generator) -> Array:
    features = rng.standard_normal((checks.count("records", records), checks.count("dimension", dimension) + 1))
    features[:, 0] = 1.0
    return features
