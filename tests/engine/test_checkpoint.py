"""Checkpoints: resumed runs end as if they had never stopped; other files are refused and left unchanged."""

import signal
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest

import clipsilon as cs
import reference
import registry
from clipsilon.engine import checkpoint as checkpoints
from clipsilon.engine import replicate, runner

PROBLEM = reference.problem(cs.losses.Logistic(0.1, 2.0), cs.responses.BestResponse(0.3, 0.2))
SETTINGS = {"steps": 3000, "replicates": 3, "seed": 5, "record": 30}


class StoppedError(Exception):
    pass


def run_in_pieces(monkeypatch, rule, path, pieces=3, problem=PROBLEM, **settings):
    """Stop the run after every few chunks with an exception, like a crash, then run it to the end."""
    monkeypatch.setattr(runner, "CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr(runner, "CHUNK_SECONDS", 0.0)
    for _ in range(pieces):
        with monkeypatch.context() as patch:
            stop_early(patch, chunk=settings["steps"] // 20)
            with pytest.raises(StoppedError):
                cs.run(problem, rule, checkpoint=path, **settings)
    return cs.run(problem, rule, checkpoint=path, **settings)


def stop_early(patch, chunk):
    """Make a run fail after it has been saved; until then its threads wait after five chunks, on any machine."""
    shown, chunks, allowed = 0, [], threading.Semaphore(5)

    def stop(self, done):
        nonlocal shown
        shown += len(chunks) > 5
        if shown > 1:  # it was saved between the two
            allowed.release(1000)  # so that no thread waits when the run ends
            raise StoppedError

    def wait(self, steps, seconds):
        self.chunk = chunk
        chunks.append(steps)
        allowed.acquire()

    patch.setattr("clipsilon.engine.progress.Progress.show", stop)
    patch.setattr(replicate.Pace, "learn", wait)


@pytest.mark.parametrize(
    ("preset", "sampling"),
    [
        ("DiceSGD", "epochs"),
        ("AdamDiceSGD", "uniform"),
        pytest.param("DiceSGD", "uniform", marks=pytest.mark.verify),
        pytest.param("AdamDiceSGD", "epochs", marks=pytest.mark.verify),
    ],
)
def test_resumed_runs_are_bit_identical(monkeypatch, tmp_path, preset, sampling):
    rule = registry.rules(sampling=sampling, deploy_every=3)[preset]
    settings = {**SETTINGS, "steps": 200_000}
    whole = cs.run(PROBLEM, rule, **settings)
    pieces = run_in_pieces(monkeypatch, rule, tmp_path / "run", **settings)
    for name in ("theta", "error", "output", "steps_done"):
        np.testing.assert_array_equal(getattr(pieces, name), getattr(whole, name))


def test_a_resumed_run_with_memories_is_bit_identical(monkeypatch, tmp_path):
    rule = cs.TrackedSGD(registry.STEP, 0.1, 0.05, batch=5, deploy_every=3)
    settings = {**SETTINGS, "steps": 100_000}
    whole = cs.run(PROBLEM, rule, **settings)
    pieces = run_in_pieces(monkeypatch, rule, tmp_path / "run", **settings)
    np.testing.assert_array_equal(pieces.theta, whole.theta)
    assert np.unique(whole.theta[:, -1, 0]).size == 3  # each replicate has a memory of its own


def test_a_resumed_run_of_people_who_react_slowly_is_bit_identical(monkeypatch, tmp_path):
    """What people react to is a mean of past models, which is stored beside the model."""
    slow = cs.responses.Slow(cs.responses.LocationShift(0.3), 0.01)
    problem, rule = reference.problem(cs.losses.Logistic(0.1), slow), registry.rules()["PCSGD"]
    settings = {**SETTINGS, "steps": 20_000}
    whole = cs.run(problem, rule, **settings)
    pieces = run_in_pieces(monkeypatch, rule, tmp_path / "run", problem=problem, **settings)
    np.testing.assert_array_equal(pieces.theta, whole.theta)


def test_a_resumed_selection_is_bit_identical(monkeypatch, tmp_path):
    """The smallest noisy norm so far is stored beside the model."""
    rule = cs.NoisySelection(registry.STEP, 2.0, 0.2, selection_epsilon=5.0)
    settings = {**SETTINGS, "steps": 50_000}
    whole = cs.run(PROBLEM, rule, **settings)
    pieces = run_in_pieces(monkeypatch, rule, tmp_path / "run", **settings)
    np.testing.assert_array_equal(pieces.theta, whole.theta)
    np.testing.assert_array_equal(pieces.output, whole.output)


def test_a_finished_run_is_not_run_again(tmp_path, monkeypatch):
    first = cs.run(PROBLEM, registry.rules()["PCSGD"], checkpoint=tmp_path / "run", **SETTINGS)
    monkeypatch.setattr(replicate, "advance", None)  # any step would fail
    again = cs.run(PROBLEM, registry.rules()["PCSGD"], checkpoint=tmp_path / "run", **SETTINGS)
    np.testing.assert_array_equal(first.theta, again.theta)


def test_without_a_seed_the_noise_goes_on_where_it_was(tmp_path, monkeypatch):
    settings = {**SETTINGS, "steps": 200_000, "seed": None}
    trace = run_in_pieces(monkeypatch, registry.rules()["PCSGD"], tmp_path / "run", **settings)
    assert (trace.steps_done == 200_000).all()
    assert np.unique(trace.output[:, 0]).size == 3


def test_the_file_is_the_owners_alone(tmp_path):
    cs.run(PROBLEM, registry.rules()["PCSGD"], checkpoint=tmp_path / "run", **SETTINGS)
    assert (tmp_path / "run").stat().st_mode & 0o077 == 0
    assert [path.name for path in tmp_path.iterdir()] == ["run"]  # no temporary file is left behind


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"steps": 3001}, "steps"),
        ({"seed": 6}, "seed"),
        ({"replicates": 2}, "replicates"),
        ({"start": 1.0}, "start"),
        ({"record": [0, 3000]}, "record"),
    ],
)
def test_another_runs_checkpoint_is_refused(tmp_path, change, named):
    path = tmp_path / "run"
    cs.run(PROBLEM, registry.rules()["PCSGD"], checkpoint=path, **SETTINGS)
    before = path.read_bytes()
    with pytest.raises(cs.CheckpointError, match=rf"another run \({named}.*left untouched"):
        cs.run(PROBLEM, registry.rules()["PCSGD"], checkpoint=path, **{**SETTINGS, **change})
    assert path.read_bytes() == before


