"""Calibration: the least noise for a budget, and the longest run within it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from clipsilon._core import checks
from clipsilon.privacy.accounting import gaussian
from clipsilon.privacy.certificate import ADJACENCIES, certify, selection_epsilon
from clipsilon.privacy.claims import claim
from clipsilon.privacy.release import Release, release
from clipsilon.privacy.warning import PrivacyWarning, large_delta
from clipsilon.rules.noise import Correlated, Gaussian, Local, Proportional, Radial, ScheduledGaussian
from clipsilon.rules.rule import Rule
from clipsilon.rules.schedules import scaled

_FAINT = 14.0  # less noise by this factor, as a logarithm, is all but none: the least that is certified is near it
_LARGEST = 600.0  # logarithm of the largest noise that is tried
_CLOSE = 0.002  # relative distance below the target at which the search ends


def calibrate(
    rule: Rule,
    epsilon: float,
    delta: float,
    records: int,
    steps: int,
    how: str = "certified",
    adjacency: str = "replace-one",
) -> Rule:
    """Return the rule with the least noise that certifies (ε, δ), or with the noise that its paper prescribes.

    Noise that follows a schedule is multiplied by one factor. With an adaptive clip, `count_noise` stays as it is and
    the noise on the sum is found. Under local privacy every user gets the largest budget μ
    that keeps to (ε, δ).

    Parameters
    ----------
    rule : Rule
        The rule; the size of its noise is ignored.
    epsilon, delta : float
        The budget.
    records, steps : int
        Number of records and length of the run.
    how : {"certified", "paper"}
        Whether noise is chosen by the certificate or by the formula of the rule's paper.
    adjacency : {"replace-one", "zero-out", "add-remove"}
        How neighbouring data sets differ.

    Returns
    -------
    Rule

    Formal guarantee
    ----------------
    For how="certified", `account` of the returned rule certifies at most ε at δ, and no less than 0.98 of it. For
    how="paper" there is none: the papers' formulas do not all hold.

    Warns
    -----
    PrivacyWarning
        If how="certified" and δ is at least 1 in the number of records.
    """
    found = calibrated(rule, epsilon, delta, records, steps, how, adjacency)
    for reason in large_delta(delta, records) if how == "certified" else ():
        warnings.warn(reason, PrivacyWarning, stacklevel=2)
    return found


def calibrated(
    rule: Rule,
    epsilon: float,
    delta: float,
    records: int,
    steps: int,
    how: str = "certified",
    adjacency: str = "replace-one",
) -> Rule:
    """Do what `calibrate` does, without its warning; for callers that warn about δ themselves.

    Parameters
    ----------
    rule, epsilon, delta, records, steps, how, adjacency
        As in `calibrate`.

    Returns
    -------
    Rule
    """
    target, delta = checks.positive("epsilon", epsilon), checks.open_fraction("delta", delta)
    checks.instance("rule", rule, Rule)
    checks.choice("adjacency", adjacency, ADJACENCIES)
    find = checks.choice("how", how, {"certified": _certified_noise, "paper": _paper_noise})
    if type(rule.noise) is Local:
        _require_certificate(release(rule, records, steps), adjacency)
        return replace(rule, noise=Local(np.array(gaussian.largest_mu(target, delta)), rule.noise.variance))
    if type(rule.noise) not in (Gaussian, Correlated, Proportional, Radial, ScheduledGaussian):
        raise ValueError(f"rule must have noise of a known kind to be calibrated, got {type(rule.noise).__name__}.")
    return _with_noise(rule, find(release(_with_noise(rule, 1.0), records, steps), target, delta, adjacency))


def longest_run(
    rule: Rule, epsilon: float, delta: float, records: int, adjacency: str = "replace-one", most: int = 10**7
) -> int:
    """Return the largest number of steps that certifies (ε, δ) with the rule's own noise; 0 if none does.

    Parameters
    ----------
    rule : Rule
        The rule.
    epsilon, delta : float
        The budget.
    records : int
        Number of records.
    adjacency : {"replace-one", "zero-out", "add-remove"}
        How neighbouring data sets differ.
    most : int, default 10**7
        The largest number of steps to consider.

    Returns
    -------
    int
    """
    target, delta = checks.positive("epsilon", epsilon), checks.open_fraction("delta", delta)
    checks.instance("rule", rule, Rule)
    records = checks.count("records", records)

    def fits(steps: int) -> bool:
        return certify(release(rule, records, steps), adjacency).epsilon(delta) <= target

    most = int(min(checks.count("most", most), rule.longest_run(records)))
    if not fits(1):
        return 0
    low, high = 1, 2
    while high <= most and fits(high):
        low, high = high, 2 * high
    high = min(high, most + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _with_noise(rule: Rule, size: float) -> Rule:
    """Return the rule with noise of this size; a schedule is multiplied by it."""
    if isinstance(rule.noise, ScheduledGaussian):
        return replace(rule, noise=ScheduledGaussian(scaled(rule.noise.std, size)))
    if isinstance(rule.noise, Correlated):
        return replace(rule, noise=rule.noise._replace(std=size))
    if isinstance(rule.noise, Proportional):
        return replace(rule, noise=Proportional(size))
    return replace(rule, noise=Radial(size) if isinstance(rule.noise, Radial) else Gaussian(size))


def _paper_noise(released: Release, epsilon: float, delta: float, adjacency: str) -> float:
    claimed = claim(released, delta, adjacency)  # ε = k/s at s = 1, and that of the selection
    if claimed is None:
        raise ValueError("how must be 'certified' for this rule: the papers have no formula for it, got 'paper'.")
    spent = released.selection
    return float((claimed.epsilon - spent) / _rest(epsilon, spent))


def _certified_noise(released: Release, epsilon: float, delta: float, adjacency: str) -> float:
    unit = released.noise_std if released.radial is None else 1.0
    guess = float(np.log(2.0 * released.bound / (released.batch * unit))) if unit > 0 else np.inf
    # Noise of size 1 may be too little to count with, if the clip is large.
    _require_certificate(_resized(released, np.exp(guess)) if np.isfinite(guess) else released, adjacency)
    _rest(epsilon, selection_epsilon(released, adjacency))

    def certified(log_size: float) -> float:
        return certify(_resized(released, float(np.exp(log_size))), adjacency).epsilon(delta)

    most = certified(guess - _FAINT)
    if np.exp(_FAINT / 2) < most <= epsilon:
        raise ValueError(f"epsilon must be below {most:.3g} here, where noise all but vanishes, got {epsilon!r}.")
    if most <= epsilon:
        raise ValueError(
            f"delta must be below the chance that a record takes part at all, else no noise is needed, got {delta!r}."
        )
    return float(np.exp(_root_from_above(lambda log_size: certified(log_size) / epsilon - 1.0, guess)))


def _require_certificate(released: Release, adjacency: str) -> None:
    certificate = certify(released, adjacency)
    if certificate.profile is None:
        raise ValueError(f"rule must be one that can be certified: {certificate.reasons[0]}")


def _resized(released: Release, size: float) -> Release:
    """Return the release with its noise multiplied by a factor."""
    if released.radial is not None:
        return replace(released, radial=released.radial * size)
    events = tuple(event._replace(noise_std=event.noise_std * size) for event in released.events)
    return replace(released, events=events)


def _rest(epsilon: float, spent: float) -> float:
    """Return the ε that a selection leaves for the descent."""
    if epsilon <= spent:
        raise ValueError(f"epsilon must be above the {spent:g} that the selection alone spends, got {epsilon!r}.")
    return epsilon - spent


def _root_from_above(excess: Callable[[float], float], guess: float) -> float:
    """Return the least x, to within _CLOSE of excess, at which a decreasing function is not above zero."""
    width = 1.0
    low = high = guess
    while excess(high) > 0:
        if high > _LARGEST:
            raise ValueError("epsilon must be larger here: it is not certified, however large the noise is.")
        low, high, width = high, min(high + width, _LARGEST + 1.0), 2 * width
    width = 1.0
    while low == high or excess(low) <= 0:
        high, low, width = min(low, high), low - width, 2 * width
    for _ in range(200):
        middle = 0.5 * (low + high)
        value = excess(middle)
        if value > 0:
            low = middle
        else:
            high = middle
            if value > -_CLOSE:
                break
    return high
