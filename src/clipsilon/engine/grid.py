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
from clipsilon._core.options import INNER
from clipsilon._core.parts import implemented
from clipsilon._core.vectors import is_moderate
from clipsilon.problems.losses.base import penalty
from clipsilon.problems.problem import Problem
from clipsilon.problems.responses import Identity
from clipsilon.rules.clipping import at_step, bound_of, largest_norm
from clipsilon.rules.correlation import rounding, shift_norm
from clipsilon.rules.feedback import ErrorFeedback, remembers
from clipsilon.rules.noise import Correlated, Noise, ScheduledGaussian, correlate, deviation
from clipsilon.rules.rule import Rule
from clipsilon.rules.sampling import Sampling, expected_batch, most_drawn, participations, public_rate, separation

Array = NDArray[np.float64]

ROUND = 1.5 * 2.0**52
"""Added to a number below 2^51 in size and subtracted again, it rounds the number to a whole one."""
LARGEST = 2.0**50
"""Sums are whole numbers of at most this size, so that they survive being multiplied by a unit and divided again."""
CANCELLATION = 2.0**4
"""How much longer than a gradient its penalty and the rest of it are taken to be, at most."""
_HIDDEN_RECORDS = 2**31  # at most: the grid must not depend on a number of records that is not public
_MOST_SHIFT = 46
_MOST_RATIO = 2.0**21  # of a record's bound to the noise; certificates require at most half of it
_LARGEST_ERROR = 2.0**48
_MOST_HEADROOM = 2.0**64  # how much larger entries of the error may become if rounding permits
_FEEDBACK_ROOM = 8.0  # with feedback, sums stay so much smaller
_MOST_DRIFT = 1.0  # how much larger the noise becomes to make up for rounding that adds up, at most
_LEAST_DRIFT = 2.0**-11  # half of what it may become for the sake of a longer error
_LEAST_RESIDUAL = 2.0**-6  # |C3 − C1|/C1 for which the slack covers the rounding of what one record adds to e
_MOST_NUMBERS = 2.0**30  # steps times dimension for which certificates of correlated noise charge for rounding


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
        What rounding the fed-back error, or correlated noise, may add to the shift between neighbouring data sets in a
        run, in units.
    clip_drift : float
        What the clip of the error adds to that, if sums are as large as the grid permits; less for smaller ones.
    error_drift : float
        What the rounding of e itself adds to that, if its entries are cut off at 2^48 units.
    is_constant : bool
        Whether all steps have the same bound and noise, and thus the same grid.
    alone : True, optional
        True if records react and the sampler draws one record per step, else None. The way of a record into the sum
        follows from it while kernels are compiled: it must not depend on how many others are drawn.
    """

    weight: float
    most: float
    error_bound: float
    kept_bound: float
    slack: float
    drift: float
    clip_drift: float
    error_drift: float
    is_constant: bool
    alone: bool | None


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
    largest_error : float
        Where entries of the error are cut off.
    growth : float
        How much larger the noise has to be to make up for rounding that adds up; it is, up to `_MOST_DRIFT`.
    alone : True, optional
        As of `Scaling`.
    """

    weight: float
    rounding: float
    limit: float
    kept_limit: float
    unit: float
    shift: int
    largest_error: float
    growth: float
    alone: bool | None


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
    most = most_drawn(rule.sampling, records) if public_rate(rule.sampling) is None else _HIDDEN_RECORDS
    if public_rate(rule.sampling) is not None and records > _HIDDEN_RECORDS:
        raise ValueError(f"problem must have at most 2**31 records for batches with a public rate, got {records}.")
    room = 4.0 * CANCELLATION if penalty(problem.loss) > 0 else 1.0
    error_bound, kept_bound = 0.0, np.inf
    if remembers(rule.feedback):
        room *= _FEEDBACK_ROOM
    if isinstance(rule.feedback, ErrorFeedback):
        error_bound, kept_bound = _FEEDBACK_ROOM * bound_of(rule.feedback.clip), _cap_of(rule.feedback)
    drift, clip_drift, error_drift = _drift(rule, problem, steps)
    return Scaling(
        weight=1.0 / expected_batch(rule.sampling, records),
        most=room * most,
        error_bound=error_bound,
        kept_bound=kept_bound,
        slack=_slack(rule, root),
        drift=drift,
        clip_drift=clip_drift,
        error_drift=error_drift,
        is_constant=type(rule.clip) not in implemented(at_step) and type(rule.noise) is not ScheduledGaussian,
        alone=True if _draws_one(rule.sampling) and type(problem.response) is not Identity else None,
    )


