"""Grids of runs over joblib, kept on disk by their content."""

from __future__ import annotations

from typing import Any, NamedTuple

from clipwise.problem import Problem
from clipwise.rule import Rule


class Run(NamedTuple):
    """One point of a sweep: the arguments of `clipwise.run` that decide its result."""

    problem: Problem
    rule: Rule
    steps: int
    start: Any = 0.0
    replicates: int = 1
    seed: int = 0
    record: Any = 50
