"""Audits: the ε that the same scores show by our bounds and by JAX Privacy's, and what an audit costs over its runs.

    python benchmarks/audit.py [--quick]

Scores of canaries come from our own attacks. JAX Privacy, in an environment of its own, gets the very same scores, δ
and confidence; its methods that state no confidence (raw counts) are left out. The bounds are means over several sets
of scores, so that no lucky threshold decides. Larger is better: these are lower bounds.

Whether they are is tried, too: on scores that have nothing to do with a canary the true ε is 0, and no more than 5 % of
the bounds may be above it. A method that fails there is named so in its row.
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
from clipsilon.privacy.auditing.inference import clopper_pearson_bound, gaussian_bound, lower_limit
from clipsilon.privacy.auditing.one_run import one_run_bound
from clipsilon.privacy.release import release
from peers.environment import Peer
from results import Row, ahead, cost, main, unless_missing
from timing import Times, ratio, seconds, turns

TOPIC = "Audits"
RECORDS, STEPS, RUNS = 100, 1000, 5000  # of an audit whose cost is measured
DELTA, CONFIDENCE = 1e-5, 0.95

Scores = dict[str, np.ndarray]  # "absent" and "present"


def sampled_rule() -> cs.Rule:
    """DP-SGD with Poisson batches."""
    return cs.DPSGD(cs.schedules.Constant(1.0), clip=1.0, noise_std=0.2, batch=10)


def full_rule(records: int) -> cs.Rule:
    """All records in every step: an exact Gaussian mechanism, with noise of one clip on the sum."""
    return cs.DPSGD(cs.schedules.Constant(1.0), clip=1.0, noise_std=1 / records, batch=1, sampling="full")


def attacked(rule: cs.Rule, steps: int, runs: int, seed: int) -> Scores:
    """Scores of runs without and with the canary, by the last of the rule's attacks."""
    attack = attacks(rule, release(rule, RECORDS, steps), "zero-out")[-1]
    absent, present = (
        attack.scores(side, steps, runs, 2 * seed + k, Effort(None, False)) for k, side in enumerate(attack.pair)
    )
    return {"absent": absent, "present": present}


def one_run(canaries: int, seed: int) -> Scores:
    """Scores of canaries in one run, each with a direction of its own and in the data by the toss of a coin."""
    included = np.random.default_rng(seed).random(canaries) < 0.5
    problem = cs.Problem(np.diag(included.astype(float)), loss=Linear())
    trace = cs.run(problem, watched(full_rule(canaries)), 1, seed=seed, record=[0, 1], progress=False)
    scores = -trace.theta[0, -1]
    return {"absent": scores[~included], "present": scores[included]}


def our_one_run(absent: np.ndarray, present: np.ndarray, delta: float, confidence: float) -> Any:
    """`one_run_bound` of scores told apart by inclusion."""
    included = np.arange(absent.size + present.size) >= absent.size
    return one_run_bound(np.concatenate([absent, present]), included, delta, confidence, seed=0)


def nothing(scores: int, seed: int) -> Scores:
    """Scores that do not tell who was in."""
    rng = np.random.default_rng(seed)
    values, included = rng.standard_normal(scores), rng.random(scores) < 0.5
    return {"absent": values[~included], "present": values[included]}


class Comparison(NamedTuple):
    """One of our bounds, several of theirs, and sets of scores for all of them."""

    name: str
    ours: Callable[..., Any]
    methods: dict[str, dict[str, str]]
    sets: list[Scores]


def bounds_of(peer: Peer, case: Comparison, sets: list[Scores], methods: list[str]) -> tuple[Times, Times]:
    """Bounds of all methods on all sets, and seconds of finding them."""
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
    """What to say of methods whose bound fails where there is nothing to find; a hundred splits would take too long."""
    methods = [method for method, order in case.methods.items() if order["strategy"] != "multi-split"]
    sets = [nothing(200, seed) for seed in range(20 if quick else 100)]
    bounds, _ = bounds_of(peer, case, sets, methods)
    alarms = {method: int(np.sum(np.array(found) > 0)) for method, found in bounds.items()}
    # More often than chance allows a valid bound in one of a thousand trials.
    failed = [method for method, count in alarms.items() if lower_limit(count, len(sets), 1e-3) > 1 - CONFIDENCE]
    if "ours" in failed:
        raise RuntimeError(f"our bound must hold where there is nothing to find: it failed {alarms['ours']} times.")
    return {method: f"; NOT a bound: above ε = 0 in {alarms[method]} of {len(sets)} sets" for method in failed}


def compare(rows: list[Row], peer: Peer, case: Comparison, quick: bool) -> None:
    """Mean bounds and times of one of ours and several of theirs, on the same sets of scores."""
    bounds, times = bounds_of(peer, case, case.sets, list(case.methods))
    failed = verdicts(peer, case, quick)
    for method in case.methods:
        what, other = f"ε shown, {case.name}", f"JAX Privacy, {method}"
        how = f"mean bounds of {len(case.sets)} sets, ours / its{failed.get(method, '')}"
        mine, its = statistics.mean(bounds["ours"]), statistics.mean(bounds[method])
        if its > 0:
            rows.append(ahead(TOPIC, what, f"{other}: ε", mine / its, how))
        else:
            rows.append(Row("peer", TOPIC, what, f"{other}: ε", None, "no ratio: all its bounds are 0"))
        rows.append(ahead(TOPIC, f"time of it, {case.name}", f"{other}: time", ratio(times, method, "ours"), "medians"))


def against_jax_privacy(rows: list[Row], quick: bool) -> None:
    """Three kinds of scores."""
    sets, runs, canaries = (range(2), 500, 300) if quick else (range(10), 5000, 1000)
    strategies = {"Bonferroni": "bonferroni", "one split": "split", "100 splits": "multi-split"}

    def by(method: str) -> dict[str, dict[str, str]]:
        return {f"{method}, {name}": {"method": method, "strategy": one} for name, one in strategies.items()}

    cases = [
        Comparison(
            f"2 × {runs:,} runs, Poisson batches",
            clopper_pearson_bound,
            by("Clopper–Pearson"),
            [attacked(sampled_rule(), 100, runs, seed) for seed in sets],
        ),
        Comparison(
            f"2 × {runs:,} runs, all records a step",
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
    """An audit over the plain runs that it is made of."""
    steps, runs = (STEPS // 10, RUNS // 10) if quick else (STEPS, RUNS)
    rule = cs.DPSGD(cs.schedules.Constant(1.0), clip=1.0, noise_std=0.5, batch=10)
    pair = canary_pair(RECORDS, 1.0, "add-remove")
    audited = {"runs": runs, "seed": 0, "adjacency": "add-remove", "progress": False}

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
    """All of it."""
    with unless_missing(rows, TOPIC, "all bounds", "JAX Privacy"):
        against_jax_privacy(rows, quick)
    costs(rows, quick)


if __name__ == "__main__":
    sys.exit(main("audit", measure, __doc__))
