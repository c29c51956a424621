"""The grid of a step: the units in which the records' contributions are whole numbers.

A step with noise of standard deviation σ lives on the grid of spacing σ·2^(shift−32), which follows from public numbers
alone. Each record's contribution is rounded to it by itself and is shorter than its bound, so sums are exact in any
order, and exact noise (`_core/exact_normal.py`) on them is Gaussian noise on real numbers, rounded. The proof is in
docs/proofs.md, "Exact sums in the engine".

A step without noise, or without a bound on what one record adds, has no grid: its sums are ordinary numbers.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba.extending import register_jitable
from numpy.random import Generator
from numpy.typing import NDArray

from clipsilon._core.exact_normal import UNIT, integer_normal
from clipsilon._core.parts import implemented
from clipsilon._core.vectors import is_moderate
from clipsilon.problems.losses.base import penalty
from clipsilon.problems.problem import Problem
from clipsilon.rules.clipping import at_step, bound_of
from clipsilon.rules.feedback import ErrorFeedback, remembers
from clipsilon.rules.noise import ScheduledGaussian, deviation
from clipsilon.rules.rule import Rule
from clipsilon.rules.sampling import expected_batch, most_drawn, public_rate

Array = NDArray[np.float64]

ROUND = 1.5 * 2.0**52
"""Added to a number below 2^51 in size and subtracted again, it rounds the number to a whole one."""
LARGEST = 2.0**50
"""Sums are whole numbers of at most this size, so that they survive being multiplied by a unit and divided again."""
CANCELLATION = 2.0**8
"""How much longer than a gradient its penalty and the rest of it are taken to be, at most."""
_HIDDEN_RECORDS = 2**31  # more than memory holds; the grid must not depend on a number of records that is not public
_MOST_SHIFT = 46
_LARGEST_ERROR = 2.0**48
_FEEDBACK_ROOM = 8.0  # with feedback, sums stay so much smaller
MOST_DRIFT = 2.0**-6
"""How much noise makes up for rounding of the fed-back error, at most, relative to the noise."""


class Scaling(NamedTuple):
    """The public numbers of a run that its grids follow from.

    Attributes
    ----------
    weight : float
        1/B, with the expected batch size B.
    most : float
        The largest number of records in a batch, times the room that a penalty and feedback take.
    error_bound : float
        C2, the bound on the fed-back error, times its room; 0 without feedback.
    kept_bound : float
        C3, the bound on what one record adds to the error; infinite if it has none.
    slack : float
        What rounding may add to the length of one record's contribution, in units.
    drift : float
        What rounding may add to the difference of two fed-back errors in a run, in units; 0 without feedback.
    is_constant : bool
        Whether all steps have the same bound and noise, and thus the same grid.
    """

    weight: float
    most: float
    error_bound: float
    kept_bound: float
    slack: float
    drift: float
    is_constant: bool


class Grid(NamedTuple):
    """The grid of a step.

    Attributes
    ----------
    weight : float
        What a clipped gradient is multiplied by: 1/B, in units of the grid.
    rounding : float
        `ROUND`, or 0 if there is no grid.
    limit, kept_limit : float
        The longest contributions of one record to the update and to the error, in units.
    unit : float
        The spacing of the grid, of the noise alone if there is no rounding; 0 without noise.
    shift : int
        The binary digits of the noise below one unit.
    """

    weight: float
    rounding: float
    limit: float
    kept_limit: float
    unit: float
    shift: int


def scaling(problem: Problem, rule: Rule, steps: int) -> Scaling:
    """Return the public numbers that the grids of a run follow from.

    Parameters
    ----------
    problem, rule : Problem, Rule
        What runs.
    steps : int
        T, the length of the run.
    """
    records, root = problem.records, float(np.sqrt(problem.dimension))
    most = _HIDDEN_RECORDS if public_rate(rule.sampling) is not None else most_drawn(rule.sampling, records)
    room = 4.0 * CANCELLATION if penalty(problem.loss) > 0 else 1.0
    error_bound, kept_bound = 0.0, np.inf
    if remembers(rule.feedback):
        room *= _FEEDBACK_ROOM
    if isinstance(rule.feedback, ErrorFeedback):
        error_bound, kept_bound = _FEEDBACK_ROOM * bound_of(rule.feedback.clip), bound_of(rule.feedback.cap)
    return Scaling(
        weight=1.0 / expected_batch(rule.sampling, records),
        most=room * most,
        error_bound=error_bound,
        kept_bound=kept_bound,
        slack=5.0 * root + 4.0,
        drift=32.0 * steps * root if remembers(rule.feedback) else 0.0,
        is_constant=type(rule.clip) not in implemented(at_step) and type(rule.noise) is not ScheduledGaussian,
    )


def covers_rounding(problem: Problem, rule: Rule, steps: int) -> bool:
    """Return whether the engine's noise makes up for the rounding of a fed-back error in a run of this length."""
    if not isinstance(rule.feedback, ErrorFeedback):
        return not remembers(rule.feedback)
    public, bound, std = scaling(problem, rule, steps), bound_of(rule.clip), deviation(rule.noise, 1)
    grid = step_grid(public, bound, std, problem.dimension)
    unit = std * 2.0 ** (grid.shift - 32)
    return bool(grid.rounding != 0.0 and 2.0 * public.drift * unit <= MOST_DRIFT * bound * public.weight)


