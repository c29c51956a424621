"""What a private search is planned by: its candidates, and the budget of one trial that meets the budget of the search.

A trial trains one candidate on the training rows and scores it on the held-out rows. A record is in one of the two, so
a trial is as private as the worse of them (parallel composition). Everything here follows from public facts.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import _clone_parametrized
from sklearn.model_selection import ParameterGrid, ParameterSampler

from clipsilon._core import checks
from clipsilon.estimators.base import PrivateEstimator
from clipsilon.estimators.held_out import SMALLEST_MU
from clipsilon.privacy.accounting import gaussian, profiles
from clipsilon.privacy.accounting.profiles import Profile
from clipsilon.privacy.accounting.selection import TrialCount, best_of, worst_of
from clipsilon.privacy.statement import Statement

Records = tuple[Any, Any, Any]
Distributions = Mapping[str, Any] | Sequence[Mapping[str, Any]]

_DRAWN = 20  # candidates, by default, where some parameters have distributions
# Parameters in which candidates cannot differ.
_OWN = ("epsilon", "delta", "adjacency", "budget", "random_state", "n_jobs", "progress")
_ENOUGH = 0.99  # of the search's ε, at which its calibration ends
_ROUNDS = 6


class TrialBudget(NamedTuple):
    """What one trial may spend, and what the search spends then.

    Parameters
    ----------
    epsilon, delta : float
        The budget of a candidate's fit.
    mu : float
        That of its score, which has the same (ε, δ).
    statements : tuple of Statement
        One per candidate.
    search : Profile
        The profile of the whole search.
    """

    epsilon: float
    delta: float
    mu: float
    statements: tuple[Statement, ...]
    search: Profile


def list_candidates(
    estimator: PrivateEstimator, distributions: Distributions, number: int | None, seed: int | None
) -> list[dict[str, Any]]:
    """Return the settings to choose from.

    Parameters
    ----------
    estimator : PrivateEstimator
        Whose parameters they are.
    distributions : mapping or sequence of mapping
        As for scikit-learn's searches: lists of values, or distributions with a method `rvs`.
    number : int or None
        How many to draw; by default all combinations of lists, and 20 where there are distributions.
    seed : int or None
        Seed of the draw, which need not be secret.

    Returns
    -------
    list of dict
    """
    spaces = [distributions] if isinstance(distributions, Mapping) else list(distributions)
    known = estimator.get_params(deep=False)
    for name in (name for space in spaces for name in space):
        if name not in known or name in _OWN:
            raise ValueError(f"param_distributions must be of parameters that candidates can differ in, got {name!r}.")
    if number is None and not any(hasattr(values, "rvs") for space in spaces for values in space.values()):
        found = list(ParameterGrid(spaces))
    else:
        drawn = _DRAWN if number is None else checks.count("n_candidates", number)
        with warnings.catch_warnings():  # of a grid that has fewer
            warnings.simplefilter("ignore")
            found = list(ParameterSampler(spaces, drawn, random_state=np.random.RandomState(seed)))
    if not found:
        raise ValueError("param_distributions must allow at least one setting, got none.")
    return found


def make_candidate(estimator: PrivateEstimator, settings: dict[str, Any], **others: Any) -> PrivateEstimator:
    """Return a new estimator with a candidate's settings, which does not share the count of fits of the first.

    Parameters
    ----------
    estimator : PrivateEstimator
        Has all other parameters.
    settings : dict
        Those of the candidate.
    **others
        Parameters that are the same for all candidates.

    Returns
    -------
    PrivateEstimator
    """
    made: PrivateEstimator = _clone_parametrized(estimator)
    made.set_params(**settings, **others)
    return made


def calibrate_trials(
    candidates: Sequence[PrivateEstimator], records: Records, count: TrialCount, epsilon: float, delta: float
) -> TrialBudget:
    """Return the largest budget of a trial, up to one per cent, with which the search keeps to (ε, δ).

    Parameters
    ----------
    candidates : sequence of PrivateEstimator
        The candidates; their ε and δ are changed.
    records : (X, y, groups)
        The training rows, of which shape, number of people and declared classes are used.
    count : TrialCount
        The distribution of the number of trials.
    epsilon, delta : float
        The budget of the search.

    Returns
    -------
    TrialBudget
    """
    each = delta / count.mean
    target = _guess(count, epsilon, each)
    best: TrialBudget | None = None
    for _ in range(_ROUNDS):
        found = _plan_trials(candidates, records, count, target, each)
        total = found.search.epsilon(delta)
        if not math.isfinite(total):
            break
        if total <= epsilon and (best is None or found.epsilon > best.epsilon):
            best = found
            if total >= _ENOUGH * epsilon:
                break
        target *= (0.5 + 0.5 * _ENOUGH) * epsilon / total
    if best is None or best.mu < SMALLEST_MU:
        raise ValueError(f"epsilon must be larger for this search, got {epsilon!r}.")
    return best


def _guess(count: TrialCount, epsilon: float, delta: float) -> float:
    """Return the budget of a trial for which a search among Gaussian mechanisms keeps to ε."""
    low, high = 0.0, epsilon
    for _ in range(12):
        middle = (low + high) / 2
        trial = profiles.gaussian(gaussian.largest_mu(middle, delta))
        fits = best_of(trial, count).epsilon(delta * count.mean) <= epsilon
        low, high = (middle, high) if fits else (low, middle)
    return high if low == 0 else low


def _plan_trials(
    candidates: Sequence[PrivateEstimator], records: Records, count: TrialCount, epsilon: float, delta: float
) -> TrialBudget:
    """State the search if each trial has this budget."""
    mu = gaussian.largest_mu(epsilon, delta)
    stated = []
    for candidate in candidates:
        stated.append(candidate.set_params(epsilon=epsilon, delta=delta).plan_statement(*records))
    curves = [(one.mended or one).certificate.profile for one in stated]
    known = [curve for curve in curves if curve is not None]
    if len(known) < len(curves):
        raise ValueError("estimator must be one whose fits can be certified, got a candidate of which nothing can.")
    trial = worst_of([*known, profiles.gaussian(mu)])
    return TrialBudget(epsilon, delta, mu, tuple(stated), best_of(trial, count))
