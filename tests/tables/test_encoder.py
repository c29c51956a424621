"""Encoding by a schema: what becomes of each kind of cell, one row at a time, and what `total_privacy` thinks of it."""

import datetime
import pickle
from dataclasses import replace
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

import clipsilon as cs
from clipsilon.estimators import PrivateLogisticRegression, total_privacy
from clipsilon.estimators.steps import treats_rows_alone
from clipsilon.tables import Category, Date, Number, YesNo
from messy_tables import messy

FIRST, LAST = datetime.date(2020, 1, 1), datetime.date(2020, 1, 11)
NAN = float("nan")


def encoded(kind, cells):
    return cs.SchemaEncoder(cs.Schema({"a": kind})).transform({"a": cells}).tolist()


@pytest.mark.parametrize(
    "cells",
    [
        ["0", " 5 ", "10", "99", "-inf", "", "NA"],
        [0, 5.0, 10, Decimal(99), -np.inf, None, NAN],
        np.array([0, 5, 10, 99, -np.inf, np.nan, np.nan]),
        pd.Series([0, 5, 10, 99, -np.inf, None, None], dtype="Float64"),
        pd.Series(["0", "5", "10", "99", "-inf", pd.NA, "?"]),
    ],
)
def test_numbers(cells):
    expected = [[-1, 0], [0, 0], [1, 0], [1, 0], [-1, 0], [0.5, 1], [0.5, 1]]
    assert encoded(Number(0, 10, gap=7.5), cells) == expected


def test_logarithms():
    assert encoded(Number(1, 10_000, log=True), [1, 100, 10_000, 0, -5]) == [[-1], [0], [1], [-1], [-1]]
    assert encoded(Number(1, 10_000, log=True, gap=100), ["", "10000"]) == [[0, 1], [1, 0]]


def test_ranges_of_any_size():
    assert encoded(Number(-1.7e308, 1.7e308), [-1.7e308, 0.0, 1.7e308]) == [[-1], [0], [1]]
    tiny = encoded(Number(1, 1 + 1e-12), np.linspace(0, 2, 101))
    assert np.abs(tiny).max() <= 1


@pytest.mark.parametrize(
    ("cells", "pattern"),
    [
        (["2020-01-01", "2020-01-06", "2020-01-11 00:00", "2031-01-01", ""], None),
        (["01.01.2020", " 06.01.2020", "11.01.2020", "01.01.2031", "null"], "%d.%m.%Y"),
        ([20200101, 20200106.0, "20200111", 20310101, None], "%Y%m%d"),
        ([FIRST, datetime.date(2020, 1, 6), LAST, datetime.datetime(2031, 1, 1), None], None),
        (pd.to_datetime(pd.Series(["2020-01-01", "2020-01-06", "2020-01-11", "2031-01-01", None])), None),
        (np.array(["2020-01-01", "2020-01-06", "2020-01-11", "2031-01-01", "NaT"], dtype="datetime64[D]"), None),
    ],
)
def test_dates(cells, pattern):
    kind = Date(FIRST, LAST, gap=FIRST, pattern=pattern)
    assert encoded(kind, cells) == [[-1, 0], [0, 0], [1, 0], [1, 0], [-1, 1]]


def test_times_are_parts_of_days():
    assert encoded(Date(FIRST, LAST), ["2020-01-06T12:00:00", "2020-01-05 12:00"]) == [[0.1], [-0.1]]


@pytest.mark.parametrize("cells", [["Yes", " no", "YES", ""], pd.Series(["yes", "no", "yes", None], dtype="category")])
def test_yes_and_no(cells):
    assert encoded(YesNo(gap="no"), cells) == [[1, 0], [-1, 0], [1, 0], [-1, 1]]


def test_yes_and_no_in_other_words():
    assert encoded(YesNo("1", "0"), [1, 0.0, "1"]) == [[1], [-1], [1]]
    assert encoded(YesNo("True", "False"), np.array([True, False])) == [[1], [-1]]
    assert encoded(YesNo("here", "none"), ["none", "here"]) == [[-1], [1]]  # a word for a gap may be a word


def test_categories():
    kind = Category(["a", "1", "None"])
    expected = [[1, 0, 0, 0, 0], [0, 1, 0, 0, 0], [0, 1, 0, 0, 0], [0, 0, 1, 0, 0], [0, 0, 0, 1, 0], [0, 0, 0, 0, 1]]
    assert encoded(kind, ["a", "1", 1.0, "None", "A", None]) == expected
    names = cs.Schema({"x": kind}).feature_names()
    assert names == ["x=a", "x=1", "x=None", "x (other)", "x (missing)"]


REFUSED = {
    "text": (Number(0, 1), ["0", "much", "more"], "column 'a' of X must hold numbers, got 'much'."),
    "gaps": (Number(0, 1), ["0", "", None], "column 'a' of X must have a value in every row unless the schema has an entry gap for it, got 2 gap(s)."),
    "no date": (Date(FIRST, LAST), ["2020-01-32"], "column 'a' of X must hold dates such as 2024-12-31, got '2020-01-32'."),
    "other date": (Date(FIRST, LAST, pattern="%d.%m.%Y"), ["2020-01-31"], "column 'a' of X must hold dates written as %d.%m.%Y, got '2020-01-31'."),
    "number for a date": (Date(FIRST, LAST), [17.5], "column 'a' of X must hold dates, got 17.5."),
    "third word": (YesNo(), ["yes", "perhaps"], "column 'a' of X must hold 'yes' or 'no', got 'perhaps'."),
    "two axes": (Number(0, 1), [[0, 1]], "column 'a' of X must be one value per row, got shape (1, 2)."),
}  # fmt: skip


