"""A plan is executed phase by phase; no kernel is compiled for these tests."""

import numpy as np
import pytest

import clipsilon as cs
from clipsilon.estimators import rescaling
from clipsilon.estimators.plans import TrainingPhase, TrainingPlan
from clipsilon.estimators.training import derive_seed, execute

MAIN = TrainingPhase(rule=cs.DPSGD(cs.schedules.Constant(1.0), 0.1, 0.01, batch=10), steps=90)
LAST = TrainingPhase(rule=cs.DPSGD(cs.schedules.Constant(4.0), 1.5, 0.15, batch=10), steps=10, rescales=True)
THETA = np.array([3.0, -4.0, 1.0])


class Recorder:
    """A runner that returns the outputs it was given, and records its calls."""

    def __init__(self, *outputs):
        self.outputs = [np.array(output) for output in outputs]
        self.calls = []
        self.regions = []

    def run(self, rule, steps, seed, start, *, directions=None, region=None):
        self.calls.append((rule, steps, seed, np.array(start), directions))
        self.regions.append(region)
        return self.outputs[len(self.calls) - 1]


def test_one_phase_is_one_run():
    runner = Recorder(THETA)
    theta = execute(TrainingPlan(phases=(MAIN,), has_intercept=True), runner, seed=7, start=0.5)
    np.testing.assert_array_equal(theta, THETA)
    assert runner.calls == [(MAIN.rule, 90, 7, np.array(0.5), None)]


@pytest.mark.parametrize("seed", [7, None])
def test_the_second_phase_has_its_own_seed_and_the_directions_of_the_first(seed):
    runner = Recorder(THETA, [2.0, 0.1])
    theta = execute(TrainingPlan(phases=(MAIN, LAST), has_intercept=True), runner, seed=seed, start=0.0)
    np.testing.assert_allclose(theta, [1.2, -1.6, 0.1], rtol=1e-12)
    rule, steps, second, start, directions = runner.calls[1]
    assert (rule, steps, second) == (LAST.rule, 10, derive_seed(seed, 90))
    assert (second is None) == (seed is None)
    assert second != 7
    np.testing.assert_allclose(start, [2.0, 0.4], rtol=1e-12)
    np.testing.assert_array_equal(directions, rescaling.directions(THETA, True))


def test_without_an_intercept_the_second_phase_starts_from_the_length_before():
    runner = Recorder(THETA, [2.0])
    theta = execute(TrainingPlan(phases=(MAIN, LAST)), runner, seed=7, start=np.array([0.0, 0.0, 6.0]))
    np.testing.assert_allclose(theta, 2.0 * THETA / np.linalg.norm(THETA), rtol=1e-12)
    assert runner.calls[1][3] == [6.0]


def test_an_intercept_is_capped():
    runner = Recorder(THETA, [2.0, 3.0])
    theta = execute(TrainingPlan(phases=(MAIN, LAST), has_intercept=True), runner, seed=7, start=0.0)
    np.testing.assert_allclose(theta / np.linalg.norm(theta), THETA / np.linalg.norm(THETA), rtol=1e-12)


def test_slopes_of_zero_have_no_direction():
    runner = Recorder([0.0, 0.0, 1.0])
    theta = execute(TrainingPlan(phases=(MAIN, LAST), has_intercept=True), runner, seed=7, start=0.0)
    np.testing.assert_array_equal(theta, [0.0, 0.0, 1.0])
    assert len(runner.calls) == 1


def test_a_length_is_kept_unless_it_was_zero():
    plan = TrainingPlan(phases=(MAIN,), has_intercept=True, keeps_length=True)
    theta = execute(plan, Recorder(THETA), seed=7, start=np.array([0.0, 10.0, -2.0]))
    np.testing.assert_allclose(theta, [6.0, -8.0, -2.0], rtol=1e-12)
    np.testing.assert_array_equal(execute(plan, Recorder(THETA), seed=7, start=0.0), THETA)


@pytest.mark.parametrize(("length", "size"), [(5.0, 12.0), (20.0, 12.0), (30.0, 25.0), (60.0, 100.0)])
def test_a_third_phase_stays_in_a_ball(length, size):
    """θ after the first phase is scaled into the ball; the numbers found before are those of the result."""
    long = THETA * length / 5
    runner = Recorder(long, [2.0, 0.1], [0.0, 4.0, 3.0])
    theta = execute(TrainingPlan(phases=(MAIN, LAST, MAIN), has_intercept=True), runner, seed=7, start=0.0)
    np.testing.assert_allclose(theta, [0.0, 2.0, 0.1], rtol=1e-12)
    assert runner.regions[:2] == [None, None]
    (found,) = runner.regions[2]
    np.testing.assert_allclose(found, np.hypot(size, long[2]), rtol=1e-12)  # the intercept has room
    rule, steps, seed, start, directions = runner.calls[2]
    assert (rule, steps, seed, directions) == (MAIN.rule, 90, derive_seed(7, 100), None)
    np.testing.assert_allclose(start, THETA * min(length, found * length / np.linalg.norm(long)) / 5, rtol=1e-12)


def test_without_an_intercept_the_ball_has_the_length_of_the_slopes():
    runner = Recorder(4 * THETA, [20.0], THETA)
    theta = execute(TrainingPlan(phases=(MAIN, LAST, MAIN)), runner, seed=7, start=0.0)
    assert runner.regions[2] == cs.regions.Ball(12.0)
    np.testing.assert_allclose(theta, 20.0 * THETA / np.linalg.norm(THETA), rtol=1e-12)
