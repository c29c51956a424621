"""What the steps of a pipeline learnt, and whether they treat rows one by one."""

from functools import partial

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.decomposition import PCA
from sklearn.feature_selection import VarianceThreshold
from sklearn.frozen import FrozenEstimator
from sklearn.impute import MissingIndicator, SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    Binarizer,
    FunctionTransformer,
    KBinsDiscretizer,
    Normalizer,
    OneHotEncoder,
    OrdinalEncoder,
    PolynomialFeatures,
    QuantileTransformer,
    SplineTransformer,
    StandardScaler,
)

from clipsilon.estimators.steps import find_fault, find_held, treats_rows_alone

X = np.random.default_rng(0).integers(0, 3, (60, 2)).astype(float)
GIVEN = [[0.0, 1.0, 2.0]] * 2
KNOTS = np.linspace([-1.0, -1.0], [3.0, 3.0], 5)

HARMLESS = {
    "constant imputer": SimpleImputer(strategy="constant", fill_value=7.0, keep_empty_features=True),
    "given categories": OneHotEncoder(categories=GIVEN),
    "given order": OrdinalEncoder(categories=GIVEN),
    "given knots": SplineTransformer(knots=KNOTS),
    "indicator of all": MissingIndicator(features="all"),
    "binarizer": Binarizer(threshold=0.5),
    "normalizer": Normalizer(),
    "polynomial": PolynomialFeatures(),
    "identity": FunctionTransformer(),
    "function": FunctionTransformer(np.tanh),
    "function with set output": FunctionTransformer(np.tanh, validate=True).set_output(transform="default"),
}
LEARNT = {
    "mean imputer": SimpleImputer(strategy="mean"),
    "most frequent": SimpleImputer(strategy="most_frequent"),
    "imputer that learns which columns have gaps": SimpleImputer(
        strategy="constant", keep_empty_features=True, add_indicator=True
    ),
    "indicator of some": MissingIndicator(error_on_new=False),
    "categories": OneHotEncoder(),
    "counted categories": OneHotEncoder(categories=GIVEN, min_frequency=2),
    "most categories": OrdinalEncoder(categories=GIVEN, max_categories=2),
    "knots": SplineTransformer(knots="quantile"),
    "scaler": StandardScaler(),
    "bins": KBinsDiscretizer(2, encode="ordinal", strategy="uniform"),
    "quantiles": QuantileTransformer(n_quantiles=5),
    "selection": VarianceThreshold(),
    "components": PCA(1),
}


@pytest.mark.parametrize("step", HARMLESS.values(), ids=HARMLESS)
def test_harmless_steps(step):
    assert find_fault(step.fit(X)) is None


@pytest.mark.parametrize("step", LEARNT.values(), ids=LEARNT)
def test_steps_that_learnt(step):
    assert find_fault(step.fit(X)) == f"Learnt from the data without budget: {type(step).__name__}."


def test_a_constant_imputer_that_leaves_out_empty_columns_learnt():
    """One record with a value in a column decides whether scikit-learn from 1.8 on keeps the column."""
    assert "keep_empty_features=True" in find_fault(SimpleImputer(strategy="constant").fit(X))


def test_models_without_privacy_learnt():
    assert "LogisticRegression" in find_fault(LogisticRegression().fit(X, X[:, 0] > 0))


class Stateless(TransformerMixin, BaseEstimator):
    """A step of the user's own, which leaves on itself what it is told to."""

    def __init__(self, kept=None, function=np.tanh):
        self.kept, self.function = kept, function

    def fit(self, X, y=None):
        self.n_features_in_ = X.shape[1]
        if self.kept is not None:
            setattr(self, self.kept, X.mean())
        return self

    def transform(self, X):
        return self.function(X)


class Careful(OneHotEncoder):
    """A class derived from a known one may do anything."""


def test_steps_of_your_own():
    assert find_fault(Stateless().fit(X)) is None
    for kept in ("mean_", "_mean", "mean"):  # whatever it is called
        assert find_fault(Stateless(kept).fit(X)) == "Learnt from the data without budget: Stateless."
    assert "Careful" in find_fault(Careful(categories=GIVEN).fit(X))
    assert "looks at several rows" in find_fault(Stateless(function=lambda table: table / table.max()).fit(X))
    assert "could not be tested" in find_fault(Stateless())


class Overwrites(TransformerMixin, BaseEstimator):
    """Keeps what it learnt in a parameter."""

    def __init__(self, mean=None):
        self.mean = mean

    def fit(self, X, y=None):
        self.mean, self.n_features_in_ = X.mean(axis=0), X.shape[1]
        return self

    def transform(self, X):
        return X - self.mean


class Delegates(TransformerMixin, BaseEstimator):
    """Fits the estimator that it was given, and not a copy."""

    def __init__(self, inner):
        self.inner = inner

    def fit(self, X, y=None):
        self.inner.fit(X)
        self.n_features_in_ = X.shape[1]
        return self

    def transform(self, X):
        return self.inner.transform(X)


class Twofold(TransformerMixin, BaseEstimator):
    """Does something else to the rows that it is fitted to."""

    def __init__(self, uses_labels=False):
        self.uses_labels = uses_labels

    def fit(self, X, y=None):
        self.n_features_in_ = X.shape[1]
        return self

    def fit_transform(self, X, y=None):
        self.fit(X)
        if not self.uses_labels:
            return X - X.mean(axis=0)
        return X if y is None else X * np.mean(y)

    def transform(self, X):
        return X


