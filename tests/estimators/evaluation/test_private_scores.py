"""`private_scores`: figures and curves against scikit-learn's, statements and their composition, and bad input."""

import json
import math
import re
import warnings

import numpy as np
import pandas as pd
import pytest
from scipy.special import expit
from sklearn.datasets import make_classification
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge
from sklearn.metrics import accuracy_score, log_loss, mean_absolute_error, mean_squared_error, roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.svm import LinearSVC

import clipsilon as cs
from clipsilon.engine.streams import spawn
from clipsilon.estimators import PrivateLinearRegression, PrivateLogisticRegression, total_privacy
from clipsilon.estimators.evaluation import grids
from clipsilon.estimators.evaluation.evaluate import _count, _noise_std
from clipsilon.estimators.evaluation.predictions import Scored, score_rows
from clipsilon.estimators.evaluation.result import in_parallel
from clipsilon.privacy.statement import SEEDED

pytestmark = pytest.mark.filterwarnings("ignore::clipsilon.PrivacyWarning")


def table(people=4000, classes=2, seed=0):
    X, y = make_classification(
        people, 6, n_informative=4, n_redundant=0, n_classes=classes, flip_y=0.1, random_state=seed
    )
    return X, y


@pytest.fixture(scope="module")
def model():
    X, y = table()
    return LogisticRegression().fit(X[:2000], y[:2000])


@pytest.fixture(scope="module")
def private():
    X, y = table()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return PrivateLogisticRegression(epsilon=1.0, classes=[0, 1]).fit(X[:2000], y[:2000])


def held_out():
    X, y = table()
    return X[2000:], y[2000:]


# -- figures ----------------------------------------------------------------------------------------------------------


def test_figures_of_two_classes_agree_with_scikit_learn(model):
    X, y = held_out()
    scores = cs.private_scores(model, X, y, epsilon=500.0, random_state=0)
    exact = {
        "accuracy": accuracy_score(y, model.predict(X)),
        "roc_auc": roc_auc_score(y, model.predict_proba(X)[:, 1]),
        "log_loss": log_loss(y, model.predict_proba(X)),
        "positive_rate": y.mean(),
    }
    assert list(scores.figures) == list(exact)
    for name, value in exact.items():
        figure = scores.figures[name]
        assert figure.value == pytest.approx(value, abs=0.004)
        assert figure.low < value < figure.high
        assert figure.margin == (figure.high - figure.low) / 2
    assert scores.positive == "1"
    assert scores.people == 2000


def test_figures_of_several_classes(model):
    X, y = table(classes=3)
    three = LogisticRegression().fit(X, y)
    scores = cs.private_scores(three, X, y, epsilon=500.0, random_state=0)
    assert scores.figures["accuracy"].value == pytest.approx(accuracy_score(y, three.predict(X)), abs=0.002)
    assert scores.figures["log_loss"].value == pytest.approx(log_loss(y, three.predict_proba(X)), abs=0.01)
    assert set(scores.figures) == {"accuracy", "log_loss"}
    assert (scores.roc, scores.calibration, scores.positive) == (None, None, "")


class Given:
    """A classifier whose columns are its probabilities; `shift` depends on the whole table."""

    _estimator_type = "classifier"

    def __init__(self, classes=2, shift=lambda X: 0.0):
        self.classes_, self.shift = np.arange(classes), shift

    def __sklearn_tags__(self):
        return LogisticRegression().__sklearn_tags__()

    def predict_proba(self, X):
        return np.asarray(X) + self.shift(X)


def test_a_few_large_losses_are_not_hidden_in_a_wide_bin():
    """1.5 % of the people are sure of a wrong class: a sixth of the log loss, far away from all others."""
    rng = np.random.default_rng(0)
    odds = np.where(rng.random(4000) < 0.015, -7.0, 3 + 0.7 * rng.standard_normal(4000))
    true = expit(odds)
    X = np.column_stack([true, (1 - true) / 2, (1 - true) / 2])
    loss = cs.private_scores(Given(3), X, np.zeros(4000, int), 500.0, random_state=0).figures["log_loss"]
    assert loss.value == pytest.approx(-np.log(true).mean(), abs=0.004)


