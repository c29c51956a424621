"""The private search: one statement for all it releases, nothing of what it does not release."""

import math
import pickle
import warnings

import numpy as np
import pytest
from scipy.stats import chisquare, loguniform
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.pipeline import Pipeline, make_pipeline

import clipsilon as cs
from clipsilon.engine.streams import spawn
from clipsilon.estimators import (
    PrivacyWarning,
    PrivateGLM,
    PrivateLinearRegression,
    PrivateLogisticRegression,
    PrivateScaler,
    PrivateSearchCV,
    search,
    total_privacy,
    trials,
)
from clipsilon.estimators.held_out import SCORINGS, Privacy, private_score
from clipsilon.estimators.model_files import Model, write_model
from clipsilon.privacy.accounting import gaussian
from clipsilon.privacy.accounting.selection import TrialCount, trial_count
from clipsilon.privacy.statement import SEEDED, format_epsilon

RNG = np.random.default_rng(0)
X = RNG.normal(size=(2000, 3))
Y = X @ [2.0, -1.0, 0.0] + RNG.logistic(size=2000) > 0
MODEL = PrivateLogisticRegression(method="dpgd", classes=[False, True], epochs=20)
GRID = {"clip": [0.5, 1.0], "l2": [0.0, 0.1]}


def fitted(**settings):
    return PrivateSearchCV(MODEL, GRID, 2.0, 1e-5, **settings).fit(X, Y)


def test_the_search_meets_its_budget_with_one_statement():
    found = fitted(n_iter=3)
    stated = found.statement_
    assert 0.9 * 2.0 <= stated.certified <= 2.0
    assert (stated.delta, stated.adjacency, stated.records, stated.faults) == (1e-5, "zero-out", 2000, ())
    assert found.best_estimator_.statement_ is stated
    assert found.best_params_ in [{"clip": c, "l2": l2} for c in (0.5, 1.0) for l2 in (0.0, 0.1)]
    assert {name: found.best_estimator_.get_params()[name] for name in found.best_params_} == found.best_params_
    assert 0.5 < found.best_score_ < 1.0
    assert found.predict(X).shape == found.decision_function(X).shape == (2000,)
    assert found.predict_proba(X).shape == (2000, 2)
    assert found.score(X, Y) == found.best_estimator_.score(X, Y)
    assert found.classes_.tolist() == [False, True]
    assert found.n_features_in_ == 3


def test_the_statement_is_the_theorem_for_what_the_trials_spend():
    """Each trial is calibrated to (ε_c, δ/E K), and no candidate spends more; here with Poisson batches."""
    sampled = PrivateLogisticRegression(classes=[False, True], epochs=2)
    found = PrivateSearchCV(sampled, {"batch": [100, 200]}, 2.0, 1e-5, n_iter=3).fit(X, Y)
    best, count = found.best_estimator_, trial_count(3)
    assert best.delta == 1e-5 / count.mean
    own = clone(best).plan_statement(X[:1600], Y[:1600])
    assert own.certified <= best.epsilon
    gaussian_search = trials.best_of(trials.profiles.gaussian(gaussian.largest_mu(best.epsilon, best.delta)), count)
    assert found.statement_.certified == pytest.approx(gaussian_search.epsilon(1e-5), rel=0.15)


def test_total_privacy_and_files_take_the_searchs_statement():
    found = fitted(n_iter=2)
    assert total_privacy(found).epsilon == total_privacy(found.best_estimator_).epsilon == found.statement_.certified
    scaler = PrivateScaler(0.5, 1e-6).fit(RNG.normal(size=(20_000, 3)))
    both = total_privacy([scaler, found])
    assert found.statement_.certified < both.epsilon <= found.statement_.certified + 0.5


def test_a_model_file_keeps_the_searchs_statement(tmp_path):
    found = fitted(n_iter=2)
    pipeline = Pipeline([("model", found.best_estimator_)])
    write_model(tmp_path / "model.json", Model("logistic", pipeline, ("a", "b", "c"), "y", False), total_privacy(found))
    loaded = cs.load_model(tmp_path / "model.json").named_steps["model"].statement_
    assert (loaded.certified, loaded.delta) == (found.statement_.certified, 1e-5)
    assert loaded.epsilon(1e-6) == math.inf  # of another δ a file knows nothing


