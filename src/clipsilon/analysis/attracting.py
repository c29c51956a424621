"""Zeros of a field that reacts to θ, with a preference for those that attract.

Implicit steps along the flow become Newton steps, which may end at a zero that repels. If so, the search is repeated
where retraining leads, and then on both sides of the zero that repels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from clipsilon.analysis.zeros import Array, Field, Zero, find_zero, leave_zero

_RETRAININGS = 20  # before the search goes on from the last of them
_SETTLED = 1e-2  # change by a retraining, relative to the point, from which the rest is left to `find_zero`
_FAR = 1e3  # distance from the start, relative to the first change, from which retraining is taken to diverge
_SAME = 1e-5  # distance of zeros that count as one, relative to their norm


class Search(NamedTuple):
    """What is searched.

    Parameters
    ----------
    field : callable
        F, from a point to a vector of the same length.
    field_under : callable or None
        From a deployed point to the field of the records that reacted to it; None if they do not react.
    project : callable
        The projection onto the region, which returns a new point.
    scales : ndarray
        The sizes in which the coordinates of θ are measured, all above 0.
    """

    field: Field
    field_under: Callable[[Array], Field] | None
    project: Field
    scales: Array

    def zero(self, field: Field, start: Array) -> Zero:
        """Find one zero of a field, from `start`."""
        return find_zero(field, self.project, start, self.scales)

    def distance(self, one: Array, other: Array) -> float:
        """Return how far apart two points are, relative to the second, in scaled coordinates."""
        return float(np.linalg.norm(self.scales * (one - other)) / (1.0 + np.linalg.norm(self.scales * other)))


def find_attracting(search: Search, start: Array) -> tuple[Zero, int]:
    """Find a zero that attracts, or any zero if none that does is seen; also return how many different ones were seen.

    Searches along the flow from `start`; then, only if that finds no zero or one that repels, from where retraining
    from `start` leads; then on both sides of a zero that repels. It ends at the first zero that attracts.
    """
    found: list[Zero] = []
    for begin in _begins(search, start, found):
        found.append(search.zero(search.field, begin))
        # Where the field is flat, all neighbouring points are zeros, and no other search is better.
        if found[-1].converged and (found[-1].attracts or not found[-1].isolated):
            return found[-1], _count(search, found)
    return next((zero for zero in found if zero.converged), found[0]), _count(search, found)


def _begins(search: Search, start: Array, found: list[Zero]) -> Iterator[Array]:
    """Yield where to search, one after the other; `found` is what the earlier searches found."""
    yield start
    retrained = None if search.field_under is None else _retrained(search, search.field_under, start)
    if retrained is not None:
        yield retrained
    repelling = next((zero for zero in found if zero.converged), None)
    if repelling is not None:
        yield from _sides(search, repelling.theta, start)


def _retrained(search: Search, field_under: Callable[[Array], Field], start: Array) -> Array | None:
    """Return where repeated retraining leads; None if it fails or diverges."""
    theta, farthest = start, np.inf
    for _ in range(_RETRAININGS):
        zero = search.zero(field_under(theta), theta)
        if not zero.converged or np.linalg.norm(search.scales * (zero.theta - start)) > farthest:
            return None
        change = float(np.linalg.norm(search.scales * (zero.theta - theta)))
        farthest = min(farthest, _FAR * (1.0 + change))
        theta = zero.theta
        if change <= _SETTLED * (1.0 + float(np.linalg.norm(search.scales * theta))):
            break
    return theta


def _sides(search: Search, repelling: Array, start: Array) -> list[Array]:
    """Return where the flow leads from a zero that repels, first on the side that ends nearer to `start`."""
    ends = leave_zero(search.field, search.project, repelling, search.scales)
    return sorted(ends, key=lambda end: search.distance(end, start))


def _count(search: Search, found: list[Zero]) -> int:
    """Return how many different zeros were found."""
    different: list[Array] = []
    for zero in found:
        if zero.converged and all(search.distance(zero.theta, other) > _SAME for other in different):
            different.append(zero.theta)
    return len(different)
