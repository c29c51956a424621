"""Sweeps: no completed point is run twice, however the sweep was stopped, and the files are the same in the end."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from typing import NamedTuple

import dask
import joblib
import numpy as np
import pytest
from distributed import Client, LocalCluster

import clipsilon as cs
from clipsilon._core.sources import digest_with
from clipsilon.reproduce.laboratory import Laboratory

PROBLEM = cs.Problem(np.linspace(-1, 1, 50), loss=cs.losses.Quadratic())
RULE = cs.DiceSGD(cs.schedules.InverseTime(1, 10), clip=0.5, error_clip=0.5, noise_std=0.1)
module = sys.modules["clipsilon.engine.sweep"]


def grid(*seeds, **changes):
    return [cs.Run(PROBLEM, RULE, 1000, replicates=2, seed=seed)._replace(**changes) for seed in seeds]


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def counted(monkeypatch):
    """Return a list that collects the seeds of the runs that are executed."""
    seeds = []
    real = module.run

    def count(**arguments):
        seeds.append(arguments["seed"])
        return real(**arguments)

    monkeypatch.setattr(module, "run", count)
    return seeds


def test_a_sweep_returns_the_traces_of_its_runs(tmp_path):
    traces = cs.sweep(grid(3, 1, 3, 2), store=tmp_path)
    assert [trace.seed for trace in traces] == [3, 1, 3, 2]
    for trace in [*traces, *cs.sweep(grid(1), store=tmp_path)]:
        alone = cs.run(PROBLEM, RULE, 1000, replicates=2, seed=trace.seed)
        np.testing.assert_array_equal(trace.theta, alone.theta)
        np.testing.assert_array_equal(trace.error, alone.error)
    assert len(contents(tmp_path)) == 3


def test_no_point_is_run_twice(tmp_path, counted):
    cs.sweep(grid(0, 1), store=tmp_path)
    cs.sweep(grid(0, 2, 1, 2), store=tmp_path)
    assert sorted(counted) == [0, 1, 2]
    assert cs.sweep([], store=tmp_path) == []


CHANGES = {
    "problem": PROBLEM.on(PROBLEM.features * 2),
    "rule": cs.DiceSGD(cs.schedules.InverseTime(1, 10), clip=0.5, error_clip=0.5, noise_std=0.2),
    "steps": 1001,
    "start": 1.0,
    "replicates": 3,
    "seed": 1,
    "record": [0, 1000],
}


@pytest.mark.parametrize("changed", CHANGES)
def test_a_changed_point_is_run(tmp_path, counted, changed):
    cs.sweep(grid(0), store=tmp_path)
    cs.sweep(grid(0, **{changed: CHANGES[changed]}), store=tmp_path)
    assert len(counted) == len(contents(tmp_path)) == 2


def test_points_run_again_when_the_sources_change(tmp_path, counted, monkeypatch):
    cs.sweep(grid(0), store=tmp_path)
    monkeypatch.setattr("clipsilon.engine.checkpoint.SOURCE_DIGEST", "another")
    cs.sweep(grid(0), store=tmp_path)
    assert counted == [0, 0]


@pytest.mark.parametrize("damage", [lambda b: b[:-300], lambda b: b"", lambda b: b"hello", lambda b: b[:300] + b[301:]])
def test_a_damaged_file_is_computed_again(tmp_path, counted, damage):
    cs.sweep(grid(0), store=tmp_path)
    whole = contents(tmp_path)
    (name,) = whole
    (tmp_path / name).write_bytes(damage(whole[name]))
    cs.sweep(grid(0), store=tmp_path)
    assert counted == [0, 0]
    assert contents(tmp_path) == whole


class SweptRegion(NamedTuple):
    pass


@cs.implements(cs.regions.project, SweptRegion)
def _(region, theta):
    pass


def test_parts_from_outside_are_run_and_not_kept(tmp_path, counted):
    problem = cs.Problem(PROBLEM.features, loss=PROBLEM.loss, region=SweptRegion())
    first, second = (cs.sweep(grid(0, problem=problem), store=tmp_path)[0] for _ in range(2))
    np.testing.assert_array_equal(first.theta, second.theta)
    assert counted == [0, 0]
    assert contents(tmp_path) == {}


def test_a_point_that_diverges_leaves_the_others_kept(tmp_path):
    bad = cs.Run(PROBLEM, cs.SGD(cs.schedules.Constant(1e6)), 1000)
    with pytest.raises(cs.DivergenceError, match="SGD diverged"):
        cs.sweep([*grid(0), bad], store=tmp_path, n_jobs=1)
    assert len(contents(tmp_path)) == 1


@pytest.mark.parametrize(
    ("runs", "message"),
    [
        (["a"], "each of runs must be a Run"),
        (grid(0, steps=0), "steps must be a whole number"),
        (grid(None), "seed must be a whole number"),
        (grid(0, start=[1.0, 2.0]), "start must be"),
        (grid(0, record=[2000]), "record must be"),
    ],
)
def test_wrong_points_are_refused_before_any_is_run(tmp_path, counted, runs, message):
    with pytest.raises((TypeError, ValueError), match=message):
        cs.sweep([*grid(0), *runs], store=tmp_path)
    assert counted == []


def test_a_store_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="store must be a folder that can be written to"):
        cs.sweep(grid(0), store=tmp_path / "file")


SWEEP = textwrap.dedent("""
    import sys
    import numpy as np
    import clipsilon as cs
    problem = cs.Problem(np.linspace(-1, 1, 50), loss=cs.losses.Quadratic())
    rule = cs.DiceSGD(cs.schedules.InverseTime(1, 10), clip=0.5, error_clip=0.5, noise_std=0.1)
    cs.sweep([cs.Run(problem, rule, 1_000_000, seed=seed) for seed in range(12)], store=sys.argv[1])
