"""`run`: execute replicates of a rule on a problem, in threads, with progress, interruption and checkpoints."""

from __future__ import annotations

import os
import sys
import threading
import time
import warnings
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clipsilon._core import checks
from clipsilon.engine import checkpoint as checkpoints
from clipsilon.engine.grid import check_rounding, scaling
from clipsilon.engine.loop import empty_recording, initial_state
from clipsilon.engine.progress import Progress
from clipsilon.engine.replicate import CHUNK_SECONDS, Pace, Replicate, all_still
from clipsilon.engine.streams import spawn
from clipsilon.engine.trace import Trace
from clipsilon.engine.tracking import check_memory
from clipsilon.problems.problem import Problem
from clipsilon.problems.regions import project
from clipsilon.rules.feedback import remembers
from clipsilon.rules.outputs import averages
from clipsilon.rules.rule import Rule

CHECKPOINT_SECONDS = 5.0  # between two checkpoints


class Interrupted(KeyboardInterrupt):
    """Ctrl-C was pressed during a run; `trace` holds what was recorded until then."""

    def __init__(self, trace: Trace):
        super().__init__(f"stopped after {trace.steps_done.min()} to {trace.steps_done.max()} steps; see .trace")
        self.trace = trace


class DivergenceError(FloatingPointError):
    """The model θ is no longer finite; `trace` holds what was recorded until then."""

    def __init__(self, replicate: int, trace: Trace):
        at = trace.steps_done[replicate]
        super().__init__(
            f"{trace.rule} diverged: θ is not finite after step {at} of replicate {replicate}; try a smaller step."
        )
        self.trace = trace
        self._replicate = replicate

    def __reduce__(self) -> tuple[Any, ...]:  # it may be raised in another process of a sweep
        return DivergenceError, (self._replicate, self.trace)


def run(
    problem: Problem,
    rule: Rule,
    steps: int,
    start: ArrayLike = 0.0,
    replicates: int = 1,
    seed: int | None = None,
    record: int | ArrayLike = 50,
    n_jobs: int | None = None,
    progress: bool | Progress | None = None,
    checkpoint: str | PathLike[str] | None = None,
) -> Trace:
    """Run a rule on a problem and return the recorded iterates.

    Parameters
    ----------
    problem : Problem
        The data, loss, response and region.
    rule : Rule
        The algorithm, from a preset such as `PCSGD` or made of parts.
    steps : int
        T, the number of updates.
    start : float or array-like, default 0
        θ_0: one number for all coordinates, or one per coordinate. It must lie in the region.
    replicates : int, default 1
        The number of independent runs from the same start.
    seed : int, optional
        With a seed the run is reproducible, and so not fit for release; rules with the same seed draw the same
        records. Without one, the randomness is cryptographic, with keys from the operating system.
    record : int or array-like of int, default 50
        The approximate number of iterations to record, log-spaced and including 0 and `steps`; or the iterations
        themselves.
    n_jobs : int, optional
        The number of threads. The default is one per replicate, but not more than there are processors. With more
        threads than replicates, several threads share each large batch; they wait for each other at every step, which
        is slow if the processors are busy. The results do not depend on this number.
    progress : bool or Progress, optional
        Whether to show a progress bar. The default shows one on a terminal if the run is long.
    checkpoint : path, optional
        A file that is written every few seconds. If it exists, the run continues from it, with the same result as
        without the interruption. The file contains the state of the noise: keep it as private as the data.

    Returns
    -------
    Trace
        The recorded iterates and the output of every replicate.

    Raises
    ------
    Interrupted
        On Ctrl-C. Its `trace` holds what was recorded.
    DivergenceError
        If θ is no longer finite. Its `trace` holds what was recorded.
    CheckpointError
        If the checkpoint belongs to another run or cannot be read.

    Examples
    --------
    >>> import clipsilon as cs
    >>> problem = cs.Problem([0.0, 0.0, 1.0], loss=cs.losses.Quadratic())
    >>> trace = cs.run(problem, cs.SGD(step=cs.schedules.InverseTime(1, 0)), steps=1000, seed=0)
    >>> trace.theta.shape
    (1, 42, 1)
    """
    checks.instance("problem", problem, Problem)
    checks.instance("rule", rule, Rule)
    steps = checks.count("steps", steps)
    seed = None if seed is None else checks.integer("seed", seed, least=0)
    replicates = checks.count("replicates", replicates)
    threads = min(_processors(), replicates) if n_jobs is None else checks.count("n_jobs", n_jobs)
    rule.check(problem, steps)
    check_memory(problem, rule, replicates)
    check_rounding(problem, rule, steps)
    rule = rule.on(problem, steps)
    theta = start_of(start, problem)
    iterations = recorded_iterations(record, steps)
    work = [
        Replicate(initial_state(problem, rule, theta), empty_recording(problem, rule, iterations), streams)
        for streams in spawn(seed, replicates)
    ]
    settings = {"steps": steps, "start": theta.tolist(), "replicates": replicates, "seed": seed}
    file = _Checkpoint(checkpoint, problem, rule, {**settings, "record": iterations.tolist()}, work)
    bar = progress if isinstance(progress, Progress) else Progress(progress, rule.name, steps * replicates)
    _run_all(problem, rule, steps, seed, threads, bar, file, work)
    return trace_of(rule, seed, work)


