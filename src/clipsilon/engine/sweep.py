"""Grids of runs over joblib, with results stored on disk by content.

Each completed run becomes a file in the store, a `Trace` in .npz format, whose name is a digest of everything that
determines the result: data, parts, settings, and the source code. So a sweep that was stopped, even by a kill, resumes
where it was, and a point that has not changed is never run again.
"""

from __future__ import annotations

import hashlib
import json
import uuid
import warnings
from collections.abc import Generator, Iterable
from contextlib import closing
from os import PathLike
from pathlib import Path
from typing import NamedTuple

import joblib
import numba
import numpy as np
from numpy.typing import ArrayLike

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

_STOPPED: set[str] = set()  # sweeps that have ended; runs in threads of this process check it


class Run(NamedTuple):
    """One point of a sweep: the arguments of `clipsilon.run` that determine its result.

    Parameters
    ----------
    problem : Problem
        The data, loss, response and region.
    rule : Rule
        The algorithm.
    steps : int
        T, the number of updates.
    start : float or array-like, default 0
        θ_0.
    replicates : int, default 1
        The number of independent runs from the same start.
    seed : int, default 0
        The seed; a sweep is always reproducible.
    record : int or array-like of int, default 50
        The approximate number of iterations to record, or the iterations themselves.
    """

    problem: Problem
    rule: Rule
    steps: int
    start: ArrayLike = 0.0
    replicates: int = 1
    seed: int = 0
    record: int | ArrayLike = 50


def sweep(
    runs: Iterable[Run],
    store: str | PathLike[str] | None = None,
    n_jobs: int | None = None,
    progress: bool | None = None,
) -> list[Trace]:
    """Run all points of a grid, except those whose traces are in the store.

    Points with a part that is not of the package are run every time and never stored, because there is no way to
    detect that its source, or something that it calls, has changed.

    Parameters
    ----------
    runs : iterable of Run
        The points.
    store : path, optional
        The folder for the traces, created if necessary. The default is in the user's cache folder. Files in it can be
        deleted at any time; a file that cannot be read is computed again.
    n_jobs : int, optional
        The number of points to run at the same time. The default is the setting of `joblib.parallel_config`, or one
        per processor. Points run in threads unless a backend such as "loky" or "dask" is selected there. The results
        do not depend on this number.
    progress : bool, optional
        Whether to show a progress bar. The default shows one on a terminal if the sweep is long.

    Returns
    -------
    list of Trace
        The traces, in the order of `runs`.

    Raises
    ------
    DivergenceError
        If a point diverges. The points completed by then are stored.
    KeyboardInterrupt
        On Ctrl-C. The points completed by then are stored.

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
    with Progress(progress, "sweep", sum(work.values())) as bar, closing(_computed(missing, n_jobs)) as computed:
        bar.show(done)
        for key, trace in computed:
            if _is_kept(missing[key]):
                trace.save(folder / f"{key}.npz")
            traces[key] = trace
            done += work[key]
            bar.show(done)
    return [traces[key] for key in keys]


def _checked_runs(runs: object) -> list[Run]:
    """Return a list of runs from any iterable."""
    if isinstance(runs, str | Run) or not isinstance(runs, Iterable):
        raise ValueError(f"runs must be a list of Run, got {checks.short_repr(runs)}.")
    return list(runs)


def store_folder(store: str | PathLike[str] | None) -> Path:
    """Return the folder of a store, created if necessary; the default is in the user's cache folder."""
    folder = cache_folder() / "sweeps" if store is None else Path(store)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        raise ValueError(f"store must be a folder that can be written to, got {str(folder)!r}.") from None
    return folder


def _computed(points: dict[str, Run], n_jobs: int | None) -> Generator[tuple[str, Trace], None, None]:
    """Yield the keys and traces of all points as they complete."""
    sweep_id = uuid.uuid4().hex
    jobs = _jobs(n_jobs)
    # Up to twice as many threads as jobs, so that the last points do not leave half of the processors idle.
    each = max(1, -(-2 * joblib.effective_n_jobs(jobs) // max(1, len(points))))
    tasks = (joblib.delayed(_run)(sweep_id, key, point, each) for key, point in points.items())
    results = joblib.Parallel(n_jobs=jobs, prefer="threads", return_as="generator_unordered", batch_size=1)(tasks)
    try:
        for result in results:  # noqa: UP028 - "yield from" would close the results before the runs are stopped
            yield result
    finally:
        _STOPPED.add(sweep_id)
        with warnings.catch_warnings():
            # joblib warns about runs that it cancels; after Ctrl-C or an error that is what is wanted.
            warnings.simplefilter("ignore", UserWarning)
            results.close()


def _run(sweep_id: str, key: str, point: Run, threads: int) -> tuple[str, Trace]:
    watch = _Watch(sweep_id)
    return key, run(**point._asdict(), n_jobs=min(threads, point.replicates), progress=watch)


class _StoppedError(Exception):
    """The sweep of this run has ended, so its result is not needed."""


class _Watch(Progress):
    """A progress without a bar, which ends the run if its sweep has ended."""

    def __init__(self, sweep_id: str):
        super().__init__(False, "", 0)
        self._sweep_id = sweep_id

    def show(self, done: int) -> None:
        """Raise _StoppedError if the sweep has ended."""
        if self._sweep_id in _STOPPED:
            raise _StoppedError


def _jobs(n_jobs: int | None) -> int:
    if n_jobs is not None:
        return checks.count("n_jobs", n_jobs)
    _, chosen = joblib.parallel.get_active_backend()
    return -1 if chosen is None else int(chosen)


def _stored(folder: Path, key: str) -> Trace | None:
    """Return the stored trace of a key, or None if there is none or it cannot be read."""
    try:
        return Trace.load(folder / f"{key}.npz")
    except (FileNotFoundError, ValueError):
        return None


def _is_kept(point: Run) -> bool:
    problem = point.problem
    return all(all_ours(part) for part in (problem.loss, problem.response, problem.region, point.rule.update()))


def _checked_key(point: Run) -> str:
    """Return a digest of all that determines the result of a run, after checking its arguments."""
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
