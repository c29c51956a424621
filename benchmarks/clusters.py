"""What a task costs on a Dask cluster: fits of chunks that are next to nothing, beside tasks that do nothing.

    python benchmarks/clusters.py

Two workers on this machine. A step has one task a chunk, and one for every sixteen parts that are added up. What comes
before the first step is left out: the time of a long fit less that of a short one, over the steps between. The peer is
the same tree of tasks, submitted by hand, which do nothing. Medians over interleaved repeats.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import dask
import dask.array as da
import numpy as np
from distributed import Client, LocalCluster, wait
from rich.console import Console
from rich.table import Table

from clipwise.estimators import PrivateLogisticRegression
from clipwise.estimators.chunks import _FAN

REPEATS = 5
ROWS, COLUMNS = 10, 5
SHORT, LONG = 5, 35


def seconds(job: Callable[[], Any]) -> float:
    """How long a job takes."""
    began = time.perf_counter()
    job()
    return time.perf_counter() - began


def fit(X: Any, y: Any, steps: int) -> None:
    """A fit of so many steps with all records."""
    PrivateLogisticRegression(epochs=steps, random_state=0, classes=[0, 1]).fit(X, y)


def step_seconds(X: Any, y: Any) -> float:
    """How long one step takes."""
    short, long = (seconds(lambda steps=steps: fit(X, y, steps)) for steps in (SHORT, LONG))
    return (long - short) / (LONG - SHORT)


def tasks_of(chunks: int) -> int:
    """How many tasks a step has."""
    tasks, parts = chunks, chunks
    while parts > 1:
        parts = -(-parts // _FAN)
        tasks += parts
    return tasks


def nothing(*parts: Any) -> None:
    """What the peer's tasks do."""


def empty_step(client: Client, chunks: int) -> None:
    """The tasks of a step, without what they do."""
    parts = client.map(nothing, range(chunks), pure=False)
    while len(parts) > 1:
        parts = [client.submit(nothing, *parts[k : k + _FAN], pure=False) for k in range(0, len(parts), _FAN)]
    parts[0].result()


def peer_seconds(client: Client, chunks: int, steps: int = 20) -> float:
    """How long a step of empty tasks takes."""
    return seconds(lambda: [empty_step(client, chunks) for _ in range(steps)]) / steps


def measure(client: Client, chunks: int) -> tuple[float, float]:
    """Milliseconds a task, ours and the peer's."""
    table = np.random.default_rng(0).standard_normal((ROWS * chunks, COLUMNS))
    X, y = dask.persist(da.from_array(table, (ROWS, COLUMNS)), da.from_array((table[:, 0] > 0).astype(int), ROWS))
    wait([X, y])
    fit(X, y, SHORT)
    taken = [(step_seconds(X, y), peer_seconds(client, chunks)) for _ in range(REPEATS)]
    ours, peers = (1e3 * statistics.median(each) / tasks_of(chunks) for each in zip(*taken, strict=True))
    return ours, peers


def main() -> None:
    """Measure, and print one table."""
    columns = "chunks", "tasks a step", "ms a task (wanted: at most 5)", "ms an empty task", "ratio"
    table = Table(*columns, title="Dask: two workers")
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        for chunks in (2, 8, 32, 128):
            ours, peer = measure(client, chunks)
            table.add_row(str(chunks), str(tasks_of(chunks)), f"{ours:.2f}", f"{peer:.2f}", f"{ours / peer:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
