"""Audits of strangers' code find planted bugs, do not accuse correct code, and survive code of any kind.

Seeds are fixed; each statistical test states the chance of a false alarm.
"""

import itertools
import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import clipsilon as cs
from clipsilon.privacy.accounting import gaussian
from clipsilon.privacy.auditing.one_run import one_run_bound
from clipsilon.privacy.auditing.planted import plant
from clipsilon.privacy.auditing.training import _pool
from strangers import DELTA, RECORDS, dp_sgd, exact_epsilon, table

X, Y = table()
ADJACENCIES = ["add-remove", "replace-one"]
MULTIPLIER = 12.0


def audit(train, adjacency="add-remove", delta=0.0, **about):
    return cs.audit_training(train, X, Y, delta, adjacency=adjacency, progress=False, **about)


# --- the planted bug ----------------------------------------------------------------------------------


# Confidence for correct code. It needs a smaller δ: what happens with probability δ cannot count against the code, so no
# attack shows anything at a confidence of 1 − δ.
SURE, TINY = 1 - 1e-7, 1e-10


@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_noise_divided_by_the_batch_twice_is_found(adjacency):
    claimed = exact_epsilon(MULTIPLIER, adjacency)
    bug = dp_sgd(np.random.default_rng(1), MULTIPLIER, noise_divisor=RECORDS**2)
    found = audit(bug, adjacency, DELTA, runs=120, claimed=claimed, seed=0)
    assert found.refuted
    assert claimed < 1.6 < found.lower_bound <= found.limit


@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_the_correct_code_is_not_accused(adjacency):
    """False alarm: 1e-7."""
    claimed = exact_epsilon(MULTIPLIER, adjacency, TINY)
    correct = dp_sgd(np.random.default_rng(1), MULTIPLIER)
    found = audit(correct, adjacency, TINY, runs=1000, claimed=claimed, seed=0, confidence=SURE)
    assert not found.refuted
    assert found.limit > claimed + 0.5  # it could have been


@pytest.mark.verify
@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("multiplier", [1.5, 3.0, 6.0])
def test_the_attack_shows_some_of_what_is_true_and_never_more(adjacency, multiplier):
    """False alarm: 1e-7 per case."""
    claimed = exact_epsilon(multiplier, adjacency, TINY)
    train = dp_sgd(np.random.default_rng(2), multiplier)
    found = audit(train, adjacency, TINY, runs=10_000, claimed=claimed, seed=0, confidence=SURE)
    assert not found.refuted
    assert found.lower_bound > 0.05 * claimed


def test_nothing_is_shown_at_a_confidence_that_delta_does_not_allow():
    assert audit(dp_sgd(np.random.default_rng(1), 0.0), delta=1e-5, runs=300, confidence=SURE).limit == 0


def test_one_run_with_many_canaries():
    """Each canary is a column of its own: noise on the mean of 400 records that is far too small is found."""
    rng = np.random.default_rng(3)
    features, labels = np.eye(400), rng.integers(0, 2, 400)

    def train(multiplier):
        def sums(features, labels):
            return (2 * labels - 1) @ features + multiplier * rng.normal(size=400)

        return lambda features, labels: (lambda total: lambda rows: rows @ total)(sums(features, labels))

    def score(model, features, labels):
        return (2 * labels - 1) * model(features)

    def found(multiplier, confidence):
        return cs.audit_training(
            train(multiplier), features, labels, TINY, adjacency="add-remove", score=score, canaries=399, runs=1,
            confidence=confidence, seed=0,
        )  # fmt: skip

    assert found(0.2, 0.95).lower_bound > 2.5
    honest, claimed = found(6.0, SURE), gaussian.epsilon(1 / 6.0, TINY)
    assert honest.lower_bound <= claimed < honest.limit  # false alarm: 1e-7


# --- false alarms -------------------------------------------------------------------------------------

AUDITS, ERROR = 150, 0.05
# More accusations than this have a probability below 1e-6 if each has one of at most `ERROR`.
MOST = int(stats.binom.isf(1e-6, AUDITS, ERROR))


