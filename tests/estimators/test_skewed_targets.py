"""Counts, amounts and quantiles: the estimators make the library's own runs, and come near scikit-learn's without noise."""

import dask.array as da
import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone, is_regressor
from sklearn.linear_model import GammaRegressor, PoissonRegressor, QuantileRegressor
from sklearn.metrics import d2_pinball_score, d2_tweedie_score

import clipsilon as cs
from clipsilon.estimators import (
    METHODS,
    PrivateGammaRegressor,
    PrivateGLM,
    PrivatePoissonRegressor,
    PrivateQuantileRegressor,
)

RNG = np.random.default_rng(7)
X = RNG.normal(size=(600, 3))
LOG_MEAN = X @ [0.5, -0.3, 0.1]
COUNTS = RNG.poisson(np.exp(LOG_MEAN + 0.7)).astype(float)
AMOUNTS = RNG.gamma(2.0, np.exp(LOG_MEAN + 5.0) / 2.0)
NUMBERS = 40 + 5 * X @ [1.0, -1.0, 0.5] + 3 * RNG.normal(size=600)
WITH_ONES = np.column_stack([X, np.ones(600)])
OWN = cs.ClippedDPGD(cs.schedules.Constant(0.5), clip=3.0, noise_std=1.0)


def poisson(**more):
    return PrivatePoissonRegressor(**{"random_state": 3, "target_range": (0, 8)} | more)


def gamma(**more):
    return PrivateGammaRegressor(**{"random_state": 3, "target_range": (50, 450)} | more)


def quantile(**more):
    return PrivateQuantileRegressor(**{"random_state": 3, "target_range": (20, 60), "quantile": 0.9} | more)


CASES = {"poisson": (poisson, COUNTS), "gamma": (gamma, AMOUNTS), "quantile": (quantile, NUMBERS)}
RUNS = {  # labels, loss, and from θ to the intercept
    "poisson": (COUNTS / 2, cs.losses.PoissonDeviance(0.1), lambda last: np.log(2) + last, 1.0),
    "gamma": (AMOUNTS / 150, cs.losses.GammaDeviance(0.1), lambda last: np.log(150) + last, 1.0),
    "quantile": ((NUMBERS - 40) / 10, cs.losses.Pinball(0.9, 0.1), lambda last: 40 + 10 * last, 10.0),
}
cases = pytest.mark.parametrize("name", CASES)
one_of_them = pytest.mark.parametrize(  # what differs between the losses is tested elsewhere
    "name", ["poisson", *(pytest.param(name, marks=pytest.mark.verify) for name in ("gamma", "quantile"))]
)


@cases
def test_a_fit_is_a_run_on_targets_of_unit_order(name):
    (make, y), (labels, loss, intercept, unit) = CASES[name], RUNS[name]
    found = make(method=OWN, epochs=20, l2=0.1).fit(X, y)
    rule = cs.calibrate(OWN, 1.0, 1e-5, 600, 20, adjacency="zero-out")
    theta = cs.run(cs.Problem(WITH_ONES, labels, loss=loss), rule, 20, seed=3).output[0]
    np.testing.assert_allclose(found.theta_, theta, rtol=1e-12)
    np.testing.assert_allclose(found.coef_, unit * theta[:3], rtol=1e-12)
    assert found.intercept_ == pytest.approx(intercept(theta[3]), rel=1e-12)
    score = X @ found.coef_ + found.intercept_
    np.testing.assert_allclose(found.predict(X), score if name == "quantile" else np.exp(score), rtol=1e-12)
    assert is_regressor(found)


@cases
def test_without_an_intercept_the_range_sets_the_level(name):
    (make, y), (_, _, intercept, _) = CASES[name], RUNS[name]
    model = make(fit_intercept=False, method=OWN, epochs=3).fit(X, y)
    assert model.intercept_ == pytest.approx(intercept(0.0))
    assert model.theta_.size == 3


@one_of_them
def test_weights_sparse_tables_and_chunks(name):
    make, y = CASES[name]
    weights = RNG.uniform(0, 1, 600)
    thin = X * (np.abs(X) > 0.7)
    dense = make().fit(thin, y, weights)
    assert np.abs(dense.theta_ - make().fit(thin, y).theta_).max() > 1e-3
    found = make().fit(sparse.csr_array(thin), y, weights)
    np.testing.assert_allclose(found.theta_, dense.theta_, rtol=1e-9, atol=1e-12)
    tables = [da.from_array(table, chunks=(170, *table.shape[1:])) for table in (thin, y, weights)]
    chunked = make().fit(*tables)
    np.testing.assert_array_equal(chunked.theta_, dense.theta_)
    np.testing.assert_allclose(chunked.predict(tables[0]).compute(), dense.predict(thin), rtol=1e-12)


@cases
def test_partial_fit_and_cloning(name):
    make, y = CASES[name]
    model = make(method=OWN, epochs=5)
    model.partial_fit(X[:200], y[:200])
    first = model.theta_
    np.testing.assert_array_equal(first, make(method=OWN, epochs=5).fit(X[:200], y[:200]).theta_)
    model.partial_fit(X[200:], y[200:])
    assert np.abs(model.theta_ - first).max() > 0
    assert model.n_iter_ == 10
    assert clone(model).get_params() == model.get_params()


@pytest.mark.verify
@cases
@pytest.mark.parametrize("method", [one for one in METHODS if not METHODS[one].is_local])
def test_every_method_fits_within_its_budget(name, method):
    make, y = CASES[name]
    model = make(method=method, epsilon=3.0, epochs=5).fit(X, y)
    assert 0.98 * 3.0 <= model.statement_.nominal <= 3.0
    assert np.isfinite(model.predict(X)).all()


