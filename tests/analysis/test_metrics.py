"""Metrics of recorded iterates against NumPy on the data after the reaction."""

import numpy as np
import pytest

import clipsilon as cs
import reference
import registry

LOSS = cs.losses.Logistic(0.1, 2.0)
PROBLEM = reference.problem(LOSS, cs.responses.BestResponse(0.5))


def reacted(theta, problem=PROBLEM):
    rows = zip(problem.features, problem.labels, strict=True)
    return np.array([reference.respond(problem.response, theta, x, y, None) for x, y in rows])


def risk(theta, x, y):
    margin = x @ theta
    return np.mean((1 + y) * (np.logaddexp(0, margin) - y * margin)) + 0.05 * theta @ theta


def squared_slope(theta, x, y):
    rates = (1 + y) * (1 / (1 + np.exp(-x @ theta)) - y)
    return np.sum((rates @ x / len(y) + 0.1 * theta) ** 2)


def test_metrics_follow_the_shape_of_the_trace():
    trace = cs.run(PROBLEM, registry.rules()["DiceSGD"], 50, replicates=2, seed=0, record=[0, 20, 50])
    y = PROBLEM.labels
    results = {
        "performative": cs.metrics.performative_risk(PROBLEM, trace.theta),
        "decoupled": cs.metrics.decoupled_risk(PROBLEM, trace.theta, deployed=0.3),
        "stationarity": cs.metrics.stationarity(PROBLEM, trace.theta),
        "tpr": cs.metrics.true_positive_rate(PROBLEM, trace.theta),
        "tnr": cs.metrics.true_negative_rate(PROBLEM, trace.theta),
    }
    for r in range(2):
        for k in range(3):
            theta = trace.theta[r, k]
            x = reacted(theta)
            right = (x @ theta > 0) == (y == 1)
            assert results["performative"][r, k] == pytest.approx(risk(theta, x, y))
            assert results["decoupled"][r, k] == pytest.approx(risk(theta, reacted(np.full(4, 0.3)), y))
            assert results["stationarity"][r, k] == pytest.approx(squared_slope(theta, x, y))
            assert results["tpr"][r, k] == pytest.approx(right[y == 1].mean())
            assert results["tnr"][r, k] == pytest.approx(right[y == 0].mean())


def test_held_out_records():
    other = PROBLEM.on(PROBLEM.features[:20], PROBLEM.labels[:20])
    theta = np.array([0.5, -1.0, 0.2, 0.1])
    x = reacted(theta, other)
    assert cs.metrics.performative_risk(other, theta) == pytest.approx(risk(theta, x, other.labels))


def test_the_stable_point_is_stationary_and_the_optimum_is_not():
    """The gradient is taken with the data fixed after the reaction; it is not the gradient of the performative risk."""
    problem = reference.problem(cs.losses.SquaredError(0.1), cs.responses.LocationShift(0.2))
    stable, best = cs.stable_point(problem).theta, cs.optimal_point(problem).theta
    assert cs.metrics.stationarity(problem, stable) < 1e-20
    assert cs.metrics.stationarity(problem, best) > 1e-4


def test_wrong_input_is_one_sentence():
    with pytest.raises(ValueError, match=r"theta must hold models of 4 numbers, got shape \(3,\)"):
        cs.metrics.performative_risk(PROBLEM, np.zeros(3))
    with pytest.raises(ValueError, match="loss must depend on a margin and take labels 0 and 1"):
        cs.metrics.true_positive_rate(reference.problem(cs.losses.Huber()), np.zeros(4))
    with pytest.raises(ValueError, match="features must have 4 columns, got 3"):
        PROBLEM.on(np.ones((5, 3)), np.ones(5))


def test_the_metrics_of_iterates_that_were_not_reached_are_nan():
    assert np.isnan(cs.metrics.performative_risk(PROBLEM, np.full((2, 4), np.nan))).all()
