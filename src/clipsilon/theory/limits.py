"""What privacy costs: lower bounds on the squared gap E‖M(D) − θ_PS(D)‖² of a private rule M.

One record moves the stable point from θ_PS(D) to θ_PS(D'), by Δ. A private rule cannot tell D from D', so it cannot
follow. The bounds and their proofs are in docs/proofs.md; none is from the papers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clipsilon._core import checks
from clipsilon.analysis.fixed_points import Point, stable_point
from clipsilon.engine.means import mean_gradient, record_gradients
from clipsilon.privacy.accounting.chi_square import discrimination, point_discrimination
from clipsilon.privacy.certificate import ADJACENCIES
from clipsilon.privacy.statement import Statement
from clipsilon.problems.losses.base import label_kind
from clipsilon.problems.problem import Problem
from clipsilon.problems.responses import is_random
from clipsilon.rules.clipping import Unclipped

__all__ = ["Limit", "Neighbour", "far_neighbour", "unbiased_limit"]

Array = NDArray[np.float64]

_CANDIDATES = 8  # neighbours whose stable point is computed; the others are ranked by their influence
_DIFFERENCE = 1e-5  # relative step for the Jacobian of the field


class Neighbour(NamedTuple):
    """A neighbouring data set, and how far it moves the stable point.

    Attributes
    ----------
    record : int
        The record that differs.
    replacement : int or None
        The record whose copy takes its place; None if nothing does.
    moved : float
        ‖Δ‖ = ‖θ_PS(D) − θ_PS(D')‖, found by solving for both points.
    """

    record: int
    replacement: int | None
    moved: float


class Limit(NamedTuple):
    """Lower bounds on the squared gap of rules with a given certificate.

    Attributes
    ----------
    gap : float
        Of E‖M(D) − θ_PS(D)‖², for a rule that is unbiased on D and on D'; 0 if `chi_square` is infinite.
    average_gap : float
        Of the average of the squared gaps on D and on D', for the same rules.
    any_rule : float
        Of that average for every rule, biased or not. So the worse of the two gaps is at least this.
    chi_square : float
        The largest χ²-divergence between the outputs that the certificate allows; infinite if it has no bound.
    neighbour : Neighbour
        D', as it differs from D.
    """

    gap: float
    average_gap: float
    any_rule: float
    chi_square: float
    neighbour: Neighbour


def unbiased_limit(problem: Problem, statement: Statement, neighbour: Neighbour | None = None) -> Limit:
    """Return how small the squared gap of a private rule can be if it is unbiased, and if it need not be.

    Parameters
    ----------
    problem : Problem
        The problem, with a response that is not random, and records without weights.
    statement : Statement
        What is certified, by `account`. Its number of records must be that of the problem.
    neighbour : Neighbour, optional
        D'. The default is that of `far_neighbour` for the adjacency of the statement; pass one to reuse it.

    Returns
    -------
    Limit
        The bounds, for D the data of the problem.

    Formal guarantee
    ----------------
    Let M have the certificate of the statement, for the adjacency of D and D'. If E M(D) = θ_PS(D) and
    E M(D') = θ_PS(D'), then E‖M(D) − θ_PS(D)‖² ≥ ‖Δ‖²/χ² (Hammersley, Chapman and Robbins), and the average over D and
    D' is at least ‖Δ‖²/4·(1/s − 1), where s follows from the profile and is at most (1 − δ)·tanh²(ε/2) + δ at the ε
    and δ of the statement. Without the condition on means, the average is at least ‖Δ‖²/4·(1 − s). χ² and s are rounded
    up; ‖Δ‖ is as exact as the solver.

    Notes
    -----
    Biased rules do pass `gap` and `average_gap`: clipping trades bias for less noise. `any_rule` is what even they
    cannot pass on both data sets; on D alone, a rule that ignores its data can be right by chance.

    Examples
    --------
    >>> import clipsilon as cs
    >>> problem = cs.Problem([0.0, 0.0, 0.0, 1.0], loss=cs.losses.Quadratic(a=1.0))
    >>> rule = cs.DPGD(cs.schedules.Constant(0.5), 1.0, noise_std=1.0)
    >>> limit = cs.theory.unbiased_limit(problem, cs.account(rule, 4, 10, 1e-5, adjacency="zero-out"))
    >>> limit.neighbour.record, round(limit.neighbour.moved, 6)
    (3, 0.25)
    """
    checks.instance("problem", problem, Problem)
    checks.instance("statement", statement, Statement)
    if statement.records != problem.records:
        raise ValueError(f"statement must be about {problem.records} records, got one about {statement.records}.")
    profile = statement.certificate.profile
    chi_square = np.inf if profile is None else profile.chi_square
    apart = min(discrimination(statement.delta_at), point_discrimination(statement.certified, statement.delta))
    neighbour = far_neighbour(problem, statement.adjacency) if neighbour is None else neighbour
    square = neighbour.moved**2
    gap = square / chi_square if chi_square > 0 else np.inf
    average = square / 4 * (1 / apart - 1) if apart > 0 else np.inf
    return Limit(gap, max(gap, average), square / 4 * (1 - apart), chi_square, neighbour)


def far_neighbour(problem: Problem, adjacency: str = "replace-one") -> Neighbour:
    """Find a neighbouring data set whose stable point is far from that of the problem.

    All records are ranked by their influence on the stable point, to first order; the stable points of the first eight
    neighbours are computed. For "zero-out" and "add-remove" the record is left out. For "replace-one" it is replaced by
    a copy of another, so that every record is one that occurs; the pairs tried are those of a few records of large
    influence and the record most different from each. Any neighbour gives a valid limit, and the farthest the sharpest:
    what is found need not be it.
    """
    checks.instance("problem", problem, Problem)
    checks.choice("adjacency", adjacency, ADJACENCIES)
    if is_random(problem.response):
        raise ValueError("problem must have a response that is not random, whose points are exact.")
    stable = _found(stable_point(problem))
    influence = _influence(problem, stable)
    pairs = _replacements(influence) if adjacency == "replace-one" else _largest(influence)
    found = []
    for record, replacement in pairs:
        other = _found(stable_point(_changed(problem, record, replacement), start=stable))
        found.append(Neighbour(record, replacement, float(np.linalg.norm(other - stable))))
    return max(found, key=lambda neighbour: neighbour.moved)


def _found(point: Point) -> Array:
    """Return a stable point; raise ValueError if it was not found."""
    if not point.converged:
        raise ValueError(f"problem must have a stable point on both data sets, got: {point.message}")
    return point.theta


def _influence(problem: Problem, stable: Array) -> Array:
    """Return how far each record pulls the stable point, to first order: −J⁻¹·g_i/m, one row per record."""
    size = _DIFFERENCE * (1.0 + float(np.linalg.norm(stable)))
    kicks = size * np.eye(stable.size)
    columns = [
        mean_gradient(problem, stable + kick, stable + kick, 1)
        - mean_gradient(problem, stable - kick, stable - kick, 1)
        for kick in kicks
    ]
    slope = np.stack(columns, axis=1) / (2 * size)
    pulls = record_gradients(problem, stable, Unclipped())
    return -np.linalg.lstsq(slope, pulls.T, rcond=None)[0].T / problem.records


def _largest(influence: Array) -> list[tuple[int, None]]:
    """Return the records of largest influence."""
    order = np.argsort(-np.linalg.norm(influence, axis=1), kind="stable")
    return [(int(record), None) for record in order[:_CANDIDATES]]


def _replacements(influence: Array) -> Iterator[tuple[int, int]]:
    """Return records of large influence, each with the record whose influence is most different."""
    for record, _ in _largest(influence):
        yield record, int(np.linalg.norm(influence - influence[record], axis=1).argmax())


def _changed(problem: Problem, record: int, replacement: int | None) -> Problem:
    """Return the problem on the neighbouring data set."""
    features, labels = np.array(problem.table()), np.array(problem.labels)
    if replacement is None:
        features, labels = np.delete(features, record, axis=0), np.delete(labels, record)
    else:
        features[record], labels[record] = features[replacement], labels[replacement]
    return problem.on(features, None if label_kind(problem.loss) == "none" else labels)