@pytest.mark.parametrize(("kind", "cells", "message"), REFUSED.values(), ids=REFUSED)
def test_cells_that_do_not_fit(kind, cells, message):
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        encoded(kind, cells)
    assert str(caught.value) == message


def test_all_columns_that_do_not_fit_are_named():
    encoder = cs.SchemaEncoder(cs.Schema({"a": Number(0, 1), "b": Number(0, 1), "c": YesNo()}))
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        encoder.transform({"a": ["x"], "b": [0.5], "c": ["x"]})
    assert (
        str(caught.value)
        == "column 'a' of X must hold numbers, got 'x'; column 'c' of X must hold 'yes' or 'no', got 'x'."
    )


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (np.zeros((2, 2)), "X must be a data frame in memory or a dict of columns, got array"),
        ({"b": [1]}, "X must have the columns of the schema, got none named 'a', 'c'."),
        ({"a": [1, 2], "c": ["no"]}, "columns of X must have the same number of rows, got 1, 2."),
    ],
)
def test_tables_that_do_not_fit(table, message):
    encoder = cs.SchemaEncoder(cs.Schema({"a": Number(0, 1), "c": YesNo()}))
    for use in (encoder.fit, encoder.transform, encoder.count_uncovered):
        with pytest.raises(ValueError) as caught:  # noqa: PT011
            use(table)
        assert str(caught.value).startswith(message)


# -- the messy table ----------------------------------------------------------------------------------------------------

TABLE = messy(seed=1, rows=600, people=200)
SCHEMA = replace(cs.tables.propose_schema(TABLE, "late", "person").schema, proposed=False)  # as if it was checked


def test_frames_and_columns_are_encoded_alike():
    frame = pd.DataFrame(TABLE)
    one, other = (cs.SchemaEncoder(SCHEMA).fit_transform(table) for table in (frame, TABLE))
    np.testing.assert_array_equal(one, other)
    typed = frame.assign(
        age=pd.to_numeric(frame["age"]), amount=frame["amount"].astype(float), joined=pd.to_datetime(frame["joined"])
    )
    np.testing.assert_array_equal(
        cs.SchemaEncoder(SCHEMA).fit_transform(typed.sample(frac=1, random_state=0).loc[frame.index]), one
    )


def test_rows_are_encoded_one_by_one_within_norm():
    encoder = cs.SchemaEncoder(SCHEMA)
    assert treats_rows_alone(encoder.transform, pd.DataFrame(TABLE))
    squares = (encoder.transform(TABLE) ** 2).sum(axis=1)
    gaps = (TABLE["age"] == "").sum()
    assert 0 < gaps < 100
    assert squares.max() <= len(SCHEMA.columns) + 1  # each block is at most 1 long, and the indicator of a gap


def test_sparse_tables_hold_the_same_numbers():
    dense, csr = (cs.SchemaEncoder(SCHEMA, sparse_output=kind).transform(TABLE) for kind in (False, True))
    assert isinstance(csr, sparse.csr_array)
    np.testing.assert_array_equal(csr.toarray(), dense)
    many = cs.Schema({"a": Category([str(k) for k in range(500)])})
    assert sparse.issparse(cs.SchemaEncoder(many).transform({"a": ["3", "4"]}))
    with pytest.raises(ValueError, match="^sparse_output must be True or False, got 'auto'.$"):
        cs.SchemaEncoder(many, sparse_output="auto").transform({"a": ["3"]})


def test_what_is_not_covered_is_counted():
    schema = cs.Schema({"a": Number(0, 1, gap=0), "b": Category(["x"]), "c": Date(FIRST, LAST), "d": YesNo()})
    table = {"a": [0, 1, 2, NAN], "b": ["x", "y", "z", ""], "c": ["2020-01-11 23:59"] * 4, "d": ["yes"] * 4}
    assert cs.SchemaEncoder(schema).count_uncovered(table) == {"a": 1, "b": 2}


def test_the_encoder_is_a_scikit_learn_transformer():
    encoder = cs.SchemaEncoder(SCHEMA)
    copy = clone(encoder)
    assert copy.schema == SCHEMA
    names = encoder.fit(TABLE).get_feature_names_out().tolist()
    assert names == SCHEMA.feature_names()
    assert encoder.feature_names_in_.tolist() == list(SCHEMA.columns)
    frame = encoder.set_output(transform="pandas").transform(pd.DataFrame(TABLE))
    assert frame.columns.tolist() == names
    restored = pickle.loads(pickle.dumps(copy))
    np.testing.assert_array_equal(restored.transform(TABLE), frame.to_numpy())
    model = make_pipeline(copy, LogisticRegression(max_iter=1000)).fit(pd.DataFrame(TABLE), TABLE["late"])
    assert model.predict(TABLE).shape == (600,)
    with pytest.raises(TypeError, match="^schema must be a Schema, got <class 'dict'>.$"):
        cs.SchemaEncoder(SCHEMA.to_dict()).fit(TABLE)


def test_encoding_costs_nothing():
    model = PrivateLogisticRegression(epsilon=1.0, delta=1e-4, classes=["no", "yes"], epochs=2)
    pipeline = make_pipeline(cs.SchemaEncoder(SCHEMA), model).fit(pd.DataFrame(TABLE), TABLE["late"])
    total = total_privacy(pipeline)
    assert 0 < total.epsilon <= 1.0
    assert total.faults == ()
    assert total.epsilon == pytest.approx(pipeline[1].statement_.certified)