# Everything below is compiled without fast-math flags, which functions would inherit from the kernel that calls them.
_EXACT = {"fastmath": False, "error_model": "numpy", "forceinline": True}


@register_jitable(**_EXACT)  # type: ignore[untyped-decorator]
def step_grid(public: Scaling, bound: float, std: float, dimension: int) -> Grid:
    """Return the grid of a step, or one without rounding if the step has no noise or no bound.

    Parameters
    ----------
    public : Scaling
        The public numbers of the run.
    bound : float
        The bound on one record's gradient; infinite if there is none.
    std : float
        The standard deviation of the noise on the mean; 0 without.
    dimension : int
        d.
    """
    if not (is_moderate(bound) and is_moderate(std)):
        return Grid(public.weight, 0.0, np.inf, np.inf, std / UNIT, 0)
    ratio = bound * public.weight / std
    longest = bound if public.kept_bound == np.inf else max(bound, public.kept_bound)
    share = max(ratio * (longest / bound) * public.most, public.error_bound / std)
    deviation, shift = 2.0**32, 0  # of the noise, in units
    while share * deviation > LARGEST and shift < _MOST_SHIFT:
        deviation, shift = 0.5 * deviation, shift + 1
    if share * deviation > LARGEST:
        return Grid(public.weight, 0.0, np.inf, np.inf, std / UNIT, 0)
    # Noise that makes up for what rounding adds to the fed-back error, relative to one record's contribution.
    deviation = deviation / (1.0 + min(2.0 * public.drift / (ratio * deviation), MOST_DRIFT))
    limit = max(0.0, ratio * deviation * (1.0 - (dimension + 64) * 2.0**-52) - public.slack)
    weight = limit / bound
    within = 1.0 + 2.0**-47
    return Grid(weight, ROUND, limit * within, weight * public.kept_bound * within, std / deviation, shift)


@register_jitable(**_EXACT)  # type: ignore[untyped-decorator]
def snap(grid: Grid, vector: Array, entries: int) -> None:
    """Round the first entries of a vector to the grid, in place; beyond 2^48 units they are cut off, and NaN becomes 0.

    Parameters
    ----------
    grid : Grid
        The grid; if it does not round, nothing is changed.
    vector : array
        The vector.
    entries : int
        How many entries to round.
    """
    for j in range(entries if grid.rounding != 0.0 else 0):
        units = vector[j] / grid.unit
        units = min(max(units, -_LARGEST_ERROR), _LARGEST_ERROR) if units == units else 0.0
        vector[j] = grid.unit * np.rint(units)


@register_jitable(**_EXACT)  # type: ignore[untyped-decorator]
def add_normal(grid: Grid, update: Array, rng: Generator) -> None:
    """Add exact normal noise to a vector, in place: on a grid, q units become q + ⌊2^(32−shift)·N⌋ + ½ units.

    Parameters
    ----------
    grid : Grid
        The grid of the step, with the spacing of the noise.
    update : array of shape (d,)
        The mean update, on the grid if it rounds.
    rng : Generator
        The stream of the noise.
    """
    bits, inverse = rng.bit_generator, 1.0 / grid.unit
    for j in range(update.size if grid.unit > 0.0 else 0):
        units = (integer_normal(bits) >> grid.shift) + 0.5
        whole = np.rint(update[j] * inverse)
        update[j] = grid.unit * (whole + units) if grid.rounding != 0.0 else update[j] + grid.unit * units