def test_nothing_of_other_trials_is_kept():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = fitted(n_iter=20)
    assert {name for name in vars(found) if name.endswith("_")} == {
        *("best_estimator_", "best_params_", "best_score_", "n_candidates_", "statement_")
    }
    assert not hasattr(found, "cv_results_")
    stored = pickle.dumps(found)
    assert stored.count(b"coef_") == 1  # one model
    again = pickle.loads(stored)
    assert np.array_equal(again.predict(X), found.predict(X))
    assert again.statement_.certified == found.statement_.certified
    assert not found.statement_.notes  # no count of fits, which would reveal the number of trials


def test_the_number_of_trials_is_secret_in_all_that_is_printed(capfd):
    found = fitted(n_iter=20)
    out, err = capfd.readouterr()
    assert (out, err) == ("", "")
    assert f"{trial_count(20).mean:.4g} on average" in str(found.statement_)


def test_trials_that_fail_are_not_shown(monkeypatch):
    """Candidates with clip 0.5 fail; only a search without any other trial says so, and names no candidate.

    Of 40 trials, none has another clip with probability 1e-12.
    """
    monkeypatch.setattr(TrialCount, "draw", lambda count, rng: 40)
    real = PrivateLogisticRegression.fit

    def fit(self, *rows, **groups):
        if self.clip == 0.5:
            warnings.warn("a secret warning", UserWarning, stacklevel=2)
            raise FloatingPointError("a secret")
        return real(self, *rows, **groups)

    monkeypatch.setattr(PrivateLogisticRegression, "fit", fit)
    found = fitted()
    assert found.best_params_["clip"] == 1.0
    only = PrivateSearchCV(MODEL, {"clip": [0.5]}, 2.0, n_iter=2)
    with pytest.raises(RuntimeError, match="The best trial has no model") as caught:
        only.fit(X, Y)
    assert caught.value.__context__ is None
    assert not hasattr(only, "best_estimator_")


def test_candidates_are_drawn_evenly_and_as_often_as_they_should(monkeypatch):
    """A fixed seed; over all seeds a false alarm has probability below 1e-7 for each of the two comparisons."""
    seen = []
    monkeypatch.setattr(search, "_try", lambda model, *others: float(seen.append(model.clip) or 0.0))
    candidates = [clone(MODEL).set_params(clip=clip) for clip in (1.0, 2.0, 3.0)]
    count, budget = trial_count(5.0), trials.TrialBudget(1.0, 1e-5, 0.3, (), trials.profiles.gaussian(0.3))
    numbers = []
    for seed in range(2000):
        before = len(seen)
        search._run_trials(candidates, None, None, budget, count, seed)
        numbers.append(len(seen) - before)
    assert chisquare(np.unique(seen, return_counts=True)[1]).pvalue > 1e-7
    assert abs(np.mean(numbers) - 5) < 5.4 * math.sqrt(20 / 2000)  # the variance of a geometric number is 20


def test_a_better_setting_is_found():
    """Columns twenty times too small: the default steps are too short for them, and log losses show it."""
    rng = np.random.default_rng(1)
    raw = rng.normal(size=(12_000, 4))
    y = raw @ [3.0, -2.0, 1.0, 0.0] + rng.logistic(size=12_000) > 0
    x, test = 0.05 * raw[:6000], 0.05 * raw[6000:]
    model = PrivateLogisticRegression(2.0, classes=[False, True])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)
        default = clone(model).set_params(random_state=0).fit(x, y[:6000])
        grid = {"step": [1.0, 10.0, 100.0], "clip": [0.05, 0.5]}
        found = PrivateSearchCV(model, grid, 2.0, n_iter=12, scoring="neg_log_loss", random_state=0).fit(x, y[:6000])
    assert found.statement_.nominal <= 2.0
    losses = [log_loss(y[6000:], one.predict_proba(test)) for one in (default, found)]
    assert losses[1] < losses[0] - 0.05


