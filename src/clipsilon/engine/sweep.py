"""Grids of runs over joblib, kept on disk by their content.

Each completed run becomes a file of the store, a `Trace` in .npz, whose name is a digest of everything that decides
the result: data, parts, settings, and the sources that ran. So a sweep that was stopped, however rudely, goes on where
it was, and a point that has not changed is never run again.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterable, Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import joblib
import numba
import numpy as np

from clipsilon._core import checks
from clipsilon._core.parts import all_ours
from clipsilon._core.storage import cache_folder
from clipsilon.engine import Trace, run
from clipsilon.engine.checkpoint import identity
from clipsilon.engine.progress import Progress
from clipsilon.engine.runner import recorded_iterations, start_of
from clipsilon.problems.problem import Problem
from clipsilon.rules.rule import Rule

VERSIONS = {"numpy": np.__version__, "numba": numba.__version__}  # either may change the last digits

_STOPPED: set[str] = set()  # sweeps that have ended early: runs in threads of this process look here


class Run(NamedTuple):
    """One point of a sweep: the arguments of `clipsilon.run` that decide its result."""

    problem: Problem
    rule: Rule
    steps: int
    start: Any = 0.0
    replicates: int = 1
    seed: int = 0
    record: Any = 50


def sweep(
    runs: Sequence[Run],
    store: str | PathLike[str] | None = None,
    n_jobs: int | None = None,
    progress: bool | None = None,
) -> list[Trace]:
    """Run all points of a grid and return their traces, in order; points that the store holds are read from it.

    Points with a part from outside the package are run every time and never kept: nothing could tell when its source,
    or something that it calls, has changed. A point that diverges ends the sweep with `DivergenceError`, and Ctrl-C
    with `KeyboardInterrupt`; points that were complete by then are kept.

    Parameters
    ----------
    runs
        The points, each a `Run`.
    store
        The folder to keep traces in, made if need be; None for one in the user's cache folder. Any file in it can be
        deleted at any time; one that cannot be read is computed again.
    n_jobs
        How many points to run at a time; None for what `joblib.parallel_config` says, or one a processor. Points run in
        threads, unless a backend was chosen there, such as "loky" or "dask". The results do not depend on it.
    progress
        True or False; None shows a bar with the time left, on a terminal, when the sweep is long.

    Examples
    --------
    >>> import tempfile
    >>> import clipsilon as cs
    >>> problem = cs.Problem([0.0, 0.0, 1.0], loss=cs.losses.Quadratic())
    >>> runs = [cs.Run(problem, cs.SGD(cs.schedules.Constant(gamma)), steps=100) for gamma in (0.1, 0.2)]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     [trace.rule for trace in cs.sweep(runs, store=folder)]
    ['SGD', 'SGD']
    """
    runs = _checked_runs(runs)
    keys = [_checked_key(point) for point in runs]
    folder = store_folder(store)
    traces = {key: trace for key in keys if (trace := _stored(folder, key)) is not None}
    missing = {key: point for key, point in zip(keys, runs, strict=True) if key not in traces}
    work = {key: point.steps * point.replicates for key, point in missing.items()}
    done = 0
    with Progress(progress, "sweep", sum(work.values())) as bar:
        bar.show(done)
        for key, trace in _computed(missing, n_jobs):
            if _is_kept(missing[key]):
                trace.save(folder / f"{key}.npz")
            traces[key] = trace
            done += work[key]
            bar.show(done)
    return [traces[key] for key in keys]


def _checked_runs(runs: Any) -> list[Run]:
    """A list of them, from anything that can be gone through."""
    if isinstance(runs, str | Run) or not isinstance(runs, Iterable):
        raise ValueError(f"runs must be a list of Run, got {checks.short_repr(runs)}.")
    return list(runs)


def store_folder(store: str | PathLike[str] | None) -> Path:
    """The folder of a store, made if it is not there; None is one in the user's cache folder."""
    folder = cache_folder() / "sweeps" if store is None else Path(store)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        raise ValueError(f"store must be a folder that can be written to, got {str(folder)!r}.") from None
    return folder


def _computed(points: dict[str, Run], n_jobs: int | None) -> Iterator[tuple[str, Trace]]:
    """The traces of all points, each as soon as it is there."""
    sweep_id = uuid.uuid4().hex
    jobs = _jobs(n_jobs)
    # Twice as many threads as processors, at most: the last point does not leave half of them idle.
    each = max(1, -(-2 * joblib.effective_n_jobs(jobs) // max(1, len(points))))
    tasks = (joblib.delayed(_run)(sweep_id, key, point, each) for key, point in points.items())
    try:
        yield from joblib.Parallel(n_jobs=jobs, prefer="threads", return_as="generator_unordered", batch_size=1)(tasks)
    finally:
        _STOPPED.add(sweep_id)


def _run(sweep_id: str, key: str, point: Run, threads: int) -> tuple[str, Trace]:
    watch = _Watch(sweep_id)
    return key, run(**point._asdict(), n_jobs=min(threads, point.replicates), progress=watch)


class _StoppedError(Exception):
    """The sweep has ended; a run that goes on in a thread of it has no use."""


class _Watch(Progress):
    """No bar of its own: it ends a run whose sweep was stopped."""

    def __init__(self, sweep_id: str):
        super().__init__(False, "", 0)
        self._sweep_id = sweep_id

    def show(self, done: int) -> None:
        """Look whether the sweep still goes on."""
        if self._sweep_id in _STOPPED:
            raise _StoppedError


def _jobs(n_jobs: int | None) -> int:
    if n_jobs is not None:
        return checks.count("n_jobs", n_jobs)
    _, chosen = joblib.parallel.get_active_backend()
    return -1 if chosen is None else int(chosen)


def _stored(folder: Path, key: str) -> Trace | None:
    """The trace of that key, or None if there is none that can be read."""
    try:
        return Trace.load(folder / f"{key}.npz")
    except (FileNotFoundError, ValueError):
        return None


def _is_kept(point: Run) -> bool:
    problem = point.problem
    return all(all_ours(part) for part in (problem.loss, problem.response, problem.region, point.rule.update()))


def _checked_key(point: Run) -> str:
    """A digest of all that decides a run's result; refuse what is not a run, before anything is run."""
    checks.instance("each of runs", point, Run)
    checks.instance("problem", point.problem, Problem)
    checks.instance("rule", point.rule, Rule)
    settings = {
        "steps": checks.count("steps", point.steps),
        "start": start_of(point.start, point.problem).tolist(),
        "replicates": checks.count("replicates", point.replicates),
        "seed": checks.integer("seed", point.seed, least=0),
        "record": recorded_iterations(point.record, point.steps).tolist(),
    }
    point.rule.check(point.problem, point.steps)
    content = {**identity(point.problem, point.rule, settings), "name": point.rule.name, **VERSIONS}
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()
