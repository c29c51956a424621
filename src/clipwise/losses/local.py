"""Losses whose gradients are bounded for every record: those of paper 4, section 5, for local privacy.

Each record is weighted by w(x) = min(1, 2/‖x‖²), so that ‖w(x)·x‖ ≤ √2 whatever x is. `sensitivity()` is the most
that the gradient at any θ changes when one record is replaced by another.
"""

from __future__ import annotations

from math import erf, exp, pi, sqrt
from typing import NamedTuple

import numpy as np
from numba.extending import register_jitable

from clipwise.checks import positive
from clipwise.losses.base import gradient, value
from clipwise.parts import checked, implements, traits

_LEAST = 1e-300  # a scale that is as good as zero


@traits(labels="binary")
class MallowsLogistic(NamedTuple):
    """Logistic loss with Mallows weights, labels 0 and 1 (paper 4, section 5.2).

    ℓ(θ; x, y) = w(x)·(log(1 + exp⟨x, θ⟩) − y·⟨x, θ⟩).
    """

    def sensitivity(self) -> float:
        """2√2: |σ(⟨x, θ⟩) − y| ≤ 1 and ‖w(x)·x‖ ≤ √2, in any two directions."""
        return 2.0 * sqrt(2.0)


@implements(value, MallowsLogistic)
def _(loss, theta, features, label):
    margin = square = 0.0
    for j in range(features.size):
        margin += features[j] * theta[j]
        square += features[j] * features[j]
    # log(1 + exp(margin)) without overflow
    plain = max(margin, 0.0) + np.log1p(np.exp(-abs(margin))) - label * margin
    return plain * 2.0 / max(2.0, square)


@implements(gradient, MallowsLogistic)
def _(loss, theta, features, label, out):
    margin = square = 0.0
    for j in range(features.size):
        margin += features[j] * theta[j]
        square += features[j] * features[j]
    decay = np.exp(-abs(margin))  # never overflows: devices call this without the engine
    chance = (1.0 if margin >= 0.0 else decay) / (1.0 + decay)
    rate = (chance - label) * 2.0 / max(2.0, square)
    for j in range(features.size):
        out[j] = rate * features[j]


@register_jitable
def consistency(c: float) -> float:
    """κ_c = E[min(Z², c²)] for Z ~ N(0, 1), which makes the scale of a Huber regression consistent (paper 4)."""
    inside = erf(c / sqrt(2.0))  # P(|Z| < c)
    density = exp(-0.5 * c * c) / sqrt(2.0 * pi)
    return inside - 2.0 * c * density + c * c * (1.0 - inside)


@register_jitable
def scale_of(tau: float) -> float:
    """σ = log(1 + e^τ), and never zero."""
    return float(max(max(tau, 0.0) + np.log1p(np.exp(-abs(tau))), _LEAST))


@checked(c=positive)
class HuberRegression(NamedTuple):
    """Huber regression that learns its scale, with Mallows weights (paper 4, section 5.1).

    θ = (β, τ): one coefficient a column, and the scale σ = log(1 + e^τ), which is positive whatever τ is (the paper
    leaves σ without a constraint). ℓ(θ; x, y) = w(x)·(σ·ρ_c((y − ⟨x, β⟩)/σ) + ½·κ_c·σ), with ρ_c(r) = ½r² within ±c
    and c·|r| − ½c² beyond.
    """

    c: float = 1.345

    def dimension(self, columns: int) -> int:
        """The length of θ: the columns and the scale."""
        return columns + 1

    def sensitivity(self) -> float:
        """√(8c² + c⁴/4), for (β, σ) and so for (β, τ), as dσ/dτ < 1; the supremum itself is not larger than that.

        The part of β is at most √2·c long; that of σ is w·½(κ_c − min(r², c²)), which spans at most ½c².
        """
        return sqrt(8.0 * self.c**2 + 0.25 * self.c**4)


def scale_parameter(scale: float) -> float:
    """τ with log(1 + e^τ) = σ."""
    sigma = positive("scale", scale)
    return sigma + float(np.log(-np.expm1(-sigma)))


@implements(value, HuberRegression)
def _(loss, theta, features, label):
    residual, square, last = label, 0.0, features.size
    for j in range(last):
        residual -= features[j] * theta[j]
        square += features[j] * features[j]
    sigma = scale_of(theta[last])
    inner = min(abs(residual), loss.c * sigma) / sigma
    plain = inner * (abs(residual) - 0.5 * sigma * inner) + 0.5 * consistency(loss.c) * sigma
    return plain * 2.0 / max(2.0, square)


@implements(gradient, HuberRegression)
def _(loss, theta, features, label, out):
    residual, square, last = label, 0.0, features.size
    for j in range(last):
        residual -= features[j] * theta[j]
        square += features[j] * features[j]
    decay, sigma = np.exp(-abs(theta[last])), scale_of(theta[last])
    rate = (1.0 if theta[last] >= 0.0 else decay) / (1.0 + decay)  # dσ/dτ
    weight = 2.0 / max(2.0, square)
    inner = min(max(residual, -loss.c * sigma), loss.c * sigma) / sigma  # before the division, which could overflow
    for j in range(last):
        out[j] = -weight * inner * features[j]
    out[last] = weight * rate * 0.5 * (consistency(loss.c) - inner * inner)
