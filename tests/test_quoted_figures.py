"""Figures that pages quote in their text, computed anew. (Blocks of code on the pages are run by test_docs.py.)

Seeds are fixed and no figure is an estimate of chance, so there are no false alarms.
"""

import math
import warnings

import numpy as np
import pytest
from scipy.special import ndtr

import clipsilon as cs
from clipsilon.estimators import PrivateLinearRegression, PrivateLogisticRegression, PrivateScaler, total_privacy
from clipsilon.estimators.defaults import defaults
from clipsilon.privacy.accounting import gaussian
from clipsilon.privacy.auditing.inference import lower_limit, upper_limit
from clipsilon.theory import local, performative

STEP = cs.schedules.Constant(0.5)


def dpsgd(**changes):
    """Return the rule of docs/pitfalls.md, with changes."""
    return cs.DPSGD(**{"step": STEP, "clip": 1.0, "noise_std": 0.02, "batch": 100, **changes})


# --- docs/pitfalls.md ---


@pytest.mark.parametrize(
    ("changes", "certified"),
    [({}, 2.5), ({"sampling": "poisson"}, 2.5), ({"clip": 2.0}, 7.5), ({"sampling": "epochs"}, 13.2)],
)
def test_a_wider_clip_and_shuffled_batches_cost_privacy(changes, certified):
    statement = cs.account(dpsgd(**changes), 2_000, 500, 1e-5, "zero-out")
    assert round(statement.certified, 1) == certified


def test_a_multiplier_is_noise_on_the_sum_in_units_of_the_clip():
    multiplier, clip, batch = 2.0, 1.0, 100
    assert dpsgd(noise_std=multiplier * clip / batch) == dpsgd()


@pytest.mark.parametrize(("rows", "certified"), [(1, 0.5), (5, 2.9), (20, 15.5)])
def test_several_rows_of_one_person(rows, certified):
    """k rows of one person are one row with a clip of k, which is exact for full batches."""
    rule = cs.DPGD(STEP, lipschitz=float(rows), noise_std=0.05)
    assert round(cs.account(rule, 1_000, 50, 1e-5, "zero-out").certified, 1) == certified


def test_whoever_knows_the_seed_knows_who_took_part():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2_000, 3))
    y = (x[:, 0] > 0).astype(int)
    without = x.copy()
    without[7] = 0.0
    released, present, absent = (
        PrivateLogisticRegression(classes=[0, 1], random_state=42).fit(table, y).theta_ for table in (x, x, without)
    )
    np.testing.assert_array_equal(released, present)
    assert (released != absent).any()


def test_too_few_records_per_coefficient():
    """Below n·μ/d = 1 nothing is learnt; at 50 nearly everything is."""
    rng = np.random.default_rng(0)
    test = rng.normal(size=(5_000, 10))
    for records, epsilon, effective, accuracy in (
        (100, 0.1, (0.0, 1.0), (0.0, 0.75)),
        (2_000, 1.0, (20, 99), (0.95, 1)),
    ):
        x = rng.normal(size=(records, 10))
        model = PrivateLogisticRegression(epsilon=epsilon, classes=[0, 1], random_state=0)
        model.fit(x, (x[:, 0] > 0).astype(int))
        assert effective[0] < records * gaussian.largest_mu(epsilon, 1e-5) / 11 < effective[1]
        assert accuracy[0] < model.score(test, test[:, 0] > 0) < accuracy[1]


def test_a_target_range_that_is_far_too_wide():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(8_000, 5))
    prices = 200_000 + 30_000 * x[:, 0] + 5_000 * rng.normal(size=8_000)
    wide, near = (
        PrivateLinearRegression(target_range=limits, random_state=0).fit(x, prices).score(x, prices)
        for limits in ((0, 1e9), (100_000, 300_000))
    )
    assert wide < 0.5
    assert near > 0.9


def test_the_model_for_the_wrong_reaction_has_the_larger_risk():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2_000, 3))
    y = (x @ [2.0, -1.0, 0.5] + rng.logistic(size=2_000) > 0).astype(float)
    loss = cs.losses.Logistic(l2=0.01)
    problems = [cs.Problem(x, y, loss=loss), cs.Problem(x, y, loss=loss, response=cs.responses.BestResponse(beta=1.0))]
    points = [cs.stable_point(problem).theta for problem in problems]
    for own, (problem, point) in enumerate(zip(problems, points, strict=True)):
        other = points[1 - own]
        assert cs.metrics.performative_risk(problem, point) < cs.metrics.performative_risk(problem, other)


# --- docs/how-to/read-a-statement.md and docs/privacy.md ---


def test_a_statement_in_words():
    rule = cs.DPSGD(step=STEP, clip=1.0, noise_std=0.004, batch=250)
    statement = cs.account(rule, records=60_000, steps=240, delta=1e-5, adjacency="zero-out")
    assert f"ε = {statement.certified:.4g}, {statement.claimed:.3g}" == "ε = 0.3866, 0.219"
    assert round(statement.epsilon(1e-7), 2) == 0.68
    assert round(math.exp(statement.certified) * 0.01 + statement.delta, 4) == 0.0147
    assert round(1 - float(statement.tradeoff(0.01)), 3) == 0.013


