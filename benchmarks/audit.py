"""Audits: the ε that our bounds and JAX Privacy's demonstrate from the same scores, and the cost of an audit.

    python benchmarks/audit.py [--quick]

The scores of canaries come from our own attacks. JAX Privacy, in an environment of its own, receives the same scores, δ
and confidence; its methods that state no confidence (raw counts) are left out. Bounds are averaged over several sets of
scores, so that no single lucky threshold decides. Larger is better: these are lower bounds.

Their validity is tested, too: on scores that are unrelated to a canary the true ε is 0, and at most 5 % of the bounds
may exceed it. A method that fails this test is marked in its row.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import clipsilon as cs
from clipsilon.privacy.auditing.attacks import Effort, attacks, watched
from clipsilon.privacy.auditing.canaries import Linear, canary_pair
from clipsilon.privacy.auditing.inference import gaussian_bound, lower_limit, rank_bound
from clipsilon.privacy.auditing.one_run import one_run_bound
from clipsilon.privacy.release import release
from peers.environment import Peer
from results import Row, ahead, cost, main, unless_missing
from timing import Times, ratio, seconds, turns

TOPIC = "Audits"
RECORDS, STEPS, RUNS = 100, 1000, 5000  # of the audit whose cost is measured
DELTA, CONFIDENCE = 1e-5, 0.95

Scores = dict[str, np.ndarray]  # "absent" and "present"


def sampled_rule() -> cs.Rule:
    """Return DP-SGD with Poisson batches."""
    return cs.DPSGD(cs.schedules.Constant(1.0), clip=1.0, noise_std=0.2, batch=10)


def full_rule(records: int) -> cs.Rule:
    """Return DP-SGD on all records in every step: a Gaussian mechanism with noise of one clip on the sum."""
    return cs.DPSGD(cs.schedules.Constant(1.0), clip=1.0, noise_std=1 / records, batch=1, sampling="full")


def attacked(rule: cs.Rule, steps: int, runs: int, seed: int) -> Scores:
    """Return the scores of runs without and with the canary, from the last of the rule's attacks.

    Parameters
    ----------
    rule : Rule
        The rule to attack.
    steps : int
        Steps per run.
    runs : int
        Number of runs on each of the two data sets.
    seed : int
        Seed of the runs.

    Returns
    -------
    dict of array
        "absent" and "present", one score per run.
    """
    attack = attacks(rule, release(rule, RECORDS, steps), "zero-out")[-1]
    absent, present = (
        attack.scores(side, steps, runs, 2 * seed + k, Effort(None, False)) for k, side in enumerate(attack.pair)
    )
    return {"absent": absent, "present": present}


def one_run(canaries: int, seed: int) -> Scores:
    """Return the scores of canaries in one run, each in its own direction and included with probability ½."""
    included = np.random.default_rng(seed).random(canaries) < 0.5
    problem = cs.Problem(np.diag(included.astype(float)), loss=Linear())
    trace = cs.run(problem, watched(full_rule(canaries)), 1, seed=seed, record=[0, 1], progress=False)
    scores = -trace.theta[0, -1]
    return {"absent": scores[~included], "present": scores[included]}


def our_one_run(absent: np.ndarray, present: np.ndarray, delta: float, confidence: float) -> Any:
    """Return `one_run_bound` for scores that are separated by inclusion.

    Parameters
    ----------
    absent, present : array
        The scores of canaries that were excluded and included.
    delta, confidence : float
        As in `one_run_bound`.

    Returns
    -------
    object
        The bound, with an attribute `lower_bound`.
    """
    included = np.arange(absent.size + present.size) >= absent.size
    return one_run_bound(np.concatenate([absent, present]), included, delta, confidence, seed=0)


def nothing(scores: int, seed: int) -> Scores:
    """Return scores that are independent of inclusion."""
    rng = np.random.default_rng(seed)
    values, included = rng.standard_normal(scores), rng.random(scores) < 0.5
    return {"absent": values[~included], "present": values[included]}


class Comparison(NamedTuple):
    """One of our bounds, several of JAX Privacy's, and sets of scores for all of them.

    Parameters
    ----------
    name : str
        The scores in words.
    ours : callable
        Our bound, a function of absent, present, delta and confidence.
    methods : dict
        Method and strategy of JAX Privacy's bounds, by their names in the table.
    sets : list of dict
        Sets of scores.
    """

    name: str
    ours: Callable[..., Any]
    methods: dict[str, dict[str, str]]
    sets: list[Scores]


def bounds_of(peer: Peer, case: Comparison, sets: list[Scores], methods: list[str]) -> tuple[Times, Times]:
    """Return the bounds of all methods on all sets, and the seconds that each took.

    Parameters
    ----------
    peer : Peer
        JAX Privacy.
    case : Comparison
        Our bound and the methods of the peer.
    sets : list of dict
        Sets of scores.
    methods : list of str
        Which of `case.methods` to use.

    Returns
    -------
    dict, dict
        Bounds and times, by "ours" and `methods`, one per set.
    """
    bounds: Times = {method: [] for method in ["ours", *methods]}
    times: Times = {method: [] for method in bounds}
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder) / "scores.npz")
        for scores in sets:
            np.savez(file, **scores)
            began = time.perf_counter()
            bounds["ours"].append(case.ours(**scores, delta=DELTA, confidence=CONFIDENCE).lower_bound)
            times["ours"].append(time.perf_counter() - began)
            for method in methods:
                answer = peer.ask(
                    {**case.methods[method], "file": file, "delta": DELTA, "significance": 1 - CONFIDENCE}
                )
                bounds[method].append(answer["epsilon"])
                times[method].append(answer["seconds"])
    return bounds, times


def verdicts(peer: Peer, case: Comparison, quick: bool) -> dict[str, str]:
    """Return remarks for methods whose bounds exceed ε = 0 too often on scores without a canary.

    Methods with a hundred splits are not tested, because they take too long.

    Parameters
    ----------
    peer : Peer
        JAX Privacy.
    case : Comparison
        Our bound and the methods of the peer.
    quick : bool
        Whether to use fewer sets of scores.

    Returns
    -------
    dict of str
        Remarks, by method.
    """
    methods = [method for method, order in case.methods.items() if order["strategy"] != "multi-split"]
    sets = [nothing(200, seed) for seed in range(20 if quick else 100)]
    bounds, _ = bounds_of(peer, case, sets, methods)
    alarms = {method: int(np.sum(np.array(found) > 0)) for method, found in bounds.items()}
    # A valid bound fails this test with probability at most 1/1000.
    failed = [method for method, count in alarms.items() if lower_limit(count, len(sets), 1e-3) > 1 - CONFIDENCE]
    if "ours" in failed:
        raise RuntimeError(f"our bound must hold on scores without a canary, got {alarms['ours']} failures.")
    return {method: f"; NOT a bound: above ε = 0 in {alarms[method]} of {len(sets)} sets" for method in failed}


def compare(rows: list[Row], peer: Peer, case: Comparison, quick: bool) -> None:
    """Add rows for the mean bounds and the times of all methods on the same sets of scores.

    Parameters
    ----------
    rows : list of Row
        The results so far.
    peer : Peer
        JAX Privacy.
    case : Comparison
        What is compared.
    quick : bool
        Whether to use fewer sets of scores.
    """
    bounds, times = bounds_of(peer, case, case.sets, list(case.methods))
    failed = verdicts(peer, case, quick)
    for method in case.methods:
        what, other = f"demonstrated ε, {case.name}", f"JAX Privacy, {method}"
        how = f"means of {len(case.sets)} sets{failed.get(method, '')}"
        mine, its = statistics.mean(bounds["ours"]), statistics.mean(bounds[method])
        if its > 0:
            rows.append(ahead(TOPIC, what, other, mine / its, how))
        else:
            rows.append(Row("peer", TOPIC, what, other, None, "no ratio: all bounds of the peer are 0"))
    for method in case.methods:
        taken = ratio(times, method, "ours")
        rows.append(ahead(TOPIC, f"time of the bound, {case.name}", f"JAX Privacy, {method}", taken, "medians"))


def against_jax_privacy(rows: list[Row], quick: bool) -> None:
    """Compare bounds on three kinds of scores."""
    sets, runs, canaries = (range(2), 500, 300) if quick else (range(10), 5000, 1000)
    strategies = {"Bonferroni": "bonferroni", "one split": "split", "100 splits": "multi-split"}

    def by(method: str) -> dict[str, dict[str, str]]:
        return {f"{method}, {name}": {"method": method, "strategy": one} for name, one in strategies.items()}

    cases = [
        Comparison(
            f"2 × {runs:,} runs, Poisson batches",
            rank_bound,
            by("Clopper–Pearson"),
            [attacked(sampled_rule(), 100, runs, seed) for seed in sets],
        ),
        Comparison(
            f"2 × {runs:,} runs, all records in every step",
            gaussian_bound,
            {"Gaussian trade-off": {"method": "Gaussian", "strategy": "bonferroni"}},
            [attacked(full_rule(RECORDS), 1, runs, seed) for seed in sets],
        ),
        Comparison(
            f"one run, {canaries:,} canaries",
            our_one_run,
            by("one run") | {"one run by f-DP, Bonferroni": {"method": "f-DP", "strategy": "bonferroni"}},
            [one_run(canaries, seed) for seed in sets],
        ),
    ]
    with closing(Peer("jax-privacy", "jax_privacy_audit.py")) as peer:
        for case in cases:
            compare(rows, peer, case, quick)


def costs(rows: list[Row], quick: bool) -> None:
    """Add rows for the time of an audit over the time of its runs alone."""
    steps, runs = (STEPS // 10, RUNS // 10) if quick else (STEPS, RUNS)
    rule = cs.DPSGD(cs.schedules.Constant(1.0), clip=1.0, noise_std=0.5, batch=10)
    pair = canary_pair(RECORDS, 1.0, "zero-out")
    audited = {"runs": runs, "seed": 0, "adjacency": "zero-out", "progress": False}

    def plain() -> None:
        for problem in pair:
            cs.run(problem, rule, steps, replicates=runs, seed=0, record=[0, steps], progress=False)

    def one_attack() -> None:
        cs.audit(rule, RECORDS, steps, 1e-5, pair=pair, statistic=lambda trace: -trace.theta[:, -1, 0], **audited)

    def chosen() -> None:
        cs.audit(rule, RECORDS, steps, 1e-5, **audited)

    jobs = {"plain": plain, "one attack": one_attack, "pilot, two attacks, every step": chosen}
    found = turns({name: lambda job=job: seconds(job) for name, job in jobs.items()}, 3)
    for name in list(jobs)[1:]:
        other = f"its {2 * runs:,} runs of {steps:,} steps alone"
        rows.append(cost(TOPIC, f"an audit, {name}", other, ratio(found, name, "plain"), "3 turns", most=1.3))


def measure(rows: list[Row], quick: bool) -> None:
    """Measure bounds and costs."""
    with unless_missing(rows, TOPIC, "all bounds", "JAX Privacy"):
        against_jax_privacy(rows, quick)
    costs(rows, quick)


if __name__ == "__main__":
    sys.exit(main("audit", measure, __doc__))
