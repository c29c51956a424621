"""Runs: threads, seeds, recorded iterations, traces, interruption and divergence."""

import os
import pickle
import signal
import subprocess
import sys
import textwrap
import time
from typing import NamedTuple

import numpy as np
import pytest

import clipsilon as cs
import reference
import registry
from clipsilon.engine.runner import recorded_iterations
from clipsilon.rules.rule import Rule
from clipsilon.rules.sampling import draw

PROBLEM = reference.problem(cs.losses.Logistic(0.1, 2.0), cs.responses.BestResponse(0.3, 0.2))
RULES = registry.rules()


def test_results_do_not_depend_on_the_number_of_threads():
    runs = [cs.run(PROBLEM, RULES["DiceSGD"], 500, replicates=5, seed=1, n_jobs=n) for n in (1, 2, 4)]
    for other in runs[1:]:
        np.testing.assert_array_equal(runs[0].theta, other.theta)
        np.testing.assert_array_equal(runs[0].error, other.error)


def test_replicates_differ_and_the_first_ones_stay_when_more_are_asked_for():
    few = cs.run(PROBLEM, RULES["PCSGD"], 100, replicates=2, seed=1)
    many = cs.run(PROBLEM, RULES["PCSGD"], 100, replicates=4, seed=1)
    np.testing.assert_array_equal(few.theta, many.theta[:2])
    assert np.unique(many.output[:, 0]).size == 4


def test_the_same_seed_draws_the_same_records_for_different_rules():
    """Without the effects of clipping, noise and feedback, all rules must follow the same path."""
    step = cs.schedules.InverseTime(2, 30)
    plain = cs.run(PROBLEM, cs.SGD(step), 200, seed=4)
    loose = cs.run(PROBLEM, cs.PCSGD(step, clip=1e9, noise_std=0.0), 200, seed=4)
    feedback = cs.run(PROBLEM, cs.DiceSGD(step, clip=1e9, error_clip=1e9, noise_std=0.0), 200, seed=4)
    np.testing.assert_allclose(loose.theta, plain.theta, rtol=1e-12)
    np.testing.assert_allclose(feedback.theta, plain.theta, rtol=1e-12)
    noisy = cs.run(PROBLEM, cs.PCSGD(step, clip=1e9, noise_std=1e-7), 200, seed=4)
    np.testing.assert_allclose(noisy.theta, plain.theta, atol=1e-5)


def test_without_a_seed_every_run_is_different():
    runs = [cs.run(PROBLEM, RULES["PCSGD"], 50, replicates=3) for _ in range(2)]
    assert np.unique(np.concatenate([trace.output[:, 0] for trace in runs])).size == 6
    assert runs[0].seed is None


def test_unseeded_noise_is_gaussian_with_the_stated_deviation():
    """The noise cannot be seeded; the Kolmogorov–Smirnov test raises a false alarm with probability below 10⁻⁶."""
    from scipy import stats

    problem = cs.Problem(np.zeros(3), loss=cs.losses.Quadratic())
    rule = cs.SGD(cs.schedules.Constant(1.0), noise_std=0.7)
    # θ_{t+1} = θ_t − (θ_t + ζ) = −ζ: every iterate is new noise.
    trace = cs.run(problem, rule, 20_000, record=range(1, 20_001))
    assert stats.kstest(trace.theta[0, :, 0], "norm", args=(0, 0.7)).pvalue > 1e-7


def test_recorded_iterations():
    iterations = recorded_iterations(50, 10**6)
    assert iterations[0] == 0
    assert iterations[-1] == 10**6
    assert 40 < iterations.size <= 51
    assert (np.diff(iterations) > 0).all()
    np.testing.assert_array_equal(recorded_iterations([5, 0, 5], 7), [0, 5])
    full = cs.run(PROBLEM, RULES["DiceSGD"], 300, seed=2, record=range(301))
    some = cs.run(PROBLEM, RULES["DiceSGD"], 300, seed=2, record=[0, 17, 300])
    np.testing.assert_array_equal(some.theta, full.theta[:, [0, 17, 300]])


def test_trace_shapes_gap_and_norm():
    trace = cs.run(PROBLEM, RULES["DiceSGD"], 100, start=[1, 2, 3, 4], replicates=3, seed=0)
    kept = trace.iterations.size
    assert repr(trace) == f"Trace(DiceSGD: 3 replicates × {kept} recorded iterations × 4, 100 steps)"
    assert trace.theta.shape == trace.error.shape == (3, kept, 4)
    np.testing.assert_array_equal(trace.theta[:, 0], np.tile([1.0, 2, 3, 4], (3, 1)))
    np.testing.assert_array_equal(trace.output, trace.theta[:, -1])
    np.testing.assert_allclose(trace.gap([1, 2, 3, 4])[:, 0], 0)
    np.testing.assert_allclose(trace.gap(0.0), (trace.theta**2).sum(axis=2))
    np.testing.assert_allclose(trace.error_norm() ** 2, (trace.error**2).sum(axis=2))
    assert cs.run(PROBLEM, RULES["PCSGD"], 10, seed=0).error is None