def test_a_cap_that_certifies_one():
    rule = cs.DiceSGD(STEP, clip=1.0, error_clip=1.0, noise_std=24.0, residual_cap=2.0)
    statement = cs.account(rule, records=100_000, steps=100_000, delta=1e-5)
    assert round(statement.certified, 2) == 0.98
    assert round(statement.claimed, 5) == 0.00438


def test_budgets_of_users():
    budgets = [0.5, 1.0, 2.0]
    users = cs.account_users(budgets, delta=1e-5)
    assert users.epsilons.round(2).tolist() == [1.99, 4.38, 10.0]
    rule = cs.LDPSGD(cs.schedules.Power(0.2, 0.5), budget=budgets)
    certified = cs.account(rule, records=3, steps=3, delta=1e-5).certified
    assert certified == pytest.approx(users.epsilons.max(), rel=1e-14)


def test_two_scalers_spend_less_than_their_sum():
    table = np.random.default_rng(0).normal(size=(4_000, 5))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # unseeded noise may hide a column
        scalers = [PrivateScaler(epsilon=0.3, delta=1e-6).fit(table) for _ in range(2)]
    assert 0.3 < total_privacy(scalers).epsilon < 0.5


# --- docs/explanation/ ---


def test_the_same_noise_under_other_samplers_and_neighbours():
    """docs/explanation/claimed-certified-audited.md: from 0.15 to 3.8."""

    def certified(sampling, adjacency):
        rule = cs.PCSGD(STEP, clip=1.0, noise_std=0.05, batch=100, sampling=sampling)
        return cs.account(rule, records=10_000, steps=500, delta=1e-5, adjacency=adjacency).certified

    found = [
        certified("poisson", "zero-out"),
        certified("poisson", "replace-one"),
        certified("epochs", "zero-out"),
        certified("epochs", "replace-one"),
    ]
    assert found == sorted(found)
    assert [round(found[0], 2), round(found[-1], 1)] == [0.15, 3.8]


@pytest.mark.parametrize(("runs", "shown"), [(100, 3.3), (1_000, 5.6), (10_000, 7.9)])
def test_a_test_that_is_never_wrong_shows_log_of_a_quarter_of_its_runs(runs, shown):
    """docs/explanation/claimed-certified-audited.md, at 95 %."""
    limits = lower_limit(runs, runs, 0.025), upper_limit(0, runs, 0.025)
    assert round(float(np.log((limits[0] - 1e-5) / limits[1])), 1) == shown
    assert shown == pytest.approx(math.log(runs / 4), abs=0.1)


def test_a_single_threshold_is_rarely_lucky():
    """The limits of an audit hold together with the stated confidence: 5 % of 20,000 repetitions, at most."""
    rng, right, wrong, runs = np.random.default_rng(0), ndtr(1.0 - 2.5), ndtr(-2.5), 2_000
    hits, alarms = rng.binomial(runs, right, 20_000), rng.binomial(runs, wrong, 20_000)
    lucky = lower_limit(hits, runs, 0.025) / upper_limit(alarms, runs, 0.025) > right / wrong
    assert lucky.mean() < 0.05


def test_an_audit_refutes_the_published_noise_of_full_batches():
    """docs/explanation/claimed-certified-audited.md, first bullet: claimed < audited < certified."""
    rule = cs.PCSGD(cs.schedules.Constant(1.0), clip=1.0, noise_std=1.0, sampling="full")
    published = cs.calibrate(rule, epsilon=1.0, delta=1e-3, records=100, steps=100, how="paper")
    audit = cs.audit(published, records=100, steps=100, delta=1e-3, runs=1_000, seed=0, progress=False)
    assert audit.statement.claimed < audit.lower_bound < audit.statement.certified


def test_a_capped_run_ends_where_clipping_at_the_cap_would():
    """docs/explanation/clipping-bias.md: −0.89 with C1 = 1 and C3 = 4; plain clipping at 1 ends at −0.22."""
    records = np.r_[np.zeros(90), np.ones(10)]
    problem = cs.Problem(records, loss=cs.losses.Quadratic(a=10.0), response=cs.responses.LocationShift(0.05))
    step = cs.schedules.InverseTime(10, 100)
    rule = cs.DiceSGD(step, clip=1.0, error_clip=1.0, noise_std=0.3, residual_cap=4.0)
    end = cs.run(problem, rule, steps=50_000, start=5.0, replicates=10, seed=0).theta[:, -1, 0].mean()
    cap, clip = (cs.clipped_point(problem, clip=threshold).theta[0] for threshold in (4.0, 1.0))
    assert [round(float(cap), 2), round(float(clip), 2)] == [-0.89, -0.22]
    assert end == pytest.approx(cap, abs=0.02)


# --- docs/torch-experiments.md and docs/torch.md ---