_PLANTED = plant(X, Y, 1, "add-remove")
CANARY = _PLANTED.features[-1, 0], _PLANTED.labels[-1]


def is_in(features, labels):
    """Whether the canary of X is among the records."""
    return labels[-1] == CANARY[1] and features[-1, 0] == CANARY[0]


def randomised_response(rng, epsilon):
    """Return training whose model tells the truth about the canary with the largest probability that ε allows."""
    truthful = 1 / (1 + math.exp(-epsilon))
    return lambda features, labels: [float(is_in(features, labels) == (rng.random() < truthful))]


def leak_or_respond(rng, epsilon, delta):
    """Return training that is (ε, δ)-private and no better: with probability δ the model shows all, very loudly."""
    respond = randomised_response(rng, epsilon)

    def train(features, labels):
        if rng.random() < delta:
            return [9.0 if is_in(features, labels) else -9.0]
        return respond(features, labels)

    return train


def gaussian_mechanism(rng, mu):
    return lambda features, labels: [mu * is_in(features, labels) + rng.normal()]


MECHANISMS = {
    "randomised response": (lambda rng: randomised_response(rng, 1.0), 1.0, 0.0),
    "with probability δ everything": (lambda rng: leak_or_respond(rng, 0.5, 0.1), 0.5, 0.1),
    "nothing but δ": (lambda rng: leak_or_respond(rng, 0.0, 0.3), 0.0, 0.3),
    "Gaussian": (lambda rng: gaussian_mechanism(rng, 2.0), gaussian.epsilon(2.0, 0.1), 0.1),
}


def accusations(make, epsilon, delta, audits=AUDITS, **about):
    """Count audits that show more than ε."""
    count = 0
    for seed in range(audits):
        train = make(np.random.default_rng([seed, 7]))
        found = audit(train, delta=delta, runs=40, claimed=epsilon, confidence=1 - ERROR, seed=seed, **about)
        count += found.refuted
    return count


@pytest.mark.parametrize("name", MECHANISMS)
def test_a_correct_mechanism_is_accused_no_more_often_than_stated(name):
    """False alarm: below 1e-6 (see `MOST`)."""
    assert accusations(*MECHANISMS[name]) <= MOST


@pytest.mark.verify
@pytest.mark.parametrize("name", MECHANISMS)
def test_a_correct_mechanism_is_accused_no_more_often_than_stated_in_3000_audits(name):
    assert accusations(*MECHANISMS[name], audits=3000) <= stats.binom.isf(1e-6, 3000, ERROR)


def test_the_count_of_accusations_can_exceed_its_limit():
    make, epsilon, delta = MECHANISMS["randomised response"]
    assert accusations(make, epsilon - 0.9, delta) > MOST


def drifting(rng):
    """Return training whose model says how often it was called, and nothing about the records."""
    calls = itertools.count()
    return lambda features, labels: [float(next(calls))]


def alternating(rng):
    calls = itertools.count()
    return lambda features, labels: [float(next(calls) % 2)]


def garbage(rng):
    return lambda features, labels: [rng.choice([np.nan, np.inf, -np.inf, 1e308, -0.0, 5e-324])]


def impatient(rng):
    """Return training that presses Ctrl-C as soon as its models look as if the audit was doing well."""
    respond, seen = randomised_response(rng, 1.0), []

    def train(features, labels):
        if len(seen) >= 4 and abs(np.mean(seen) - 0.5) < 0.01:
            raise KeyboardInterrupt
        seen.extend(respond(features, labels))
        return seen[-1:]

    return train


def crashing(rng):
    """Return training that crashes instead of answering; only the truth about the canary is private."""
    respond = randomised_response(rng, 1.0)

    def train(features, labels):
        found = respond(features, labels)
        if found == [1.0]:
            raise MemoryError("too much")
        return found

    return train