def _draws_one(sampling: Sampling) -> bool:
    """Return whether a sampler draws at most one record per step, however many there are."""
    return bool(getattr(sampling, "fixed", False)) and getattr(sampling, "batch", 0) == 1


def _slack(rule: Rule, root: float) -> float:
    """Return `slack` of `Scaling`, for d = root²."""
    if not remembers(rule.feedback):
        return 5.0 * root + 4.0
    residual = _residual(rule)
    least = (6.0 * root + 4.0) / residual if _LEAST_RESIDUAL <= residual < np.inf else 0.0
    return max(16.0 * (root + 1.0), least)


def _residual(rule: Rule) -> float:
    """Return |C3 − C1|/C1, or less than what a record may leave in e, over C1; infinite without a cap."""
    if not isinstance(rule.feedback, ErrorFeedback):
        return np.inf
    return abs(_cap_of(rule.feedback) / bound_of(rule.clip) - 1.0)


def _cap_of(feedback: ErrorFeedback) -> float:
    """Return C3; infinite for caps that are not of the package, as in certificates."""
    return bound_of(feedback.cap) if type(feedback.cap) in implemented(largest_norm) else np.inf


def _drift(rule: Rule, problem: Problem, steps: int) -> tuple[float, float, float]:
    """Return `drift`, `clip_drift` and `error_drift` of `Scaling`."""
    if isinstance(rule.noise, Correlated):
        return _correlated_drift(rule.noise, rule.sampling, problem, steps), 0.0, 0.0
    if not isinstance(rule.feedback, ErrorFeedback):
        return 0.0, 0.0, 0.0
    root, clipping = float(np.sqrt(problem.dimension)), (problem.dimension + 24) / 64
    drift, shown = 2.0 * root * float(np.sqrt(steps)), clipping * float(np.sqrt(steps))
    if np.isinf(_cap_of(rule.feedback)):  # nothing is certified of e but what its clip lets through
        return drift, shown, 0.0
    if _residual(rule) < _LEAST_RESIDUAL:
        drift += (6.0 * root + 4.0) * steps
    return drift, shown + clipping * steps, 0.5 * root * steps


def _correlated_drift(noise: Correlated, sampling: Sampling, problem: Problem, steps: int) -> float:
    """Return what rounding adds to the shift between neighbouring data sets; less if the shift itself is longer."""
    times, apart = participations(sampling, problem.records, steps), separation(sampling, problem.records)
    shift = 1.0 if times is None or apart is None else shift_norm(noise.buffers, steps, times, apart)
    return rounding(noise.buffers, steps) * float(np.sqrt(steps * problem.dimension)) / shift


def check_rounding(problem: Problem, rule: Rule, steps: int) -> None:
    """Raise ValueError if rounding adds up to more than what a certificate of the rule leaves room for.

    Nothing is certified without a grid, nor of an error with a cap where the number of records is hidden.

    Parameters
    ----------
    problem, rule : Problem, Rule
        What runs.
    steps : int
        T, the length of the run.
    """
    has_cap = isinstance(rule.feedback, ErrorFeedback) and np.isfinite(_cap_of(rule.feedback))
    if has_cap and public_rate(rule.sampling) is not None:
        return
    public, bound = scaling(problem, rule, steps), bound_of(rule.clip)
    grid = step_grid(public, bound, deviation(rule.noise, 1, bound * public.weight), problem.dimension)
    charged = _MOST_NUMBERS / 4.0**grid.shift if isinstance(rule.noise, Correlated) else 0.0
    if grid.rounding != 0.0 and grid.growth > _MOST_DRIFT and steps * problem.dimension > charged:
        raise ValueError(
            f"steps must be fewer for {rule.name} on {problem.records} records in {problem.dimension} dimensions, got "
            f"{steps}: rounding would add up to more than its noise can make up for."
        )


