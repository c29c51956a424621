"""Auditing with a single run, for training that is too dear to repeat."""

from __future__ import annotations

import numpy as np

from clipsilon._core import checks
from clipsilon.engine import run
from clipsilon.privacy.auditing.attacks import watched
from clipsilon.privacy.auditing.audit import seeds_from
from clipsilon.privacy.auditing.canaries import Linear
from clipsilon.privacy.auditing.one_run import OneRunBound, one_run_bound
from clipsilon.privacy.release import Release, release
from clipsilon.problems.problem import Problem
from clipsilon.rules.rule import Rule


def audit_one_run(
    rule: Rule,
    records: int,
    steps: int,
    delta: float,
    canaries: int = 1000,
    confidence: float = 0.95,
    seed: int | None = None,
) -> OneRunBound:
    """Audit with many canaries in one run: each in a direction of its own, each in the data by the toss of a coin.

    This attacks the rule itself. For training of your own, run it once with canaries that were included by fair coins,
    score them, and pass scores and coins to `one_run_bound`.

    The ε of the result (Steinke, Nasr and Jagielski, 2023) is for a record's gradients against none (zero-out).
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
    problem = Problem(features, loss=Linear())
    trace = run(problem, watched(rule), steps, seed=noise, record=[0, steps], progress=False)
    return one_run_bound(-trace.theta[0, -1], included, delta, confidence, seed=ties)


def _size(released: Release) -> float:
    """At the clip bound; with feedback as much beyond it as can bleed out until the end."""
    if released.feedback is None:
        return released.bound
    return released.bound + min(released.feedback.residual, released.steps * released.feedback.bound * released.batch)
