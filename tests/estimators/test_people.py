"""Estimators and scalers whose records are people with several rows."""

import warnings

import numpy as np
import pandas
import pytest
from scipy import sparse
from sklearn.pipeline import make_pipeline

import clipsilon as cs
from clipsilon.estimators import (
    METHODS,
    PrivateGLM,
    PrivateLinearRegression,
    PrivateLogisticRegression,
    PrivateScaler,
    total_privacy,
)
from clipsilon.estimators.people import find_repeated_ids, hash_people
from clipsilon.privacy.quantiles import VOTE, balances, person_balances
from clipsilon.privacy.warning import PrivacyWarning

RNG = np.random.default_rng(5)
PEOPLE, ROWS = 500, 1200
WHO = np.concatenate((np.arange(PEOPLE), RNG.integers(0, PEOPLE, ROWS - PEOPLE)))
X = RNG.normal(size=(ROWS, 3)) + 0.5 * RNG.normal(size=(PEOPLE, 3))[WHO]
Y = (X @ [2.0, -1.0, 0.5] + RNG.logistic(size=ROWS) > 0).astype(int)
HOW = {"classes": [0, 1], "epsilon": 2.0}


def quietly(model, *args, **more):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)
        return model.fit(*args, **more)


@pytest.mark.parametrize("method", [name for name in METHODS if not METHODS[name].is_local])
def test_every_method_states_what_it_spends_per_person(method):
    model = PrivateLogisticRegression(method=method, **HOW | {"epsilon": 30.0}).fit(X, Y, groups=WHO)
    stated = model.statement_
    assert (stated.unit, stated.records) == ("person", PEOPLE)
    assert stated.nominal <= 30.0
    assert f"steps on {PEOPLE} people" in str(stated)
    assert "one person, with all rows, contributes to nothing" in str(stated)
    assert (
        "A record is a person with all their rows"
        in stated.reasons[0] + stated.reasons[min(1, len(stated.reasons) - 1)]
    )
    assert stated.to_dict()["unit"] == "person"


def test_people_count_and_not_rows():
    """With every row ten times, nothing changes: neither the noise nor the model, up to the rounding of sums."""
    often = np.repeat(np.arange(ROWS), 10)
    one = quietly(PrivateLogisticRegression(random_state=3, **HOW), X, Y, groups=WHO)
    ten = quietly(PrivateLogisticRegression(random_state=3, **HOW), X[often], Y[often], groups=WHO[often])
    np.testing.assert_allclose(ten.theta_, one.theta_, rtol=1e-6)
    assert ten.statement_.nominal == one.statement_.nominal


@pytest.mark.parametrize(
    "model",
    [
        PrivateLinearRegression(target_range=(-4, 4), random_state=1),
        PrivateGLM(cs.losses.Huber(1.0), random_state=1),
        PrivateLogisticRegression(classes=[0, 1, 2], random_state=1, class_weight={0: 0.5}),
    ],
    ids=["linear", "glm", "several classes"],
)
def test_other_estimators_and_sparse_tables(model):
    targets = X @ [1.0, -1.0, 0.2] if not hasattr(model, "class_weight") else Y + (X[:, 0] > 1)
    weights = RNG.uniform(0.0, 1.0, ROWS)
    for table in (X, sparse.csr_array(X), pandas.DataFrame(X, columns=["a", "b", "c"])):
        fitted = quietly(type(model)(**model.get_params()), table, targets, weights, groups=[f"p{k}" for k in WHO])
        assert fitted.statement_.unit == "person"
        assert fitted.score(table, targets) > 0.3


def test_the_number_of_rows_can_be_limited():
    first = np.concatenate([np.flatnonzero(person == WHO)[:2] for person in range(PEOPLE)])
    few = quietly(PrivateLogisticRegression(random_state=3, max_rows=2, **HOW), X, Y, groups=WHO)
    kept = quietly(PrivateLogisticRegression(random_state=3, **HOW), X[first], Y[first], groups=WHO[first])
    np.testing.assert_array_equal(few.theta_, kept.theta_)
    assert any("of which the first 2 are used" in reason for reason in few.statement_.reasons)
    with pytest.raises(ValueError, match="max_rows must be None without groups, got 2"):
        PrivateLogisticRegression(max_rows=2, **HOW).fit(X, Y)
    with pytest.raises(ValueError, match="max_rows must be a whole number of at least 1, got 0"):
        PrivateLogisticRegression(max_rows=0, **HOW).fit(X, Y, groups=WHO)


def test_a_row_without_a_person_is_refused_and_nothing_is_spent():
    model = PrivateLogisticRegression(**HOW)
    with pytest.raises(ValueError, match=r"groups must name the person of every row, got 1 row\(s\)"):
        model.fit(X, Y, groups=np.where(np.arange(ROWS) == 7, np.nan, WHO))
    assert not hasattr(model, "statement_")
    with pytest.raises(ValueError, match="groups must hold the id of a person for each of 1200 rows"):
        model.fit(X, Y, groups=WHO[:-1])


