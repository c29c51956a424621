"""Losses with bounded gradients, for local privacy (paper 4, section 5).

Each record is weighted by w(x) = min(1, 2/‖x‖²), so that ‖w(x)·x‖ ≤ √2 for every x. `sensitivity()` is the most that
the gradient at any θ changes when one record is replaced by another.
"""

from __future__ import annotations

from math import erf, exp, pi, sqrt
from typing import NamedTuple

import numpy as np
from numba.extending import register_jitable
from numpy.typing import NDArray

from clipsilon._core.checks import positive
from clipsilon._core.options import CONTAINED
from clipsilon._core.parts import checked, implements, traits
from clipsilon.problems.losses.base import gradient, value


@traits(labels="binary")
class MallowsLogistic(NamedTuple):
    """Logistic loss with Mallows weights for labels 0 and 1 (paper 4, section 5.2).

    ℓ(θ; x, y) = w(x)·(log(1 + exp⟨x, θ⟩) − y·⟨x, θ⟩).

    A label outside [0, 1], which a response may return, is clipped to it, so that the sensitivity holds for every
    record.
    """

    def sensitivity(self) -> float:
        """Return 2√2, since |σ(⟨x, θ⟩) − y| ≤ 1 and ‖w(x)·x‖ ≤ √2 for each of two records."""
        return 2.0 * sqrt(2.0)


@implements(value, MallowsLogistic)
def _(loss, theta, features, label):
    margin = square = 0.0
    for j in range(features.size):
        margin += features[j] * theta[j]
        square += features[j] * features[j]
    # log(1 + exp(margin)) without overflow
    plain = max(margin, 0.0) + np.log1p(np.exp(-abs(margin))) - min(max(label, 0.0), 1.0) * margin
    return plain * 2.0 / max(2.0, square)


@implements(gradient, MallowsLogistic)
def _(loss, theta, features, label, out):
    margin = square = 0.0
    for j in range(features.size):
        margin += features[j] * theta[j]
        square += features[j] * features[j]
    decay = np.exp(-abs(margin))  # does not overflow, also where devices call this without the engine
    chance = (1.0 if margin >= 0.0 else decay) / (1.0 + decay)
    rate = (chance - min(max(label, 0.0), 1.0)) * 2.0 / max(2.0, square)
    for j in range(features.size):
        out[j] = rate * features[j]


@register_jitable(**CONTAINED)
def consistency(c: float) -> float:
    """Return κ_c = E[min(Z², c²)] for Z ~ N(0, 1), which makes the scale of a Huber regression consistent (paper 4)."""
    inside = erf(c / sqrt(2.0))  # P(|Z| < c)
    density = exp(-0.5 * c * c) / sqrt(2.0 * pi)
    return inside - 2.0 * c * density + c * c * (1.0 - inside)


@checked(c=positive, least_scale=positive)
class HuberRegression(NamedTuple):
    """Huber regression with a learnt scale and Mallows weights (paper 4, section 5.1).

    θ = (β, σ): one coefficient per column, then the scale. With ρ_c(r) = ½r² for |r| ≤ c and c·|r| − ½c² beyond,

        ℓ(θ; x, y) = w(x)·(s·ρ_c((y − ⟨x, β⟩)/s) + ½·κ_c·s − ½·(c² − κ_c)·min(σ − s₀, 0)),  s = max(σ, s₀).

    For σ ≥ s₀ = `least_scale` this is the paper's loss, which is not defined at σ = 0. Below s₀ the scale in use stays
    s₀, and the loss continues in σ with the slope −½·w·(c² − κ_c), which is the paper's for a large residual. So it is
    convex in θ, as the paper's loss is for σ > 0, its gradient has the same bounds, and descent increases σ again.

    Notes
    -----
    The loss is convex because it is the minimum, over s ≥ max(σ, s₀), of
    w(x)·(s·ρ_c((y − ⟨x, β⟩)/s) + ½·κ_c·σ + ½·c²·(s − σ)), which is convex in (β, σ, s).
    """

    c: float = 1.345
    least_scale: float = 0.1

    def dimension(self, columns: int) -> int:
        """Return the length of θ: one coefficient per column, and the scale."""
        return columns + 1

    def sensitivity(self) -> float:
        """Return √(8c² + c⁴/4).

        The gradient in β has norm at most √2·c, and the derivative in σ varies by at most ½c². (The two are not large
        together: for c ≤ 4.7 the supremum is 2√2·c.)
        """
        return sqrt(8.0 * self.c**2 + 0.25 * self.c**4)

    def gradient_center(self, dimension: int) -> NDArray[np.float64]:
        """Return 0 for β and ½κ_c − ¼c² for σ, the middle of the derivative's range from ½(κ_c − c²) to ½κ_c."""
        center = np.zeros(dimension)
        center[-1] = 0.5 * consistency(self.c) - 0.25 * self.c**2
        return center


@implements(value, HuberRegression)
def _(loss, theta, features, label):
    residual, square, last = label, 0.0, features.size
    for j in range(last):
        residual -= features[j] * theta[j]
        square += features[j] * features[j]
    scale, kappa = max(theta[last], loss.least_scale), consistency(loss.c)
    inner = min(abs(residual), loss.c * scale) / scale
    plain = inner * (abs(residual) - 0.5 * scale * inner) + 0.5 * kappa * scale
    below = min(theta[last] - loss.least_scale, 0.0)
    return (plain - 0.5 * (loss.c * loss.c - kappa) * below) * 2.0 / max(2.0, square)


@implements(gradient, HuberRegression)
def _(loss, theta, features, label, out):
    residual, square, last = label, 0.0, features.size
    for j in range(last):
        residual -= features[j] * theta[j]
        square += features[j] * features[j]
    scale = max(theta[last], loss.least_scale)
    weight = 2.0 / max(2.0, square)
    inner = min(max(residual, -loss.c * scale), loss.c * scale) / scale  # clipped before a division that could overflow
    for j in range(last):
        out[j] = -weight * inner * features[j]
    if theta[last] < loss.least_scale:
        inner = loss.c
    out[last] = weight * 0.5 * (consistency(loss.c) - inner * inner)
