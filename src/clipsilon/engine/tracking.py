"""The memories of the records, for rules that track gradients: one vector per record, and what it adds to a step.

A row H_i of the memory is h_i in units of the step's grid, times the factor of gradients on that grid: whole numbers,
since the whole numbers that enter the sum are the ones that are added to H_i. It depends on record i and on the models
that it has seen, and on nothing else. Grids of different steps must be equal. The proof is in docs/proofs.md, "Tracked
gradients".
"""

from __future__ import annotations

import numpy as np
from numba.extending import register_jitable
from numpy.typing import NDArray

from clipsilon._core.options import INNER
from clipsilon._core.vectors import norm
from clipsilon.engine.grid import Grid
from clipsilon.problems.problem import Problem
from clipsilon.rules.clipping import Clip, add_clipped
from clipsilon.rules.feedback import tracks
from clipsilon.rules.rule import Rule

Array = NDArray[np.float64]

MOST_BYTES = 2**31
"""The largest memory of a run, over all replicates; on a cluster, per worker."""
_LARGEST = 2.0**52  # entries of the memory stay below, where float64 adds whole numbers exactly


def bytes_per_replicate(problem: Problem, rule: Rule) -> int:
    """Return the size of the memory of one replicate: 8·m·d if the rule tracks gradients, else 0."""
    return 8 * problem.records * problem.dimension if tracks(rule.feedback) else 0


def initial_memory(problem: Problem, rule: Rule) -> Array:
    """Return the memories before the first step: zeros of shape (m, d), or nothing for rules that do not track.

    Of records that are elsewhere there is one row, which stands in for them as in the problem, and is not used.
    """
    records = problem.labels.size if problem.starts is None else problem.records
    return np.zeros((records, problem.dimension) if tracks(rule.feedback) else (0, 0))


def check_memory(problem: Problem, rule: Rule, replicates: int, workers: int = 1) -> None:
    """Raise ValueError if the memories of a run are too large for one machine.

    Parameters
    ----------
    problem, rule : Problem, Rule
        What runs.
    replicates : int
        The number of replicates, each with a memory of its own.
    workers : int, default 1
        The number of machines, or processes, that share the memories.
    """
    needed = replicates * bytes_per_replicate(problem, rule) / workers
    if needed > MOST_BYTES:
        each = "" if workers == 1 else " per worker"
        raise ValueError(
            f"the memory of tracked gradients must be at most {MOST_BYTES / 2**30:.3g} GiB{each}, got "
            f"{needed / 2**30:.3g} GiB: 8 bytes for each of {problem.dimension} coordinates of {problem.records} "
            f"records in {replicates} replicate(s), on {workers} worker(s)."
        )


@register_jitable(**INNER)  # type: ignore[untyped-decorator]
def add_change(clip: Clip, gradient_i: Array, grid: Grid, memory: Array, i: int, change: Array, v: Array) -> None:
    """Add Δ_i = clip(g_i − h_i) of a record to the sum and to its memory, in place.

    On a grid these are the same whole numbers; a record whose Δ_i is not finite or longer than it may be adds nothing,
    and neither does one whose memory would become too large.

    Parameters
    ----------
    clip : Clip
        The clip in force.
    gradient_i : array of shape (d,)
        g_i; overwritten.
    grid : Grid
        The grid of the step.
    memory : array of shape (m, d)
        The memories of all records; row i is updated.
    i : int
        The record.
    change : array of shape (d,)
        Overwritten with Δ_i in units.
    v : array of shape (d,)
        The sum over the records, updated in place.
    """
    inverse, is_exact = 1.0 / grid.weight, grid.rounding != 0.0
    for j in range(v.size):
        gradient_i[j] -= inverse * memory[i, j]
        change[j] = 0.0
    add_clipped(clip, gradient_i, grid.weight, change)
    is_bounded = norm(change) <= grid.limit
    for j in range(v.size):
        change[j] = (change[j] + grid.rounding) - grid.rounding
        is_bounded &= abs(memory[i, j] + change[j]) <= _LARGEST
    for j in range(v.size if is_bounded or not is_exact else 0):
        memory[i, j] += change[j]
        v[j] += change[j]
