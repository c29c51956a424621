"""Privacy filters: what releases cost together when each may be chosen by what earlier ones returned.

Statements that are composed on one curve hold for releases that were fixed beforehand. A budget that is spent week by
week needs a rule that holds whatever the next release depends on (docs/proofs.md, "Budgets that are spent adaptively"):
ε and δ add up, and so does μ² of Gaussian mechanisms within a reserve of fixed size, whose own ε and δ were added when
it was opened. Each new reserve is as large as all earlier ones together, so that k equal Gaussian mechanisms cost about
√k as much as one, and a single one no more than itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import NamedTuple

from clipsilon.privacy.accounting import gaussian

_SAFE = 1 + 2.0**-40  # by which sums of squares are raised, for rounding


class Cost(NamedTuple):
    """What one release costs by itself.

    Parameters
    ----------
    epsilon, delta : float
        The release is (ε, δ)-private.
    mu : float or None
        μ, if it is exactly μ-GDP.
    """

    epsilon: float
    delta: float
    mu: float | None


class Counted(NamedTuple):
    """How a release was counted.

    Parameters
    ----------
    epsilon, delta : float
        What was added to the sums: nothing within a reserve that is open.
    mu : float or None
        μ, if the release is Gaussian.
    reserve : int or None
        The place of the release that opened its reserve, which may be itself.
    size : float or None
        The μ of the reserve, if the release opened it.
    """

    epsilon: float
    delta: float
    mu: float | None = None
    reserve: int | None = None
    size: float | None = None


class Amount(NamedTuple):
    """An ε and a δ: of all releases together, or the most that they may be.

    Parameters
    ----------
    epsilon, delta : float
        Two numbers of at least 0.
    """

    epsilon: float
    delta: float


def count_spent(past: Sequence[Counted]) -> Amount:
    """Return the sums of ε and δ so far."""
    return Amount(float(_add(one.epsilon for one in past)), float(_add(one.delta for one in past)))


def _add(numbers: Iterable[float]) -> Fraction:
    """Return the exact sum of numbers as they are written: three times 0.1 is 0.3."""
    return sum((Fraction(repr(float(number))) for number in numbers), Fraction(0))


def count_release(cost: Cost, past: Sequence[Counted], limit: Amount) -> Counted | None:
    """Return how a release is counted after others, or None if that would pass the limit.

    Parameters
    ----------
    cost : Cost
        The next release, which may depend on what the others returned.
    past : sequence of Counted
        The releases so far.
    limit : Amount
        The limit, fixed before the first of them.

    Returns
    -------
    Counted or None

    Formal guarantee
    ----------------
    If no release is made for which None is returned, all releases together are (limit.epsilon, limit.delta)-private,
    however each was chosen by what the earlier ones returned.
    """
    if cost.mu is None:
        counted = Counted(cost.epsilon, cost.delta)
    else:
        reserve = _find_room(cost.mu, past)
        if reserve is not None:
            return Counted(0.0, 0.0, cost.mu, reserve)
        counted = _open_reserve(cost, cost.mu, past, limit)
    return counted if _is_within([*past, counted], limit) else None


def _is_within(all_releases: Sequence[Counted], limit: Amount) -> bool:
    epsilon, delta = _add(one.epsilon for one in all_releases), _add(one.delta for one in all_releases)
    return epsilon <= _add([limit.epsilon]) and delta <= _add([limit.delta])


def _find_room(mu: float, past: Sequence[Counted]) -> int | None:
    """Return a reserve in which there is room for μ."""
    for place, one in enumerate(past):
        if one.size is not None:
            squares = [each.mu**2 for each in past if each.reserve == place and each.mu is not None]
            if math.fsum([*squares, mu**2]) * _SAFE <= one.size**2:
                return place
    return None


def _open_reserve(cost: Cost, mu: float, past: Sequence[Counted], limit: Amount) -> Counted:
    """Return a reserve as large as all earlier ones, as far as the limit allows, and at least as the release."""
    earlier = math.fsum(one.epsilon for one in past if one.size is not None)
    left = float(_add([limit.epsilon]) - _add(one.epsilon for one in past))
    epsilon = max(cost.epsilon, min(earlier, left * (1 - 2.0**-40)))
    size = mu if epsilon == cost.epsilon else max(mu, gaussian.largest_mu(epsilon, cost.delta))
    return Counted(epsilon, cost.delta, mu, len(past), size)
