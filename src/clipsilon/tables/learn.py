"""Learn the levels and ranges of columns within a privacy budget, where they are not public."""

from __future__ import annotations

import math
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping
from functools import partial
from os import PathLike
from typing import Any, NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr, ndtri

from clipsilon._core import checks
from clipsilon._core.checks import short_repr
from clipsilon.engine import exact_noise
from clipsilon.engine.streams import spawn
from clipsilon.privacy.accounting import gaussian, profiles
from clipsilon.privacy.budget import Budget, charge_to
from clipsilon.privacy.certificate import Certificate, require_public_size
from clipsilon.privacy.quantiles import WORST_ERROR, answer_error, balance_noise, balances, search
from clipsilon.privacy.quantiles import values as values_at
from clipsilon.privacy.statement import Statement, about_seed
from clipsilon.privacy.warning import warn_about_delta
from clipsilon.tables.cells import as_cells, identify_cells, to_numbers, to_people, to_texts
from clipsilon.tables.ranges import round_outward

Array = NDArray[np.float64]

_QUESTIONS = 18  # per end of a range: 1 for the sign, 7 for the octave, 8 within it, 2 for the tails
_BEYOND = 0.01  # fraction of the values beyond each end of a range


class Learnt(NamedTuple):
    """What was learnt of columns, and what it cost.

    Parameters
    ----------
    found : dict
        By column, the levels as a tuple of str, or the range as a pair of numbers.
    statement : Statement
        The privacy of everything that was found, together.
    """

    found: dict[str, Any]
    statement: Statement


def learn_levels(
    columns: Mapping[str, ArrayLike],
    epsilon: float,
    delta: float,
    *,
    groups: ArrayLike | None = None,
    max_levels: int = 1,
    adjacency: str = "zero-out",
    random_state: int | None = None,
    budget: Budget | str | PathLike[str] | None = None,
) -> Learnt:
    """Find the levels of columns that occur often: those whose noisy counts are above a threshold.

    Parameters
    ----------
    columns : mapping of arrays
        The cells of each column. Gaps are no level.
    epsilon, delta : float
        The budget of all columns together. Half of δ is for the noise, and half for levels that only one person has.
    groups : array-like, optional
        Names the person of each row, so that people are protected instead of rows.
    max_levels : int, default 1
        Number of levels per column that a person with several rows is counted for: the most frequent ones.
    adjacency : {"zero-out", "replace-one"}
        How neighbouring data sets differ.
    random_state : int or None, default None
        None for cryptographic noise. A seed makes the result repeatable, and unfit for release.
    budget : Budget or path, optional
        A budget file to charge before noise is drawn (`clipsilon.Budget`).

    Returns
    -------
    Learnt
        The levels of each column, sorted; those that are rare are missing.

    Formal guarantee
    ----------------
    All lists together are (epsilon, delta)-differentially private (docs/proofs.md, "Learnt levels").

    Examples
    --------
    >>> learnt = learn_levels({"size": ["S", "M"] * 500 + ["XXL"]}, epsilon=1.0, delta=1e-5)
    >>> learnt.found, learnt.statement.certified <= 1.0
    ({'size': ('M', 'S')}, True)
    """
    epsilon, delta = checks.positive("epsilon", epsilon), checks.open_fraction("delta", delta)
    most = checks.count("max_levels", max_levels)
    require_public_size(adjacency)
    people = _people(columns, groups)
    counted = {name: _count(_texts(name, cells), people, most) for name, cells in columns.items()}
    touched = len(columns) * most * (2 if adjacency == "replace-one" else 1)
    mu = gaussian.largest_mu(epsilon, delta / 2)
    std = balance_noise(mu, touched, "zero-out")
    threshold, beyond = find_threshold(std, touched, delta / 2)
    how = (
        f"Counts with noise that are {threshold} or more: μ = {mu:.4g} for the noise, and δ = {beyond:.4g} for levels "
        "that nobody else has (docs/proofs.md)."
    )
    certificate = Certificate(profiles.gaussian_or(mu, beyond), (how, *_terms(groups is not None)))
    about = "learn_levels", int(people.max()) + 1, len(columns), delta, adjacency
    seeded = random_state is not None
    statement = _statement(certificate, *about, has_groups=groups is not None, is_seeded=seeded)
    charge_to(budget, statement, partial(identify_cells, columns))
    noise = spawn(random_state, 1)[0].noise
    return Learnt({name: _frequent(counts, threshold, std, noise) for name, counts in counted.items()}, statement)


