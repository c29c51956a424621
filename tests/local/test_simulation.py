"""Simulated crowds against runs of the engine and plain NumPy, and what their failings do."""

import dataclasses
import signal
import threading

import numpy as np
import pytest

import clipsilon as cs
from clipsilon.engine.crowd import LIES, REFUSED, VANISHED, Conduct
from clipsilon.engine.streams import spawn
from clipsilon.local import Averaging, Crowd, simulate
from clipsilon.local.report import gradient_of, prepare
from clipsilon.local.simulation import default_step, parse_budgets

SMALL = Crowd(640, dimension=3, budgets="choice:0.5,4")
STEP = cs.schedules.Power(0.3, 0.5)


def collected(crowd, seed):
    """All records, budgets and conducts of the first replicate of a crowd of 64 blocks of equal size."""
    rng = spawn(seed, 1)[0].records
    blocks = [crowd.block(crowd.devices // 64, rng) for _ in range(64)]
    problem = cs.Problem(
        np.vstack([problem.features for problem, _, _ in blocks]),
        np.concatenate([problem.labels for problem, _, _ in blocks]),
        loss=crowd.loss,
    )
    conduct = Conduct(*(np.concatenate([each[k] for _, _, each in blocks]) for k in range(2)))
    return problem, np.concatenate([mus for _, mus, _ in blocks]), conduct


@pytest.mark.parametrize("how", [Averaging(1), Averaging(7), Averaging(100, weights="equal")], ids=str)
def test_a_prompt_and_honest_crowd_is_a_run_of_the_engine(how):
    problem, budgets, _ = collected(SMALL, seed=5)
    rule = cs.LDPASGD(STEP, budgets, batch=how.batch, weights=how.weights)
    rule = dataclasses.replace(rule, sampling=cs.sampling.InOrder(how.batch))
    steps = problem.records // how.batch  # a round that is not full does not count
    trace = cs.run(problem, rule, steps, start=SMALL.start, seed=5)
    found = simulate(SMALL, how, STEP, replicates=2, seed=5)
    assert found.last[0, -1] == np.sum((trace.theta[0, -1] - SMALL.truth) ** 2)
    assert found.average[0, -1] == np.sum((trace.output[0] - SMALL.truth) ** 2)
    assert found.rounds[0, -1] == steps
    assert found.devices[-1] == SMALL.devices
    assert found.counts == {"reports": 1280, "vanished": 0, "refused": 0, "lies": 0}


def test_late_vanished_and_lying_devices_and_trimming():
    """Round by round in NumPy, with the noise found by a run with the same generator in which all gradients vanish."""
    crowd = dataclasses.replace(SMALL, dropout=0.2, delay=2.0, liars=0.05)
    how, (problem, budgets, conduct) = Averaging(10, trim=0.2, staleness=3), collected(crowd, seed=1)
    theta, past, reports, weights, counts = crowd.start, [crowd.start], [], [], np.zeros(4, dtype=int)
    sensitivity, noise = crowd.loss.sensitivity(), spawn(1, 1)[0].noise
    for i in range(crowd.devices):
        age = min(conduct.delays[i], len(past) - 1)
        if age < 0 or age > how.staleness:
            counts[VANISHED if age < 0 else REFUSED] += 1
            continue
        one = prepare((problem.features[i], problem.labels[i]), crowd.loss)
        std = sensitivity / budgets[i]
        honest = gradient_of(one, past[-1 - age]) + std * (cs.engine.exact_noise.draw(noise, theta.size) + 0.5) / 2**32
        is_lie = np.isfinite(conduct.lies[i])
        counts[LIES] += is_lie
        reports.append(np.full(theta.size, conduct.lies[i]) if is_lie else honest)
        weights.append(1 / (sensitivity**2 / 4 + theta.size * std**2))
        if len(reports) == how.batch:
            theta = theta - STEP.eta / len(past) ** STEP.alpha * trimmed(np.array(reports), np.array(weights), 2)
            past.append(theta)
            reports, weights = [], []
    found = simulate(crowd, how, STEP, replicates=1, seed=1)
    assert found.last[0, -1] == pytest.approx(np.sum((theta - crowd.truth) ** 2), rel=1e-6)
    lost = counts[VANISHED] + counts[REFUSED]
    assert min(counts[1:]) > 10
    assert list(found.counts.values()) == [crowd.devices - lost, *counts[1:]]


def trimmed(reports, weights, beyond):
    kept = np.argsort(reports, axis=0)[beyond:-beyond]
    return (np.take_along_axis(reports, kept, 0) * weights[kept]).sum(0) / weights[kept].sum(0)


def test_a_simulation_does_not_depend_on_threads():
    runs = [simulate(SMALL, Averaging(8), replicates=3, seed=2, n_jobs=jobs) for jobs in (1, 3)]
    np.testing.assert_array_equal(runs[0].last, runs[1].last)
    assert len(set(runs[0].last[:, -1])) == 3
    np.testing.assert_array_equal(simulate(SMALL, Averaging(8), replicates=1, seed=2).last, runs[0].last[:1])


def test_ctrl_c_ends_all_replicates_with_their_block(monkeypatch):
    stop, both = threading.Event(), threading.Barrier(2)
    blocks = []

    def interrupted(*arguments):
        blocks.append(arguments)
        if both.wait(timeout=60) == 0:
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        stop.wait(timeout=60)
        return True

    monkeypatch.setattr("clipsilon.local.simulation.Event", lambda: stop)
    monkeypatch.setattr("clipsilon.local.simulation.take_block", interrupted)
    with pytest.raises(KeyboardInterrupt):
        simulate(SMALL, Averaging(8), replicates=2, seed=0, n_jobs=2)
    assert len(blocks) == 2


def test_a_model_that_is_not_finite_is_refused():
    with pytest.raises(FloatingPointError, match="θ is no longer finite after .* rounds: take smaller steps"):
        simulate(SMALL, Averaging(1), cs.schedules.Constant(1e308), replicates=1, seed=0)


def test_laws_of_budgets():
    rng = np.random.default_rng(0)
    for text, low, high in (("constant:2", 2, 2), ("uniform:0.5,2", 0.5, 2), ("loguniform:0.1,10", 0.1, 10)):
        drawn = parse_budgets(text).draw(1000, rng)
        assert low <= drawn.min() <= drawn.max() <= high
    assert set(parse_budgets("choice:0.1,1,10").draw(100, rng)) == {0.1, 1.0, 10.0}
    assert np.median(parse_budgets("loguniform:0.1,10").draw(4000, rng)) == pytest.approx(1.0, rel=0.3)
    assert str(parse_budgets("uniform:0.5,2").times(4)) == "uniform:2,8"


@pytest.mark.parametrize("text", ["", "normal:1,2", "uniform:1", "constant:0", "choice:", "uniform:a,b", "choice:-1,2"])
def test_other_laws_are_refused(text):
    with pytest.raises(ValueError, match="budgets must be constant:NUMBER, uniform:LOW,HIGH"):
        Crowd(10, budgets=text)


def test_arguments_are_checked():
    for name, value in {"devices": 0, "dimension": 0, "dropout": 1.0, "delay": -1.0, "liars": 2.0}.items():
        with pytest.raises(ValueError, match=f"{name} must be"):
            Crowd(**{"devices": 10, name: value})
    for name, value in {"batch": 0, "trim": 0.5, "staleness": -1}.items():
        with pytest.raises(ValueError, match=f"{name} must be"):
            Averaging(**{name: value})
    assert default_step(1).eta == 0.1
    assert default_step(10**6).eta == 2.0