HOSTILE = {
    "drift": (drifting, 0.0),
    "alternation": (alternating, 0.0),
    "garbage": (garbage, 0.0),
    "Ctrl-C by its own models": (impatient, 1.0),
    "crashes by its own models": (crashing, 1.0),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_code_is_accused_no_more_often_than_stated(name):
    """False alarm: below 1e-6 (see `MOST`). Runs in a fixed order of the two data sets would accuse the first two."""
    make, epsilon = HOSTILE[name]
    assert accusations(make, epsilon, 0.0, on_error="skip") <= MOST


# --- runs that fail, and runs that are stopped --------------------------------------------------------


def failing_in(number, problem):
    calls = itertools.count(1)

    def train(features, labels):
        if next(calls) == number:
            raise problem
        return [float(is_in(features, labels))]

    return train


@pytest.mark.parametrize("problem", [ValueError("no good"), SystemExit("no good"), KeyError("no good")])
def test_an_error_names_its_run_and_keeps_what_was_found(problem):
    with pytest.raises(cs.TrainingError, match=r"The audited code failed in run 41 of 60: \w+: .?no good") as caught:
        audit(failing_in(41, problem), runs=60, seed=0)
    assert caught.value.run == 41
    assert caught.value.__cause__ is problem
    assert caught.value.audit.runs == 40
    assert caught.value.audit.lower_bound > 0.8
    assert "`.audit` holds what the 40 runs before it show" in str(caught.value)


def test_an_error_in_the_first_run_has_nothing_to_keep():
    with pytest.raises(cs.TrainingError, match="run 1 of 60: ValueError: no$") as caught:
        audit(failing_in(1, ValueError("no")), runs=60)
    assert caught.value.audit is None


def test_failed_runs_can_be_skipped():
    found = audit(failing_in(3, ValueError("no good")), runs=60, on_error="skip", seed=0)
    assert found.failures == ("run 3 of 60: ValueError: no good",)
    assert (found.runs, found.planned_runs) == (59, 60)
    assert "1 run failed and counts as a blind guess: run 3 of 60" in str(found)


def test_code_that_always_fails_is_an_error():
    def train(features, labels):
        raise ValueError("never")

    with pytest.raises(cs.TrainingError, match="All runs of the audited code failed, the first in run 1 of 5"):
        audit(train, runs=5, on_error="skip")


def test_control_c_returns_what_was_found():
    found = audit(failing_in(31, KeyboardInterrupt()), runs=60, seed=0)
    assert found.stopped
    assert found.runs == 30
    assert 0 < found.lower_bound <= found.limit
    assert "Stopped before the planned 60 runs; it cannot be resumed." in str(found)


def test_control_c_in_the_first_run_is_passed_on():
    with pytest.raises(KeyboardInterrupt):
        audit(failing_in(1, KeyboardInterrupt()), runs=60)


def test_scores_that_are_never_numbers_show_nothing():
    found = audit(lambda features, labels: [np.nan], runs=60, confidence=0.01)
    assert found.lower_bound == found.runs == 0


def test_missing_scores_are_ranked_between_the_others():
    scores = np.array([[3.0], [np.nan], [-1.0], [2.0], [np.nan], [3.0]])
    assert _pool(scores).tolist() == [1.0, 0.0, -1.5, -0.5, 0.0, 1.0]


def test_each_canary_is_compared_with_itself():
    """Scores of two canaries at different levels: what each did over the runs counts."""
    scores = np.array([[100.0, 0.1], [100.2, 0.2], [100.4, 0.3]])
    assert _pool(scores).reshape(3, 2)[:, 0].tolist() == [-2.5, 0.0, 2.5]


def test_the_limit_is_what_is_shown_by_an_attack_that_is_always_right():
    found = audit(failing_in(0, ValueError()), runs=60, seed=0)
    assert found.lower_bound == found.limit
    right = one_run_bound(found.included.ravel(), found.included.ravel(), 0.0, 0.95)
    assert found.limit == pytest.approx(right.lower_bound, abs=0.2)  # equal scores in another order


# --- what the code receives ---------------------------------------------------------------------------


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("frame", [False, True])
def test_data_sets_of_two_coins_are_neighbours(adjacency, frame):
    planted = plant(pd.DataFrame(X) if frame else X, Y, 3, adjacency)
    coins = np.array([True, False, True])
    rows = [records(planted, coins ^ (np.arange(3) == 1)), records(planted, coins)]
    assert [len(one) for one in rows] == ([40, 39] if adjacency == "add-remove" else [40, 40])
    gone = len(rows[0] - rows[1]), len(rows[1] - rows[0])
    assert gone == ((1, 0) if adjacency == "add-remove" else (1, 1))


def records(planted, coins):
    features, labels = planted.records(coins)
    return {(*row, label) for row, label in zip(np.asarray(features).tolist(), labels.tolist(), strict=True)}


def test_canaries_are_unusual_records_with_wrong_labels():
    features, labels = X.copy(), Y.astype(str)
    features[17] = 50.0
    planted = plant(features, labels, 1, "replace-one")
    assert planted.others.tolist() == [17]
    canary, other = planted.rows(planted.canaries), planted.rows(planted.others)
    assert (canary[0] == other[0]).all()
    assert {*canary[1], *other[1]} == {"0", "1"}


def test_text_and_gaps_are_left_to_the_code():
    frame = pd.DataFrame({"name": list("abcd") * 10, "gap": [np.nan, *range(39)], "size": [*range(39), 500]})
    assert plant(frame, Y, 1, "replace-one").others.tolist() == [39]
    assert plant(frame[["name"]], Y, 1, "replace-one").others.tolist() == [0]


def test_the_farthest_of_several_labels_is_taken():
    planted = plant(X, np.arange(40.0), 39, "replace-one")
    wrong, right = planted.labels[planted.canaries], planted.labels[planted.others]
    assert set(wrong) == {0.0, 39.0}
    assert (np.abs(wrong - right) > 19).all()


@pytest.mark.parametrize("frame", [False, True])
def test_canaries_of_your_own(frame):
    features, own = (pd.DataFrame(X), pd.DataFrame(X[:2] + 9)) if frame else (X, X[:2] + 9)
    added = plant(features, Y, (own, [1, 0]), "add-remove")
    assert len(added.base) == 40
    replaced = plant(features, Y, (own, [1, 0]), "replace-one")
    assert replaced.others.tolist() == [0, 1]
    rows, labels = replaced.rows(replaced.canaries)
    assert np.array_equal(rows, X[:2] + 9)
    assert labels.tolist() == [1, 0]


def test_the_code_may_change_its_records():
    def train(features, labels):
        features[:], labels[:] = 0, 0
        return [0.0]

    before = X.copy(), Y.copy()
    audit(train, runs=3)
    assert np.array_equal(X, before[0])
    assert np.array_equal(Y, before[1])


# --- scores -------------------------------------------------------------------------------------------


class Regressor:
    def __init__(self, value):
        self.value = value

    def predict(self, features):
        return np.full((len(features), 1), self.value)


MODELS = {
    "predict": lambda y: Regressor(y.mean()),
    "function": lambda y: lambda features: np.full(len(features), y.mean()),
    "scores": lambda y: np.array([y.mean()]),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_models_without_noise_are_found(name, adjacency):
    wrong = plant(X, Y, 1, adjacency).labels[-1]
    sign = 1 if wrong == 1 or name != "scores" else -1
    found = audit(lambda features, labels: MODELS[name](sign * labels), adjacency, runs=60, seed=0)
    assert found.lower_bound == found.limit > 1


def test_predicted_text():
    labels = np.array(["no", "yes"])[Y]
    found = cs.audit_training(
        lambda features, labels: lambda rows: labels[-1:], X, labels, 0.0, adjacency="replace-one", runs=60, seed=0
    )
    assert found.lower_bound == found.limit > 1


def test_words():
    found = audit(failing_in(0, ValueError()), "replace-one", 1e-5, runs=60, claimed=1.0, canaries=2,
                  score=lambda model, features, labels: np.zeros(2), seed=0)  # fmt: skip
    assert str(found).startswith("Training, 60 runs with 2 canaries each: an attack shows ε ≥ 0 at δ = 1e-05")
    assert "where one record is replaced by another; one that is always right would show" in str(found)
    assert str(found).endswith("The claimed ε = 1 is not refuted, which does not prove it.")
    shown = audit(failing_in(0, ValueError()), runs=60, claimed=0.5, seed=0)
    assert "where one record is added or removed" in str(shown)
    assert str(shown).endswith("The claimed ε = 0.5 is refuted.")
    assert shown.to_dict()["refuted"] is True
    assert audit(failing_in(0, ValueError()), runs=60).refuted is None


def test_what_replacement_says_about_addition_and_removal():
    rng = np.random.default_rng(0)
    found = audit(dp_sgd(rng, 0.0), "replace-one", 1e-3, runs=60, seed=0)
    half = found.lower_bound / 2
    assert f"It follows that ε ≥ {half:.4g} at δ = {1e-3 / (1 + math.exp(half)):.3g}, where one record is added" in str(
        found
    )


# --- bad input ----------------------------------------------------------------------------------------


def nothing(features, labels):
    return [0.0]


BAD = {
    "adjacency": ({"adjacency": "zero-out"}, "adjacency must be one of 'add-remove', 'replace-one', got 'zero-out'"),
    "delta": ({"delta": 1.0}, r"delta must be a number in \[0, 1\), got 1.0"),
    "confidence": ({"confidence": 1.0}, "confidence must be a number above 0"),
    "claimed": ({"claimed": -1.0}, "claimed must be a number of at least 0, got -1.0"),
    "runs": ({"runs": 0}, "runs must be a whole number of at least 1, got 0"),
    "canaries": ({"canaries": 40}, "canaries must be fewer than the 40 records, got 40"),
    "three": ({"canaries": (X, Y, Y)}, "canaries must be a whole number or a pair of features and labels, got 3 items"),
    "columns": ({"canaries": (X[:, :2], Y)}, r"canaries must have features like those of X, of shape \(…, 3\), got"),
    "too many": (
        {"canaries": (np.vstack([X, X]), np.append(Y, Y)), "adjacency": "replace-one"},
        "canaries must be at most the 40 records that they replace, got 80",
    ),
    "labels of canaries": ({"canaries": (X, Y[1:])}, "labels of canaries must hold one label for each of 40 records"),
    "on_error": ({"on_error": "ignore"}, "on_error must be one of 'raise', 'skip', got 'ignore'"),
    "seed": ({"seed": -1}, "seed must be a whole number of at least 0, got -1"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name):
    changed, message = BAD[name]
    with pytest.raises(ValueError, match=message):
        audit(nothing, **changed)


def test_bad_records():
    with pytest.raises(ValueError, match="X must have a row for each of at least 2 records"):
        cs.audit_training(nothing, [[1.0]], [1], 0.0, adjacency="add-remove")
    with pytest.raises(ValueError, match="y must hold one label for each of 40 records"):
        cs.audit_training(nothing, X, Y[1:], 0.0, adjacency="add-remove")
    with pytest.raises(ValueError, match="y must take more than one value, got .*1.* for every record"):
        cs.audit_training(nothing, X, np.ones(40), 0.0, adjacency="add-remove")


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (None, "train must return a model with predict_proba or predict.*got NoneType; for other models give `score`"),
        (["a"], "what train returns must hold numbers only, got list"),
        ([1.0, 2.0], r"train must return one score for each of 1 canaries, got shape \(2,\)"),
        (lambda features: np.zeros(7), r"predictions must be one per record, shape \(1,\), got \(7,\)"),
    ],
)
def test_what_cannot_be_scored_is_said_with_the_run(returned, message):
    with pytest.raises(cs.TrainingError, match=f"run 1 of 100: .*{message}"):
        audit(lambda features, labels: returned)
