"""How time is measured: contenders take turns, so that a busy moment hits all of them, and ratios are taken by turn."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

Times = dict[str, list[float]]


def seconds(job: Callable[[], Any]) -> float:
    """How long a job takes."""
    began = time.perf_counter()
    job()
    return time.perf_counter() - began


def per_step(job: Callable[[int], Any], steps: int) -> Callable[[], float]:
    """A contender whose time is that of one step of so many."""
    return lambda: seconds(lambda: job(steps)) / steps


def turns(contenders: Mapping[str, Callable[[], float]], repeats: int) -> Times:
    """Seconds of each contender in every turn, after one turn to warm up."""
    taken: Times = {name: [] for name in contenders}
    for turn in range(repeats + 1):
        for name, contender in contenders.items():
            found = contender()
            if turn:
                taken[name].append(found)
    return taken


def ratio(taken: Times, over: str, under: str) -> float:
    """The median, over the turns, of one contender's time over another's."""
    return statistics.median(a / b for a, b in zip(taken[over], taken[under], strict=True))
