"""Tuning spends budget, and warns how much."""

import copy
import gc
import pickle
import warnings

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

import clipsilon as cs
from clipsilon.estimators import PrivateLogisticRegression, PrivateScaler

X = np.random.default_rng(0).normal(size=(120, 2))
Y = (X[:, 0] > 0).astype(int)
ROWS = np.random.default_rng(1).normal(size=(3000, 2))


def model(**more):
    return PrivateLogisticRegression(classes=[0, 1], random_state=0, epochs=3, **more)


def spending(action):
    """Return the warnings of an action, except those about seeds."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        action()
    assert all(warning.category is cs.PrivacyWarning for warning in caught)
    return [str(warning.message) for warning in caught if not str(warning.message).startswith("Seeded")]


def test_one_fit_spends_what_it_says():
    assert spending(lambda: model().fit(X, Y)) == []
    assert spending(lambda: clone(clone(model())).fit(X, Y)) == []
    assert spending(lambda: [model().fit(X, Y) for _ in range(3)]) == []  # no copies: nobody knows that they belong


def test_copies_that_nobody_fits_spend_nothing():
    one = model()
    copies = [clone(one) for _ in range(3)]
    assert spending(lambda: copies[0].fit(X, Y)) == []
    assert "stand for 2 fits" in spending(lambda: one.fit(X, Y))[-1]


def test_a_second_fit_spends_twice():
    one = model(epsilon=0.5).fit(X, Y)
    (message,) = spending(lambda: one.fit(X, Y))
    assert "stand for 2 fits" in message
    assert "ε = 1, δ = 2e-05" in message
    assert one.statement_.reasons[-1] == message
    assert one.statement_.nominal <= 0.5  # of this fit


def test_partial_fit_is_for_other_people():
    one = model().fit(X[:50], Y[:50])
    assert spending(lambda: one.partial_fit(X[50:], Y[50:])) == []
    assert (
        "together (basic composition), if each record was in one call of partial_fit only, and"
        in (spending(lambda: one.fit(X, Y))[-1])
    )


def test_the_call_that_spends_most_is_not_forgotten():
    one = model().partial_fit(X[:40], Y[:40])
    assert spending(lambda: one.set_params(epsilon=5.0).partial_fit(X[40:80], Y[40:80])) == []
    one.set_params(epsilon=3.0).partial_fit(X[80:], Y[80:])
    assert (
        "stand for 2 fits: on the records that they share they spend ε = 6, δ = 2e-05 together"
        in (spending(lambda: one.set_params(epsilon=1.0).fit(X, Y))[-1])
    )
    assert (
        "stand for 2 fits: on the records that they share they spend ε = 9, "
        in (spending(lambda: one.set_params(epsilon=4.0).partial_fit(X, Y))[-1])
    )


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_a_fitted_copy_knows_that_it_was_fitted(copied):
    one = model().fit(X, Y)
    (message,) = spending(lambda: copied(one).fit(X, Y))
    assert "stand for 2 fits" in message
    assert f"ε = {1 + one.statement_.nominal:.4g}, δ = 2e-05 together" in message
    assert "stand for 2 fits" in spending(lambda: clone(copied(one)).fit(X, Y))[-1]
    assert spending(lambda: copied(one).partial_fit(X, Y)) == []
    bounded = copied(PrivateScaler(bounds=(-4, 4)).fit(ROWS))
    assert spending(lambda: bounded.set_params(bounds=None).fit(ROWS)) == []


@pytest.mark.parametrize("wrap", [False, True])
def test_grid_search(wrap):
    estimator = make_pipeline(FunctionTransformer(), model()) if wrap else model()
    name = "privatelogisticregression__clip" if wrap else "clip"
    search = GridSearchCV(estimator, {name: [0.5, 1.0]}, cv=3)
    messages = spending(lambda: search.fit(X, Y))
    assert len(messages) == 6  # the first of seven fits is alone
    assert "stand for 7 fits" in messages[-1]
    assert "ε = 7, δ = 7e-05" in messages[-1]
    best = search.best_estimator_[-1] if wrap else search.best_estimator_
    assert best.statement_.reasons[-1] == messages[-1]


def test_a_search_over_budgets_adds_them_up():
    messages = spending(lambda: GridSearchCV(model(), {"epsilon": [0.5, 2.0]}, cv=2, refit=False).fit(X, Y))
    assert "stand for 4 fits" in messages[-1]
    assert "ε = 5," in messages[-1]


def test_cross_validation_and_the_fit_after_it():
    one = model()
    assert "stand for 5 fits" in spending(lambda: cross_val_score(one, X, Y, cv=5))[-1]
    assert "stand for 6 fits" in spending(lambda: one.fit(X, Y))[-1]


def test_copies_fitted_in_other_processes_count():
    one = model()
    for _ in range(4):
        away = pickle.loads(pickle.dumps(clone(one)))  # as it arrives there
        assert spending(lambda away=away: away.fit(X, Y)) == []  # nothing is known there of the others
    gc.collect()
    (message,) = spending(lambda: clone(one).fit(X, Y))
    assert "stand for 5 fits" in message
    assert ", if each of the 4 fitted elsewhere spent ε = 1, δ = 1e-05, " in message  # nobody here knows what they did


def test_one_that_leaves_several_times_counts_every_time():
    one = model()
    for _ in range(5):
        pickle.dumps(one)
    assert "stand for 6 fits" in spending(lambda: one.fit(X, Y))[-1]


@pytest.mark.verify
def test_grid_search_in_processes():
    search = GridSearchCV(model(), {"clip": [0.5, 1.0]}, cv=3, n_jobs=2)
    (message,) = spending(lambda: search.fit(X, Y))
    assert "stand for 7 fits" in message
    assert "ε = 7, δ = 7e-05" in message


def test_a_scalers_fits_count():
    scaler = PrivateScaler(0.5, random_state=0)
    assert spending(lambda: clone(scaler).fit(ROWS)) == []
    (message,) = spending(lambda: scaler.fit(ROWS))
    assert "stand for 2 fits" in message
    assert "ε = 1, δ = 2e-06" in message
    assert scaler.statement_.notes == (message,) == scaler.statement_.reasons[-1:]
    assert scaler.statement_.nominal == pytest.approx(0.5)  # of this fit


def test_a_scaler_within_a_search_counts():
    """Both in memory and in other processes."""
    pipeline = make_pipeline(PrivateScaler(random_state=0))
    search = GridSearchCV(pipeline, {"privatescaler__delta": [1e-6, 1e-7]}, cv=3, scoring=lambda *unused: 0.0)
    assert "stand for 7 fits: " in spending(lambda: search.fit(ROWS))[-1]
    fresh = make_pipeline(PrivateScaler(random_state=0))
    for _ in range(3):
        pickle.dumps(clone(fresh))
    gc.collect()
    assert "stand for 4 fits: " in spending(lambda: clone(fresh).fit(ROWS))[-1]


def test_scalers_that_spend_nothing_do_not_count():
    bounded = PrivateScaler(bounds=(-4, 4)).fit(ROWS)
    assert spending(lambda: bounded.fit(ROWS)) == []
    few = PrivateScaler(epsilon=0.01)
    for _ in range(2):
        with pytest.warns(UserWarning, match="Noise hid 2 of 2") as caught:
            few.fit(ROWS[:50])
        assert len(caught) == 1
    assert few.statement_.notes == ()