def test_batches_may_be_larger_than_the_held_out_part():
    model = PrivateLogisticRegression(classes=[False, True], epochs=1)
    split = search._split(X, Y, None, 0.2, None)
    made = PrivateSearchCV(model, {})._candidates([{"batch": 500}], split, SCORINGS["accuracy"])
    assert [one.batch for one in made] == [500]


def test_distributions_are_drawn_from():
    space = {"clip": loguniform(0.1, 10)}
    made = trials.list_candidates(MODEL, space, 5, None)
    assert len({one["clip"] for one in made}) == 5
    assert len(trials.list_candidates(MODEL, space, None, 0)) == 20
    assert trials.list_candidates(MODEL, [{"clip": [1.0]}, {"step": [1.0, 2.0]}], None, 0) == [
        *({"clip": 1.0}, {"step": 1.0}, {"step": 2.0})
    ]
    assert len(trials.list_candidates(MODEL, GRID, 10, 0)) == 4


def test_a_seed_repeats_the_search_and_certifies_nothing():
    with pytest.warns(PrivacyWarning, match="Seeded: not for release"):
        first, second = (fitted(n_iter=3, random_state=7) for _ in range(2))
    assert np.array_equal(first.best_estimator_.coef_, second.best_estimator_.coef_)
    assert first.best_score_ == second.best_score_
    assert first.statement_.certified == math.inf
    assert first.statement_.faults == (SEEDED,)
    assert first.statement_.nominal <= 2.0
    assert first.best_estimator_.random_state is None


def test_what_candidates_learn_without_budget_closes_the_statement():
    with pytest.warns(PrivacyWarning, match="without budget"):
        found = PrivateSearchCV(clone(MODEL).set_params(classes=None), {"clip": [0.5]}, 2.0, n_iter=1).fit(X, Y)
    assert found.statement_.certified == math.inf


def test_fitting_the_best_model_again_adds_to_the_whole_search():
    best = fitted(n_iter=1).best_estimator_
    with pytest.warns(PrivacyWarning, match=f"stand for 2 fits.*ε = {format_epsilon(2.0 + best.epsilon)}, "):
        best.fit(X, Y)


def test_several_searches_are_counted():
    found = fitted(n_iter=1)
    with pytest.warns(PrivacyWarning, match="stand for 2 fits"):
        found.fit(X, Y)


@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
def test_regressors_are_searched_too(adjacency):
    y = 50 + X @ [3.0, -4.0, 0.0]
    model = PrivateLinearRegression(method="dpgd", target_range=(30, 70), adjacency=adjacency, epochs=20)
    found = PrivateSearchCV(model, {"l2": [0.0, 10.0]}, 2.0, n_iter=8).fit(X, y)
    assert found.statement_.adjacency == adjacency
    assert -(40**2) < found.best_score_ < 300  # 0 at best, and noise of 13
    assert not hasattr(found, "predict_proba")


def test_a_search_is_charged_as_one_release(tmp_path):
    budget = cs.Budget(tmp_path / "people.budget", epsilon=3.0, delta=1e-4)
    found = PrivateSearchCV(clone(MODEL).set_params(budget=budget), GRID, 2.0, n_iter=4, budget=budget).fit(X, Y)
    assert [charge.what for charge in budget.charges()] == ["PrivateSearchCV"]
    assert budget.spent().epsilon == found.statement_.certified
    with pytest.raises(cs.BudgetError, match="would pass the limit"):
        found.fit(X, Y)


def test_people_are_held_out_with_all_rows(monkeypatch):
    """Everybody trains or is held out, and the statement counts people."""
    people = RNG.integers(0, 900, 2000)
    splits = []
    monkeypatch.setattr(search, "_run_trials", lambda candidates, split, *_: splits.append(split) or best)
    best = search._Trial(0.5, 0, clone(MODEL))
    found = PrivateSearchCV(MODEL, GRID, 2.0, 1e-5, n_iter=3).fit(X, Y, groups=people)
    train, held = splits[0]
    assert train.X.shape[0] + held.X.shape[0] == 2000
    assert not set(train.groups.tolist()) & set(held.groups.tolist())
    size = np.unique(people).size
    assert (train.records, held.records) == (size - round(0.2 * size), round(0.2 * size))
    assert (found.statement_.unit, found.statement_.records) == ("person", size)
    assert found.statement_.certified <= 2.0


