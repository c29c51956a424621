"""Audits: the ε that the same scores show by our bounds and by JAX Privacy's, and what an audit costs over its runs.

    python benchmarks/audit.py [--quick]

Scores of canaries come from our own attacks. JAX Privacy, in an environment of its own, gets the very same scores, δ
and confidence; its methods that state no confidence (raw counts) are left out. The bounds are means over several sets
of scores, so that no lucky threshold decides. Larger is better: these are lower bounds.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

import clipwise as cw
from clipwise.privacy.attacks import Effort, attacks, watched
from clipwise.privacy.canaries import Linear, canary_pair
from clipwise.privacy.inference import clopper_pearson_bound, gaussian_bound
from clipwise.privacy.one_run import one_run_bound
from clipwise.privacy.release import release
from peers.environment import Peer
from results import Row, ahead, cost, main, unless_missing
from timing import ratio, seconds, turns

TOPIC = "Audits"
RECORDS, STEPS, RUNS = 100, 1000, 5000  # of an audit whose cost is measured
DELTA, CONFIDENCE = 1e-5, 0.95

Scores = dict[str, np.ndarray]  # "absent" and "present"


def sampled_rule() -> cw.Rule:
    """DP-SGD with Poisson batches."""
    return cw.DPSGD(cw.steps.Constant(1.0), clip=1.0, noise_std=0.2, batch=10)


def full_rule(records: int) -> cw.Rule:
    """All records in every step: an exact Gaussian mechanism, with noise of one clip on the sum."""
    return cw.DPSGD(cw.steps.Constant(1.0), clip=1.0, noise_std=1 / records, batch=1, sampling="full")


def attacked(rule: cw.Rule, steps: int, runs: int, seed: int) -> Scores:
    """Scores of runs without and with the canary, by the last of the rule's attacks."""
    attack = attacks(rule, release(rule, RECORDS, steps), "zero-out")[-1]
    absent, present = (
        attack.scores(side, steps, runs, 2 * seed + k, Effort(None, False)) for k, side in enumerate(attack.pair)
    )
    return {"absent": absent, "present": present}


def one_run(canaries: int, seed: int) -> Scores:
    """Scores of canaries in one run, each with a direction of its own and in the data by the toss of a coin."""
    included = np.random.default_rng(seed).random(canaries) < 0.5
    problem = cw.Problem(np.diag(included.astype(float)), loss=Linear())
    trace = cw.run(problem, watched(full_rule(canaries)), 1, seed=seed, record=[0, 1], progress=False)
    scores = -trace.theta[0, -1]
    return {"absent": scores[~included], "present": scores[included]}


def our_one_run(absent: np.ndarray, present: np.ndarray, delta: float, confidence: float) -> Any:
    """`one_run_bound` of scores told apart by inclusion."""
    included = np.arange(absent.size + present.size) >= absent.size
    return one_run_bound(np.concatenate([absent, present]), included, delta, confidence, seed=0)


def compare(
    rows: list[Row], peer: Peer, name: str, ours: Callable[..., Any], sets: list[Scores], methods: dict[str, Any]
) -> None:
    """Mean bounds and times of one of ours and several of theirs, on the same sets of scores."""
    bounds: dict[str, list[float]] = {method: [] for method in ["ours", *methods]}
    times: dict[str, list[float]] = {method: [] for method in bounds}
    with tempfile.TemporaryDirectory() as folder:
        for k, scores in enumerate(sets):
            np.savez(Path(folder) / f"{k}.npz", **scores)
            ours(**scores, delta=DELTA, confidence=CONFIDENCE)
            found: list[Any] = []
            times["ours"].append(seconds(lambda: found.append(ours(**scores, delta=DELTA, confidence=CONFIDENCE))))  # noqa: B023
            bounds["ours"].append(found[0].lower_bound)
            for method, order in methods.items():
                file, error = str(Path(folder) / f"{k}.npz"), 1 - CONFIDENCE
                answer = peer.ask({**order, "file": file, "delta": DELTA, "significance": error})
                bounds[method].append(answer["epsilon"])
                times[method].append(answer["seconds"])
    for method in methods:
        gain = statistics.mean(bounds["ours"]) / statistics.mean(bounds[method])
        other, how = f"JAX Privacy, {method}", f"mean bounds of {len(sets)} sets of scores, ours / its"
        rows.append(ahead(TOPIC, f"ε shown, {name}", f"{other}: ε", gain, how))
        rows.append(ahead(TOPIC, f"time of it, {name}", f"{other}: time", ratio(times, method, "ours"), "medians"))


def against_jax_privacy(rows: list[Row], quick: bool) -> None:
    """Three kinds of scores."""
    sets, runs, canaries = (2, 500, 300) if quick else (10, 5000, 1000)
    strategies = {"Bonferroni": "bonferroni", "one split": "split", "100 splits": "multi-split"}
    limits = {
        f"Clopper–Pearson, {name}": {"method": "clopper-pearson", "strategy": one} for name, one in strategies.items()
    }
    once = {f"one run, {name}": {"method": "one-run", "strategy": one} for name, one in strategies.items()}
    sampled = [attacked(sampled_rule(), 100, runs, seed) for seed in range(sets)]
    whole = [attacked(full_rule(RECORDS), 1, runs, seed) for seed in range(sets)]
    single = [one_run(canaries, seed) for seed in range(sets)]
    with closing(Peer("jax-privacy", "jax_privacy_audit.py")) as peer:
        compare(rows, peer, f"2 × {runs} runs, Poisson batches", clopper_pearson_bound, sampled, limits)
        gdp = {"Gaussian trade-off": {"method": "gdp", "strategy": "bonferroni"}}
        compare(rows, peer, f"2 × {runs} runs, all records a step", gaussian_bound, whole, gdp)
        once["one run by f-DP, Bonferroni"] = {"method": "one-run-fdp", "strategy": "bonferroni"}
        compare(rows, peer, f"one run, {canaries} canaries", our_one_run, single, once)


def costs(rows: list[Row], quick: bool) -> None:
    """An audit over the plain runs that it is made of."""
    steps, runs = (STEPS // 10, RUNS // 10) if quick else (STEPS, RUNS)
    rule = cw.DPSGD(cw.steps.Constant(1.0), clip=1.0, noise_std=0.5, batch=10)
    pair = canary_pair(RECORDS, 1.0, "add-remove")
    audited = {"runs": runs, "seed": 0, "adjacency": "add-remove", "progress": False}

    def plain() -> None:
        for problem in pair:
            cw.run(problem, rule, steps, replicates=runs, seed=0, record=[0, steps], progress=False)

    def one_attack() -> None:
        cw.audit(rule, RECORDS, steps, 1e-5, pair=pair, statistic=lambda trace: -trace.theta[:, -1, 0], **audited)

    def chosen() -> None:
        cw.audit(rule, RECORDS, steps, 1e-5, **audited)

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
