"""The ε of several releases about the same records, composed on one curve.

Each release is dominated by a pair of distributions, and the product of these pairs dominates all releases together,
even if the later ones depend on the earlier ones (Zhu, Dong and Wang, 2022). Steps with random batches bring their own
pairs. Of any other release only its profile δ(ε) is needed, which holds in both directions: with α = e^ε, a symmetric
pair has H_α = δ(log α) for α ≥ 1 and H_α = 1 − α + α·δ(−log α) for α ≤ 1. Known at some ε, the lower convex hull of
these points is still an upper bound, because H is convex in α, and its kinks are the losses of a discrete pair.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from clipsilon.privacy.accounting import gaussian as gdp
from clipsilon.privacy.accounting.composition import total_epsilon
from clipsilon.privacy.accounting.privacy_loss import LARGEST_GRID, Array, Losses, TooFineError, reach
from clipsilon.privacy.accounting.profiles import Profile, gaussian

_NODES = 1000  # points at which a Gaussian profile is evaluated
_SLOW_NODES = 200  # the same for others, one point at a time: a search's takes some 30 ms for each
_GRID = 64  # points of the first grid within the narrowest loss
_REFINEMENT = 4
_REFINEMENTS = 3
_COARSENINGS = 8
_GAIN = 0.002  # relative improvement from which a finer grid is worth it
_CUT = 1e-4  # fraction of δ that cut tails may cost
_ROUNDING = 1e-9  # relative, by which values of a profile are raised
_LARGEST_LOSS = 600.0  # e to this power is still a number


def joint_epsilon(parts: Sequence[Profile], delta: float) -> float:
    """Return an upper bound on the ε of several releases together.

    Parameters
    ----------
    parts : sequence of Profile
        One per release, all for the same kind of neighbours.
    delta : float
        The δ at which ε is stated, between 0 and 1.

    Returns
    -------
    float
        ε; infinite if none was found. The sum of the releases' ε at parts of δ is a bound as well, and may be smaller
        for releases of which one point is known only.

    Formal guarantee
    ----------------
    If each release is (ε, `delta(ε)`)-private for its profile, whatever the earlier ones returned, all of them together
    are (joint_epsilon, delta)-private.
    """
    mu = math.hypot(*(part.mu for part in parts if part.mu is not None))
    others = [part for part in parts if part.mu is None]
    if not others or mu == math.inf:
        return gdp.epsilon(mu, delta)
    if mu > 0:
        others.append(gaussian(mu))
    if len(others) == 1:
        return others[0].epsilon(delta)
    tail = max(_CUT * delta / sum(map(_count, others)), 1e-300)
    tops = [0.0 if part.sampled is not None else _largest_loss(part, tail) for part in others]
    if max(tops) > _LARGEST_LOSS:
        return math.inf
    directions = max(1 if part.sampled is None else len(part.sampled.one_steps) for part in others)
    return max(_refined(others, tops, tail, delta, direction) for direction in range(directions))


def _refined(parts: list[Profile], tops: list[float], tail: float, delta: float, direction: int) -> float:
    """Return ε on ever finer grids, or on a coarser one if the first is too fine already."""
    interval = min(_scale(part, top, tail) for part, top in zip(parts, tops, strict=True)) / _GRID
    best, refinements = math.inf, 0
    for _ in range(_COARSENINGS):
        try:
            while refinements <= _REFINEMENTS:
                value = total_epsilon(_events(parts, tops, interval, tail, direction), delta)
                settled = value > best * (1 - _GAIN)
                best = min(best, value)
                if settled:
                    return best
                interval /= _REFINEMENT
                refinements += 1
            return best
        except TooFineError:
            if best < math.inf:
                return best
            interval *= _REFINEMENT
    return best


def _events(
    parts: list[Profile], tops: list[float], interval: float, tail: float, direction: int
) -> list[tuple[Losses, int]]:
    """Return the losses of all steps of all releases on one grid, in one direction."""
    events = []
    for part, top in zip(parts, tops, strict=True):
        if part.sampled is None:
            events.append((_losses(part, top, interval), 1))
        else:
            one_steps, q, shifts = part.sampled
            one_step = one_steps[min(direction, len(one_steps) - 1)]
            events += [(one_step(q, mu, interval, tail), steps) for mu, steps in shifts]
    return events


def _count(part: Profile) -> int:
    return 1 if part.sampled is None else sum(steps for _, steps in part.sampled.shifts)


def _scale(part: Profile, top: float, tail: float) -> float:
    """Return the range of the losses of one step of a release, above 0."""
    if part.sampled is None:
        return top if top > 0 else 1.0
    return min(reach(part.sampled.q, mu, tail) for mu, _ in part.sampled.shifts)


def _largest_loss(part: Profile, tail: float) -> float:
    """Return the ε beyond which δ hardly falls; what is left there counts as an infinite loss."""
    while tail < 1:
        epsilon = part.epsilon(tail)
        if math.isfinite(epsilon):
            return epsilon
        tail *= 10
    return math.inf


def _losses(part: Profile, top: float, interval: float) -> Losses:
    """Return a symmetric loss that dominates a profile, from its values at multiples of the interval up to `top`."""
    last = math.ceil(top / interval)
    if 2 * last > LARGEST_GRID:
        raise TooFineError
    most = _SLOW_NODES if part.mu is None else _NODES
    places = np.unique(np.linspace(0, last, min(last, most) + 1).round().astype(np.int64))
    losses = np.asarray(places * interval, dtype=np.float64)
    values = [part.delta(float(loss)) for loss in losses] if part.mu is None else gdp.delta(part.mu, losses)
    kept, deltas = _hull(losses, np.minimum(1.0, (1 + _ROUNDING) * np.asarray(values)))
    masses = np.zeros(2 * last + 1)
    above = _masses(losses[kept], deltas[kept])
    masses[last + places[kept]] = above
    masses[last - places[kept]] = above * np.exp(-losses[kept])
    masses[last] = 0.0
    masses[last] = max(0.0, 1 - float(deltas[kept[-1]]) - masses.sum())
    return Losses(interval, -last, masses, float(deltas[kept[-1]]))


def _hull(losses: Array, deltas: Array) -> tuple[NDArray[np.int64], Array]:
    """Return which points span the lower convex hull of δ as a function of e^ε, and δ with what others imply at 0."""
    # What is (ε, δ)-private is (0, 1 − 2(1−δ)/(1 + e^ε))-private. With it, the mirrored hull is convex at ε = 0, too.
    deltas[0] = min(deltas[0], float(np.min(1 - 2 * (1 - deltas) / (1 + np.exp(losses)))))
    deltas = np.minimum.accumulate(deltas)
    kept: list[int] = []
    for place in range(losses.size):
        while len(kept) > 1 and _bend(losses, deltas, kept[-2], kept[-1], place) <= 0:
            kept.pop()
        kept.append(place)
    return np.array(kept), deltas


def _bend(losses: Array, deltas: Array, a: int, b: int, c: int) -> float:
    """Return by how much the slope in e^ε rises at b, between a and c, times e^ε at b."""
    before = (deltas[a] - deltas[b]) / -math.expm1(losses[a] - losses[b])
    return float(before - (deltas[b] - deltas[c]) / math.expm1(losses[c] - losses[b]))


def _masses(losses: Array, deltas: Array) -> Array:
    """Return the probability of each loss but the first, which is 0, from the bends of a convex curve."""
    gaps, falls = np.diff(losses), -np.diff(deltas)
    masses = np.zeros(losses.size)
    masses[1:] = falls / -np.expm1(-gaps)
    masses[1:-1] -= falls[1:] / np.expm1(gaps[1:])
    return np.maximum(0.0, masses)
