"""Whose row is whose: a person's rows share one unit of weight."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from clipsilon._core import checks
from clipsilon.estimators.evaluation.histograms import MOST_PEOPLE

if TYPE_CHECKING:
    from clipsilon.estimators.inputs import Column

Integers = NDArray[np.int64]


def count_people(groups: Column | None, rows: int) -> tuple[int, Integers]:
    """Return the number of people, and for each row how many rows its person has; without groups, each row is one."""
    if groups is None:
        people, rows_of = rows, np.ones(rows, dtype=np.int64)
    else:
        numbers = checks.people("groups", groups, rows)
        counts = np.bincount(numbers)
        people, rows_of = counts.size, counts[numbers]
    if not 0 < people <= MOST_PEOPLE:
        raise ValueError(f"X must have rows of 1 to {MOST_PEOPLE} people, got {people}.")
    return people, rows_of