def test_equal_scores_leave_doubt_about_their_place_in_a_cell():
    """Log-odds of 0 are at the end of a cell, whose middle is 1/32 away."""
    y = np.arange(4000) % 10 < 3
    scores = cs.private_scores(Given(), np.full((4000, 2), 0.5), y.astype(int), 500.0, random_state=0)
    assert scores.figures["log_loss"].low < math.log(2) < scores.figures["log_loss"].high
    assert scores.figures["roc_auc"].low < 0.5 < scores.figures["roc_auc"].high


def test_probabilities_that_are_none():
    X = np.array([[0.0, 0.0], [-1e-17, 1 + 1e-15], [1.0, 0.0], [0.3, 0.7]] * 10)
    scored = score_rows(Given(), X, np.zeros(40, int), None)
    assert scored.cells[:4].tolist() == [127, 255, 0, 141]


def test_a_model_that_looks_at_several_rows_is_refused(model):
    X, y = held_out()
    centred = make_pipeline(FunctionTransformer(lambda X: X - X.mean(axis=0)), LogisticRegression()).fit(X, y)
    with pytest.raises(ValueError, match="model must predict each row by itself"):
        cs.private_scores(centred, X, y, 1.0)
    three = Given(3, lambda X: 1e-2 * len(X) / 2000)
    with pytest.raises(ValueError, match="model must predict each row by itself"):
        cs.private_scores(three, np.full((2000, 3), 1 / 3), np.zeros(2000, int), 1.0)


@pytest.mark.parametrize("classes", [2, 3])
def test_rounding_that_depends_on_other_rows_moves_nobody(classes):
    """Rows at edges of cells, and ties between classes, are counted as if predicted alone, whatever their number."""
    first = np.column_stack([np.zeros(50), 1e-15 * np.ones(50), np.zeros(50)])[:, :classes]
    X = np.full((50, classes), 1 / classes)
    model = Given(classes, lambda X: first[: len(X)] * (-1 if len(X) % 2 else 1))
    y = np.arange(50) % classes
    whole, fewer = score_rows(model, X, y, None), score_rows(model, X[:49], y[:49], None)
    assert np.array_equal(whole.cells[:49], fewer.cells)
    assert np.array_equal(whole.outcomes[:49], fewer.outcomes)


def test_a_ranking_has_no_log_loss():
    X, y = table()
    scores = cs.private_scores(LinearSVC().fit(X, y), X, y, epsilon=1.0, random_state=0)
    assert list(scores.figures) == ["accuracy", "roc_auc", "positive_rate"]
    assert scores.roc is not None
    assert scores.calibration is None


def test_figures_of_numbers():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((5000, 3))
    y = X @ [3.0, -2.0, 1.0] + rng.standard_normal(5000)
    model = LinearRegression().fit(X, y)
    scores = cs.private_scores(model, X, y, epsilon=500.0, target_range=(-15, 15), random_state=0)
    exact = mean_absolute_error(y, model.predict(X)), math.sqrt(mean_squared_error(y, model.predict(X)))
    for figure, value in zip(scores.figures.values(), exact, strict=True):
        assert figure.value == pytest.approx(value, abs=0.02)
        assert figure.low < value < figure.high
    assert list(scores.figures) == ["mean_absolute_error", "root_mean_squared_error"]
    own = PrivateLinearRegression(epsilon=5.0, target_range=(-10, 10), random_state=0).fit(X, y)
    assert cs.private_scores(own, X, y, epsilon=1.0, random_state=0).figures["mean_absolute_error"].high < 3


def test_everybody_counts_the_same(model):
    """One person with half of the rows, all wrong, is one of 1,001."""
    X, y = held_out()
    right = model.predict(X) == y
    X, y = np.vstack([X[right][:1000], np.repeat(X[~right][:1], 1000, axis=0)]), None
    y = model.predict(X)
    y[1000:] = 1 - y[1000:]
    people = [f"p{i}" for i in range(1000)] + ["q"] * 1000
    scores = cs.private_scores(model, X, y, epsilon=100.0, groups=people, random_state=0)
    assert scores.people == 1001
    assert scores.figures["accuracy"].value > 0.99


