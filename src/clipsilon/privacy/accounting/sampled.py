"""ε and δ of a run in which a record takes part in each step with probability q.

The result for a grid of losses is never below the truth; the grid is refined until that hardly helps. The first grid
uses only the scale of the losses, so the same code works from ε = 10⁻³ to beyond 10⁴.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import betainc

from clipsilon.privacy.accounting.composition import total_delta, total_epsilon
from clipsilon.privacy.accounting.privacy_loss import Array, Losses, TooFineError, reach

OneStep = Callable[[float, float, float, float], Losses]
Shifts = Sequence[tuple[float, int]]  # μ of a step, and how many steps have it


class SampledSteps(NamedTuple):
    """Steps in which a record takes part with probability q.

    Attributes
    ----------
    one_steps : tuple of callable
        One function per direction that returns the loss of one step, such as `removal`.
    q : float
        The probability.
    shifts : sequence of (float, int)
        The shift of the output if the record takes part, and the number of steps that have it.
    """

    one_steps: tuple[OneStep, ...]
    q: float
    shifts: Shifts


_FIRST_GRID = 64  # points
_REFINEMENT = 4
_REFINEMENTS = 10
_GAIN = 0.01  # relative improvement from which a finer grid is worth it; the error is then at most a third of this
_NEGLIGIBLE = 1e-5  # improvement of ε that is never worth a finer grid
_SHIFTS = (1e-9, 1e6)  # μ for which doubles resolve losses and outputs; outside, knowing who took part adds little
_RAREST = 1e-30  # the same for q
_LEVELS = (1e-6, 1e-12, 1e-25, 1e-50, 1e-100, 1e-200)  # levels of δ
_ROUNDING = 1e-12  # relative error of the chances that a record takes part more often, several times what was seen
_CUT = 1e-4  # fraction of δ that the cut tails of all steps may cost


def sampled_epsilon(one_steps: Sequence[OneStep], q: float, shifts: Shifts, delta: float) -> float:
    """Return the smallest ε that the grids certify for every direction; infinite if none does.

    Parameters
    ----------
    one_steps : sequence of callable
        One function per direction that returns the loss of one step, such as `removal`.
    q : float
        The probability that the record takes part in a step.
    shifts : sequence of (float, int)
        The shift of the output if it does, 1/noise multiplier, and the number of steps that have it.
    delta : float
        The δ at which ε is stated.

    Returns
    -------
    float
        ε, an upper bound.
    """
    tail = max(_CUT * delta / _count(shifts), 1e-300)
    worst = 0.0
    for one_step in one_steps:

        def at(interval: float, one_step: OneStep = one_step) -> float:
            return total_epsilon([(one_step(q, mu, interval, tail), steps) for mu, steps in shifts], delta)

        worst = max(worst, _refined(at, q, shifts, tail, worst, _NEGLIGIBLE))
    return worst


def sampled_delta(one_steps: Sequence[OneStep], q: float, shifts: Shifts, epsilon: float) -> float:
    """Return the smallest δ that the grids certify for every direction, usable down to about 1e-200.

    Parameters
    ----------
    one_steps, q, shifts
        As in `sampled_epsilon`.
    epsilon : float
        The ε at which δ is stated.

    Returns
    -------
    float
        δ, an upper bound.
    """
    result = 1.0
    for level in _LEVELS:
        # The grid ends where the rest matters little for a δ above `level`.
        tail = _CUT * level / _count(shifts)
        worst = 0.0
        for one_step in one_steps:

            def at(interval: float, one_step: OneStep = one_step, tail: float = tail) -> float:
                return total_delta([(one_step(q, mu, interval, tail), steps) for mu, steps in shifts], epsilon)

            worst = max(worst, _refined(at, q, shifts, tail, worst, 0.1 * level))
        result = min(result, worst)
        if result > level:
            break
    return result


def participations(q: float, steps: int) -> tuple[Array, Array]:
    """Return how often a record takes part, k ~ Bin(steps, q): values of k, and their probabilities.

    If there are very many values, only some are listed, and each k counts as the next larger one listed: never too
    small.
    """
    first, last = likely(steps, q)
    listed = np.unique(np.linspace(first, last, min(last - first + 1, 4000)).round())
    counts = np.append(listed, steps) if last < steps else listed
    more = np.where(counts < steps, betainc(counts + 1.0, np.maximum(steps - counts, 1.0), q), 0.0)
    beyond = np.append(1.0, np.minimum(1.0, more * (1 + _ROUNDING)))
    # Where the chances are all but equal, rounding may let them rise; a larger chance of more participations is safe.
    falling = np.maximum.accumulate(beyond[::-1])[::-1]
    return counts, -np.diff(falling)


def likely(trials: int, p: float) -> tuple[int, int]:
    """Return a range of Bin(trials, p) with all but e^−700 of its probability on either side (Chernoff, Bernstein)."""
    mean, log_rest = trials * p, 700.0
    below = math.sqrt(2 * mean * log_rest)
    above = log_rest / 3 + math.sqrt((log_rest / 3) ** 2 + 2 * mean * log_rest)
    return max(0, math.floor(mean - below)), min(trials, math.ceil(mean + above))


def _count(shifts: Shifts) -> int:
    return sum(steps for _, steps in shifts)


def _refined(
    at: Callable[[float], float], q: float, shifts: Shifts, tail: float, enough: float, negligible: float
) -> float:
    """Return the value on ever finer grids, until it is low enough, hardly improves, or the grid becomes too fine."""
    best = math.inf
    if q < _RAREST or not all(_SHIFTS[0] <= mu <= _SHIFTS[1] for mu, _ in shifts):
        return best
    interval = max(reach(q, mu, tail) for mu, _ in shifts) / _FIRST_GRID
    try:
        for refinement in range(_REFINEMENTS):
            value = at(interval)
            # Two coarse grids may agree by being equally bad; from the third on, agreement counts.
            settled = refinement > 1 and best - value <= max(_GAIN * best, negligible)
            best = min(best, value)
            if settled or best <= enough:
                break
            interval /= _REFINEMENT
    except TooFineError:
        pass  # the results of the coarser grids are valid as well
    return best
