"""PrivateScaler: its sensitivity and noise, its accuracy, and its behaviour as a scikit-learn transformer."""

import math
import pickle
import re
import warnings
from functools import partial

import numpy as np
import pandas as pd
import pytest
from dp_accounting.pld import privacy_loss_distribution
from numpy.random import SFC64, Generator
from scipy import stats
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import check_estimator

import clipsilon as cs
from clipsilon.estimators import PrivateScaler, scaler
from clipsilon.privacy import quantiles
from clipsilon.privacy.accounting import gaussian
from clipsilon.privacy.auditing.inference import clopper_pearson_bound
from clipsilon.privacy.statement import SEEDED

ADJACENCIES = ["zero-out", "replace-one"]


def table_of_ties(rng, records=7, columns=3):
    """Draw few different values, so that thresholds often equal values and records are repeated."""
    return rng.integers(-2, 3, size=(records, columns)).astype(float)


# What is asked of the data


def test_balances_count_below_less_above():
    X = np.array([[1.0, 5.0], [2.0, 5.0], [2.0, 7.0], [9.0, -1.0]])
    assert quantiles.balances(X, np.array([2.0, 5.0])).tolist() == [0, 0]
    assert quantiles.balances(X, np.array([3.0, -2.0])).tolist() == [2, -4]
    assert quantiles.balances(X, np.array([1.5, 6.5]), center=np.array([2.0, 0.0])).tolist() == [2, 2]


@pytest.mark.parametrize("about_center", [False, True])
def test_one_record_moves_the_balances_by_no_more_than_is_accounted_for(about_center):
    """Drop each record, and replace it by each other one, in random tables: the bounds hold and are attained."""
    rng = np.random.default_rng(0)
    dropped, replaced = [], []
    for _ in range(40):
        X, others = table_of_ties(rng), np.array([[-9.0, 9.0, 0.0], [9.0, 9.0, 9.0], [-1.0, -2.0, 1.0]])
        center = rng.integers(-2, 3, size=3).astype(float) if about_center else None
        thresholds = rng.integers(0, 3, size=3).astype(float)
        whole = quantiles.balances(X, thresholds, center)
        for i in range(len(X)):
            rest = quantiles.balances(np.delete(X, i, axis=0), thresholds, center)
            dropped.append(np.linalg.norm(whole - rest))
            for other in others:
                swapped = np.vstack([np.delete(X, i, axis=0), other])
                replaced.append(np.linalg.norm(whole - quantiles.balances(swapped, thresholds, center)))
    assert max(dropped) == math.sqrt(3)
    assert max(replaced) == 2 * math.sqrt(3)


def test_balances_of_chunks_add_up():
    X = np.random.default_rng(1).standard_normal((101, 4))
    thresholds, center = np.array([0.1, 0.5, 1.0, 2.0]), np.array([0.0, 0.1, -0.2, 1.0])
    for middle in (None, center):
        chunks = [quantiles.balances(chunk, thresholds, middle) for chunk in np.array_split(X, 7)]
        assert np.array_equal(sum(chunks), quantiles.balances(X, thresholds, middle))


def test_nothing_but_the_noisy_balances_is_learnt(monkeypatch):
    """Given the same balances, any two tables of the same shape give the same result; each question is one balance."""
    rng = np.random.default_rng(2)
    scripts = rng.integers(-500, 500, size=(scaler.QUESTIONS, 3))
    fitted = []
    for X in (rng.standard_normal((500, 3)), 1e6 * rng.random((500, 3))):
        script = iter(scripts)
        monkeypatch.setattr(scaler, "balances", lambda *_, script=script: next(script))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # these answers may not tell much
            fitted.append(PrivateScaler(epsilon=5.0, random_state=0).fit(X))
        assert next(script, None) is None
    one, other = fitted
    assert np.array_equal(one.center_, other.center_)
    assert np.array_equal(one.scale_, other.scale_)
    assert one.statement_.reasons == other.statement_.reasons