def test_the_noise_of_the_images():
    about = {"records": 1437, "steps": 48, "delta": 1e-5}
    step, batches = cs.schedules.Constant(0.3), {"batch": 240, "sampling": "poisson"}
    noise_std = cs.calibrate(cs.AutoDiceSGD(step, 1.0, **batches), epsilon=8.0, how="paper", **about).noise.std
    assert round(240 * noise_std, 2) == 4.81
    assert round(cs.account(cs.AutoDiceSGD(step, noise_std, **batches), **about).claimed, 6) == 8.0  # App. C.4
    fed_back = cs.account(cs.DiceSGD(step, clip=1.0, error_clip=1.0, noise_std=noise_std, **batches), **about)
    assert (round(fed_back.claimed), f"{fed_back.certified:.3g}") == (1568, "2.43e+05")
    clipped = cs.account(cs.DPSGD(step, clip=1.0, noise_std=noise_std, **batches), **about)
    assert (round(clipped.claimed, 2), round(clipped.certified, 2)) == (0.82, 2.32)


def test_the_noise_on_mnist():
    about = {"epsilon": 2.0, "delta": 1e-5, "records": 60_000, "steps": 150, "how": "certified"}
    given = {"step": STEP, "clip": 1.0, "noise_std": 1.0, "batch": 4000, "sampling": "poisson"}
    capped = cs.DiceSGD(error_clip=1.0, residual_cap=1.2, **given)
    multipliers = [4000 * cs.calibrate(rule, **about).noise.std for rule in (cs.DPSGD(**given), capped)]
    assert [f"{multiplier:.3g}" for multiplier in multipliers] == ["4.05", "25.6"]


def test_feedback_costs_noise_and_a_cap_lessens_it():
    about = {"records": 400, "steps": 30, "delta": 1e-4, "adjacency": "zero-out"}
    given = {"step": STEP, "clip": 1.0, "noise_std": 8.0 / 40, "batch": 40, "sampling": "poisson"}
    rules = [
        cs.DPSGD(**given),
        cs.DiceSGD(error_clip=1.0, residual_cap=1.5, **given),
        cs.DiceSGD(error_clip=1.0, **given),
    ]
    plain, capped, free = (cs.account(rule, **about).certified for rule in rules)
    assert plain < capped < free


# --- docs/tuning.md, docs/defaults.md and docs/theory.md ---


def test_the_least_proven_bound():
    problem = cs.Problem(
        cs.datasets.bernoulli(1_000, p=0.1),
        loss=cs.losses.Quadratic(a=10.0),
        response=cs.responses.LocationShift(beta=0.05),
        region=cs.regions.Box(-10, 10),
    )
    about = {"epsilon": 4.0, "delta": 1e-4, "steps": 1000, "start": 5.0}
    forecast = cs.tune(problem, preset="PCSGD", **about).forecast.gap
    proven = cs.tune(problem, goal="bound", **about)
    assert f"{forecast:.3g}, {proven.forecast.gap:.3g}, {proven.options[0].bound:.3g}" == "0.314, 1.97, 4.01"
    trace = cs.run(problem, proven.rule, steps=1000, start=5.0, replicates=200, seed=0)
    assert trace.gap(cs.stable_point(problem).theta)[:, -1].mean() < proven.options[0].bound


def test_the_defaults_of_the_credit_data():
    settings = defaults(records=96_215, columns=11, epsilon=1.0, delta=1e-5)
    assert (settings.steps, settings.batch) == (1000, 3849)


def test_a_stationary_point_of_a_loss_that_is_not_convex():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((200, 3))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    problem = cs.Problem(x, (x @ [2.0, -1.0, 0.5] > 0).astype(float), loss=cs.losses.Sigmoid())
    rule = cs.PCSGD(cs.schedules.Constant(0.3), clip=0.2, noise_std=0.02)
    trace = cs.run(problem, rule, steps=2000, replicates=10, seed=0, record=np.arange(0, 2000, 20))
    bound = performative.clipped_sgd_stationarity(
        problem.constants(radius=100.0), 0.3, 0.2, 0.02, loss_range=1.0, variation=0.0, dimension=3, steps=2000
    )
    assert f"{bound:.4f}" == "0.0070"
    assert cs.metrics.stationarity(problem, trace.theta).mean() == pytest.approx(0.0009, rel=0.1)


def test_the_loss_of_averages_under_local_privacy():
    loss, step = cs.losses.MallowsLogistic(), cs.schedules.Power(0.2, 0.5)
    population = cs.Problem(*cs.datasets.logistic(50_000, 3, seed=1), loss=loss)
    best = cs.stable_point(population).theta
    known = local.LocalConstants(loss.sensitivity() / 2, budget=2.0, dimension=4, start=best @ best, smoothness=0.5)
    bound = local.average_loss(known, step, 2000)
    assert round(float(bound), 2) == 0.46
    risk = cs.metrics.performative_risk
    found = []
    for seed in range(20):
        users = cs.Problem(*cs.datasets.logistic(2000, 3, seed=10 + seed), loss=loss)
        output = cs.run(users, cs.LDPASGD(step, budget=2.0), steps=2000, seed=seed).output[0]
        found.append(risk(population, output) - risk(population, best))
    assert np.mean(found) == pytest.approx(0.05, rel=0.3)
