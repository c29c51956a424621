"""The default settings depend on public numbers alone, and are accurate across sizes, budgets and units."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import r2_score, roc_auc_score

import clipsilon as cs
from clipsilon.estimators import PrivateLogisticRegression
from clipsilon.estimators.defaults import defaults
from clipsilon.privacy.accounting.gaussian import largest_mu
from clipsilon.problems.losses.base import label_kind

DELTA = 1e-5


def fit(x, y, epsilon, loss=None, seed=0):
    """Fit a private model with the default settings."""
    loss = loss or cs.losses.Logistic()
    settings = defaults(*x.shape, epsilon, DELTA, label_kind(loss))
    sampling = {"sampling": "full", "batch": 1} if settings.batch is None else {"batch": settings.batch}
    rule = replace(cs.DPSGD(settings.step, settings.clip, 1.0, **sampling), output=settings.output)
    rule = cs.calibrate(rule, epsilon, DELTA, len(x), settings.steps, adjacency="zero-out")
    return cs.run(cs.Problem(x, y, loss=loss), rule, settings.steps, seed=seed, record=[settings.steps]).output[0]


def with_ones(x):
    return np.column_stack([x, np.ones(len(x))])


def labelled(records, columns, seed=0, scale=1.0):
    """Draw records whose margin has standard deviation 3 and an intercept, for training and for testing."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((records + 4000, columns))
    weights = rng.standard_normal(columns)
    margin = 3 * x @ weights / np.linalg.norm(weights) - 1
    y = (rng.random(len(x)) < 1 / (1 + np.exp(-margin))).astype(float)
    best = roc_auc_score(y[records:], margin[records:])
    table = with_ones(scale * x)
    return table[:records], y[:records], table[records:], y[records:], best


# False alarms: each case is one run at a fixed seed, so there is no chance in it.
@pytest.mark.parametrize(("records", "columns", "epsilon", "loss_of_auc"), [
    (1_000, 3, 0.1, 0.03),
    (1_000, 3, 1.0, 0.01),
    (1_000, 30, 1.0, 0.03),
    (20_000, 30, 0.1, 0.02),
    (20_000, 100, 1.0, 0.01),
    (60_000, 9, 3.0, 0.005),
])  # fmt: skip
def test_the_defaults_come_near_the_best_margin(records, columns, epsilon, loss_of_auc):
    x, y, test_x, test_y, best = labelled(records, columns)
    assert roc_auc_score(test_y, test_x @ fit(x, y, epsilon)) > best - loss_of_auc


@pytest.mark.parametrize("scale", [0.1, 10.0])
def test_other_units_cost_little(scale):
    x, y, test_x, test_y, best = labelled(20_000, 10, scale=scale)
    assert roc_auc_score(test_y, test_x @ fit(x, y, 1.0)) > best - 0.02


@pytest.mark.parametrize("loss", [cs.losses.SquaredError(), cs.losses.Huber(1.345)])
def test_regression_comes_near_the_best_prediction(loss):
    rng = np.random.default_rng(1)
    x = rng.standard_normal((24_000, 10))
    signal = x @ rng.standard_normal(10)
    y = 0.8 * signal / signal.std() + 0.6 * rng.standard_normal(len(x))
    theta = fit(with_ones(x[:20_000]), y[:20_000], 1.0, loss)
    best = r2_score(y[20_000:], 0.8 * signal[20_000:] / signal.std())
    assert r2_score(y[20_000:], with_ones(x[20_000:]) @ theta) > best - 0.01


def test_a_rare_class_leaves_accuracy_at_the_majority_or_above():
    rng = np.random.default_rng(2)
    x = rng.standard_normal((40_000, 10))
    y = (rng.random(len(x)) < 1 / (1 + np.exp(3.5 - x[:, 0]))).astype(float)
    theta = fit(with_ones(x), y, 0.1)
    assert np.mean((with_ones(x) @ theta > 0) == y) > (1 - y.mean()) - 0.002


def test_noise_moves_a_margin_by_a_fixed_size_until_there_are_enough_records():
    for records, columns, epsilon in ((500, 4, 1.0), (20_000, 100, 0.1)):
        settings = defaults(records, columns, epsilon, DELTA)
        travel = settings.clip * settings.step.gamma * settings.steps
        assert np.sqrt(columns) * travel / (records * largest_mu(epsilon, DELTA)) == pytest.approx(2.5)
    assert defaults(10**6, 9, 1.0, DELTA).step == defaults(10**7, 9, 1.0, DELTA).step


def test_batches_follow_the_work():
    assert defaults(900, 9, 1.0, DELTA).batch is None
    assert defaults(5_000, 9, 1.0, DELTA).batch == 1_000
    assert defaults(100_000, 11, 1.0, DELTA).batch == 4_000
    large = defaults(5_000_000, 11, 1.0, DELTA)
    assert large.batch * large.steps / 5_000_000 < 20  # epochs
    wide = defaults(20_000, 5_000, 1.0, DELTA)
    assert wide.batch * wide.steps * 5_000 <= 1e9
    assert defaults(10, 10**7, 1.0, DELTA).batch == 1


@pytest.mark.parametrize(("arguments", "message"), [
    ((0, 3, 1.0, 1e-5), "records must be a whole number of at least 1, got 0"),
    ((5, 0, 1.0, 1e-5), "columns must be a whole number of at least 1, got 0"),
    ((5, 3, 0.0, 1e-5), "epsilon must be a number above 0, got 0.0"),
    ((5, 3, 1.0, 1.0), "delta must be a number above 0 and below 1, got 1.0"),
    ((5, 3, 1.0, 1e-5, "cubic"), "labels must be one of 'binary', 'class', 'nonnegative', 'real', 'none', got 'cubic'"),
])  # fmt: skip
def test_bad_input(arguments, message):
    with pytest.raises(ValueError, match=message):
        defaults(*arguments)


def test_a_reaction_asks_for_a_larger_clip():
    """With it, the fit ends near the stable point; the clipped point of the small clip is at a squared distance of 2."""
    still, reacting = defaults(8_000, 5, 1.0, DELTA), defaults(8_000, 5, 1.0, DELTA, reacts=True)
    assert reacting.clip == 20 * still.clip
    assert defaults(8_000, 5, 1.0, DELTA, weight=3.0, reacts=True).clip == 3 * reacting.clip
    assert defaults(8_000, 5, 1.0, DELTA, "real", reacts=True) == defaults(8_000, 5, 1.0, DELTA, "real")
    rng = np.random.default_rng(0)
    x = rng.standard_normal((8_000, 5))
    y = (rng.random(8_000) < 1 / (1 + np.exp(2.5 - x[:, 0] + 0.5 * x[:, 1]))).astype(int)
    response = cs.responses.BestResponse(0.5)
    model = PrivateLogisticRegression(response=response, l2=0.01, fit_intercept=False, classes=[0, 1], random_state=0)
    goal = cs.stable_point(cs.Problem(x, y, loss=cs.losses.Logistic(l2=0.01), response=response)).theta
    assert np.sum((model.fit(x, y).coef_ - goal) ** 2) < 0.003  # a fixed seed; four gave at most 0.0004


def test_an_adaptive_clip_learns_from_few_records():
    """Noise on the counts must not carry the clip away; a fixed seed, so there is no chance in it."""
    x, y, test_x, test_y, best = labelled(400, 5)
    model = PrivateLogisticRegression(method="adaptive-dpsgd", classes=[0, 1], fit_intercept=False, random_state=0)
    assert roc_auc_score(test_y, model.fit(x, y).decision_function(test_x)) > best - 0.03
