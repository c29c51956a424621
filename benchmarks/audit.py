"""What an audit costs over the plain runs that it is made of, measured in the same run, interleaved.

    python benchmarks/audit.py

10,000 audited runs of 1,000 steps (5,000 on each side) against as many runs of the same rule on the same data.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from rich.console import Console
from rich.table import Table

import clipwise as cw
from clipwise.privacy.canaries import canary_pair

REPEATS = 3
RECORDS, STEPS, RUNS = 100, 1000, 5000


def seconds(job: Callable[[], object]) -> float:
    """How long a job takes."""
    began = time.perf_counter()
    job()
    return time.perf_counter() - began


def main() -> None:
    """Measure, and print one table."""
    rule = cw.DPSGD(cw.steps.Constant(1.0), clip=1.0, noise_std=0.5, batch=10)
    pair = canary_pair(RECORDS, 1.0, "add-remove")
    audited = (rule, RECORDS, STEPS, 1e-5)

    def plain() -> None:
        for problem in pair:
            cw.run(problem, rule, STEPS, replicates=RUNS, seed=0, record=[0, STEPS], progress=False)

    def audit() -> None:
        cw.audit(
            *audited,
            runs=RUNS,
            seed=0,
            adjacency="add-remove",
            pair=pair,
            statistic=lambda trace: -trace.theta[:, -1, 0],
        )

    def chosen() -> None:
        cw.audit(*audited, runs=RUNS, seed=0, adjacency="add-remove")

    cw.run(pair.present, rule, 1, seed=0)
    ratios: dict[str, list[float]] = {"one attack": [], "pilot, two attacks, likelihoods of every step": []}
    for _ in range(REPEATS):
        base = seconds(plain)
        for name, job in zip(ratios, (audit, chosen), strict=True):
            ratios[name].append(seconds(job) / base)
    table = Table("what", "ratio", "wanted", title=f"An audit of {2 * RUNS} runs of {STEPS} steps over the runs alone")
    for (name, values), wanted in zip(ratios.items(), ("below 1.3", "below 1.3"), strict=True):
        table.add_row(name, f"{statistics.median(values):.2f}", wanted)
    Console().print(table)


if __name__ == "__main__":
    main()
