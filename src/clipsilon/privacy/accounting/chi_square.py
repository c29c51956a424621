"""Upper bounds on the χ²-divergence between the outputs on neighbouring data sets (docs/proofs.md has the proofs).

χ²(P‖Q) = E_Q(dP/dQ − 1)² = 2·∫_1^∞ [E_γ(P‖Q) + γ⁻³·E_γ(Q‖P)] dγ, with E_γ(P‖Q) = sup_S P(S) − γ·Q(S), which is at most
δ(log γ). So a pair that dominates a step in every E_γ bounds its χ², and 1 + χ² multiplies over steps, also if each
step depends on the outputs before. All results hold in both directions and are rounded up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from scipy.special import ndtr

_UP = 1 + 1e-12  # relative margin above the rounding of a closed form
_LARGEST = 700.0  # exponents beyond which a result counts as infinite
_LOSSES = np.concatenate([[0.0], np.geomspace(1e-5, 12.0, 50)])  # where a profile is read


def gaussian(mu: float) -> float:
    """Return χ² of μ-GDP: e^{μ²} − 1."""
    return math.expm1(mu * mu) * _UP if mu * mu < _LARGEST else math.inf


def poisson(q: float, mu: float) -> float:
    """Return the larger χ² of a step in which a record takes part with probability q: q²·(e^{μ²} − 1)."""
    return q * (q * gaussian(mu)) * _UP


def subset(q: float, mu: float) -> float:
    """Return χ² of the pair for replacements in a uniform batch, E_base (r − 1)₊²·(1 + 1/r) with r = mix/base.

    The second term is at most the first, because r ≥ 1 where it counts.
    """
    return min(2 * q * (q * _upper_half(mu)), q * gaussian(mu)) * _UP


def subset_zero_out(q: float, mu: float) -> float:
    """Return a bound on χ² of a uniform batch with against without a record.

    It is at most E_near (R − 1)₊² + E_base (r − 1)₊² with R = far/near and r = mix/base. In the first term, near is at
    least q·N(μ, 1), and at least (1 − q)·N(0, 1).
    """
    first = min(q * _upper_half(mu), q * (q * _far_half(mu)) / (1 - q))
    return (first + q * (q * _upper_half(mu))) * _UP


def response(q: float, odds: float) -> float:
    """Return the larger χ² of a randomised response with odds e^odds that is sent with probability q.

    This also bounds what any ε-private release adds, with q = 1 and odds = ε: e^ε + e^−ε − 2.
    """
    return q * (q * 4 * math.sinh(odds / 2) ** 2) * _UP if odds < _LARGEST else math.inf


def composed(steps: Sequence[tuple[float, int]]) -> float:
    """Return χ² of steps in sequence, from χ² of one and how many there are: Π (1 + χ²) − 1."""
    exponent = math.fsum(count * math.log1p(each) for each, count in steps)
    return math.expm1(exponent) * _UP if exponent < _LARGEST else math.inf


def point_discrimination(epsilon: float, delta: float) -> float:
    """Return the largest s that (ε, δ) alone allows: (1 − δ)·tanh²(ε/2) + δ; see `discrimination`."""
    return min(1.0, ((1 - delta) * math.tanh(epsilon / 2) ** 2 + delta) * _UP)


def discrimination(delta_at: Callable[[float], float]) -> float:
    """Return the largest s = ½·∫ (p − q)²/(p + q) that a profile δ(ε) allows; at most 1.

    s = ∫_1^∞ 8·(1 + γ)⁻³·E_γ dγ for a symmetric pair. E_γ is convex in γ, so chords between points of the profile are
    above it, and the integral of a chord is exact; beyond the last point, E_γ is at most its value there. One point
    of a profile may allow less than that, and then counts alone.
    """
    deltas = np.minimum.accumulate([min(1.0, delta_at(float(loss))) for loss in _LOSSES])
    above, width = 1 + np.exp(_LOSSES), np.exp(_LOSSES[:-1]) * np.expm1(np.diff(_LOSSES))
    parts = 4 * width / (above[:-1] * above[1:]) * (deltas[:-1] / above[:-1] + deltas[1:] / above[1:])
    beyond = 4 * float(deltas[-1]) / float(above[-1]) ** 2
    alone = min(point_discrimination(float(loss), float(delta)) for loss, delta in zip(_LOSSES, deltas, strict=True))
    return min(alone, (math.fsum(parts) + beyond) * (1 + 1e-9))


def _upper_half(mu: float) -> float:
    """Return E_base (L − 1)₊² for L = N(μ, 1)/N(0, 1), which exceeds 1 where x > μ/2."""
    if mu * mu >= _LARGEST:
        return math.inf
    # e^{μ²}·Φ(3μ/2) − 2Φ(μ/2) + Φ(−μ/2), in terms that cancel little
    bracket = float(ndtr(1.5 * mu) - ndtr(0.5 * mu)) - float(ndtr(0.5 * mu) - ndtr(-0.5 * mu))
    return min(math.expm1(mu * mu), math.expm1(mu * mu) * float(ndtr(1.5 * mu)) + bracket + 1e-15)


def _far_half(mu: float) -> float:
    """Return E_base (N(2μ, 1) − N(μ, 1))²/N(0, 1)² over x > 3μ/2, where the difference is positive."""
    if 4 * mu * mu >= _LARGEST:
        return math.inf
    # e^{4μ²}·Φ(5μ/2) − 2e^{2μ²}·Φ(3μ/2) + e^{μ²}·Φ(μ/2)
    far, middle, near = (float(ndtr(place * mu)) for place in (2.5, 1.5, 0.5))
    square = mu * mu
    grown = math.expm1(4 * square) * far - 2 * math.expm1(2 * square) * middle + math.expm1(square) * near
    rounding = 1e-15 * (1 + math.expm1(4 * square))
    return min(math.expm1(4 * square), grown + (far - middle) - (middle - near) + rounding)
