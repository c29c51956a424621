"""Dask's tasks: made, added up, and computed on the user's cluster or in this process.

Dask is an optional dependency, imported where it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

FAN_IN = 16
"""How many parts one task adds up."""

Value = TypeVar("Value")


class Task(Protocol):
    """A value that Dask computes: `dask.delayed.Delayed`."""

    def __dask_graph__(self) -> Mapping[str, object]:
        """Return the task and those that it depends on."""
        ...


def make_task(function: Callable[..., object], *arguments: object) -> Task:
    """Make a task. With pure=True, Dask would hash all arguments for its name."""
    import dask

    task: Task = dask.delayed(function, pure=False)(*arguments)
    return task


def make_tasks(function: Callable[..., object], *columns: list[Any]) -> list[Task]:
    """Make one task for each row of the columns, which holds its arguments."""
    return [make_task(function, *arguments) for arguments in zip(*columns, strict=True)]


def share(value: object) -> Task:
    """Make one object of a value that many tasks take, so that it is sent once."""
    import dask

    task: Task = dask.delayed(value, pure=False, traverse=False)
    return task


def add_up(add: Callable[..., Value], parts: list[Task]) -> Value:
    """Add up the parts in an order that depends on their number only."""
    total: Value = compute([sum_of(add, parts)])[0]
    return total


def sum_of(add: Callable[..., object], parts: list[Task]) -> Task:
    """Return the task that `add_up` computes."""
    while len(parts) > 1:
        parts = [make_task(add, *parts[k : k + FAN_IN]) for k in range(0, len(parts), FAN_IN)]
    return parts[0]


def compute(tasks: list[Task]) -> tuple[Any, ...]:
    """Compute on the user's cluster if there is a client, else in this process. Ctrl-C cancels the tasks."""
    import dask

    values: tuple[Any, ...] = dask.compute(*tasks, optimize_graph=False)
    return values


def persist(tasks: list[Task]) -> list[Task]:
    """Compute where `compute` would, and leave the results there. Dask remembers how they were computed."""
    import dask

    return list(dask.persist(*tasks, optimize_graph=False))


def release(kept: list[Task]) -> None:
    """Free what the workers keep, and cancel what they are still computing."""
    for task in kept:
        for result in dict(task.__dask_graph__()).values():
            if hasattr(result, "release"):  # a future; there are none without a cluster
                result.release()


def count_workers() -> int:
    """Return the number of workers of the user's cluster; 1 where tasks are computed in this process."""
    from dask.base import get_scheduler

    client: Any = getattr(get_scheduler(), "__self__", None)  # of a cluster, the scheduler is a method of its client
    return max(1, len(client.nthreads())) if hasattr(client, "nthreads") else 1
