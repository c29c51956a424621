"""The engine's speed, as ratios to peers measured in the same run, interleaved.

    python benchmarks/engine.py

One record a step: logistic loss with best response, d = 10, PCSGD. Medians over interleaved repeats.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import numba
import numpy as np
from rich.console import Console
from rich.table import Table

import clipwise as cw
from clipwise.engine.loop import advance, empty_records, initial_state
from clipwise.engine.streams import spawn
from clipwise.engine.team import team
from clipwise.engine.world import world
from clipwise.sampling import expected_batch

REPEATS = 15
RECORDS = 15_776


def problem(d: int = 10) -> cw.Problem:
    """Random records of the credit data's shape."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((RECORDS, d))
    y = (rng.random(RECORDS) < 0.07).astype(float)
    loss = cw.losses.Logistic(l2=0.006, positive_weight=2.0)
    return cw.Problem(x, y, loss=loss, response=cw.responses.BestResponse(beta=0.01))


def rule(batch: int = 1) -> cw.Rule:
    """PCSGD, or DPSGD with a uniform minibatch."""
    step = cw.steps.InverseTime(50, 5000)
    if batch == 1:
        return cw.PCSGD(step, clip=1.0, noise_std=0.3)
    return cw.DPSGD(step, clip=1.0, noise_std=0.3, batch=batch, sampling="uniform")


def engine(case: cw.Problem, how: cw.Rule, steps: int) -> None:
    """The compiled loop alone, in one thread."""
    streams = spawn(0, 1)[0]
    m = case.records
    state = initial_state(case, how, np.zeros(case.dimension))
    records = empty_records(case, how, np.array([0, steps]))
    shared = team(case, how, 1, 0)
    advance(
        world(case),
        how.update(),
        expected_batch(how.sampling, m),
        shared,
        state,
        np.arange(m),
        records,
        steps,
        *streams,
    )


def numpy_loop(case: cw.Problem, batch: int, steps: int) -> None:
    """The same update as anybody would write it in NumPy, vectorised over the batch."""
    rng = np.random.default_rng(0)
    x_all, y_all, theta = case.features, case.labels, np.zeros(case.dimension)
    loss, beta = case.loss, case.response.beta
    for t in range(steps):
        drawn = rng.integers(0, case.records, 1) if batch == 1 else rng.choice(case.records, batch, replace=False)
        x, y = x_all[drawn], y_all[drawn]
        x = x - beta * y[:, None] * theta / max(1.0, np.linalg.norm(theta))
        weight = 1.0 + (loss.positive_weight - 1.0) * y
        gradients = (weight * (1 / (1 + np.exp(-x @ theta)) - y))[:, None] * x + loss.l2 * theta
        norms = np.linalg.norm(gradients, axis=1)
        clipped = gradients * np.minimum(1.0, 1.0 / np.maximum(norms, 1e-300))[:, None]
        noise = 0.3 * rng.standard_normal(case.dimension)
        theta = theta - 50 / (5001 + t) * (clipped.sum(axis=0) / batch + noise)


@numba.njit(nogil=True)
def draw_numbers(records, noise, m, d, steps):
    """The random numbers of a run and nothing else."""
    total = 0.0
    for _ in range(steps):
        total += records.integers(0, m)
        for _ in range(d):
            total += noise.standard_normal()
    return total


def draws(steps: int, d: int = 10) -> None:
    """Draw as many numbers as a run of that many steps."""
    streams = spawn(0, 1)[0]
    draw_numbers(streams.records, streams.noise, RECORDS, d, steps)


def per_step(jobs: dict[str, tuple[Callable[[int], None], int]]) -> dict[str, list[float]]:
    """Nanoseconds a step of every job, interleaved so that a busy machine hits all of them."""
    taken: dict[str, list[float]] = {name: [] for name in jobs}
    for job, _ in jobs.values():
        job(2)
    for _ in range(REPEATS):
        for name, (job, steps) in jobs.items():
            began = time.perf_counter()
            job(steps)
            taken[name].append((time.perf_counter() - began) / steps * 1e9)
    return taken


def ratio(taken: dict[str, list[float]], over: str, under: str) -> float:
    """The median of the ratios of neighbouring measurements."""
    return statistics.median(a / b for a, b in zip(taken[over], taken[under], strict=True))


def memory(steps: int) -> float:
    """Resident megabytes of a fresh process after a run."""
    job = (
        "import sys, psutil; sys.path.insert(0, 'benchmarks'); import engine, clipwise as cw;"
        f"cw.run(engine.problem(), engine.rule(), {steps}, seed=0);"
        "print(psutil.Process().memory_info().rss / 1e6)"
    )
    return float(subprocess.run([sys.executable, "-c", job], capture_output=True, text=True, check=True).stdout)


def threads_ratio() -> float:
    """How much faster four replicates are in two threads than in one; runs of seconds, as short ones show noise."""
    case, how, steps = problem(), rule(), 4_000_000
    cw.run(case, how, 10, replicates=2, seed=0)
    ratios = []
    for _ in range(REPEATS // 2):
        times = []
        for jobs in (1, 2):
            began = time.perf_counter()
            cw.run(case, how, steps, replicates=4, seed=0, n_jobs=jobs)
            times.append(time.perf_counter() - began)
        ratios.append(times[0] / times[1])
    return statistics.median(ratios)


def main() -> None:
    """Measure, and print one table."""
    case, wide = problem(), {d: problem(d) for d in (10, 100, 1000)}
    one = per_step(
        {
            "engine": (lambda n: engine(case, rule(), n), 100_000),
            "draws": (draws, 100_000),
            "numpy": (lambda n: numpy_loop(case, 1, n), 1_000),
            "long": (lambda n: engine(case, rule(), n), 400_000),
        }
    )
    many = per_step(
        {
            "engine": (lambda n: engine(case, rule(250), n), 2_000),
            "numpy": (lambda n: numpy_loop(case, 250, n), 100),
        }
    )
    growth = per_step({str(d): (lambda n, d=d: engine(wide[d], rule(), n), 2_000_000 // d) for d in wide})
    lines = [
        ("NumPy loop / engine, one record a step", ratio(one, "numpy", "engine"), "at least 100"),
        ("engine / drawing the random numbers alone", ratio(one, "engine", "draws"), "at most 3.5"),
        ("one thread / two threads", threads_ratio(), "at least 1.7"),
        ("NumPy loop / engine, minibatch of 250", ratio(many, "numpy", "engine"), ""),
        ("cost a step, 4 times the steps", ratio(one, "long", "engine"), "about 1"),
        ("cost a step, d = 100 over d = 10", ratio(growth, "100", "10"), "at most 10"),
        ("cost a step, d = 1000 over d = 100", ratio(growth, "1000", "100"), "about 10"),
        ("resident memory, 10⁷ steps over 10⁵", memory(10**7) / memory(10**5), "about 1"),
    ]
    table = Table("what", "ratio", "wanted", title="The engine: logistic loss, best response, d = 10, PCSGD")
    for what, value, wanted in lines:
        table.add_row(what, f"{value:.2f}", wanted)
    Console().print(table)


if __name__ == "__main__":
    main()
