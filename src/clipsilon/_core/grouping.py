"""Which rows of a table belong to whom."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clipsilon._core import checks

Indices = NDArray[np.int64]


class Grouping(NamedTuple):
    """Rows sorted by person.

    Parameters
    ----------
    order : array of int
        The rows of the first person, then those of the second, and so on.
    starts : array of shape (people + 1,)
        Where in `order` each person's rows begin, followed by where the last ones end.
    """

    order: Indices
    starts: Indices

    @property
    def people(self) -> int:
        """The number of people."""
        return self.starts.size - 1

    def rows_of(self, people: Indices) -> Grouping:
        """Return the rows of some people, in their order."""
        begins = self.starts[people]
        counts = self.starts[people + 1] - begins
        starts = np.append(0, np.cumsum(counts))
        places = np.arange(starts[-1]) + np.repeat(begins - starts[:-1], counts)
        return Grouping(self.order[places], starts)


def group_rows(people: Indices, max_rows: int | None) -> Grouping:
    """Sort rows by person, and keep the first `max_rows` of each.

    Which rows of a person are kept, and in which order, follows from this person's rows alone.

    Parameters
    ----------
    people : array of int
        The number of each row's person, from `checks.people`.
    max_rows : int or None
        The largest number of rows per person; None keeps all.
    """
    order = np.argsort(people, kind="stable")
    starts = np.append(0, np.cumsum(np.bincount(people)))
    if max_rows is None:
        return Grouping(order, starts)
    most = checks.count("max_rows", max_rows)
    rank = np.arange(people.size) - starts[people[order]]
    return Grouping(order[rank < most], np.append(0, np.cumsum(np.minimum(np.diff(starts), most))))