def test_another_problem_or_rule_is_refused(tmp_path):
    path = tmp_path / "run"
    cs.run(PROBLEM, registry.rules()["PCSGD"], checkpoint=path, **SETTINGS)
    others = {
        "rule": (PROBLEM, registry.rules(noise_std=0.3)["PCSGD"]),
        "data": (PROBLEM.on(PROBLEM.features[::-1], PROBLEM.labels[::-1]), registry.rules()["PCSGD"]),
        "loss": (reference.problem(cs.losses.Logistic(0.2, 2.0), PROBLEM.response), registry.rules()["PCSGD"]),
    }
    for named, (problem, rule) in others.items():
        with pytest.raises(cs.CheckpointError, match=rf"another run \({named}\)"):
            cs.run(problem, rule, checkpoint=path, **SETTINGS)


@pytest.mark.parametrize(
    "damage", [lambda b: b[:-300], lambda b: b"", lambda b: b"hello", lambda b: b[:400] + b"x" + b[401:]]
)
def test_a_damaged_file_is_refused_and_left_untouched(tmp_path, damage):
    path = tmp_path / "run"
    cs.run(PROBLEM, registry.rules()["PCSGD"], checkpoint=path, **SETTINGS)
    broken = damage(path.read_bytes())
    path.write_bytes(broken)
    with pytest.raises(cs.CheckpointError, match="damaged or not a clipsilon checkpoint; it was left untouched"):
        cs.run(PROBLEM, registry.rules()["PCSGD"], checkpoint=path, **SETTINGS)
    assert path.read_bytes() == broken


