"""A search by runs: every setting sees the same random numbers, and one coordinate moves at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clipsilon.engine.runner import DivergenceError, run
from clipsilon.problems.problem import Problem
from clipsilon.rules.rule import Rule

Array = NDArray[np.float64]
S = TypeVar("S")


def released_models(problem: Problem, rule: Rule, steps: int, start: ArrayLike, replicates: int, seed: int) -> Array:
    """Run a rule and return what its replicates release; infinite if one of them diverges.

    Parameters
    ----------
    problem, rule, steps, start, replicates, seed
        As in `clipsilon.run`.

    Returns
    -------
    array of shape (replicates, d)
        The models.
    """
    try:
        return run(problem, rule, steps, start, replicates, seed, record=[steps], progress=False).output
    except DivergenceError:
        return np.full((replicates, problem.dimension), np.inf)


def descend(
    scores: dict[S, float],
    score: Callable[[S], float],
    moves: Sequence[Callable[[S], S | None]],
    *,
    trials: float = np.inf,
    worth: float = 1.0,
) -> S:
    """Move the best setting, and repeat each move that helps, until none does.

    Parameters
    ----------
    scores : dict of S to float
        Settings that have been scored, at least one; those that are scored here are added.
    score : callable
        From a setting to its score; small is good.
    moves : sequence of callables
        From a setting to another one, or to None where it may not move.
    trials : float, default inf
        Stop when this many settings have been scored.
    worth : float, default 1.0
        A move must bring the score below this multiple of what it was.

    Returns
    -------
    S
        The best setting.
    """
    best = min(scores, key=scores.__getitem__)
    last = None
    while best != last:
        last = best
        for move in moves:
            while (other := move(best)) is not None and len(scores) < trials:
                if other not in scores:
                    scores[other] = score(other)
                if not scores[other] < worth * scores[best]:
                    break
                best = other
    return best