@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
def test_scores_have_the_noise_of_their_certificate(adjacency):
    """Zeroing a record out moves the sum by at most ½, replacing it by 1: 4,000 scores have deviation change/(μ·n).

    The relative error of a deviation is 1/√8000; 5.5 of them are exceeded with probability 4e-8.
    """
    model = LogisticRegression().fit(X, Y)
    privacy = Privacy(0.1, adjacency, spawn(3, 1)[0].noise)
    scores = [private_score(model, X[:100], Y[:100], SCORINGS["accuracy"], privacy) for _ in range(4000)]
    expected = (1.0 if adjacency == "replace-one" else 0.5) / (0.1 * 100)
    assert np.std(scores) == pytest.approx(expected, rel=5.5 / math.sqrt(8000))
    assert np.mean(scores) == pytest.approx(model.score(X[:100], Y[:100]), abs=5.5 * expected / math.sqrt(4000))


def test_a_person_counts_once_in_a_score():
    """One person with 1,000 rows, all wrong, is one of 101; the order of the rows does not matter."""
    model = LogisticRegression().fit(X, Y)
    target = model.predict(X[:1100])
    target[100:] = ~target[100:]
    people = np.minimum(np.arange(1100), 100)
    privacy = Privacy(2.0**40, "replace-one", spawn(3, 1)[0].noise)
    scored = [
        private_score(model, X[:1100][order], target[order], SCORINGS["accuracy"], privacy, people[order])
        for order in (np.arange(1100), RNG.permutation(1100))
    ]
    assert scored == pytest.approx([100 / 101] * 2, abs=1e-4)


def test_targets_in_a_column_have_one_number_per_record():
    """Compared with predictions, a column would make a table of numbers, in which a record has many."""
    assert search._split(X, Y[:, None], None, 0.2, 0).held.y.shape == (400,)
    privacy = Privacy(1.0, "zero-out", spawn(3, 1)[0].noise)
    with pytest.raises(ValueError, match="y must be a vector"):
        private_score(LogisticRegression().fit(X, Y), X, Y[:, None], SCORINGS["accuracy"], privacy)


@pytest.mark.parametrize("target", [-1, 7])
def test_a_class_that_the_model_does_not_know_counts_as_the_worst(target):
    model = LogisticRegression().fit(X, Y.astype(int))
    privacy = Privacy(2.0**40, "zero-out", spawn(3, 1)[0].noise)
    assert private_score(model, X[:9], np.full(9, target), SCORINGS["neg_log_loss"], privacy) == pytest.approx(-8)


def test_numpys_errors_do_not_make_scores_fail():
    """Probabilities of rows far away underflow; without a score the search would end without a model."""
    split = search._split(1e4 * X, Y, None, 0.2, None)
    budget = trials.TrialBudget(1.0, 1e-5, 0.3, (), trials.profiles.gaussian(0.3))
    with np.errstate(under="raise"):
        best = search._run_trials([clone(MODEL)], split, SCORINGS["neg_log_loss"], budget, trial_count(1), None)
    assert best.model is not None


