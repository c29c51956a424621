"""Paper 4's whole grid of local runs against a NumPy loop, and memory.

    python benchmarks/local.py [--quick]

d ∈ {5, 10, 20} × α ∈ {1/3, 1/2, 2/3, 1} × μ ∈ {0.5, 1, 2, 3, none} × two losses × 300,000 users, both estimators
at once (the average is kept beside the last iterate), with one thread per core. The paper runs 200 replicates of each
setting; this runs 10, as a step costs the same in all of them.
"""

from __future__ import annotations

import subprocess
import sys

import numpy as np

import clipsilon as cs
from clipsilon.rules.clipping import Unclipped
from clipsilon.rules.outputs import Average
from clipsilon.rules.rule import Rule
from clipsilon.rules.sampling import SinglePass
from results import Row, ahead, cost, main
from timing import per_step, ratio, seconds, turns

TOPIC = "Local privacy"
USERS = 300_000
DIMENSIONS = (5, 10, 20)
DECAYS = (1 / 3, 1 / 2, 2 / 3, 1.0)
BUDGETS = (0.5, 1.0, 2.0, 3.0, None)
LOSSES = {
    "linear": (cs.datasets.linear, cs.losses.HuberRegression()),
    "logistic": (cs.datasets.logistic, cs.losses.MallowsLogistic()),
}


def problem(name: str, dimension: int, users: int = USERS) -> cs.Problem:
    """Return one of the paper's two data sets with its loss.

    Parameters
    ----------
    name : str
        A key of `LOSSES`.
    dimension : int
        Number of features.
    users : int, default 300_000
        Number of records.

    Returns
    -------
    Problem
    """
    data, loss = LOSSES[name]
    return cs.Problem(*data(users, dimension), loss=loss)


def rule(decay: float, budget: float | None) -> cs.Rule:
    """Return LDP-ASGD with this budget μ, or the same without noise for None."""
    step = cs.schedules.Power(0.2, decay)
    if budget is None:
        return Rule("ASGD", step, Unclipped(), SinglePass(1), output=Average())
    return cs.LDPASGD(step, budget)


def grid(case: cs.Problem, replicates: int) -> float:
    """Run every setting of one problem, and return the seconds per step."""
    rules = [rule(decay, budget) for decay in DECAYS for budget in BUDGETS]

    def run_all() -> None:
        for how in rules:
            cs.run(case, how, steps=case.records, replicates=replicates, seed=0, progress=False)

    return seconds(run_all) / (len(rules) * replicates * case.records)


def numpy_loop(case: cs.Problem, steps: int, decay: float = 0.5, budget: float = 1.0) -> None:
    """Run the same update and its average, written plainly in NumPy.

    Parameters
    ----------
    case : Problem
        Its loss is `HuberRegression` or `MallowsLogistic`.
    steps : int
        Number of steps, at most the number of records.
    decay : float, default 0.5
        Exponent α of the step sizes 0.2·t^(−α).
    budget : float, default 1.0
        μ of every user.
    """
    rng = np.random.default_rng(0)
    theta = np.zeros(case.dimension)
    average = np.zeros(case.dimension)
    std = case.loss.sensitivity() / budget
    huber = isinstance(case.loss, cs.losses.HuberRegression)
    kappa = 0.71016
    for t, i in enumerate(rng.permutation(case.records)[:steps], start=1):
        x, y = case.features[i], case.labels[i]
        weight = min(1.0, 2.0 / (x @ x))
        if huber:
            scale = max(theta[-1], 0.1)
            inner = min(max((y - x @ theta[:-1]) / scale, -1.345), 1.345)
            gradient = weight * np.append(-inner * x, 0.5 * (kappa - inner * inner))
        else:
            gradient = weight * (1.0 / (1.0 + np.exp(-(x @ theta))) - y) * x
        theta = theta - 0.2 * t**-decay * (gradient + std * rng.standard_normal(theta.size))
        average += (theta - average) / t


def factor(case: cs.Problem, repeats: int) -> float:
    """Return NumPy's time per step divided by ours."""
    how, steps = rule(0.5, 1.0), 4 * case.records  # in four replicates
    ours = per_step(lambda _: cs.run(case, how, case.records, replicates=4, seed=0, progress=False), steps)
    return ratio(
        turns({"ours": ours, "NumPy": per_step(lambda n: numpy_loop(case, n), 5000)}, repeats), "NumPy", "ours"
    )


def memory(users: int, replicates: int) -> float:
    """Return the peak of resident memory of a run in a process of its own, in MB beyond what it had before."""
    code = f"""
import sys, threading, time
import psutil
sys.path.insert(0, {str(__file__.rsplit("/", 1)[0])!r})
import clipsilon as cs
from local import problem, rule
case = problem("linear", 5, {users})
cs.run(case, rule(0.5, 1.0), steps=10, seed=0)
used = psutil.Process().memory_info
before, most, done = used().rss, [0], threading.Event()
def watch():
    while not done.wait(0.005):
        most[0] = max(most[0], used().rss)
watcher = threading.Thread(target=watch)
watcher.start()
cs.run(case, rule(0.5, 1.0), steps={users}, replicates={replicates}, seed=0, progress=False)
done.set()
watcher.join()
print((most[0] - before) / 2**20)
"""
    return float(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout)


def measure(rows: list[Row], quick: bool) -> None:
    """Add rows for each problem, the whole grid weighted by its own time, and memory."""
    users, replicates, repeats = (10_000, 2, 2) if quick else (USERS, 10, 7)
    total = peer = 0.0
    for name in LOSSES:
        for dimension in DIMENSIONS:
            case = problem(name, dimension, users)
            times, taken = factor(case, repeats), grid(case, replicates)
            total, peer = total + taken, peer + times * taken
            about, how = f"{name}, {dimension} columns", f"time per step, all cores, {repeats} turns"
            rows.append(ahead(TOPIC, about, "NumPy loop", times, how))
    rows.append(ahead(TOPIC, "paper 4's whole grid", "NumPy loop", peer / total, "weighted by time", 45))
    base, runs, data = memory(users // 3, 4), memory(users // 3, 64), memory(4 * users // 3, 64)
    rows.append(cost(TOPIC, "memory beyond the data, 64 runs", "4 runs", runs / base, "one process each"))
    rows.append(cost(TOPIC, "the same, 4 times the users", "64 runs", data / runs, "one process each"))


if __name__ == "__main__":
    sys.exit(main("local", measure, __doc__))
