"""What the steps of a pipeline learnt, and whether they treat rows one by one."""

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.decomposition import PCA
from sklearn.feature_selection import VarianceThreshold
from sklearn.impute import MissingIndicator, SimpleImputer
from sklearn.linear_model import LogisticRegression
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

from clipsilon.estimators.steps import find_fault, treats_rows_alone

X = np.random.default_rng(0).integers(0, 3, (60, 2)).astype(float)
GIVEN = [[0.0, 1.0, 2.0]] * 2
KNOTS = np.linspace([-1.0, -1.0], [3.0, 3.0], 5)

HARMLESS = {
    "constant imputer": SimpleImputer(strategy="constant", fill_value=7.0),
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
    "imputer that learns which columns have gaps": SimpleImputer(strategy="constant", add_indicator=True),
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


def test_rows_are_needed_to_test_rows():
    with pytest.raises(ValueError, match="rows must be at least 2, got 1"):
        treats_rows_alone(np.tanh, np.ones((1, 2)))
