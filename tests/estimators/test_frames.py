"""Data frames with text, dates and gaps: all columns are named at once, and nothing is spent."""

import numpy as np
import pandas as pd
import pytest

import clipsilon as cs
from clipsilon.estimators import PrivateLogisticRegression, PrivateScaler

ROWS = 400
FRAME = pd.DataFrame(
    {
        "income": np.arange(ROWS, dtype=float),
        "region": ["north", "south"] * (ROWS // 2),
        "joined": pd.Timestamp("2024-01-31"),
        "age": [np.nan, 40.0] * (ROWS // 2),
        "member": pd.Categorical([None, "yes", "no", "yes"] * (ROWS // 4)),
        "visits": [0, "1", 2.0, True] * (ROWS // 4),  # numbers all the same, as scikit-learn takes them
    }
)


def refused(use):
    with pytest.raises(ValueError, match="columns of X") as caught:
        use()
    return str(caught.value)


def test_all_columns_are_named_and_nothing_is_spent(tmp_path):
    budget = cs.Budget(tmp_path / "people.budget", 1.0, 1e-5)
    y = np.arange(ROWS) % 2
    model = PrivateLogisticRegression(0.5, 1e-6, classes=[0, 1], budget=budget)
    scaler = PrivateScaler(0.5, 1e-6, budget=budget)
    for use in (lambda: model.fit(FRAME, y), lambda: scaler.fit(FRAME)):
        message = refused(use)
        for part in (
            "'region' (such as 'north')",
            "'joined' (",
            "'member' (such as 'yes'; 100 gap(s))",
            "SchemaEncoder",
        ):
            assert part in message
        assert "income" not in message
        assert "visits" not in message
        assert "\n" not in message
    assert budget.charges() == []


def test_predictions_name_them_too():
    y = np.arange(ROWS) % 2
    numbers = FRAME[["income"]].assign(age=1.0)
    model = PrivateLogisticRegression(0.5, 1e-6, classes=[0, 1]).fit(numbers, y)
    assert "got other values in 'age' (200 gap(s)): " in refused(lambda: model.predict(FRAME[["income", "age"]]))


def test_other_errors_stay_as_they_are():
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        PrivateLogisticRegression(classes=[0, 1]).fit(FRAME[["income"]], np.zeros(3))
    with pytest.raises(ValueError, match="could not convert string to float"):
        PrivateLogisticRegression(classes=[0, 1]).fit(FRAME[["region"]].to_numpy(), np.arange(ROWS) % 2)


def test_one_column_is_refused_as_scikit_learn_does():
    """A series is no data frame, and its cells have no names."""
    for use in (PrivateLogisticRegression(1.0, 1e-5, classes=[0, 1]).fit, PrivateScaler(1.0, 1e-5).fit):
        with pytest.raises(ValueError, match="Expected a 2"):
            use(FRAME["income"], np.arange(ROWS) % 2)
