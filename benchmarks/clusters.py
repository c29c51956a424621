"""The cost of a task on a Dask cluster: fits on tiny chunks compared with tasks that do nothing.

    python benchmarks/clusters.py [--quick]

Two workers on this machine. A step has one task per chunk, and one for every sixteen parts that are added up. The time
before the first step is excluded: the time per step is the difference between a long and a short fit, divided by the
difference in steps. The peer is the same tree of tasks, submitted by hand, which do nothing, and the limit is a
multiple of its time: how long Dask takes for a task that does nothing depends on the machine.
"""

from __future__ import annotations

import sys
from typing import Any

import dask
import dask.array as da
import numpy as np
from distributed import Client, LocalCluster, wait

from clipsilon.estimators import PrivateLogisticRegression
from clipsilon.estimators.dask_tasks import FAN_IN
from results import Row, cost, main
from timing import ratio, seconds, turns

TOPIC = "Dask"
ROWS, COLUMNS = 10, 5
SHORT, LONG = 5, 35
MOST = 2.5  # times the same tasks, empty


def fit(X: Any, y: Any, steps: int) -> None:
    """Fit a model in `steps` steps on all records.

    Parameters
    ----------
    X, y : Dask array
        Features and labels.
    steps : int
        Number of steps.
    """
    PrivateLogisticRegression(epochs=steps, random_state=0, classes=[0, 1]).fit(X, y)


def step_seconds(X: Any, y: Any) -> float:
    """Return the seconds per step of a fit."""
    short, long = (seconds(lambda steps=steps: fit(X, y, steps)) for steps in (SHORT, LONG))
    return (long - short) / (LONG - SHORT)


def tasks_of(chunks: int) -> int:
    """Return the number of tasks per step."""
    tasks, parts = chunks, chunks
    while parts > 1:
        parts = -(-parts // FAN_IN)
        tasks += parts
    return tasks


def nothing(*parts: Any) -> None:
    """Do nothing: the peer's task."""


def empty_step(client: Client, chunks: int) -> None:
    """Run the tasks of one step, each of which does nothing."""
    parts = client.map(nothing, range(chunks), pure=False)
    while len(parts) > 1:
        parts = [client.submit(nothing, *parts[k : k + FAN_IN], pure=False) for k in range(0, len(parts), FAN_IN)]
    parts[0].result()


def peer_seconds(client: Client, chunks: int, steps: int = 20) -> float:
    """Return the seconds per step of empty tasks.

    Parameters
    ----------
    client : Client
        The cluster.
    chunks : int
        Number of chunks.
    steps : int, default 20
        Number of steps to average over.

    Returns
    -------
    float
        Seconds.
    """
    return seconds(lambda: [empty_step(client, chunks) for _ in range(steps)]) / steps


def beside(rows: list[Row], client: Client, chunks: int, repeats: int) -> None:
    """Add a row that compares a step of a fit with a step of empty tasks.

    Parameters
    ----------
    rows : list of Row
        The results so far.
    client : Client
        The cluster.
    chunks : int
        Number of chunks.
    repeats : int
        Number of turns.
    """
    table = np.random.default_rng(0).standard_normal((ROWS * chunks, COLUMNS))
    X, y = dask.persist(da.from_array(table, (ROWS, COLUMNS)), da.from_array((table[:, 0] > 0).astype(int), ROWS))
    wait([X, y])
    found = turns({"ours": lambda: step_seconds(X, y), "empty": lambda: peer_seconds(client, chunks)}, repeats)
    about, how = f"a step, {chunks} chunks, {tasks_of(chunks)} tasks", f"two workers, {repeats} turns"
    rows.append(cost(TOPIC, about, "the same tasks, empty", ratio(found, "ours", "empty"), how, most=MOST))


def measure(rows: list[Row], quick: bool) -> None:
    """Measure small and large numbers of chunks."""
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        for chunks in (2, 8) if quick else (2, 8, 32, 128):
            beside(rows, client, chunks, 1 if quick else 5)


if __name__ == "__main__":
    sys.exit(main("clusters", measure, __doc__))
