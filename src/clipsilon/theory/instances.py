"""Data sets that show how good private and clipped descent can be at best (paper 5, Theorems 3.3 and D.4)."""

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
    """A problem that no private algorithm solves well, and its solution."""

    problem: Problem
    minimiser: Array  #: of least norm among those with entries 0 and 1


def hard_instance(records: int, rank: int, epsilon: float, dimension: int | None = None, seed: int = 0) -> HardInstance:
    """Draw data from the distribution behind the lower bound (paper 5, Theorem 3.3 and App. B).

    A record is one of the first d = `rank` basis vectors with probability α = min{1, d/(10·(e^ε − 1)·n)}, else zero.
    Its label is 1 with a probability of that vector's own, from Beta(1/80, 1/80): nearly all labels of a vector agree.
    The loss is |⟨x, θ⟩ − y|. There are `dimension` columns, d unless given.
    """
    n, d = checks.count("records", records), checks.count("rank", rank)
    columns = d if dimension is None else checks.integer("dimension", dimension, least=d)
    rng = np.random.default_rng(checks.integer("seed", seed, least=0))
    chances = rng.beta(_SHAPE, _SHAPE, d)
    which = rng.integers(d, size=n)
    taken = rng.random(n) < _share(n, d, epsilon)
    features = np.zeros((n, columns))
    features[np.flatnonzero(taken), which[taken]] = 1.0
    labels = np.where(taken, rng.random(n) < chances[which], False).astype(float)
    votes = features.T @ (2 * labels - 1)
    return HardInstance(Problem(features, labels, loss=Absolute()), (votes > 0).astype(float))


def lower_bound(records: int, rank: int, epsilon: float, delta: float) -> float:
    """What any (ε, δ)-private algorithm loses on `hard_instance`, on average over instances (paper 5, Theorem 3.3).

    A lower bound on E[L(A(D))] − L(θ*), where neighbours differ by the replacement of a record: the proof's own
    expression, α·((1 − 8β − 4n(e^ε − 1)α/d)/(4 + 8β) − 2δn/(βd)) − (e^ε − 1)·α − 2δ with β = 1/80, or 0. For
    e^ε ≤ 21/20 and δ ≤ α·(e^ε − 1)/1000 it is at least min{1/20, d/(210εn)} − 2δ (Corollary B.4).
    """
    n, d = checks.count("records", records), checks.count("rank", rank)
    share, gain = _share(n, d, epsilon), _gain(epsilon)
    loss = checks.fraction("delta", delta)
    kept = (1 - 8 * _SHAPE - 4 * n * gain * share / d) / (4 + 8 * _SHAPE) - 2 * loss * n / (_SHAPE * d)
    return max(0.0, share * (kept - gain) - 2 * loss)


class AggressiveClipping(NamedTuple):
    """A problem that clipping solves wrongly, with both of its points in closed form."""

    problem: Problem
    stable: float  #: θ*, the minimum
    clipped: float  #: where clipped descent stops
    excess_risk: float  #: L(clipped) − L(θ*)


def aggressive_clipping(clip: float, copies: int = 1) -> AggressiveClipping:
    """Logistic regression on which a clip below ½ costs log(1/clip) (paper 5, Theorem D.4).

    Of 3·`copies` records of one number two thirds are (½, label 1) and the others (1, label 0). Gradients are at most
    1; θ* = 0. Clipped descent stops at 2·log(1/B − 1) for B ≤ ½, which is (2/3)·log(1/B) − log 2 + O(B) too high.
    """
    bound, number = checks.positive("clip", clip), checks.count("copies", copies)
    problem = Problem(np.repeat([0.5, 0.5, 1.0], number), np.repeat([1, 1, 0], number), loss=Logistic())
    if bound >= 0.5:
        return AggressiveClipping(problem, 0.0, 0.0, 0.0)
    risk = math.log((bound**2 + (1 - bound) ** 2) / (bound * (1 - bound)) ** 2) / 3
    return AggressiveClipping(problem, 0.0, 2 * math.log(1 / bound - 1), risk - math.log(2))


def _share(records: int, rank: int, epsilon: float) -> float:
    """α: the share of records that are not zero."""
    return min(1.0, rank / (10 * _gain(epsilon) * records))


def _gain(epsilon: float) -> float:
    """e^ε − 1; from 700 on, where it would soon overflow, it is as good as infinite."""
    return math.expm1(min(checks.positive("epsilon", epsilon), 700.0))