# Everything below is compiled without fast-math flags, which functions would inherit from the kernel that calls them.
_EXACT = {"fastmath": False, **INNER}


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
        return Grid(public.weight, 0.0, np.inf, np.inf, std / UNIT, 0, np.inf, 0.0, public.alone)
    ratio = bound * public.weight / std
    longest = bound if public.kept_bound == np.inf else max(bound, public.kept_bound)
    share = max(ratio * (longest / bound) * public.most, public.error_bound / std)
    deviation, shift = 2.0**32, 0  # of the noise, in units
    while share * deviation > LARGEST and shift < _MOST_SHIFT:
        deviation, shift = 0.5 * deviation, shift + 1
    if ratio > _MOST_RATIO or share * deviation > LARGEST:
        return Grid(public.weight, 0.0, np.inf, np.inf, std / UNIT, 0, np.inf, 0.0, public.alone)
    # Noise makes up for what rounding adds to the fed-back error. The less that is, the longer e may become.
    record, fullness = ratio * deviation, share * deviation / LARGEST
    headroom = min(max(_LEAST_DRIFT * record / max(public.error_drift, 1e-200), fullness), _MOST_HEADROOM)
    growth = 2.0 * (public.drift + fullness * public.clip_drift + headroom * public.error_drift) / record
    deviation = deviation / (1.0 + min(growth, _MOST_DRIFT))
    limit = max(0.0, ratio * deviation * (1.0 - (dimension + 64) * 2.0**-52) - public.slack)
    weight = limit / bound
    within = 1.0 + 2.0**-47
    unit = std / deviation
    return Grid(
        weight,
        ROUND,
        limit * within,
        weight * public.kept_bound * within,
        unit,
        shift,
        _LARGEST_ERROR * headroom * unit,
        growth,
        public.alone,
    )


@register_jitable(**_EXACT)  # type: ignore[untyped-decorator]
def round_fed_back(grid: Grid, error: Array, update: Array) -> None:
    """Round the update to the grid after an error was added to it, and cut off the largest entries of e.

    Parameters
    ----------
    grid : Grid
        The grid; if it does not round, nothing is changed.
    error : array
        e after the step, changed in place; empty without feedback.
    update : array of shape (d,)
        v before noise, changed in place if there is an error.
    """
    most = grid.largest_error
    for j in range(error.size if grid.rounding != 0.0 else 0):
        error[j] = min(max(error[j], -most), most) if error[j] == error[j] else 0.0
        update[j] = grid.unit * np.rint(update[j] / grid.unit)


@register_jitable(**_EXACT)  # type: ignore[untyped-decorator]
def add_normal(grid: Grid, update: Array, is_whole: bool, rng: Generator) -> None:
    """Add exact normal noise to a vector, in place: on a grid, q units become q + ⌊2^(32−shift)·N⌋ + ½ units.

    Parameters
    ----------
    grid : Grid
        The grid of the step, with the spacing of the noise.
    update : array of shape (d,)
        The mean update, on the grid if it rounds.
    is_whole : bool
        Whether the update is given in units of the grid, if it rounds.
    rng : Generator
        The stream of the noise.
    """
    bits, inverse = rng.bit_generator, 1.0 / grid.unit
    for j in range(update.size if grid.unit > 0.0 else 0):
        units = (integer_normal(bits) >> grid.shift) + 0.5
        whole = update[j] if is_whole else np.rint(update[j] * inverse)
        update[j] = grid.unit * (whole + units) if grid.rounding != 0.0 else update[j] + grid.unit * units


@register_jitable(**_EXACT)  # type: ignore[untyped-decorator]
def add_correlated(noise: Noise, grid: Grid, update: Array, state: Array, rng: Generator) -> None:
    """Add exact normal noise that is correlated between steps to a vector, in place.

    Parameters
    ----------
    noise : Noise
        Gaussian noise with a memory.
    grid : Grid
        The grid of the step, with the spacing of the noise.
    update : array of shape (d,)
        The mean update, on the grid if it rounds.
    state : array of shape (memory, d)
        What the noise carries from step to step.
    rng : Generator
        The stream of the noise.
    """
    bits, inverse, last = rng.bit_generator, 1.0 / grid.unit, state.shape[0] - 1
    for j in range(update.size):
        state[last, j] = integer_normal(bits) >> grid.shift
    correlate(noise, state)
    for j in range(update.size if grid.unit > 0.0 else 0):
        whole = np.rint(update[j] * inverse) if grid.rounding != 0.0 else update[j] * inverse
        update[j] = grid.unit * (whole + (state[last, j] + 0.5))