def test_traces_survive_the_disk(tmp_path):
    for preset in ("DiceSGD", "PCSGD"):
        trace = cs.run(PROBLEM, RULES[preset], 100, replicates=2, seed=0)
        trace.save(tmp_path / "trace.npz")
        again = cs.Trace.load(tmp_path / "trace.npz")
        for name, value in trace.__dict__.items():
            np.testing.assert_equal(getattr(again, name), value)
    (tmp_path / "broken.npz").write_bytes((tmp_path / "trace.npz").read_bytes()[:-200])
    with pytest.raises(ValueError, match="is not a trace"):
        cs.Trace.load(tmp_path / "broken.npz")
    with pytest.raises(FileNotFoundError):
        cs.Trace.load(tmp_path / "missing.npz")


def test_frame():
    trace = cs.run(PROBLEM, RULES["DiceSGD"], 100, replicates=2, seed=0)
    frame = trace.to_frame()
    assert list(frame.columns[:3]) == ["replicate", "iteration", "theta_0"]
    row = frame[(frame.replicate == 1) & (frame.iteration == 100)]
    assert row.error_3.item() == trace.error[1, -1, 3]


def test_divergence_is_one_sentence_and_keeps_what_was_recorded():
    problem = cs.Problem(np.ones(4), loss=cs.losses.Quadratic())
    with pytest.raises(
        cs.DivergenceError, match=r"SGD diverged: θ is not finite after step \d+ of replicate 0"
    ) as caught:
        cs.run(problem, cs.SGD(cs.schedules.Constant(50.0)), 10_000, start=1.0, seed=0)
    trace = caught.value.trace
    assert 100 < trace.steps_done[0] < 10_000
    reached = trace.iterations < trace.steps_done[0]
    assert np.isfinite(trace.theta[0, reached]).all()
    assert np.isnan(trace.theta[0, trace.iterations > trace.steps_done[0]]).all()


def test_a_box_does_not_hide_divergence():
    problem = cs.Problem(
        np.full(4, 1e200), loss=cs.losses.Quadratic(1e200), response=cs.responses.LocationShift(0.1),
        region=cs.regions.Box(-1, 1),
    )  # fmt: skip
    with pytest.raises(cs.DivergenceError):
        cs.run(problem, cs.SGD(registry.STEP), 10, start=1.0, seed=0)


def test_problems_survive_pickling():
    again = pickle.loads(pickle.dumps(PROBLEM))
    first, second = (cs.run(problem, RULES["PCSGD"], 20, seed=0) for problem in (PROBLEM, again))
    np.testing.assert_array_equal(first.theta, second.theta)


class TakesTwo(NamedTuple):
    """A user-defined sampler without optional attributes, which always draws the first two records."""

    batch: int = 2


@cs.implements(draw, TakesTwo)
def _(sampling, t, m, order, rng, drawn):
    drawn[0], drawn[1] = order[0], order[1]
    return 2


def test_a_users_sampler_gets_all_it_may_need():
    rule = Rule("mine", cs.schedules.Constant(0.1), cs.clipping.Norm(1.0), TakesTwo())
    assert np.isfinite(cs.run(PROBLEM, rule, 20, seed=0).theta).all()


def test_progress_can_be_forced_and_silenced(capsys):
    cs.run(PROBLEM, RULES["PCSGD"], 100, seed=0, progress=True)
    assert "PCSGD" in capsys.readouterr().err
    cs.run(PROBLEM, RULES["PCSGD"], 100, seed=0, progress=False)
    cs.run(PROBLEM, RULES["PCSGD"], 100, seed=0)  # not a terminal
    assert capsys.readouterr().err == ""


INTERRUPTED = textwrap.dedent("""
    import sys, time
    import numpy as np
    import clipsilon as cs
    problem = cs.Problem(np.ones(10), loss=cs.losses.Quadratic())
    rule = cs.SGD(cs.schedules.InverseTime(1, 10), noise_std=0.1)
    cs.run(problem, rule, 10, seed=0)
    checkpoint = sys.argv[1] or None
    print("ready", flush=True)
    try:
        cs.run(problem, rule, 10**12, replicates=3, seed=0, checkpoint=checkpoint)
    except KeyboardInterrupt as stop:
        trace = stop.trace
        assert isinstance(stop, cs.Interrupted)
        assert trace.steps_done.max() > 1000, trace.steps_done
        for done, theta in zip(trace.steps_done, trace.theta, strict=True):
            assert done == 0 or np.isfinite(theta[trace.iterations <= done]).all()
        assert np.isnan(trace.theta[:, -1]).all()
        print("kept", trace.steps_done.max(), flush=True)
""")


@pytest.mark.parametrize("with_checkpoint", [False, True])
def test_ctrl_c_stops_and_keeps_what_was_recorded(tmp_path, with_checkpoint):
    path = str(tmp_path / "run.checkpoint") if with_checkpoint else ""
    process = subprocess.Popen([sys.executable, "-c", INTERRUPTED, path], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.7)
        process.send_signal(signal.SIGINT)
        # A run of 10¹² steps would take a day, so ending within the timeout proves that it was interrupted.
        out, _ = process.communicate(timeout=60)
    finally:
        process.kill()  # does nothing if it has ended
    assert process.returncode == 0
    assert out.startswith("kept")
    assert (tmp_path / "run.checkpoint").exists() == with_checkpoint


def test_memory_does_not_grow_with_steps():
    import psutil

    process = psutil.Process(os.getpid())
    rule = cs.SGD(cs.schedules.InverseTime(1, 10), noise_std=0.1)
    cs.run(PROBLEM, rule, 10**5, seed=0)
    before = process.memory_info().rss
    cs.run(PROBLEM, rule, 10**7, seed=0)
    assert process.memory_info().rss - before < 5e6  # one number per step would take 80 MB
