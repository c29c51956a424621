"""Clip, batch, steps and step size when nobody chose them."""

from __future__ import annotations

from math import sqrt
from typing import Any, NamedTuple

from clipwise.steps import Constant


class Settings(NamedTuple):
    """What a private descent needs to know besides its budget."""

    clip: float
    batch: int | None  # None: all records at every step
    steps: int
    step: Any  # a part of `clipwise.steps`, for the logistic loss
    average: bool  # whether the mean of the iterates is released


def defaults(records: int, columns: int, epsilon: float, delta: float) -> Settings:
    """Settings for so many records and columns of unit order."""
    return Settings(sqrt(columns) / 2, None, 50, Constant(8.0 / sqrt(columns)), True)
