"""Calibration: the least noise for a target, and the longest run that keeps to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from clipsilon._core import checks
from clipsilon.privacy.accounting import gaussian
from clipsilon.privacy.certificate import ADJACENCIES, certify, selection_epsilon
from clipsilon.privacy.claims import claim
from clipsilon.privacy.release import Release, release
from clipsilon.rules.noise import Gaussian, Local, Radial
from clipsilon.rules.rule import Rule

_FAINT = 60.0  # in log: noise by which any participation shows
_CLOSE = 0.002  # how near below the target the certified ε ends, relative


def calibrate(
    rule: Rule,
    epsilon: float,
    delta: float,
    records: int,
    steps: int,
    how: str = "certified",
    adjacency: str = "replace-one",
) -> Rule:
    """The same rule with the least noise that certifies (ε, δ), or with the noise that its paper prescribes.

    Formal guarantee, for how="certified": `account` of the returned rule certifies at most ε at δ, and no less than
    0.98 of it. For how="paper" there is none: the papers' formulas do not all hold. Under local privacy every user gets
    the largest budget μ that keeps to (ε, δ).
    """
    target, delta = checks.positive("epsilon", epsilon), checks.open_fraction("delta", delta)
    checks.instance("rule", rule, Rule)
    checks.choice("adjacency", adjacency, ADJACENCIES)
    find = checks.choice("how", how, {"certified": _certified_noise, "paper": _paper_noise})
    if type(rule.noise) is Local:
        _require_certificate(release(rule, records, steps), adjacency)
        return replace(rule, noise=Local(np.array(gaussian.largest_mu(target, delta))))
    if type(rule.noise) not in (Gaussian, Radial):
        raise ValueError(f"rule must have noise of a known kind to be calibrated, got {type(rule.noise).__name__}.")
    return _with_noise(rule, find(release(_with_noise(rule, 1.0), records, steps), target, delta, adjacency))


def longest_run(
    rule: Rule, epsilon: float, delta: float, records: int, adjacency: str = "replace-one", most: int = 10**7
) -> int:
    """The largest number of steps, up to `most`, that certifies (ε, δ) with the rule's own noise; 0 if none does."""
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
    return replace(rule, noise=type(rule.noise)(size))


def _paper_noise(released: Release, epsilon: float, delta: float, adjacency: str) -> float:
    claimed = claim(released, delta, adjacency)  # ε = k/s at s = 1, and that of the selection
    if claimed is None:
        raise ValueError("how must be 'certified' for this rule: the papers have no formula for it, got 'paper'.")
    spent = released.selection
    return float((claimed.epsilon - spent) / _rest(epsilon, spent))


def _certified_noise(released: Release, epsilon: float, delta: float, adjacency: str) -> float:
    _require_certificate(released, adjacency)
    _rest(epsilon, selection_epsilon(released, adjacency))

    def certified(log_size: float) -> float:
        return certify(_resized(released, float(np.exp(log_size))), adjacency).epsilon(delta)

    guess = float(np.log(2.0 * released.bound / released.batch))
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
    return replace(released, noise_std=size) if released.radial is None else replace(released, radial=size)


def _rest(epsilon: float, spent: float) -> float:
    """The ε that a selection leaves for the descent."""
    if epsilon <= spent:
        raise ValueError(f"epsilon must be above the {spent:g} that the selection alone spends, got {epsilon!r}.")
    return epsilon - spent


def _root_from_above(excess: Callable[[float], float], guess: float) -> float:
    """The least x, to within _CLOSE of excess, at which a falling function is not above zero."""
    width = 1.0
    low = high = guess
    while excess(high) > 0:
        low, high, width = high, high + width, 2 * width
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