def test_too_few_people_give_wide_intervals_and_no_value():
    X, y = held_out()
    model = LogisticRegression().fit(*table())
    scores = cs.private_scores(model, X[:20], y[:20], epsilon=0.1, random_state=1)
    auc = scores.figures["roc_auc"]
    assert (auc.low, auc.high) == (0.0, 1.0)
    assert "–" in str(scores) or not math.isnan(auc.value)
    json.dumps(scores.to_dict(), allow_nan=False)


def test_curves_lie_within_their_bands(model):
    X, y = held_out()
    scores = cs.private_scores(model, X, y, epsilon=1.0, random_state=0)
    for curve in (scores.roc, scores.calibration):
        known = np.isfinite(curve.y)
        assert (curve.low[known] <= curve.y[known]).all()
        assert (curve.y[known] <= curve.high[known]).all()
        assert (np.diff(curve.x) >= 0).all()
        assert curve.low.min() >= 0
        assert curve.high.max() <= 1
    assert (np.diff(scores.roc.y) >= -1e-12).all()


# -- bins -------------------------------------------------------------------------------------------------------------


def test_cells_include_their_upper_end():
    scores, errors = np.array([-99, -8.0, 0.0, 1e-9, 8.0, 99]), np.array([0.0, 1e-9, 1.0, 7.0])
    assert grids.to_cells(grids.locate_scores(scores)).tolist() == [0, 0, 127, 128, 255, 255]
    assert grids.to_cells(grids.locate_errors(errors)).tolist() == [0, 0, 255, 255]


@pytest.mark.parametrize("levels", [3, 5, 7])
def test_edges_are_different_whatever_the_counts(levels):
    rng = np.random.default_rng(levels)
    cases = [np.zeros(256), -np.ones(256), np.eye(256)[0] * 1e6, np.eye(256)[255], 1e3 * rng.standard_normal(256)]
    for counts in cases:
        for required in (None, grids.ZERO):
            edges = grids.choose_edges(counts, levels, 1.0, required)
            assert edges.size == 2**levels - 1
            assert (np.diff(edges) > 0).all()
            assert edges[0] >= 1
            assert edges[-1] <= 255
            assert required is None or required in edges
            assert (np.diff(grids.spread(edges).ravel()) > 0).all()


def test_an_edge_separates_tied_scores_beside_the_predicted_classes():
    """All people in two cells: the edge between them stays where the edge at 0 is added, too."""
    counts = np.zeros(256)
    counts[[136, 137]] = 1000
    edges = grids.choose_edges(counts, 4, 1.0, grids.ZERO)
    assert {grids.ZERO, 136, 137, 138} <= set(edges.tolist())


def test_nothing_but_the_noisy_histograms_is_learnt(monkeypatch):
    """Given the same noisy counts, any two tables give the same result."""
    results = []
    for seed in (0, 1):
        monkeypatch.setattr(
            "clipsilon.estimators.evaluation.histograms.weighted_tree",
            lambda bins, rows_of, classes, weights: np.full((classes, 2 ** (len(weights) - 1)), 10**9),
        )
        X, y = table(seed=seed)
        fixed = LogisticRegression().fit(*table(seed=9))
        results.append(cs.private_scores(fixed, X, y, epsilon=1.0, random_state=0).to_dict())
    assert results[0] == results[1]


def test_the_two_histograms_spend_the_whole_budget_and_no_more(monkeypatch):
    asked = []
    real = cs.estimators.evaluation.evaluate.draw_histogram
    monkeypatch.setattr(
        "clipsilon.estimators.evaluation.evaluate.draw_histogram",
        lambda *given: asked.append(given[4]) or real(*given),
    )
    mu = 0.3
    scored = Scored("binary", np.arange(256), np.arange(256) % 2)
    _count(scored, np.ones(256, dtype=np.int64), 256, _noise_std(mu, "zero-out"), spawn(0, 1)[0].noise)
    spent = math.sqrt(sum(1 / std**2 for std in asked))
    assert len(asked) == 2
    assert mu * (1 - 1e-12) < spent <= mu