""")


def test_a_killed_sweep_resumes_where_it_was(tmp_path):
    pieces, whole = tmp_path / "pieces", tmp_path / "whole"

    def start(folder):
        return subprocess.Popen([sys.executable, "-c", SWEEP, str(folder)])

    process = start(pieces)
    while process.poll() is None and len(list(pieces.glob("*.npz"))) < 3:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, "the sweep ended before it could be killed"
    kept = {path: path.stat().st_mtime_ns for path in pieces.glob("*.npz")}
    assert 3 <= len(kept) < 12
    for folder in (pieces, whole):
        assert start(folder).wait() == 0
    assert {path: path.stat().st_mtime_ns for path in kept} == kept, "a completed point was run again"
    for path in pieces.glob(".*"):
        path.unlink()  # a file that was being written when the process was killed
    assert contents(pieces) == contents(whole)
    assert len(contents(whole)) == 12


@pytest.mark.parametrize("n_jobs", [1, 2])
def test_ctrl_c_ends_it_at_once_and_keeps_what_is_complete(tmp_path, n_jobs):
    runs = [*grid(0), *grid(1, 2, 3, steps=10**9, replicates=1)]
    running = threading.active_count()

    def interrupt():
        while not list(tmp_path.glob("*.npz")):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        cs.sweep(runs, store=tmp_path, n_jobs=n_jobs)
    thread.join()
    while threading.active_count() > running and time.monotonic() < began + 120:
        time.sleep(0.01)
    assert threading.active_count() <= running, "runs continue in threads after the sweep has ended"
    assert len(contents(tmp_path)) == 1


def test_ctrl_c_while_a_trace_is_stored_shows_no_warning(tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(module.Trace, "save", interrupted)
    runs = [*grid(0), *grid(1, 2, 3, steps=10**9, replicates=1)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pytest.raises(KeyboardInterrupt):
            cs.sweep(runs, store=tmp_path, n_jobs=2)
    assert [str(warning.message) for warning in caught if "Seeded" not in str(warning.message)] == []


def test_on_dask_and_in_processes_the_files_are_the_same(tmp_path):
    # Long timeouts, for a machine that is busy.
    patient = dask.config.set({"distributed.comm.timeouts.connect": "300s", "distributed.comm.timeouts.tcp": "300s"})
    cs.sweep(grid(0, 1, 2), store=tmp_path / "threads")
    many = {"n_workers": 1, "threads_per_worker": 2, "processes": True, "dashboard_address": ":0"}
    with patient, LocalCluster(**many) as workers, Client(workers), joblib.parallel_config("dask"):
        cs.sweep(grid(0, 1, 2), store=tmp_path / "dask")
    with joblib.parallel_config("loky", n_jobs=2):
        cs.sweep(grid(0, 1, 2), store=tmp_path / "loky")
    assert contents(tmp_path / "threads") == contents(tmp_path / "dask") == contents(tmp_path / "loky")


def test_divergence_in_another_process_is_raised(tmp_path):
    bad = cs.Run(PROBLEM, cs.SGD(cs.schedules.Constant(1e6)), 1000)
    with joblib.parallel_config("loky", n_jobs=2), pytest.raises(cs.DivergenceError, match="SGD diverged") as caught:
        cs.sweep([bad, bad._replace(seed=1)], store=tmp_path)
    assert caught.value.trace.rule == "SGD"


def test_a_laboratory_keeps_what_functions_return(tmp_path, monkeypatch):
    lab = Laboratory(folder=tmp_path)
    first = lab.keep(cs.clipping_bias, PROBLEM, 0.5)
    assert first == cs.clipping_bias(PROBLEM, 0.5)
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + b"!")
    assert lab.keep(cs.clipping_bias, PROBLEM, 0.5) == first  # a damaged file is replaced
    assert path.read_bytes() == whole
    monkeypatch.setattr("clipsilon.analysis.fixed_points._point", None)  # any computation would fail
    assert lab.keep(cs.clipping_bias, PROBLEM, 0.5) == first
    for other in ((PROBLEM.on(PROBLEM.features * 2), 0.5), (PROBLEM, 0.6)):
        with pytest.raises(TypeError):
            lab.keep(cs.clipping_bias, *other)
    with pytest.raises(ValueError, match="function must be at the top level of a module of clipsilon"):
        lab.keep(lambda: 1)


def test_the_module_of_a_figure_affects_only_its_own_results(monkeypatch):
    files = {
        "reproduce/one.py": b"from clipsilon.reproduce.shared import x",
        "reproduce/two.py": b"from clipsilon.reproduce import shared",
        "reproduce/shared.py": b"import clipsilon.reproduce.one",
        "reproduce/other.py": b"",
    }
    names = [f"clipsilon.reproduce.{name}" for name in ("one", "two", "shared", "other")] + [
        "clipsilon.analysis.fixed_points"
    ]

    def changed(file):
        digests = []
        for content in (files[file], files[file] + b"\n# changed"):
            with monkeypatch.context() as patch:
                patch.setattr("clipsilon._core.sources._FILES", {**files, file: content})
                digests.append([digest_with(name) for name in names])
        return [before != after for before, after in zip(*digests, strict=True)]

    assert changed("reproduce/one.py") == [True, True, True, False, False]
    assert changed("reproduce/two.py") == [False, True, False, False, False]
    assert changed("reproduce/shared.py") == [True, True, True, False, False]
    assert changed("reproduce/other.py") == [False, False, False, True, False]
