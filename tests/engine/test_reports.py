"""Rounds of local reports: what one user's record can change, and what their report shows of it."""

import numpy as np
import pytest

import clipsilon as cs
from clipsilon.local.audit import extremes
from clipsilon.privacy.accounting import gaussian
from clipsilon.privacy.auditing.inference import gaussian_bound

ONE = cs.schedules.Constant(1.0)
LOSS = cs.losses.MallowsLogistic()
USERS = 10


def crowd(seed, first, label):
    """Ten users with heavy-tailed records, of whom the first has the given one."""
    rng = np.random.default_rng(seed)
    features, labels = rng.standard_cauchy((USERS, 2)), (rng.random(USERS) < 0.5).astype(float)
    features[0], labels[0] = first, label
    return cs.Problem(features, labels, loss=LOSS)


def shares(budgets, variance):
    weights = 1 / (variance + 2 * (LOSS.sensitivity() / budgets) ** 2) if variance < np.inf else np.ones(USERS)
    return weights / weights.sum()


@pytest.mark.parametrize(("weights", "variance"), [("equal", np.inf), ("budget", 2.0)])
def test_replays_on_neighbours_stay_within_the_users_budget(weights, variance):
    """With the same noise, another record moves the mean by at most μ_i standard deviations of the user's own noise."""
    (pair, theta), rng, largest = extremes(LOSS), np.random.default_rng(1), 0.0
    for seed in range(40):
        budgets = rng.choice([0.1, 1.0, 10.0], USERS)
        rule = cs.LDPSGD(ONE, budgets, batch=USERS, weights=weights)
        start = theta if seed == 0 else 10 * rng.standard_cauchy(2)
        ends = [
            cs.run(crowd(seed, *record), rule, 1, start=start, seed=seed, record=[1]).theta[0, 0] for record in pair
        ]
        std = shares(budgets, variance)[0] * LOSS.sensitivity() / budgets[0]
        moved = np.linalg.norm(ends[1] - ends[0]) / std
        slack = 1e-15 * np.abs(ends).max() / std  # rounding of θ itself
        assert moved <= budgets[0] * (1 + 1e-9) + slack
        largest = max(largest, moved / budgets[0])
    assert largest > 0.99  # what the attack can do is reached


@pytest.mark.parametrize("weights", ["equal", "budget"])
def test_an_audit_of_one_report_in_a_round(weights):
    """The others add next to no noise, so the mean shows the report of the first user: its μ is attained, not passed.

    A report with the right noise fails with a probability of 1e-7; 4,000 rounds of each show more than 0.75·μ.
    """
    (pair, theta), mu, ends = extremes(LOSS), 1.0, []
    rule = cs.LDPSGD(ONE, [mu] + (USERS - 1) * [1e9], batch=USERS, weights=weights)
    for k, record in enumerate(pair):
        trace = cs.run(crowd(3, *record), rule, 1, start=theta, replicates=4000, seed=k, record=[1])
        ends.append(trace.theta[:, 0])
    along = pair[1][0] - pair[0][0]  # in which the gradients differ
    bound = gaussian_bound(ends[0] @ along, ends[1] @ along, delta=1e-5, confidence=1 - 1e-7)
    shown = gaussian.largest_mu(bound.lower_bound, 1e-5)
    assert 0.75 * mu < shown <= mu


def test_reports_in_the_order_of_the_table_and_on_any_number_of_threads():
    features, labels = cs.datasets.logistic(500, 3)
    problem, budgets = cs.Problem(features, labels, loss=LOSS), np.linspace(0.2, 4.0, 500)
    shuffled = cs.LDPASGD(ONE, budgets, batch=128)
    in_order = cs.Rule("mine", ONE, shuffled.clip, cs.sampling.InOrder(128), shuffled.noise, output=shuffled.output)
    runs = [cs.run(problem, in_order, 4, seed=0, n_jobs=jobs).output for jobs in (1, 2)]
    np.testing.assert_array_equal(*runs)
    other = problem.on(features[::-1], labels[::-1])
    assert (cs.run(other, in_order, 4, seed=0).output != runs[0]).all()