# -- statements -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one", "add-remove"])
def test_the_statement_certifies_the_budget(model, adjacency):
    X, y = held_out()
    scores = cs.private_scores(model, X, y, 0.7, 1e-6, adjacency=adjacency)
    assert scores.statement.certified == pytest.approx(0.7)
    assert scores.statement.certified <= 0.7
    assert scores.statement.adjacency == adjacency
    assert scores.statement.records == scores.people
    # The noisy count has a deviation of 13 people.
    assert scores.people == (pytest.approx(2000, abs=150) if adjacency == "add-remove" else 2000)
    seeded = cs.private_scores(model, X, y, 0.7, adjacency=adjacency, random_state=0).statement
    assert seeded.certified == math.inf
    assert seeded.faults == (SEEDED,)


def test_a_hidden_number_of_people_is_not_used(model):
    """Neither the bins nor the counts depend on it."""
    X, y = held_out()
    scores = cs.private_scores(model, X, y, 0.7, adjacency="add-remove", random_state=0)
    assert "a noisy count" in " ".join(scores.statement.reasons)
    public = cs.private_scores(model, X, y, 0.7, adjacency="zero-out", random_state=0)
    assert scores.figures["accuracy"].margin > public.figures["accuracy"].margin


def test_people_who_were_held_out_compose_in_parallel(private):
    X, y = held_out()
    for epsilon in (0.3, 2.0):
        scores = cs.private_scores(private, X, y, epsilon, held_out=True)
        total = scores.total(private)
        assert total.epsilon == pytest.approx(max(total_privacy(private).epsilon, epsilon))
        assert "parallel composition" in str(total)
        apart = cs.private_scores(private, X, y, epsilon).total(private)
        assert apart.epsilon > total.epsilon
        assert apart.epsilon <= 1 + epsilon
        assert apart.delta == 2e-5


def test_a_seed_closes_the_total(private):
    X, y = held_out()
    total = cs.private_scores(private, X, y, 0.5, held_out=True, random_state=0).total(private)
    assert total.epsilon == math.inf
    assert total.nominal == pytest.approx(total_privacy(private).epsilon)
    assert len(total.faults) == 1


def test_the_adjacency_is_the_models(private):
    X, y = table()
    other = PrivateLogisticRegression(classes=[0, 1], adjacency="replace-one").fit(X, y)
    assert cs.private_scores(other, X, y, 1.0).statement.adjacency == "replace-one"
    assert cs.private_scores(make_pipeline(other), X, y, 1.0).statement.adjacency == "replace-one"
    scores = cs.private_scores(other, X, y, 1.0, held_out=True)
    with pytest.raises(ValueError, match="must be about the same kind of neighbours, got zero-out and replace-one"):
        scores.total(private)


@pytest.mark.filterwarnings("default::clipsilon.PrivacyWarning")
def test_rows_that_trained_the_model_are_noticed():
    X, y = table()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain = PrivateLogisticRegression(classes=[0, 1], random_state=0).fit(X[:2000], y[:2000])
        piped = make_pipeline(StandardScaler().fit(X), PrivateLogisticRegression(classes=[0, 1], random_state=0))
        piped.fit(X[:2000], y[:2000])
    for model in (plain, piped):
        with pytest.warns(cs.PrivacyWarning, match="500 rows equal rows that trained the model"):
            cs.private_scores(model, X[1500:3000], y[1500:3000], 1.0, held_out=True)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            cs.private_scores(model, X[2000:], y[2000:], 1.0, held_out=True)
            cs.private_scores(model, X[:2000], y[:2000], 1.0)