@pytest.mark.parametrize("spoil", ["missing", "shape", "type"])
def test_a_file_with_the_wrong_content_is_refused(tmp_path, spoil):
    path = tmp_path / "run"
    cs.run(PROBLEM, registry.rules()["PCSGD"], checkpoint=path, **SETTINGS)
    with path.open("rb") as handle, np.load(handle) as file:
        arrays = dict(file)
    if spoil == "missing":
        del arrays["1.theta"]
    else:
        arrays["1.theta"] = np.zeros(3) if spoil == "shape" else np.zeros(4, dtype=np.float32)
    with path.open("wb") as handle:
        np.savez(handle, **arrays)
    with pytest.raises(cs.CheckpointError, match="damaged or not a clipsilon checkpoint"):
        cs.run(PROBLEM, registry.rules()["PCSGD"], checkpoint=path, **SETTINGS)


def test_rules_that_look_alike_are_told_apart(tmp_path):
    """1.0, 23.0 and 1.02, 3.0 have the same digits."""
    cs.run(PROBLEM, cs.SGD(cs.schedules.InverseTime(1.0, 23.0)), checkpoint=tmp_path / "run", **SETTINGS)
    with pytest.raises(cs.CheckpointError, match=r"another run \(rule\)"):
        cs.run(PROBLEM, cs.SGD(cs.schedules.InverseTime(1.02, 3.0)), checkpoint=tmp_path / "run", **SETTINGS)


def test_a_folder_that_vanishes_costs_the_checkpoint_and_not_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "CHECKPOINT_SECONDS", 0.0)
    folder = tmp_path / "folder"
    folder.mkdir()
    real = checkpoints.save

    def vanish(path, *rest):
        real(path, *rest)
        path.unlink()
        folder.rmdir()

    monkeypatch.setattr(checkpoints, "save", vanish)
    with pytest.warns(UserWarning, match="checkpoint could not be written .* the run continues"):
        trace = cs.run(PROBLEM, registry.rules()["PCSGD"], checkpoint=folder / "run", **SETTINGS)
    assert (trace.steps_done == SETTINGS["steps"]).all()


def test_a_numpy_seed_is_a_seed(tmp_path):
    settings = {**SETTINGS, "seed": np.int64(5)}
    trace = cs.run(PROBLEM, registry.rules()["PCSGD"], checkpoint=tmp_path / "run", **settings)
    trace.save(tmp_path / "trace")
    assert cs.Trace.load(tmp_path / "trace").seed == 5


def test_a_trace_is_not_a_checkpoint(tmp_path):
    cs.run(PROBLEM, registry.rules()["PCSGD"], **SETTINGS).save(tmp_path / "trace")
    with pytest.raises(cs.CheckpointError, match="not a clipsilon checkpoint"):
        cs.run(PROBLEM, registry.rules()["PCSGD"], checkpoint=tmp_path / "trace", **SETTINGS)


KILLED = textwrap.dedent("""
    import sys
    import numpy as np
    import clipsilon as cs
    from clipsilon.engine import runner
    runner.CHECKPOINT_SECONDS = 0.1
    problem = cs.Problem(np.linspace(-1, 1, 50), loss=cs.losses.Quadratic())
    rule = cs.DiceSGD(cs.schedules.InverseTime(1, 10), clip=0.5, error_clip=0.5, noise_std=0.1)
    trace = cs.run(problem, rule, 10_000_000, replicates=2, seed=0, checkpoint=sys.argv[1] or None)
    trace.save(sys.argv[2])
""")


def test_a_killed_run_resumes_bit_identical(tmp_path):
    def start(checkpoint, name):
        return subprocess.Popen([sys.executable, "-c", KILLED, checkpoint, str(tmp_path / name)])

    path = tmp_path / "run"
    process = start(str(path), "pieces")
    while not path.exists() and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, "the run ended before it could be killed"
    for checkpoint, name in ((str(path), "pieces"), ("", "whole")):
        assert start(checkpoint, name).wait() == 0
    pieces, whole = (cs.Trace.load(tmp_path / name) for name in ("pieces", "whole"))
    np.testing.assert_array_equal(pieces.theta, whole.theta)
    np.testing.assert_array_equal(pieces.error, whole.error)
