"""Timing: contenders take turns, so that a busy moment affects all of them, and a ratio is taken in each turn."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

Times = dict[str, list[float]]


def seconds(job: Callable[[], Any]) -> float:
    """Return the seconds that a job takes."""
    began = time.perf_counter()
    job()
    return time.perf_counter() - began


def per_step(job: Callable[[int], Any], steps: int) -> Callable[[], float]:
    """Return a contender for `turns` that runs a job of `steps` steps and returns the seconds per step."""
    return lambda: seconds(lambda: job(steps)) / steps


def turns(contenders: Mapping[str, Callable[[], float]], repeats: int) -> Times:
    """Return the times of each contender, one per turn; a first turn, for warming up, is not counted."""
    taken: Times = {name: [] for name in contenders}
    for turn in range(repeats + 1):
        for name, contender in contenders.items():
            found = contender()
            if turn:
                taken[name].append(found)
    return taken


def ratio(taken: Times, over: str, under: str) -> float:
    """Return the median over turns of one contender's time divided by another's.

    Parameters
    ----------
    taken : dict of list of float
        The result of `turns`.
    over, under : str
        The contenders in the numerator and in the denominator.

    Returns
    -------
    float
        The median ratio.
    """
    return statistics.median(a / b for a, b in zip(taken[over], taken[under], strict=True))
