"""Paper 4's whole grid of local runs: the rate in compiled code, the factor over a NumPy loop, and memory.

    python benchmarks/local.py              10 of the 200 replicates of every setting
    python benchmarks/local.py --whole      all of them, as the paper has it

d ∈ {5, 10, 20} × α ∈ {1/3, 1/2, 2/3, 1} × μ ∈ {0.5, 1, 2, 3, none} × two losses × 300,000 users, both estimators
at once (the average is kept beside the last iterate).
"""

from __future__ import annotations

import subprocess
import sys
import time
from statistics import median

import numpy as np
from rich.console import Console
from rich.table import Table

import clipwise as cw
from clipwise.clipping import Unclipped
from clipwise.outputs import Average
from clipwise.rule import Rule
from clipwise.sampling import SinglePass

USERS = 300_000
DIMENSIONS = (5, 10, 20)
DECAYS = (1 / 3, 1 / 2, 2 / 3, 1.0)
BUDGETS = (0.5, 1.0, 2.0, 3.0, None)
LOSSES = {
    "linear": (cw.datasets.linear, cw.losses.HuberRegression()),
    "logistic": (cw.datasets.logistic, cw.losses.MallowsLogistic()),
}
REPEATS = 7


def problem(name: str, dimension: int, users: int = USERS) -> cw.Problem:
    """One of the paper's two data sets with its loss."""
    data, loss = LOSSES[name]
    return cw.Problem(*data(users, dimension), loss=loss)


def rule(decay: float, budget: float | None) -> cw.Rule:
    """LDP-ASGD, or the same without noise."""
    step = cw.steps.Power(0.2, decay)
    if budget is None:
        return Rule("ASGD", step, Unclipped(), SinglePass(1), output=Average())
    return cw.LDPASGD(step, budget)


def grid(name: str, dimension: int, replicates: int) -> float:
    """Run every setting of one problem; seconds a step."""
    case = problem(name, dimension)
    cw.run(case, rule(0.5, None), steps=10, seed=0)
    cw.run(case, rule(0.5, 1.0), steps=10, seed=0)
    began = time.perf_counter()
    for decay in DECAYS:
        for budget in BUDGETS:
            cw.run(case, rule(decay, budget), steps=USERS, replicates=replicates, seed=0, progress=False)
    return (time.perf_counter() - began) / (len(DECAYS) * len(BUDGETS) * replicates * USERS)


def numpy_loop(case: cw.Problem, steps: int, decay: float = 0.5, budget: float = 1.0) -> None:
    """The same update with its average, as anybody would write it in NumPy."""
    rng = np.random.default_rng(0)
    theta = np.zeros(case.dimension)
    average = np.zeros(case.dimension)
    std = case.loss.sensitivity() / budget
    huber = isinstance(case.loss, cw.losses.HuberRegression)
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


def factor(name: str, dimension: int) -> float:
    """NumPy's time a step over ours, medians of interleaved repeats, with as many threads as the machine has."""
    case = problem(name, dimension)
    ours, theirs = [], []
    for _ in range(REPEATS):
        began = time.perf_counter()
        numpy_loop(case, 5000)
        theirs.append((time.perf_counter() - began) / 5000)
        began = time.perf_counter()
        cw.run(case, rule(0.5, 1.0), steps=USERS, replicates=4, seed=0, progress=False)
        ours.append((time.perf_counter() - began) / (4 * USERS))
    return median(theirs) / median(ours)


def memory(users: int, replicates: int) -> float:
    """The most resident memory, in MB beyond what it had at the start, of a run in a process of its own."""
    code = f"""
import sys, threading, time
import psutil
sys.path.insert(0, {str(__file__.rsplit("/", 1)[0])!r})
import clipwise as cw
from local import problem, rule
case = problem("linear", 5, {users})
cw.run(case, rule(0.5, 1.0), steps=10, seed=0)
used = psutil.Process().memory_info
before, most, done = used().rss, [0], threading.Event()
def watch():
    while not done.wait(0.005):
        most[0] = max(most[0], used().rss)
watcher = threading.Thread(target=watch)
watcher.start()
cw.run(case, rule(0.5, 1.0), steps={users}, replicates={replicates}, seed=0, progress=False)
done.set()
watcher.join()
print((most[0] - before) / 2**20)
"""
    return float(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout)


def main() -> None:
    """Print the table."""
    replicates = 200 if "--whole" in sys.argv else 10
    steps = len(DECAYS) * len(BUDGETS) * replicates * USERS
    table = Table("problem", "steps", "million steps a second", "× a NumPy loop", title=f"{replicates} replicates each")
    total = peer = 0.0
    for name in LOSSES:
        for dimension in DIMENSIONS:
            seconds = grid(name, dimension, replicates)
            total += seconds * steps
            times = factor(name, dimension)
            peer += times * seconds * steps
            table.add_row(f"{name}, d = {dimension}", f"{steps:.2g}", f"{1e-6 / seconds:.2f}", f"{times:.0f}")
    console = Console()
    console.print(table)
    console.print(f"The whole grid: {peer / total:.0f} times as fast as a NumPy loop (wanted: 80).")
    console.print(f"The whole grid with 200 replicates: {total * 200 / replicates / 60:.0f} minutes at this rate.")
    console.print(f"Memory beyond the data: {memory(100_000, 4):.1f} MB for 4 replicates of 100,000 users, ", end="")
    console.print(f"{memory(100_000, 64):.1f} MB for 64, {memory(400_000, 64):.1f} MB for 64 of 400,000.")


if __name__ == "__main__":
    main()