def test_errors_of_scores_are_not_hidden(monkeypatch):
    """A score that fails fails because of held-out rows, which no noise would hide."""
    monkeypatch.setattr(search, "private_score", lambda *_: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        fitted(n_iter=1)


def test_twenty_candidates_cost_at_most_2_3_fits():
    """One fit's ε at the search's δ, for the noise that fits of the search have; releasing all 20 costs 5 times it."""
    candidates = [clone(MODEL).set_params(l2=l2) for l2 in np.geomspace(1e-3, 1, 20)]
    planned = trials.calibrate_trials(candidates, (X, Y, None), trial_count(20), 2.0, 1e-5)
    one = max(stated.certificate.profile.mu for stated in planned.statements)
    assert 0.9 * 2.0 <= planned.search.epsilon(1e-5) <= min(2.0, 2.3 * gaussian.epsilon(one, 1e-5))
    assert gaussian.epsilon(one * math.sqrt(20), 1e-5) > 5 * gaussian.epsilon(one, 1e-5)


@pytest.mark.parametrize("name", SCORINGS)
def test_a_record_changes_a_score_by_no_more_than_its_bound(name):
    """Replay without noise, on neighbours with extreme records."""
    scoring = SCORINGS[name]
    target = Y if scoring.for_classes else X @ [1.0, 1.0, 1.0]
    model = LogisticRegression().fit(X, Y) if scoring.for_classes else PrivateGLM(epochs=1, epsilon=5).fit(X, target)
    privacy = Privacy(2.0**40, "replace-one", spawn(3, 1)[0].noise)
    base = private_score(model, X[:50], target[:50], scoring, privacy)
    width = scoring.best - scoring.worst(model)
    for value in (1e9, -1e9, 0.0):
        changed = X[:50].copy()
        changed[7] = value
        assert abs(private_score(model, changed, target[:50], scoring, privacy) - base) <= width / 50 * (1 + 1e-6)


CASES = {
    "a pipeline": (make_pipeline(PrivateScaler(), MODEL), GRID, {}, "estimator must be a private estimator"),
    "an unknown parameter": (MODEL, {"depth": [1]}, {}, "param_distributions must be of parameters .*got 'depth'"),
    "the budget itself": (MODEL, {"epsilon": [1]}, {}, "param_distributions must be of parameters .*got 'epsilon'"),
    "no candidates": (MODEL, [], {}, "param_distributions must allow at least one setting"),
    "a wrong ε": (MODEL, GRID, {"epsilon": 0}, "epsilon must be a number above 0"),
    "a wrong δ": (MODEL, GRID, {"delta": 1}, "delta must be a number above 0 and below 1"),
    "an ε too small for scores": (MODEL, GRID, {"epsilon": 1e-6}, "epsilon must be larger for this search"),
    "candidates without the score": (
        *(PrivateGLM(cs.losses.Savage(), classes=[False, True]), {"loss": [cs.losses.SquaredError()]}),
        *({}, "scoring must be one that all candidates have, got .*SquaredError"),
    ),
    "too few trials": (MODEL, GRID, {"n_iter": 0.5}, "n_iter must be a number between 1 and 1e"),
    "a score for numbers": (MODEL, GRID, {"scoring": "neg_mean_squared_error"}, "scoring must be one of 'accuracy'"),
    "no held-out rows": (MODEL, GRID, {"holdout": 0}, "holdout must leave rows"),
    "probabilities that it lacks": (
        *(PrivateGLM(cs.losses.Savage(), classes=[False, True]), {"clip": [1.0]}, {"scoring": "neg_log_loss"}),
        "scoring must be one of 'accuracy', got 'neg_log_loss'",
    ),
    "add-remove": (clone(MODEL).set_params(adjacency="add-remove"), GRID, {}, "adjacency must be 'replace-one' or"),
}


@pytest.mark.parametrize("case", CASES)
def test_bad_input_is_refused_before_anything_is_spent(case, tmp_path):
    model, grid, settings, message = CASES[case]
    budget = cs.Budget(tmp_path / "budget", 5.0, 1e-3)
    with pytest.raises(ValueError, match=message) as caught:
        PrivateSearchCV(model, grid, budget=budget, **settings).fit(X, Y)
    assert "\n" not in str(caught.value)
    assert budget.charges() == []


def test_bad_held_out_rows_are_refused_before_anything_is_spent():
    for place in range(0, 2000, 397):
        bad = X.copy()
        bad[place, 0] = np.nan
        with pytest.raises(ValueError, match="NaN"):
            PrivateSearchCV(MODEL, {"clip": [1.0]}, n_iter=1).fit(bad, Y)
