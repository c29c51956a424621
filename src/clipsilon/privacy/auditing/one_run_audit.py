"""Auditing with a single run, for training that is too expensive to repeat."""

from __future__ import annotations

import numpy as np

from clipsilon._core import checks
from clipsilon.engine import run
from clipsilon.privacy.auditing.attacks import canary_size, watched
from clipsilon.privacy.auditing.audit import seeds_from
from clipsilon.privacy.auditing.canaries import Linear
from clipsilon.privacy.auditing.one_run import OneRunBound, one_run_bound
from clipsilon.privacy.release import Release, release
from clipsilon.problems.problem import Problem
from clipsilon.rules.clipping import REACH
from clipsilon.rules.rule import Rule


def audit_one_run(
    rule: Rule,
    records: int,
    steps: int,
    delta: float,
    *,
    canaries: int = 1000,
    confidence: float = 0.95,
    seed: int | None = None,
) -> OneRunBound:
    """Audit a rule with many canaries in one run, each in its own direction and included by a coin.

    This attacks the rule itself. For your own training, run it once with canaries that were included by fair coins,
    score them, and pass scores and coins to `one_run_bound`.

    Parameters
    ----------
    rule : Rule
        The rule to attack. It must clip.
    records, steps : int
        Size of the data set and length of the run.
    delta : float
        The δ at which ε is reported, above 0 and below 1.
    canaries : int, default 1000
        The number of canaries, at most `records`.
    confidence : float, default 0.95
        Probability with which the lower bound holds.
    seed : int, optional
        Seed of coins, noise and ties; by default the operating system's.

    Returns
    -------
    OneRunBound
        The demonstrated ε, for a record's gradients against none (zero-out).

    Formal guarantee
    ----------------
    If the sequence of the rule's noisy updates is (ε, δ)-private for the adjacency "zero-out", then lower_bound ≤ ε
    with probability at least `confidence` (see `one_run_bound`).
    """
    released = release(rule, records, steps)
    checks.open_fraction("delta", delta)
    checks.open_fraction("confidence", confidence)
    if checks.count("canaries", canaries) > records:
        raise ValueError(f"canaries must be at most the number of records ({records}), got {canaries}.")
    if not np.isfinite(released.bound):
        raise ValueError(f"rule must clip to be audited, got {rule.name}.")
    coins, noise, ties = seeds_from(seed, 3)
    included = np.random.default_rng(coins).random(canaries) < 0.5
    features = np.zeros((records, canaries))
    features[np.flatnonzero(included), np.flatnonzero(included)] = _size(released)
    weights = np.ones(records)
    weights[: included.size] = included  # what is not included is not counted, either
    problem = Problem(features, loss=Linear(), weights=weights if released.counts else None)
    trace = run(problem, watched(rule), steps, seed=noise, record=[0, steps], progress=False)
    return one_run_bound(-trace.theta[0, -1], included, delta, confidence, seed=ties)


def _size(released: Release) -> float:
    """Return the size of the canaries: the clip bound, plus, with feedback, as much as can drain until the end."""
    if released.counts:
        return released.bound * REACH
    if released.feedback is None:
        return canary_size(released)
    return released.bound + min(released.feedback.residual, released.steps * released.feedback.bound * released.batch)