@cases
def test_a_learnt_range_certifies_nothing(name):
    make, y = CASES[name]
    with pytest.warns(cs.PrivacyWarning, match="The range of the targets was learnt from y without budget"):
        model = make(target_range=None, random_state=None).fit(X, y)
    assert model.statement_.certified == np.inf
    assert 0.98 <= model.statement_.nominal <= 1.0
    low, high = model.target_range_
    if name != "quantile":
        assert high == pytest.approx(4 * y.mean())
        assert low == (0.0 if name == "poisson" else pytest.approx(y.mean() / 4))
    declared = make(random_state=None).fit(X, y)
    assert declared.statement_.certified <= 1.0


def test_targets_that_a_model_does_not_take_are_refused_before_anything_is_spent():
    counts, amounts = COUNTS.copy(), AMOUNTS.copy()
    counts[5], amounts[5] = -1.0, 0.0
    refused = [
        (poisson(), counts, "y must hold numbers of at least 0 for Poisson regression, got -1."),
        (gamma(), amounts, "y must hold numbers above 0 for Gamma regression, got 0."),
        (
            PrivateGLM(cs.losses.PoissonDeviance()),
            counts,
            "y must hold numbers of at least 0 for PoissonDeviance, got -1.",
        ),
    ]
    for model, y, message in refused:
        for tables in ((X, y), [da.from_array(table, chunks=(170, *table.shape[1:])) for table in (X, y)]):
            with pytest.raises(ValueError, match=f"^{message[:-1]}"):
                model.fit(*tables)
            assert not hasattr(model, "theta_")
    for wrong in ((-1, 5), (5, 5), (5, 1), (0, np.inf), 3):
        with pytest.raises(ValueError, match="^target_range must be a low and a high number of at least 0, got"):
            poisson(target_range=wrong).fit(X, COUNTS)
    with pytest.raises(ValueError, match=r"^target_range must be a low and a high number above 0, got \(0, 5\)\.$"):
        gamma(target_range=(0, 5)).fit(X, AMOUNTS)
    with pytest.raises(ValueError, match="^quantile must be a number above 0 and below 1, got 1"):
        quantile(quantile=1).fit(X, NUMBERS)


def test_scores_are_the_fraction_of_the_deviance_that_is_explained():
    weights = RNG.uniform(0, 1, 600)
    for power, (make, y) in enumerate((CASES["poisson"], CASES["gamma"]), start=1):
        model = make().fit(X, y)
        assert model.score(X, y) == d2_tweedie_score(y, model.predict(X), power=power)
        weighted = d2_tweedie_score(y, model.predict(X), power=power, sample_weight=weights)
        assert model.score(X, y, weights) == weighted
    model = quantile().fit(X, NUMBERS)
    assert model.score(X, NUMBERS) == d2_pinball_score(NUMBERS, model.predict(X), alpha=0.9)


def test_predictions_of_far_rows_do_not_overflow():
    model = poisson().fit(X, COUNTS)
    assert np.isfinite(model.predict(1e6 * X)).all()


# -- accuracy ---------------------------------------------------------------------------------------------------------


def table(records, seed):
    """Ten columns of unit order, 4,000 rows more for testing, and a signal of deviation 0.6."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(records + 4000, 10))
    weights = rng.normal(size=10)
    return rng, x, 0.6 * x @ weights / np.linalg.norm(weights)


def split(records, x, y):
    return x[:records], y[:records], x[records:], y[records:]


# False alarms: each case is one run at a fixed seed, so there is no chance in it.
@pytest.mark.parametrize(("mean", "target_range"), [(2.0, (0, 8)), (0.1, (0, 1)), (30.0, (0, 100))])
def test_counts_at_epsilon_one(mean, target_range):
    rng, x, signal = table(20_000, 1)
    x, y, test_x, test_y = split(20_000, x, rng.poisson(mean * np.exp(signal)))
    best = PoissonRegressor(alpha=0).fit(x, y).score(test_x, test_y)
    model = PrivatePoissonRegressor(random_state=0, target_range=target_range).fit(x, y)
    assert model.score(test_x, test_y) > best - 0.01
    assert model.predict(test_x).mean() == pytest.approx(test_y.mean(), rel=0.1)


@pytest.mark.parametrize(("shape", "target_range"), [(4.0, (20, 500)), (1.0, (20, 500)), (1.0, (10, 10_000))])
def test_amounts_at_epsilon_one(shape, target_range):
    rng, x, signal = table(20_000, 2)
    x, y, test_x, test_y = split(20_000, x, rng.gamma(shape, 100.0 / shape * np.exp(signal)))
    best = GammaRegressor(alpha=0).fit(x, y).score(test_x, test_y)
    model = PrivateGammaRegressor(random_state=0, target_range=target_range).fit(x, y)
    assert model.score(test_x, test_y) > best - 0.01
    assert model.predict(test_x).mean() == pytest.approx(test_y.mean(), rel=0.1)


@pytest.mark.parametrize("level", [0.1, 0.5, 0.9])
def test_quantiles_at_epsilon_one(level):
    rng, x, signal = table(4_000, 3)
    noise = rng.gamma(2.0, 1.0, len(x)) / np.sqrt(2.0)  # skewed
    x, y, test_x, test_y = split(4_000, x, 20 + 5 * (signal + 0.5 * noise))
    peer = QuantileRegressor(quantile=level, alpha=0).fit(x, y).predict(test_x)
    best = d2_pinball_score(test_y, peer, alpha=level)
    model = PrivateQuantileRegressor(random_state=0, quantile=level, target_range=(10, 40)).fit(x, y)
    assert model.score(test_x, test_y) > best - 0.03
    assert np.mean(test_y < model.predict(test_x)) == pytest.approx(level, abs=0.03)