# The noise


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize(("epsilon", "delta", "columns"), [(0.3, 1e-6, 5), (3.0, 1e-5, 30)])
def test_the_noise_is_what_another_accountant_asks_for(adjacency, epsilon, delta, columns):
    X = np.random.default_rng(3).standard_normal((20_000, columns))
    statement = PrivateScaler(epsilon, delta, adjacency=adjacency, random_state=0).fit(X).statement_
    std = quantiles.balance_noise(gaussian.largest_mu(epsilon, delta), columns * scaler.QUESTIONS, adjacency)
    moved = math.sqrt(columns) * (2 if adjacency == "replace-one" else 1)
    one = privacy_loss_distribution.from_gaussian_mechanism(
        std, sensitivity=moved, value_discretization_interval=1e-3 * epsilon
    )
    composed = one.self_compose(scaler.QUESTIONS).get_epsilon_for_delta(delta)
    assert composed == pytest.approx(epsilon, rel=0.01)
    assert statement.nominal == pytest.approx(epsilon, rel=1e-9)


@pytest.mark.parametrize("epsilon", [1e-3, 0.1, 1.0, 7.3, 100.0])
@pytest.mark.parametrize("delta", [1e-12, 1e-6, 0.3])
def test_no_more_is_certified_than_was_asked_for(epsilon, delta):
    X = np.random.default_rng(4).standard_normal((3000, 1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        assert PrivateScaler(epsilon, delta).fit(X).statement_.certified <= epsilon
        assert PrivateScaler(epsilon, delta, random_state=0).fit(X).statement_.nominal <= epsilon


def learn(table, std, noise):
    return scaler._learn(scaler._Counted(*table.shape, partial(scaler.balances, table), lambda key: None), std, noise)


def test_the_noise_is_whole_and_as_large_as_stated(monkeypatch):
    """False alarms have probability 1e-9: the variance of the draws is χ² (rounding adds 1/12)."""
    drawn = []
    ask_balances = quantiles.balances

    def known(*arguments):
        drawn.append(ask_balances(*arguments))
        return drawn[-1]

    answers = []
    real_search = scaler.search

    def listening(ask, *arguments, **named):
        def asked(thresholds):
            answers.append(ask(thresholds))
            return answers[-1]

        return real_search(asked, *arguments, **named)

    monkeypatch.setattr(scaler, "balances", known)
    monkeypatch.setattr(scaler, "search", listening)
    n, std = 1000, 40.0
    learn(np.random.default_rng(5).standard_normal((n, 400)), std, Generator(SFC64(5)))
    assert len(drawn) == scaler.QUESTIONS
    noise = (np.array(answers) - 0.5) * 2 * n - np.array(drawn[: len(answers)])
    assert noise.shape == (scaler.QUESTIONS - scaler._CHECKS, 400)
    assert np.abs(noise - np.rint(noise)).max() < 1e-9
    low, high = stats.chi2.ppf([5e-10, 1 - 5e-10], noise.size)
    assert low < np.sum(np.rint(noise) ** 2) / (std**2 + 1 / 12) < high


def attack(cut, runs=8000):
    """Attack the centres of the smallest table that is learnt, with one record replaced; return the bound and the statement.

    Columns are searched independently, so many columns with the noise of one are as many runs on one column.
    """
    n, delta = 80, 0.01
    mu = math.sqrt(scaler.QUESTIONS) / (n * quantiles.WORST_ERROR * 0.998)
    std = quantiles.balance_noise(mu, scaler.QUESTIONS, "replace-one")
    assert 0.99 * quantiles.WORST_ERROR < quantiles.answer_error(std, n) <= quantiles.WORST_ERROR
    even = np.repeat([-1.0, 1.0], n // 2)
    uneven = np.where(np.arange(n) == 0, 1.0, even)
    centers = [
        learn(np.repeat(column[:, np.newaxis], runs, axis=1), std / cut, Generator(SFC64(seed))).center
        for seed, column in enumerate((even, uneven))
    ]
    return clopper_pearson_bound(*centers, delta, confidence=1 - 1e-6).lower_bound, gaussian.epsilon(mu, delta)


def test_an_attack_stays_below_what_is_stated():
    """With confidence 1 − 1e-6; the attack is not vacuous."""
    shown, stated = attack(cut=1)
    assert 0.1 < shown < stated


def test_the_attack_would_find_a_sixteenth_of_the_noise():
    shown, stated = attack(cut=16)
    assert shown > stated


def test_without_a_seed_no_two_fits_are_the_same_and_the_generator_is_cryptographic(monkeypatch):
    X = np.random.default_rng(6).standard_normal((5000, 2))
    kinds = []
    original = scaler.spawn

    def watched(seed, replicates):
        streams = original(seed, replicates)
        kinds.append(type(streams[0].noise.bit_generator).__name__)
        return streams

    monkeypatch.setattr(scaler, "spawn", watched)
    one, other = (PrivateScaler().fit(X) for _ in range(2))
    assert kinds == ["AESCounter", "AESCounter"]
    assert not np.array_equal(one.scale_, other.scale_)
    assert not any("seed" in reason for reason in one.statement_.reasons)
    assert any("not for release" in reason for reason in PrivateScaler(random_state=1).fit(X).statement_.reasons)


# How well it does. The seeds are fixed, so a change of result is a change of code.

UNITS = [1e-6, 1e-3, 1.0, 1e5, 1e9]
SHAPES = {
    "normal": lambda rng, n: rng.standard_normal(n),
    "shifted": lambda rng, n: 5 + rng.standard_normal(n),
    "negative": lambda rng, n: -3 - rng.random(n),
    "exponential": lambda rng, n: rng.exponential(size=n),
    "far outliers": lambda rng, n: np.where(rng.random(n) < 0.01, 1e5, rng.standard_normal(n)),
    "Cauchy": lambda rng, n: rng.standard_cauchy(n),
}


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("shape", SHAPES)
def test_centre_and_scale_in_any_units(shape, adjacency):
    rng = np.random.default_rng(7)
    X = np.column_stack([unit * SHAPES[shape](rng, 20_000) for unit in UNITS])
    fitted = PrivateScaler(epsilon=1.0, adjacency=adjacency, random_state=0).fit(X)
    middle = np.median(X, axis=0)
    spread = np.quantile(np.abs(X - middle), 0.95, axis=0) / stats.norm.ppf(0.975)
    assert fitted.learnt_.all()
    assert np.abs((fitted.center_ - middle) / spread).max() < 0.1
    assert np.abs(np.log2(fitted.scale_ / spread)).max() < 0.5


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("column", "center", "scale"),
    [
        (np.zeros(5000), 0.0, 1.0),
        (np.full(5000, 37.0), 37.0, 37.0),
        (np.full(5000, -1e9), -1e9, 1e9),
        (np.arange(5000) % 2, None, 0.5),  # any centre between 0 and 1 will do
        ((np.arange(5000) % 100 < 98).astype(float), 1.0, 1.0),  # 2 % zeros
        ((np.arange(5000) % 100 < 2).astype(float), 0.0, 1.0),  # 2 % ones
        ((np.arange(5000) % 10 == 0) * 1e4, 0.0, 5e3),  # zero for the most part
        (np.random.default_rng(8).poisson(3, 5000), 3.0, 1.7),
        (np.rint(1990 + 10 * np.random.default_rng(8).standard_normal(5000)), 1990.0, 10.0),
    ],
)
def test_columns_that_are_hard(column, center, scale, seed):
    fitted = PrivateScaler(epsilon=1.0, random_state=seed).fit(column[:, np.newaxis])
    assert fitted.learnt_.all()
    assert center is None or abs(fitted.center_[0] - center) <= 0.3 * scale
    assert 0 <= fitted.center_[0] <= 1 or center is not None
    assert 0.4 < fitted.scale_[0] / scale < 2.2


def test_values_out_of_reach_do_no_harm():
    X = np.array([[1e300, 1e-300], [-1e300, 0.0]]).repeat(2000, axis=0)
    with pytest.warns(UserWarning, match="Noise hid 1 of 2"):
        fitted = PrivateScaler(epsilon=1.0, random_state=0).fit(X)
    assert np.isfinite(fitted.center_).all()
    assert fitted.scale_[0] >= 2**40
    assert fitted.scale_[1] == 1.0
    assert np.isfinite(fitted.transform(X)).all()


def test_where_nothing_can_be_told_nothing_is_spent():
    X = 1e6 * np.random.default_rng(9).standard_normal((100, 5))
    with pytest.warns(UserWarning, match="Noise hid 5 of 5"):
        fitted = PrivateScaler(epsilon=0.1, random_state=0).fit(X)
    assert not fitted.learnt_.any()
    assert fitted.statement_.certified == 0.0
    assert np.array_equal(fitted.transform(X), X)


def test_columns_that_the_noise_hides_are_named():
    """Heavy tails at the smallest number of records that is learnt, where some columns are hidden and some are not."""
    X = np.exp(3 * np.random.default_rng(10).standard_normal((850, 12)))
    with pytest.warns(UserWarning, match="Noise hid") as caught:
        fitted = PrivateScaler(epsilon=1.0, random_state=0).fit(X)
    assert 0 < fitted.learnt_.sum() < 12
    assert fitted.statement_.nominal == pytest.approx(1.0)
    assert str(caught[-1].message) in fitted.statement_.reasons
    assert {warning.filename for warning in caught} == {__file__}  # they point to the caller's line
    assert (fitted.center_[~fitted.learnt_] == 0).all()
    assert (fitted.scale_ > 0).all()


def test_hidden_columns_of_a_data_frame_are_named(frame):
    with pytest.warns(UserWarning, match=r"^Noise hid 2 of 2 column\(s\), which are not centred: age, income\. "):
        PrivateScaler(epsilon=0.01, random_state=0).fit(frame[:100])


# Bounds


def test_bounds_need_no_budget_and_no_look_at_the_data():
    rng = np.random.default_rng(11)
    given = PrivateScaler(epsilon=None, bounds=([0.0, -10.0], [4.0, 10.0]))
    one, other = (clone(given).fit(X) for X in (rng.random((5, 2)), 1e9 * rng.random((5, 2))))
    assert one.center_.tolist() == other.center_.tolist() == [2.0, 0.0]
    assert one.scale_.tolist() == other.scale_.tolist() == [2.0, 10.0]
    assert one.transform([[0.0, 10.0], [4.0, 0.0]]).tolist() == [[-1.0, 1.0], [1.0, 0.0]]
    assert one.statement_.certified == one.statement_.delta_at(0.0) == 0.0
    assert one.statement_.steps == 0
    assert "nothing was learnt" in str(one.statement_)
    seeded = clone(given).set_params(random_state=0).fit(rng.random((5, 2)))
    assert seeded.statement_.certified == 0.0  # what cost nothing needs no noise that could be undone
    assert SEEDED not in seeded.statement_.reasons


def test_bounds_of_one_number_are_for_all_columns():
    assert PrivateScaler(bounds=(0, 10)).fit(np.ones((3, 4))).scale_.tolist() == [5.0] * 4


# Among scikit-learn's own


def checked(estimator):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # few records hide columns, and the checks have warnings of their own
        return check_estimator(estimator, on_skip=None)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("epsilon", [1.0, 1e4])
def test_scikit_learn_accepts_it(seed, epsilon, monkeypatch):
    """The checks set random_state to 0, so the seed is shifted; with ε = 1e4 the few records suffice to learn."""
    original = scaler.spawn
    monkeypatch.setattr(scaler, "spawn", lambda state, k: original(None if state is None else state + seed, k))
    results = checked(PrivateScaler(epsilon=epsilon))
    assert {result["status"] for result in results} <= {"passed", "skipped"}
    assert [r["check_name"] for r in results if r["status"] == "skipped"] in ([], ["check_array_api_input"])


def test_scikit_learn_accepts_it_with_bounds():
    assert {result["status"] for result in checked(PrivateScaler(bounds=(-3, 3)))} <= {"passed", "skipped"}


@pytest.fixture(scope="module")
def frame():
    rng = np.random.default_rng(12)
    return pd.DataFrame({"age": rng.integers(18, 90, 4000), "income": rng.lognormal(10, 0.7, 4000)})


def test_data_frames_in_and_out(frame):
    fitted = PrivateScaler(random_state=0).set_output(transform="pandas").fit(frame)
    scaled = fitted.transform(frame)
    assert fitted.n_features_in_ == 2
    assert fitted.feature_names_in_.tolist() == list(scaled.columns) == list(fitted.get_feature_names_out())
    assert scaled.index.equals(frame.index)
    with pytest.raises(ValueError, match="feature names"):
        fitted.transform(frame[["income", "age"]])


def test_the_inverse_gives_the_records_back(frame):
    fitted = PrivateScaler(random_state=0)
    scaled = fitted.fit_transform(frame)
    np.testing.assert_allclose(fitted.inverse_transform(scaled), frame, rtol=1e-12)


def test_a_seed_repeats_a_fit_and_copies_are_faithful(frame):
    fitted = PrivateScaler(epsilon=0.7, random_state=3).fit(frame)
    again, restored = PrivateScaler(epsilon=0.7, random_state=3).fit(frame), pickle.loads(pickle.dumps(fitted))
    for other in (again, restored):
        assert np.array_equal(other.scale_, fitted.scale_)
        assert other.statement_.to_dict() == fitted.statement_.to_dict()
    assert restored.statement_.mended.epsilon(1e-3) == fitted.statement_.mended.epsilon(1e-3) < 0.7


def test_in_a_pipeline(frame):
    pipeline = make_pipeline(PrivateScaler(random_state=0)).fit(frame)
    assert np.abs(np.median(pipeline.transform(frame), axis=0)).max() < 0.1


def test_what_the_statement_says(frame):
    statement = PrivateScaler(epsilon=1.0, random_state=None).fit(frame).statement_
    assert isinstance(statement, cs.Statement)
    assert (statement.rule, statement.records, statement.steps) == ("PrivateScaler", 4000, scaler.QUESTIONS)
    assert statement.claimed is None
    assert f"μ = {statement.gaussian_mu:.4g}" in str(statement)
    assert "certified ε | 1 |" in statement.to_markdown()
    assert "eeded" not in str(statement)
    assert "gradient" not in str(statement)
    with pytest.warns(cs.PrivacyWarning, match="^Seeded: not for release"):
        seeded = PrivateScaler(epsilon=1.0, random_state=0).fit(frame).statement_
    assert seeded.reasons[0] == SEEDED
    assert (seeded.certified, seeded.nominal) == (math.inf, statement.certified)
    with pytest.warns(cs.PrivacyWarning, match="^δ = 0.001 is at least 1 in 4000 records"):
        PrivateScaler(epsilon=1.0, delta=1e-3).fit(frame)


# Wrong input


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_refused_in_one_sentence(bad):
    X = np.ones((5, 2))
    fitted = PrivateScaler(bounds=(0, 2)).fit(X)
    X[3, 1] = bad
    for use in (PrivateScaler().fit, fitted.transform, fitted.inverse_transform):
        with pytest.raises(ValueError, match=r"^X must be finite, got 1 NaN or infinite value\(s\)\.$"):
            use(X)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"epsilon": 0.0}, "epsilon must be a number above 0, got 0.0."),
        ({"epsilon": None}, "epsilon must be a number above 0 unless bounds are given, got None."),
        ({"delta": 0.0}, "delta must be a number above 0 and below 1, got 0.0."),
        ({"adjacency": "both"}, "adjacency must be one of"),
        ({"adjacency": "add-remove"}, "adjacency must be 'replace-one' or 'zero-out' here, where settings follow from"),
        ({"random_state": -1}, "random_state must be a whole number of at least 0, got -1."),
        ({"bounds": 3.0}, "bounds must be (lows, highs), each a number or one number per column, got 3.0."),
        ({"bounds": (1.0, 1.0)}, "bounds must be (lows, highs) with every low below its high, got (1.0, 1.0)."),
        (
            {"bounds": [(0, 1), (5, 1)]},
            "bounds must be (lows, highs) with every low below its high, got [(0, 1), (5, 1)].",
        ),
        ({"bounds": ([0.0, 0.0, 0.0], 1.0)}, "lows must be a number or 2 number(s), got shape (3,)."),
        ({"bounds": (0.0, np.nan)}, "highs must be finite"),
    ],
)
def test_wrong_settings_get_one_sentence(wrong, sentence):
    unfitted = PrivateScaler(**wrong)
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}"):
        unfitted.fit(np.ones((4, 2)))
    assert not hasattr(unfitted, "center_")


def test_a_fit_that_fails_leaves_the_scaler_as_it_was():
    X = np.random.default_rng(0).normal(size=(3000, 3))
    found = PrivateScaler().fit(X)
    with pytest.raises(ValueError, match="epsilon must be a number above 0"):
        found.set_params(epsilon=-1.0).fit(X[:, :2])
    with warnings.catch_warnings():
        warnings.simplefilter("error", cs.PrivacyWarning)
        with pytest.raises(cs.PrivacyWarning, match="2 fits"):
            found.set_params(epsilon=1.0).fit(X[:, :2])
    assert found.n_features_in_ == 3
    assert found.transform(X).shape == X.shape


def test_it_must_be_fitted_first():
    for use in (PrivateScaler().transform, PrivateScaler().inverse_transform):
        with pytest.raises(NotFittedError):
            use(np.ones((2, 2)))