def test_people_who_trained_the_model_are_not_held_out():
    X, y = held_out()
    people = np.arange(2000) // 4
    model = PrivateLogisticRegression(classes=[0, 1]).fit(X[:1000], y[:1000], groups=people[:1000])
    with pytest.raises(ValueError, match="held_out must be False for people who trained the model, got 5 of them"):
        cs.private_scores(model, X[980:], y[980:], 1.0, groups=people[980:], held_out=True)
    total = cs.private_scores(model, X[1000:], y[1000:], 1.0, groups=people[1000:], held_out=True).total(model)
    assert "each person spends the larger" in str(total)


def test_a_hidden_number_of_people_is_no_reason_for_a_split_by_a_fraction(model):
    X, y = held_out()
    scores = cs.private_scores(model, X, y, 0.7, adjacency="add-remove", held_out=True)
    alone = total_privacy(scores.statement)
    assert "nor at how many there are, which a split by a fraction would do" in str(in_parallel(alone, alone))


# -- bad input --------------------------------------------------------------------------------------------------------

REFUSED = {
    "epsilon must be a number above 0, got 0": {"epsilon": 0},
    "delta must be a number above 0 and below 1, got 1.0": {"delta": 1.0},
    "adjacency must be one of": {"adjacency": "both"},
    "held_out must be True or False, got 1": {"held_out": 1},
    "groups must hold the id of a person for each of 4000 rows, got shape (3,)": {"groups": [1, 2, 3]},
    "groups must name the person of every row, got 1 row(s) without": {"groups": [1.0, 2.0, np.nan] + [4.0] * 3997},
    "groups must name the person of every row, got 2 row(s) without": {"groups": ["a", None, ""] + ["b"] * 3997},
    "groups must name the person of every row, got 3 row(s)": {"groups": pd.array([pd.NA] * 3 + [1] * 3997, "Int64")},
    "target_range must be left out for a classifier, got (0, 1)": {"target_range": (0, 1)},
    "y must hold one label for each of 4000 rows, got shape (5,)": {"y": [0] * 5},
    "y must hold the model's classes [0, 1] only, got 2": {"y": [0, 2] * 2000},
    "y must hold the model's classes [0, 1] only, got 'a'": {"y": ["a"] * 4000},
    "y must hold the model's classes [0, 1] only, got None": {"y": [0, None] * 2000},
    "random_state must be a whole number of at least 0, got -1": {"random_state": -1},
    "epsilon must be large enough for noise of at most 65536 people": {"epsilon": 1e-7, "delta": 1e-12},
}


@pytest.mark.parametrize("message", REFUSED)
def test_bad_input_is_refused_in_one_sentence(model, message):
    X, y = table()
    with pytest.raises(ValueError, match=re.escape(message)) as refused:
        cs.private_scores(**{"model": model, "X": X, "y": y, "epsilon": 1.0, **REFUSED[message]})
    assert "\n" not in str(refused.value)


def test_models_that_cannot_be_evaluated_are_refused_in_one_sentence(private):
    X, y = table()
    with pytest.raises(ValueError, match="model must be a fitted classifier or regressor, got StandardScaler"):
        cs.private_scores(StandardScaler().fit(X), X, y, 1.0)
    with pytest.raises(
        ValueError, match="model must be a fitted classifier or regressor, got LinearSVC before its fit"
    ):
        cs.private_scores(LinearSVC(), X, y, 1.0)
    with pytest.raises(ValueError, match="target_range must be given for Ridge, which knows no public range"):
        cs.private_scores(Ridge().fit(X, y), X, y, 1.0)
    with pytest.raises(ValueError, match="target_range must be a low and a high number, in this order"):
        cs.private_scores(Ridge().fit(X, y), X, y, 1.0, target_range=(1, 0))
    with pytest.raises(ValueError, match="y must be finite"):
        cs.private_scores(Ridge().fit(X, y), X, np.full(4000, np.nan), 1.0, target_range=(0, 1))
    with pytest.raises(ValueError, match="model must have predict_proba for more than two classes"):
        cs.private_scores(LinearSVC().fit(X, np.arange(4000) % 3), X, y, 1.0)
