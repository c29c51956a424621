"""The gap that theory expects of a stream, for those who may see its records."""

import numpy as np
import pytest

import clipsilon as cs
import crowds
from clipsilon.live import Stream
from clipsilon.theory.correlated_forecast import correlated_forecast
from clipsilon.theory.forecast import elapsed, mean_path

X, Y = crowds.population()


def test_it_is_the_forecast_of_the_rule_on_what_was_sent(tmp_path):
    with Stream(tmp_path / "run.db", **crowds.settings()) as stream:
        crowds.feed(stream, X, Y, 0, 250)
        found = stream.expected_gap()
        rule = stream.rule
        problem = cs.Problem(X[:250], Y[:250], loss=cs.losses.Logistic())
        path = mean_path(problem, rule.clip.threshold, np.zeros(5), elapsed(rule.step, 41))
        target = cs.stable_point(problem).theta
        assert found == correlated_forecast(path, target, rule.step, 41, rule.noise, 10, problem, records=403)
        assert found.bias > 0.0
        assert found.gap == pytest.approx(found.bias + found.scatter + found.noise)
        crowds.feed(stream, X, Y, 250, 260)
        assert stream.expected_gap() is found  # 4 % more records
        crowds.feed(stream, X, Y, 260, 300)
        assert stream.expected_gap() != found


def test_a_pass_over_a_larger_population_scatters_in_all_its_batches(tmp_path):
    """Of the people in a forecast's sample, each stands for several: their order does not cancel over passes."""
    problem = cs.Problem(X, Y, loss=cs.losses.Logistic())
    with Stream(tmp_path / "run.db", **crowds.settings()) as stream:
        rule = stream.rule
    path = mean_path(problem, rule.clip.threshold, np.zeros(5), elapsed(rule.step, 40))
    about = (path, np.zeros(5), rule.step, 40, rule.noise, 10, problem)
    once, again = (correlated_forecast(*about, records=records).scatter for records in (400, 40))
    assert again < 0.5 * once  # in ten passes over four batches, most of what their order does cancels


@pytest.mark.parametrize("case", [{"step": cs.schedules.Power(0.5, 0.5)}, {"epsilon": 1.0}], ids=["steps", "few"])
def test_without_a_forecast_nothing_is_made_up(tmp_path, case):
    with Stream(tmp_path / "run.db", **crowds.settings(**case)) as stream:
        assert stream.expected_gap() is None
        crowds.feed(stream, X, Y, 0, 300 if "step" in case else 150)
        assert stream.expected_gap() is None


def test_records_without_a_best_model_have_no_forecast(tmp_path):
    """All labels are 1, so the loss falls without end."""
    with Stream(tmp_path / "run.db", **crowds.settings(intercept=True)) as stream:
        crowds.feed(stream, X, np.ones_like(Y), 0, 250)
        assert stream.expected_gap() is None


@pytest.mark.verify
def test_it_is_near_the_gap_of_runs(tmp_path):
    """After half of the records, within a third of the mean of 40 runs, each with another order of the people.

    Their standard error is a tenth. (Seeds are fixed; without reaction, which the forecast does not know.)
    """
    x, y = crowds.population(4000, seed=3)
    about = crowds.settings(horizon=4000, seed=5)
    with Stream(tmp_path / "run.db", **about) as stream:
        crowds.feed(stream, x, y, 0, 2000, size=500)
        expected, rule = stream.expected_gap().gap, stream.rule
    problem = cs.Problem(x, y, loss=cs.losses.Logistic())
    target, ends = cs.stable_point(problem).theta, []
    for seed in range(40):
        order = np.random.default_rng(seed).permutation(4000)
        shuffled = cs.Problem(x[order], y[order], loss=cs.losses.Logistic())
        ends.append(cs.run(shuffled, rule, 400, seed=seed, n_jobs=1).output[0])
    gap = np.mean(np.sum((np.array(ends) - target) ** 2, axis=1))
    print(f"expected {expected:.4f}, runs {gap:.4f}")
    assert 2 / 3 < expected / gap < 4 / 3
