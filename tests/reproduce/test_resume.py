"""A report that was interrupted, and one that is repeated."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import clipsilon as cs
from clipsilon.report.charts import Chart, band
from clipsilon.reproduce import runner
from clipsilon.reproduce.base import Experiment, Finding, Result
from clipsilon.reproduce.laboratory import Laboratory

JOB = """
import sys
from pathlib import Path
from clipsilon.reproduce import runner
from clipsilon.reproduce.laboratory import Laboratory
runner.reproduce(runner.choose(sys.argv[3:]), Laboratory(True, Path(sys.argv[1]), n_jobs=1), Path(sys.argv[2]))
"""


def contents(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def small(lab):
    """A run that takes no time."""
    problem = cs.Problem(cs.datasets.bernoulli(100, p=0.1), loss=cs.losses.Quadratic(a=10.0))
    rule = cs.PCSGD(cs.schedules.InverseTime(10, 100), clip=1.0, noise_std=0.1)
    (trace,) = lab.sweep([cs.Run(problem, rule, 500, 5.0, 4)])
    bias = lab.keep(cs.clipping_bias, problem, 1.0)
    chart = Chart(
        "", "iteration t", "gap", [band("PCSGD", trace.iterations, trace.gap(cs.stable_point(problem).theta))]
    )
    return Result([Finding("It ends.", f"{bias}", True)], [chart])


def test_made_again_nothing_is_run(tmp_path, monkeypatch):
    experiment, lab = Experiment("small", 1, "Fig. 1", "Small", {}, small), Laboratory(folder=tmp_path / "store")
    runner.reproduce([experiment], lab, tmp_path / "first")

    def refuse(*arguments, **settings):
        raise AssertionError("this was computed already")

    monkeypatch.setattr(sys.modules["clipsilon.engine.sweep"], "run", refuse)  # the name is also a function's
    monkeypatch.setattr("clipsilon.analysis.fixed_points.clipped_point", refuse)
    runner.reproduce([experiment], lab, tmp_path / "second")
    assert contents(tmp_path / "first") == contents(tmp_path / "second")


@pytest.mark.verify
def test_killed_in_the_middle(tmp_path):
    """Completed points are not run again, and the files equal those of an uninterrupted report."""

    def start(store, out):
        words = [sys.executable, "-c", JOB, tmp_path / store, tmp_path / out, "paper1-fig1-first", "paper3-bias"]
        return subprocess.Popen(
            words, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}, start_new_session=True
        )

    assert start("whole", "expected").wait() == 0
    everything = len(contents(tmp_path / "whole"))
    process = start("store", "out")
    while len(complete(tmp_path / "store")) < everything // 2:
        assert process.poll() is None, "it ended before it could be killed"
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    before = complete(tmp_path / "store")
    assert everything // 2 <= len(before) < everything
    assert start("store", "out").wait() == 0
    after = complete(tmp_path / "store")
    assert {name: after[name] for name in before} == before
    assert contents(tmp_path / "out") == contents(tmp_path / "expected")


def complete(store: Path):
    """Return when each file of a store was written; files whose names begin with a dot are incomplete."""
    return {path.name: path.stat().st_mtime_ns for path in store.glob("[!.]*")}