def recorded_iterations(record: int | ArrayLike, steps: int) -> NDArray[np.int64]:
    """Return the iterations to record: log-spaced if `record` is a number, otherwise `record` itself."""
    if isinstance(record, int | np.integer):
        points = checks.integer("record", record, least=2)
        spaced = np.geomspace(1, steps, points - 1).round().astype(np.int64)
        return np.unique(np.concatenate(([0], spaced, [steps])))
    iterations = checks.integers(record)
    if iterations is None or iterations.min() < 0 or iterations.max() > steps:
        raise ValueError(f"record must be a number or iterations from 0 to {steps}, got {record!r}.")
    return np.unique(iterations)


def start_of(start: ArrayLike, problem: Problem) -> NDArray[np.float64]:
    """Return θ_0 as a vector; raise ValueError if it is outside the region."""
    theta = checks.vector("start", start, problem.dimension)
    inside = theta.copy()
    project(problem.region, inside)
    if not np.allclose(inside, theta, rtol=1e-12, atol=1e-12):
        raise ValueError(f"start must lie in the region {problem.region}, got {start!r}.")
    return theta


class _Checkpoint:
    """The checkpoint file of a run; does nothing if there is no path."""

    def __init__(
        self,
        path: str | PathLike[str] | None,
        problem: Problem,
        rule: Rule,
        settings: dict[str, Any],
        work: list[Replicate],
    ):
        self._path = _file(path)
        self._work = work
        if self._path is None:
            return
        self._run = checkpoints.identity(problem, rule, settings)
        self._last = time.monotonic()
        if self._path.exists():
            checkpoints.load(self._path, self._run, work)
        else:
            checkpoints.save(self._path, self._run, work)  # fails now, not after hours, if the folder is read-only

    def save(self, only_if_due: bool = False) -> None:
        """Write the states of all replicates, which are paused while they are copied."""
        if self._path is None or (only_if_due and time.monotonic() - self._last < CHECKPOINT_SECONDS):
            return
        self._last = time.monotonic()
        try:
            with all_still(self._work):
                if not any(replicate.diverged for replicate in self._work):
                    checkpoints.save(self._path, self._run, self._work)
        except OSError as problem:
            warnings.warn(
                f"The checkpoint could not be written ({problem}); the run continues without it.", stacklevel=2
            )


def _file(path: str | PathLike[str] | None) -> Path | None:
    if path is None:
        return None
    if not isinstance(path, str | PathLike) or not str(path) or Path(path).is_dir() or not Path(path).parent.is_dir():
        raise ValueError(f"checkpoint must be a file in a folder that exists, got {path!r}.")
    return Path(path)


def _run_all(
    problem: Problem,
    rule: Rule,
    steps: int,
    seed: int | None,
    threads: int,
    progress: Progress,
    file: _Checkpoint,
    work: list[Replicate],
) -> None:
    """Advance every replicate to the end; on Ctrl-C or divergence, stop all of them and raise with the trace."""
    stop = threading.Event()
    each = max(1, threads // len(work))
    pool = ThreadPoolExecutor(max_workers=min(threads, len(work)))
    try:
        public = scaling(problem, rule, steps)
        if work[0].done < steps:
            work[0].compile(problem, rule, public, each)  # in the main thread, so that Ctrl-C can interrupt it
        pace = Pace()
        jobs = [pool.submit(replicate.advance_to, problem, rule, public, steps, each, pace, stop) for replicate in work]
        with progress:
            _watch(jobs, work, progress, file)
    except KeyboardInterrupt:
        stop.set()
        pool.shutdown()
        file.save()
        raise Interrupted(trace_of(rule, seed, work)) from None
    finally:
        stop.set()
        pool.shutdown()
    for r, replicate in enumerate(work):
        if replicate.diverged:
            raise DivergenceError(r, trace_of(rule, seed, work))
    file.save()


def _watch(jobs: list[Future[None]], work: list[Replicate], progress: Progress, file: _Checkpoint) -> None:
    """Wait for the jobs, with short timeouts to handle Ctrl-C, the progress bar and the checkpoint."""
    pending: set[Future[None]] = set(jobs)
    while pending:
        finished, pending = wait(pending, timeout=CHUNK_SECONDS, return_when=FIRST_EXCEPTION)
        for job in finished:
            job.result()
        if any(replicate.diverged for replicate in work):
            return
        progress.show(sum(replicate.done for replicate in work))
        if pending:
            file.save(only_if_due=True)


def trace_of(rule: Rule, seed: int | None, work: list[Replicate]) -> Trace:
    """Return the iterates that the replicates have recorded so far.

    Parameters
    ----------
    rule : Rule
        The rule, which determines whether errors and averages are part of the trace.
    seed : int or None
        The seed of the run.
    work : list of Replicate
        The replicates, which may not be complete.

    Returns
    -------
    Trace
        The recorded iterates; NaN where a replicate has not arrived yet.
    """
    return Trace(
        rule=rule.name,
        seed=seed,
        iterations=work[0].recording.iterations,
        theta=np.stack([replicate.recording.theta for replicate in work]),
        error=np.stack([replicate.recording.error for replicate in work]) if remembers(rule.feedback) else None,
        average=np.stack([replicate.recording.average for replicate in work]) if averages(rule.output) else None,
        output=np.stack([replicate.state.summary[: replicate.state.theta.size] for replicate in work]),
        steps_done=np.array([replicate.done for replicate in work]),
    )


def _processors() -> int:
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
