"""Data sets that show how well private and clipped descent can do at best (paper 5, Theorems 3.3 and D.4)."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clipsilon._core import checks
from clipsilon.problems.losses.glm import Logistic
from clipsilon.problems.losses.robust import Absolute
from clipsilon.problems.problem import Problem

__all__ = ["AggressiveClipping", "HardInstance", "aggressive_clipping", "hard_instance", "lower_bound"]

Array = NDArray[np.float64]

_SHAPE = 1 / 80  # β of the Beta distribution in paper 5, Theorem B.1


class HardInstance(NamedTuple):
    """A problem that no private algorithm solves well, and its solution.

    `minimiser` is the one of least norm among those with entries 0 and 1.
    """

    problem: Problem
    minimiser: Array


def hard_instance(
    records: int, rank: int, epsilon: float, *, dimension: int | None = None, seed: int = 0
) -> HardInstance:
    """Draw data from the distribution behind the lower bound (paper 5, Theorem 3.3 and App. B).

    A record is one of the first d basis vectors with probability α = min{1, d/(10·(e^ε − 1)·n)}, and zero otherwise.
    Its label is 1 with a probability that belongs to that vector and is drawn from Beta(1/80, 1/80), so that nearly all
    labels of a vector agree. The loss is |⟨x, θ⟩ − y|.

    Parameters
    ----------
    records : int
        n.
    rank : int
        d.
    epsilon : float
        The ε of the lower bound.
    dimension : int, optional
        The number of columns, at least d, which is the default.
    seed : int, default 0
        Seed of the draw.

    Returns
    -------
    HardInstance
        The problem and its minimiser.
    """
    n, d = checks.count("records", records), checks.count("rank", rank)
    columns = d if dimension is None else checks.integer("dimension", dimension, least=d)
    rng = np.random.default_rng(checks.integer("seed", seed, least=0))
    chances = rng.beta(_SHAPE, _SHAPE, d)
    which = rng.integers(d, size=n)
    taken = rng.random(n) < _nonzero_fraction(n, d, epsilon)
    features = np.zeros((n, columns))
    features[np.flatnonzero(taken), which[taken]] = 1.0
    labels = np.where(taken, rng.random(n) < chances[which], False).astype(float)
    votes = features.T @ (2 * labels - 1)
    return HardInstance(Problem(features, labels, loss=Absolute()), (votes > 0).astype(float))


def lower_bound(records: int, rank: int, epsilon: float, delta: float) -> float:
    """Return a lower bound on the loss of any (ε, δ)-private algorithm on `hard_instance` (paper 5, Theorem 3.3).

    It bounds E[L(A(D))] − L(θ*), on average over instances, for neighbours that differ by the replacement of one
    record.

    Parameters
    ----------
    records, rank : int
        n and d.
    epsilon, delta : float
        The privacy of the algorithm.

    Returns
    -------
    float
        The lower bound, at least 0.

    Notes
    -----
    This is the proof's own expression, α·((1 − 8β − 4n(e^ε − 1)α/d)/(4 + 8β) − 2δn/(βd)) − (e^ε − 1)·α − 2δ with β =
    1/80, or 0. For e^ε ≤ 21/20 and δ ≤ α·(e^ε − 1)/1000 it is at least min{1/20, d/(210εn)} − 2δ (Corollary B.4).
    """
    n, d = checks.count("records", records), checks.count("rank", rank)
    fraction, gain = _nonzero_fraction(n, d, epsilon), _gain(epsilon)
    loss = checks.fraction("delta", delta)
    kept = (1 - 8 * _SHAPE - 4 * n * gain * fraction / d) / (4 + 8 * _SHAPE) - 2 * loss * n / (_SHAPE * d)
    return max(0.0, fraction * (kept - gain) - 2 * loss)


class AggressiveClipping(NamedTuple):
    """A problem that clipping solves wrongly, with both of its points in closed form.

    Attributes
    ----------
    problem : Problem
        Logistic regression in one dimension.
    stable : float
        θ*, the minimum.
    clipped : float
        Where clipped descent stops.
    excess_risk : float
        L(clipped) − L(θ*).
    """

    problem: Problem
    stable: float
    clipped: float
    excess_risk: float


def aggressive_clipping(clip: float, copies: int = 1) -> AggressiveClipping:
    """Build a logistic regression on which a clip below ½ costs log(1/clip) (paper 5, Theorem D.4).

    Of 3·`copies` records with one feature, two thirds are (½, label 1) and the others (1, label 0). Gradients are at
    most 1 in length; θ* = 0. Clipped descent stops at 2·log(1/B − 1) for a clip B ≤ ½, and its risk is (2/3)·log(1/B) −
    log 2 + O(B) too high.
    """
    bound, number = checks.positive("clip", clip), checks.count("copies", copies)
    problem = Problem(np.repeat([0.5, 0.5, 1.0], number), np.repeat([1, 1, 0], number), loss=Logistic())
    if bound >= 0.5:
        return AggressiveClipping(problem, 0.0, 0.0, 0.0)
    risk = math.log((bound**2 + (1 - bound) ** 2) / (bound * (1 - bound)) ** 2) / 3
    return AggressiveClipping(problem, 0.0, 2 * math.log(1 / bound - 1), risk - math.log(2))


def _nonzero_fraction(records: int, rank: int, epsilon: float) -> float:
    """Return α, the fraction of records that are not zero."""
    return min(1.0, rank / (10 * _gain(epsilon) * records))


def _gain(epsilon: float) -> float:
    """Return e^ε − 1, with ε capped at 700, where it would soon overflow and is effectively infinite."""
    return math.expm1(min(checks.positive("epsilon", epsilon), 700.0))
