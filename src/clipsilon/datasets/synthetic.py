"""The papers' synthetic data."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from clipsilon._core import checks

Array = NDArray[np.float64]


def bernoulli(records: int, p: float, scale: float = 1.0, seed: int = 0) -> Array:
    """z̄_i = scale·Z̃_i with Z̃_i ~ Bernoulli(p): the quadratic problem of paper 1, eq. 24 (b = scale)."""
    draws = np.random.default_rng(seed).random(checks.count("records", records))
    return np.where(draws < checks.fraction("p", p), checks.number("scale", scale), 0.0)


def linear(records: int, dimension: int, noise: float = 2.0, seed: int = 0) -> tuple[Array, Array]:
    """Features (1, z) with z ~ N(0, I) and labels ⟨x, 1⟩ + N(0, noise²): paper 4, section 5.1."""
    rng = np.random.default_rng(seed)
    features = _with_intercept(records, dimension, rng)
    return features, features.sum(axis=1) + checks.nonnegative("noise", noise) * rng.standard_normal(len(features))


def logistic(records: int, dimension: int, seed: int = 0) -> tuple[Array, Array]:
    """Features (1, z) with z ~ N(0, I) and labels 1 with chance 1/(1 + exp(−⟨x, 1⟩)): paper 4, section 5.2."""
    rng = np.random.default_rng(seed)
    features = _with_intercept(records, dimension, rng)
    return features, (rng.random(len(features)) < expit(features.sum(axis=1))).astype(float)


def _with_intercept(records: int, dimension: int, rng: np.random.Generator) -> Array:
    features = rng.standard_normal((checks.count("records", records), checks.count("dimension", dimension) + 1))
    features[:, 0] = 1.0
    return features