def test_what_is_learnt_elsewhere_than_in_attributes_is_found():
    """Pipelines call `fit_transform`, and a parameter may hold what was learnt."""
    for step in (Overwrites(), Delegates(StandardScaler()), Twofold(), Twofold(uses_labels=True)):
        assert find_fault(step.fit(X)) == f"Learnt from the data without budget: {type(step).__name__}."
    assert find_fault(Delegates(FunctionTransformer(np.tanh)).fit(X)) is None


def test_estimators_that_parameters_hold():
    fitted = StandardScaler().fit(X)
    inner = make_pipeline(fitted)
    for step, held in (
        (FrozenEstimator(fitted), fitted),
        (FrozenEstimator(inner), inner),
        (FunctionTransformer(fitted.transform), fitted),
        (FunctionTransformer(partial(np.clip, a_min=0), kw_args={"out": None, "a": [fitted]}), fitted),
    ):
        assert find_held(step) == [held]
    assert find_held(FunctionTransformer(np.tanh).fit(X)) == find_held(Binarizer().fit(X)) == []
    assert find_held(LogisticRegression().fit(X, X[:, 0] > 0)) == []  # has learnt itself


FRAMES = {
    "means where values are missing": lambda table: table.fillna(table.mean()),
    "values of the row before": lambda table: table.ffill(),
    "interpolation": lambda table: table.interpolate(),
    "means of groups": lambda table: table.assign(a=table.groupby("b").a.transform("mean")),
    "no duplicates": lambda table: table.drop_duplicates(),
}


@pytest.mark.parametrize("function", FRAMES.values(), ids=FRAMES)
def test_functions_that_mix_some_rows_only_are_found(function):
    """In made-up rows, and in given ones of which none is missing or occurs twice."""
    frame = pd.DataFrame(np.random.default_rng(1).normal(size=(30, 2)), columns=["a", "b"])
    step = FunctionTransformer(function).fit(frame)
    assert "looks at several rows at a time" in find_fault(step)
    assert "looks at several rows at a time" in find_fault(step, frame)


def test_a_gap_far_down_is_found():
    rows = np.random.default_rng(1).normal(size=(900, 1))
    rows[700] = np.nan

    def impute(table):
        return np.where(np.isnan(table), np.nanmean(table), table)

    assert not treats_rows_alone(impute, rows)
    assert treats_rows_alone(np.nan_to_num, rows)


def test_words_with_gaps_and_repetitions():
    frame = pd.DataFrame({"town": ["a", "b", "a", None], "size": [1.0, 2.0, 3.0, 4.0]})
    step = FunctionTransformer(lambda table: table.assign(town=table.town.fillna("none").str.len())).fit(frame)
    assert find_fault(step, frame) is None
    counts = FunctionTransformer(lambda table: table.assign(town=table.town.map(table.town.value_counts())))
    assert "several rows" in find_fault(counts.fit(frame), frame)


MIXING = {
    "centres": lambda table: table - table.mean(axis=0),
    "scales": lambda table: table / np.abs(table).max(),
    "ranks": lambda table: table.argsort(axis=0).argsort(axis=0),
    "clips": lambda table: np.clip(table, *np.quantile(table, [0.1, 0.9])),
    "differences": lambda table: np.diff(table, axis=0, prepend=0.0),
    "drops": lambda table: table[table[:, 0] > 0],
    "numbers": lambda table: np.column_stack([table, np.arange(len(table))]),
    "counts": lambda table: np.column_stack([table, np.full(len(table), len(table))]),
    "sums": lambda table: np.cumsum(table, axis=0),
    "noise": lambda table: table + np.random.default_rng().normal(size=table.shape),
}
ALONE = {
    "squares": lambda table: table**2,
    "norms": lambda table: np.linalg.norm(table, axis=1, keepdims=True),
    "product": lambda table: table @ np.linspace(0.1, 1.0, table.shape[1] * 3).reshape(-1, 3),
    "logarithms": np.log,  # NaN for some
    "comparison": lambda table: table > 0.3,
    "words": lambda table: np.where(table > 0, "more", "less"),
    "sparse": lambda table: sparse.csr_matrix(np.maximum(table, 0.0)),
}


@pytest.mark.parametrize("function", MIXING.values(), ids=MIXING)
def test_functions_that_mix_rows_are_found(function):
    assert "looks at several rows at a time" in find_fault(FunctionTransformer(function).fit(X))


@pytest.mark.parametrize("function", ALONE.values(), ids=ALONE)
def test_functions_of_one_row_pass(function):
    assert find_fault(FunctionTransformer(function).fit(X)) is None


def test_functions_of_data_frames():
    frame = pd.DataFrame(X, columns=["income", "debt"])
    ratio = FunctionTransformer(lambda table: (table["debt"] / (1 + table["income"])).to_frame())
    assert find_fault(ratio.fit(frame)) is None
    share = FunctionTransformer(lambda table: table / table.sum())
    assert "several rows" in find_fault(share.fit(frame))


def test_functions_that_look_far_back_are_found():
    """Where there are fewer rows than they look back, such functions seem to treat each row by itself."""
    frame = pd.DataFrame(X, columns=["load", "price"])
    for function in (
        lambda table: table - table.shift(24).fillna(0.0),
        lambda table: table.rolling(100).mean().fillna(0.0),
        lambda table: table - table.mean() if len(table) > 500 else table,
    ):
        assert "several rows" in find_fault(FunctionTransformer(function).fit(frame))
        assert "several rows" in find_fault(FunctionTransformer(function).fit(frame), frame)


def test_rows_are_needed_to_test_rows():
    with pytest.raises(ValueError, match="rows must be at least 2, got 1"):
        treats_rows_alone(np.tanh, np.ones((1, 2)))