def test_delta_is_compared_with_the_number_of_people():
    with pytest.warns(PrivacyWarning, match="at least 1 in 500 people"):
        PrivateLogisticRegression(delta=1 / PEOPLE, **HOW).fit(X, Y, groups=WHO)


def test_people_of_earlier_calls_are_recognised():
    model = PrivateLogisticRegression(**HOW)
    early, late = WHO < 300, WHO >= 300
    model.partial_fit(X[early], Y[early], groups=WHO[early])
    model.partial_fit(X[late], Y[late], groups=WHO[late])
    assert (model.statement_.unit, model.statement_.nominal <= 2.0) == ("person", True)
    other_rows = np.flatnonzero(WHO == 7)
    again = np.append(other_rows, np.arange(1))
    with pytest.warns(PrivacyWarning, match="2 of 2 people were in earlier calls"):
        model.partial_fit(X[again] + 1.0, Y[again], groups=WHO[again])
    with pytest.raises(ValueError, match="groups must be given in all calls of partial_fit or in none"):
        model.partial_fit(X, Y)


def test_steps_of_a_pipeline_must_agree_on_what_they_protect():
    pipeline = make_pipeline(PrivateScaler(epsilon=30.0), PrivateLogisticRegression(**HOW))
    pipeline.fit(X, Y, privatescaler__groups=WHO, privatelogisticregression__groups=WHO)
    total = total_privacy(pipeline)
    assert (total.unit, total.to_dict()["unit"]) == ("person", "person")
    assert "one person, with all rows," in str(total)
    alone = PrivateLogisticRegression(**HOW).fit(X, Y)
    with pytest.raises(ValueError, match="steps must all protect people or all protect records"):
        total_privacy([pipeline[0], alone])
    public = PrivateScaler(None, bounds=(-1, 1)).fit(X)
    assert total_privacy([public, pipeline[1]]).unit == "person"


def test_a_column_that_looks_like_an_id_is_pointed_out():
    frame = pandas.DataFrame(X / 3, columns=["a", "b", "c"]).assign(user_id=WHO)
    with pytest.warns(PrivacyWarning, match="Column 'user_id' looks like the id of a person, and repeats"):
        PrivateLogisticRegression(**HOW).fit(frame, Y)
    with warnings.catch_warnings():
        warnings.simplefilter("error", PrivacyWarning)
        PrivateLogisticRegression(**HOW).fit(frame[["a", "b", "c"]], Y, groups=frame["user_id"])
    ids = {"customerID": WHO, "id": np.arange(ROWS), "age": WHO, "region_id": WHO % 3, "person": WHO + 0.5, "user": WHO}
    assert find_repeated_ids(ids) == ["customerID", "user"]


def test_ids_have_the_same_digest_whatever_their_type():
    np.testing.assert_array_equal(hash_people([1, 2, 1], 3), hash_people(np.array([1.0, 2.0, 1.0]), 3))
    assert hash_people(["a", "b", "a"], 3)[0] != hash_people(["a", "b", "a"], 3)[1]


# -- the scaler -------------------------------------------------------------------------------------------------------


def test_a_person_has_one_vote():
    starts = np.array([0, 4, 5])
    table = np.array([[1.0], [1.0], [1.0], [9.0], [9.0]])
    assert person_balances(starts, table, np.array([5.0])).tolist() == [VOTE // 2 - VOTE]
    assert person_balances(starts, table, np.array([2.0]), np.array([9.0])).tolist() == [2 * VOTE - 3 * VOTE // 2]
    single = np.arange(6)
    rows = np.random.default_rng(0).normal(size=(5, 2))
    thresholds = np.array([0.1, -0.2])
    assert (person_balances(single, rows, thresholds) == VOTE * balances(rows, thresholds)).all()


def test_no_person_changes_a_count_by_more_than_a_vote():
    rng = np.random.default_rng(1)
    for _ in range(200):
        counts = rng.integers(1, 6, 4)
        starts = np.append(0, np.cumsum(counts))
        table = rng.choice([-1.0, 0.0, 2.0, 1e300], (starts[-1], 2))
        thresholds = rng.choice([-1.0, 0.0, 1.0], 2)
        others = person_balances(starts[:-1], table[: starts[-2]], thresholds)
        assert (abs(person_balances(starts, table, thresholds) - others) <= VOTE).all()


def test_scales_are_those_of_people():
    """One person with many rows does not move the scale; the noise is what a budget for people asks for."""
    rng = np.random.default_rng(2)
    usual = rng.normal(10.0, 2.0, size=(4000, 1))
    table, ids = np.vstack((usual, np.full((20_000, 1), 1e6))), np.append(np.arange(4000), np.full(20_000, 9999))
    scaler = PrivateScaler(epsilon=1.0).fit(table, groups=ids)
    assert abs(scaler.center_[0] - 10.0) < 0.5
    assert 1.0 < scaler.scale_[0] < 4.0
    assert (scaler.statement_.unit, scaler.statement_.records) == ("person", 4001)
    assert scaler.statement_.certified <= 1.0
    assert "who has one vote in every count" in scaler.statement_.reasons[0]