def learn_ranges(
    columns: Mapping[str, ArrayLike],
    epsilon: float,
    delta: float,
    *,
    groups: ArrayLike | None = None,
    adjacency: str = "zero-out",
    random_state: int | None = None,
    budget: Budget | str | PathLike[str] | None = None,
) -> Learnt:
    """Find ranges that hold all but about the lowest and the highest 1 % of the numbers of each column.

    Parameters
    ----------
    columns : mapping of arrays
        The numbers of each column. Gaps are counted nowhere.
    epsilon, delta : float
        The budget of all columns together.
    groups : array-like, optional
        Names the person of each row, so that people are protected instead of rows; each counts by their median.
    adjacency : {"zero-out", "replace-one"}
        How neighbouring data sets differ.
    random_state : int or None, default None
        None for cryptographic noise. A seed makes the result repeatable, and unfit for release.
    budget : Budget or path, optional
        A budget file to charge before noise is drawn (`clipsilon.Budget`).

    Returns
    -------
    Learnt
        The range of each column, as (low, high) with few digits.

    Formal guarantee
    ----------------
    All ranges together are (epsilon, delta)-differentially private: 37 noisy counts per column, as in
    docs/how-to/scaling.md.
    """
    delta = checks.open_fraction("delta", delta)
    mu = gaussian.largest_mu(checks.positive("epsilon", epsilon), delta)
    require_public_size(adjacency)
    people = _people(columns, groups)
    number = int(people.max()) + 1
    std = balance_noise(mu, len(columns) * (2 * _QUESTIONS + 1), adjacency)
    if answer_error(std, number) > WORST_ERROR:
        raise ValueError(
            f"columns must have more than {number} records to learn {len(columns)} range(s) at ε = {epsilon:g}; no "
            "budget was spent."
        )
    tables = {name: _medians(_numbers(name, cells), people) for name, cells in columns.items()}
    how = f"{2 * _QUESTIONS + 1} noisy counts per column: μ = {mu:.4g}."
    certificate = Certificate(profiles.gaussian(mu), (how, *_terms(groups is not None)))
    about = "learn_ranges", number, len(columns), delta, adjacency
    seeded = random_state is not None
    statement = _statement(certificate, *about, has_groups=groups is not None, is_seeded=seeded)
    charge_to(budget, statement, partial(identify_cells, columns))
    noise = spawn(random_state, 1)[0].noise
    return Learnt({name: _search_range(values, std, noise) for name, values in tables.items()}, statement)


def find_threshold(std: float, touched: int, delta: float) -> tuple[int, float]:
    """Return the least whole threshold for which levels that only one person has cost at most δ.

    Parameters
    ----------
    std : float
        Standard deviation of the noise on counts, as passed to `exact_noise.draw_whole`.
    touched : int
        J, the largest number of counts that a person changes.
    delta : float
        The δ that these levels may cost.

    Returns
    -------
    threshold : int
        Counts of at least this pass.
    beyond : float
        What they cost, J·τ/(1 − J·τ) if a count of 1 passes with probability τ; at most δ.
    """
    actual = max(std / (1 - std * 2.0**-32), 2.0**-29) * (1 + 1e-12)  # the deviation that is drawn is no larger
    threshold = math.ceil(1.5 - actual * float(ndtri(delta / touched)))
    while (beyond := _odds(touched * float(ndtr(-(threshold - 1.5) / actual)))) > delta:
        threshold += 1
    return threshold, max(beyond, sys.float_info.min)  # which may underflow, for a very large ε


def _odds(probability: float) -> float:
    """Return p/(1 − p), rounded up."""
    return probability / (1 - probability) * (1 + 1e-9) if probability < 1 else math.inf


