"""The search by runs that tuning and the frontier share."""

import numpy as np
import pytest

import clipsilon as cs
from clipsilon.theory.tuning.descent import descend, released_models

MOVES = [
    lambda at: (at[0] + 1, at[1]) if at[0] < 9 else None,
    lambda at: (at[0] - 1, at[1]),
    lambda at: (at[0], at[1] + 1),
    lambda at: (at[0], at[1] - 1),
]


def distance(at):
    return (at[0] - 7) ** 2 + (at[1] + 3) ** 2 + 1.0


def test_the_descent_begins_with_the_best_and_ends_at_the_minimum():
    scores = {at: distance(at) for at in [(0, 0), (5, 5)]}
    assert descend(scores, distance, MOVES) == (7, -3)
    assert scores[7, -3] == 1.0


def test_a_move_may_be_forbidden():
    scores = {(0, 0): 0.0}
    assert descend(scores, lambda at: -at[0], MOVES) == (9, 0)


def test_a_move_must_be_worth_it_and_trials_are_limited():
    assert descend({(6, -3): 2.0}, distance, MOVES, worth=0.4) == (6, -3)
    scores = {(0, 0): distance((0, 0))}
    assert descend(scores, distance, MOVES, trials=4) == (3, 0)
    assert len(scores) == 4


def test_runs_that_diverge_release_infinity():
    problem = cs.Problem([1.0, 2.0], loss=cs.losses.Quadratic(a=1.0))
    found = released_models(problem, cs.SGD(cs.schedules.Constant(1e9)), 1000, 1.0, 2, 0)
    assert found.shape == (2, 1)
    assert np.isinf(found).all()
    models = released_models(problem, cs.SGD(cs.schedules.Constant(1.0)), 50, 1.0, 2, 0)
    assert np.abs(models) == pytest.approx(1.5, abs=0.5)  # every step lands on -a times a record
