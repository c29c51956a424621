"""ε and δ of a run whose every step lets a record take part with probability q.

The answer for a grid of losses is never below the truth; the grid is made finer until that hardly helps. The
first grid only knows the scale of the losses, which makes the same code good from ε = 10⁻³ to beyond 10⁴.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from scipy.stats import binom

from clipsilon.privacy.accounting.composition import total_delta, total_epsilon
from clipsilon.privacy.accounting.privacy_loss import Array, Losses, TooFineError, reach

OneStep = Callable[[float, float, float, float], Losses]

_FIRST_GRID = 64  # points
_REFINEMENT = 4
_REFINEMENTS = 10
_GAIN = 0.01  # relative improvement from which a finer grid is worth it: then the error is a third of this, or less
_NEGLIGIBLE = 1e-5  # improvement of ε that is never worth it
_SHIFTS = (1e-9, 1e6)  # μ where doubles tell losses and outputs apart; outside of it, who took part says little more
_RAREST = 1e-30  # q, likewise
_LEVELS = (1e-6, 1e-12, 1e-25, 1e-50, 1e-100, 1e-200)  # of δ
_CUT = 1e-4  # share of δ that the cut tails of all steps may cost


def sampled_epsilon(one_steps: Sequence[OneStep], q: float, mu: float, steps: int, delta: float) -> float:
    """The smallest ε that the grids certify for every direction; infinite if none does."""
    tail = max(_CUT * delta / steps, 1e-300)
    worst = 0.0
    for one_step in one_steps:

        def at(interval: float, one_step: OneStep = one_step) -> float:
            return total_epsilon(one_step(q, mu, interval, tail), steps, delta)

        worst = max(worst, _refined(at, q, mu, tail, worst, _NEGLIGIBLE))
    return worst


def sampled_delta(one_steps: Sequence[OneStep], q: float, mu: float, steps: int, epsilon: float) -> float:
    """The smallest δ that the grids certify for every direction, good down to 1e-200 or so."""
    result = 1.0
    for level in _LEVELS:
        # The grid ends where the rest matters little for a δ above `level`.
        tail = _CUT * level / steps
        worst = 0.0
        for one_step in one_steps:

            def at(interval: float, one_step: OneStep = one_step, tail: float = tail) -> float:
                return total_delta(one_step(q, mu, interval, tail), steps, epsilon)

            worst = max(worst, _refined(at, q, mu, tail, worst, 0.1 * level))
        result = min(result, worst)
        if result > level:
            break
    return result


def participations(q: float, steps: int) -> tuple[Array, Array]:
    """How often a record takes part, k ~ Bin(steps, q): values of k, and their probabilities.

    Of very many values only some are listed, and each k counts as the next one listed: never too small.
    """
    first, last = likely(steps, q)
    listed = np.unique(np.linspace(first, last, min(last - first + 1, 4000)).round())
    counts = np.append(listed, steps) if last < steps else listed
    beyond = np.append(1.0, binom.sf(counts, steps, q))
    return counts, -np.diff(beyond)


def likely(trials: int, p: float) -> tuple[int, int]:
    """A range of Bin(trials, p) with all but e^−700 of its probability on either side (Chernoff, Bernstein)."""
    mean, log_rest = trials * p, 700.0
    below = math.sqrt(2 * mean * log_rest)
    above = log_rest / 3 + math.sqrt((log_rest / 3) ** 2 + 2 * mean * log_rest)
    return max(0, math.floor(mean - below)), min(trials, math.ceil(mean + above))


def _refined(at: Callable[[float], float], q: float, mu: float, tail: float, enough: float, negligible: float) -> float:
    """The value on ever finer grids, until it is low enough, improves too little, or the grid becomes too fine."""
    best = math.inf
    if q < _RAREST or not _SHIFTS[0] <= mu <= _SHIFTS[1]:
        return best
    interval = reach(q, mu, tail) / _FIRST_GRID
    try:
        for refinement in range(_REFINEMENTS):
            value = at(interval)
            # Two coarse grids may agree by being equally bad; from the third on it means something.
            settled = refinement > 1 and best - value <= max(_GAIN * best, negligible)
            best = min(best, value)
            if settled or best <= enough:
                break
            interval /= _REFINEMENT
    except TooFineError:
        pass  # what the coarser grids say is true as well
    return best