def _people(columns: Mapping[str, ArrayLike], groups: ArrayLike | None) -> NDArray[np.int64]:
    """Return the number of the person of each row; without groups, each row is a person."""
    if not isinstance(columns, Mapping) or not columns:
        raise ValueError(f"columns must be a dict of at least one column, got {short_repr(columns)}.")
    sizes = {as_cells(cells, f"column {name!r}").size for name, cells in columns.items()}
    people = np.arange(min(sizes)) if groups is None else to_people(groups, "groups")
    if sizes != {people.size} or not people.size:
        raise ValueError(f"columns and groups must have the same number of rows, above 0, got {short_repr(sizes)}.")
    return people


def _texts(name: str, cells: ArrayLike) -> list[str | None]:
    return to_texts(as_cells(cells, f"column {name!r}"))


def _numbers(name: str, cells: ArrayLike) -> Array:
    return to_numbers(as_cells(cells, f"column {name!r}"), f"column {name!r}")


def _count(texts: list[str | None], people: NDArray[np.int64], most: int) -> Counter[str]:
    """Count people per level, each for their most frequent levels, which depend on their own rows alone."""
    own: defaultdict[int, Counter[str]] = defaultdict(Counter)
    for person, text in zip(people.tolist(), texts, strict=True):
        if text is not None:
            own[person][text] += 1
    counts: Counter[str] = Counter()
    for levels in own.values():
        counts.update(sorted(levels, key=lambda level: (-levels[level], level))[:most])
    return counts


def _medians(values: Array, people: NDArray[np.int64]) -> Array:
    """Return the median of each person's values, NaN for those who have none."""
    if int(people.max()) + 1 == values.size:
        return values
    own: list[list[float]] = [[] for _ in range(int(people.max()) + 1)]
    for person, value in zip(people.tolist(), values.tolist(), strict=True):
        if value == value:
            own[person].append(value)
    return np.array([float(np.median(some)) if some else math.nan for some in own])


def _frequent(counts: Counter[str], threshold: int, std: float, noise: Generator) -> tuple[str, ...]:
    """Return the levels whose noisy counts pass, in an order that does not depend on the rows."""
    levels = sorted(counts)
    drawn = exact_noise.draw_whole(noise, std, len(levels)).tolist()
    return tuple(level for level, z in zip(levels, drawn, strict=True) if counts[level] + z >= threshold)


def _search_range(values: Array, std: float, noise: Generator) -> tuple[float, float]:
    """Return the range of a column by noisy balances, in which gaps do not count."""
    table, records = values[:, None], values.size
    error = answer_error(std, records)

    def noisy_balance(threshold: Array) -> Array:
        return np.asarray(balances(table, threshold) + exact_noise.draw_whole(noise, std, 1))

    present = float(np.clip(noisy_balance(np.array([np.inf]))[0] / records, 6 * error, 1.0))
    beyond = max(_BEYOND, 3 * error / present)  # a smaller fraction could not be distinguished from none

    def fraction_below(threshold: Array) -> Array:
        return np.asarray(0.5 + noisy_balance(threshold) / (2 * records))

    def find_end(fraction: float) -> float:
        # A gap is neither below nor above, so that fractions of the present values are nearer to one half.
        goal = 0.5 + (fraction - 0.5) * present
        return float(values_at(search(fraction_below, 1, goal, error, _QUESTIONS, lowest=-1.0)[1])[0])

    return round_outward(find_end(beyond), find_end(1 - beyond))


def _terms(has_groups: bool) -> list[str]:
    """Return the terms of the guarantee."""
    record = "All rows of a person are one record" if has_groups else "A record is a row"
    return [
        f"{record}. It is counted nowhere if it is zeroed out. The number of records is public, and the same for both "
        "data sets.",
        "What was found is covered, and anything computed from it without the data.",
    ]


def _statement(
    certificate: Certificate,
    rule: str,
    records: int,
    columns: int,
    delta: float,
    adjacency: str,
    *,
    has_groups: bool,
    is_seeded: bool,
) -> Statement:
    """State the privacy of what was found in these columns."""
    unit = "person" if has_groups else "record"
    warn_about_delta(delta, records, stacklevel=3, unit=unit)
    about = rule, records, columns, delta, adjacency, certificate.epsilon(delta)
    return about_seed(Statement(*about, None, None, certificate.reasons, certificate, unit=unit), is_seeded)
