"""Audits: an ε that an attack demonstrates, at a stated confidence. Only auditing looks at runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from clipsilon._core import checks
from clipsilon.privacy.auditing.attacks import Attack, Effort, Statistic, attacks
from clipsilon.privacy.auditing.canaries import Pair
from clipsilon.privacy.auditing.inference import (
    Bound,
    clopper_pearson_bound,
    gaussian_bound,
    rank_bound,
    tradeoff_points,
)
from clipsilon.privacy.certificate import ADJACENCIES
from clipsilon.privacy.release import Release, release
from clipsilon.privacy.statement import Statement, account, format_epsilon
from clipsilon.problems.problem import Problem
from clipsilon.rules.rule import Rule
from clipsilon.rules.sampling import Full

Array = NDArray[np.float64]

_PILOT = 0.1  # fraction of the runs that selects the attack


@dataclass(frozen=True, eq=False)
class Audit:
    """What an audit found: with the stated confidence, no ε below `lower_bound` is true of the rule.

    Attributes
    ----------
    lower_bound : float
        The ε that the attack demonstrates.
    confidence : float
        The confidence with which it holds.
    attack : str
        The name of the attack that was selected.
    method : str
        How scores became a bound.
    runs : int
        The number of runs on each of the two data sets.
    statement : Statement
        What is certified of the same rule.
    bound : Bound
        The test behind `lower_bound`.
    curve : tuple of two arrays
        False positive and false negative rates of all thresholds.
    """

    lower_bound: float
    confidence: float
    attack: str
    method: str
    runs: int
    statement: Statement
    bound: Bound = field(repr=False)
    curve: tuple[Array, Array] = field(repr=False)

    def __str__(self) -> str:
        about = self.statement
        return (
            f"{about.rule}: an attack ({self.attack}) on its noisy updates shows ε ≥ {self.lower_bound:.4g} at "
            f"δ = {about.delta:g} with confidence {self.confidence:g}, where {ADJACENCIES[about.adjacency]}; "
            f"certified is {format_epsilon(about.certified)}."
        )


def audit(
    rule: Rule,
    records: int,
    steps: int,
    delta: float,
    *,
    runs: int = 10_000,
    confidence: float = 0.95,
    seed: int | None = None,
    adjacency: str = "replace-one",
    pair: Pair | None = None,
    statistic: Statistic | None = None,
    n_jobs: int | None = None,
    progress: bool | None = None,
) -> Audit:
    """Attack a rule with canaries and report the ε that the attack demonstrates.

    One tenth of the runs selects the attack; the remaining runs, which were not inspected before, measure it.

    Parameters
    ----------
    rule : Rule
        The rule to attack. It must clip and add Gaussian noise, unless `pair` is given.
    records, steps : int
        Size of the data set and length of each run.
    delta : float
        The δ at which ε is reported, above 0 and below 1.
    runs : int, default 10_000
        Number of runs on each of the two neighbouring data sets, at least 20.
    confidence : float, default 0.95
        Probability with which the lower bound holds.
    seed : int, optional
        Seed of the runs; by default they are seeded by the operating system.
    adjacency : {"replace-one", "zero-out", "add-remove"}, default "replace-one"
        Which data sets are neighbours, as in `account`.
    pair : tuple of two Problem, optional
        Problems of `records` records without and with your own canary. They must be neighbours under `adjacency`.
        Requires `statistic`; only this attack is used then.
    statistic : callable, optional
        A function that maps a trace to one score per replicate. The trace holds the first, middle and last iterate.
    n_jobs, progress
        As in `run`.

    Returns
    -------
    Audit
        `lower_bound` is the demonstrated ε; `statement` holds what is certified.

    Formal guarantee
    ----------------
    If the sequence of the rule's noisy updates is (ε, δ)-private for the adjacency, which is what certificates are
    about, then lower_bound ≤ ε with probability at least `confidence`. (The iterates reveal as much, except for rules
    such as Adam's, whose steps cannot be undone.)
    """
    statement = account(rule, records, steps, delta, adjacency)
    checks.integer("runs", runs, least=20)
    checks.open_fraction("confidence", confidence)
    released, effort = release(rule, records, steps), Effort(n_jobs, progress)
    candidates = _candidates(rule, released, adjacency, pair, statistic)
    seeds = seeds_from(seed, 2 * len(candidates) + 2)
    pilot = 0 if len(candidates) == 1 else max(10, round(_PILOT * runs))
    promises = [_promise(one, steps, pilot, seeds[2 + 2 * k :], delta, effort) for k, one in enumerate(candidates)]
    winner = candidates[int(np.argmax(promises))]
    absent, present = _scores(winner, steps, runs - pilot, seeds, effort)
    # With all records in each step both outputs are exactly Gaussian, and so is the trade-off between them.
    # (Not if thresholds, and with them the noise, are random.)
    exact = type(released.sampling) is Full and released.feedback is None and not released.counts and pair is None
    infer, method = _inference(exact, pair is not None)
    bound = infer(absent, present, delta, confidence)
    curve = tradeoff_points(absent, present)
    return Audit(bound.lower_bound, confidence, winner.name, method, runs, statement, bound, curve)


def _inference(exact: bool, is_own: bool) -> tuple[Callable[..., Bound], str]:
    """Return how scores become a bound, and its name.

    The runs on the two data sets have different seeds, as `rank_bound` demands. Users' scores may be equal in many
    runs, where fixed ranks show little.
    """
    if exact:
        return gaussian_bound, "Gaussian trade-off"
    return (clopper_pearson_bound, "Clopper–Pearson limits") if is_own else (rank_bound, "thresholds at fixed ranks")


def _candidates(
    rule: Rule, released: Release, adjacency: str, pair: Pair | None, statistic: Statistic | None
) -> list[Attack]:
    """Return the attacks to try: your own, or those that suit the rule."""
    if (pair is None) != (statistic is None):
        raise ValueError("pair and statistic must be given together, got only one of them.")
    if pair is not None and statistic is not None:
        if not callable(statistic) or not isinstance(pair, tuple) or len(pair) != 2:
            raise ValueError("pair must be two problems and statistic a function of a trace.")
        if not all(isinstance(problem, Problem) and problem.records == released.records for problem in pair):
            raise ValueError(f"pair must be two problems of {released.records} records, the number given as `records`.")
        ends = np.array([0, released.steps // 2, released.steps])
        return [Attack("your own", Pair(*pair), rule, ends, statistic)]
    if released.personal is not None:
        raise ValueError(f"rule must not be {rule.name} here: `clipsilon.local.audit` attacks what users send.")
    if not (np.isfinite(released.bound) and released.noise_std > 0):
        raise ValueError(f"rule must clip and add Gaussian noise to be audited, got {rule}.")
    return attacks(rule, released, adjacency)


def seeds_from(seed: int | None, number: int) -> list[int | None]:
    """Return independent seeds for the parts of an audit; all None without a seed."""
    if seed is None:
        return [None] * number
    state = np.random.SeedSequence(checks.integer("seed", seed, least=0)).generate_state(number)
    return [int(one) for one in state]


def _scores(attack: Attack, steps: int, runs: int, seeds: list[int | None], effort: Effort) -> tuple[Array, Array]:
    """Return the scores of runs without and with the canary."""
    absent, present = attack.pair
    return (
        attack.scores(absent, steps, runs, seeds[0], effort),
        attack.scores(present, steps, runs, seeds[1], effort),
    )


def _promise(attack: Attack, steps: int, runs: int, seeds: list[int | None], delta: float, effort: Effort) -> float:
    """Return how promising an attack is: its bound at even odds plus, for few runs, how well it ranks them."""
    if runs == 0:
        return 0.0
    absent, present = _scores(attack, steps, runs, seeds, effort)
    # Either half selects the threshold once, and measures it once.
    both = [clopper_pearson_bound(absent[k:], present[k:], delta, 0.5).lower_bound for k in (0, 1)]
    ranks = np.argsort(np.argsort(np.concatenate((absent, present)), kind="stable"))
    return float(np.mean(both)) + abs(float(ranks[runs:].mean() - ranks[:runs].mean())) / runs
