"""The AUC alone: sums over triples by brute force, how far one person moves them, an audit, and the public function."""

import itertools
import math
import re

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn.dummy import DummyClassifier
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.svm import LinearSVC

import clipsilon as cs
from clipsilon.engine.streams import spawn
from clipsilon.estimators.evaluation import evaluate, triples
from clipsilon.estimators.evaluation.predictions import Scored
from clipsilon.estimators.evaluation.triples import Triples, draw_triples, estimate_area, sum_triples, weigh_cells

pytestmark = pytest.mark.filterwarnings("ignore::clipsilon.PrivacyWarning")

# A person is a list of rows (cell, class); an empty one was zeroed out.
ROWS = st.tuples(st.integers(0, 5), st.integers(0, 1))
PERSON = st.lists(ROWS, min_size=1, max_size=4)
TABLE = st.lists(PERSON, max_size=7)
ADJACENCIES = {"zero-out": 1, "replace-one": 2}  # and how many people's triples change


def arrays(people):
    rows = [(cell, label, len(person)) for person in people for cell, label in person]
    return np.array(rows, dtype=np.int64).reshape(-1, 3).T


def draw(people, epsilon, adjacency="zero-out", rng=None):
    """Return the three noisy numbers; without noise if there is no generator."""
    cells, outcomes, rows_of = arrays(people)
    scored = Scored("binary", cells, outcomes)
    each = evaluate._epsilon_each(epsilon, adjacency)
    with pytest.MonkeyPatch.context() as patch:
        if rng is None:
            patch.setattr(triples, "integer_laplace", lambda bits: 0)
        return draw_triples(scored, rows_of, len(people), each, rng or spawn(0, 1)[0].noise)


# -- sums -------------------------------------------------------------------------------------------------------------


def brute_force(people):
    """Return won − lost + same/2, same/2 and split over all triples of people, each row with an equal share."""
    won = lost = same = split = 0.0
    for three in itertools.product(people, repeat=3):
        for rows in itertools.product(*three):
            weight = 1 / math.prod(len(person) for person in three)
            labels = [label for _, label in rows]
            if len(set(labels)) == 1:
                same += weight
                continue
            positives, negatives = ([cell for cell, label in rows if label == own] for own in (1, 0))
            one, other = ((1 + np.sign(p - n)) / 2 for p, n in itertools.product(positives, negatives))
            won, lost = won + weight * one * other, lost + weight * (1 - one) * (1 - other)
            split += weight * (one * (1 - other) + other * (1 - one))
    assert won + lost + same + split == pytest.approx(len(people) ** 3)
    return won - lost + same / 2, same / 2, split


@given(st.lists(PERSON, min_size=1, max_size=4))
@settings(max_examples=25, deadline=None)
def test_sums_over_triples(people):
    sums = sum_triples(*weigh_cells(*arrays(people)))
    # A person's share is rounded down to a whole number, of 2^36.
    assert np.array(sums) / (2 * triples._UNIT**3) == pytest.approx(brute_force(people), abs=1e-6)
    noiseless = draw(people, 8.0)
    one = len(people) ** 3 - (len(people) - 1) ** 3
    assert np.multiply(noiseless[:3], one) == pytest.approx(brute_force(people), abs=1e-6)


def test_weights_stay_within_64_bits():
    assert triples._UNIT * triples.MOST_PEOPLE <= 2**62


def test_the_sampling_variance_is_that_of_delong():
    """Over people's own fractions of pairs won, of either class; there are ties."""
    rng = np.random.default_rng(0)
    negatives, positives = rng.integers(0, 30, 400), rng.integers(8, 40, 60)
    people = [[(int(cell), 0)] for cell in negatives] + [[(int(cell), 1)] for cell in positives]
    found = draw(people, 100.0)
    wins = (np.sign(positives[:, None] - negatives) + 1) / 2
    auc, mixed = wins.mean(), found.total - 2 * found.same
    assert 0.5 + (found.lead - found.same) / (2 * mixed) == pytest.approx(auc, abs=1e-6)
    delong = wins.mean(axis=1).var() / 60 + wins.mean(axis=0).var() / 400
    assert (auc * (1 - auc) - found.split / (2 * mixed)) / mixed == pytest.approx(delong, rel=0.005)


# -- privacy ----------------------------------------------------------------------------------------------------------


def loss(one, other, epsilon, adjacency):
    """Return the largest possible privacy loss of the released numbers."""
    found = [draw(people, epsilon, adjacency) for people in (one, other)]
    assert found[0][3:] == found[1][3:]  # public
    return np.abs(np.subtract(*(own[:3] for own in found))).sum() / found[0].scale


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@given(others=TABLE, person=PERSON, another=PERSON, epsilon=st.floats(1e-3, 50))
@example(others=[[(0, 0)]] * 7, person=[(5, 1)], another=[(5, 0)], epsilon=1.0)
@settings(max_examples=100, deadline=None)
def test_no_neighbour_is_farther_than_epsilon(adjacency, others, person, another, epsilon):
    """People with several rows, of both classes, with ties; a person who is zeroed out has no rows, but is counted."""
    neighbour = [] if adjacency == "zero-out" else another
    assert loss([*others, person], [*others, neighbour], epsilon, adjacency) <= epsilon


@pytest.mark.parametrize(("adjacency", "neighbour"), [("zero-out", []), ("replace-one", [(0, 1)])])
def test_a_rare_positive_is_as_far_as_epsilon(adjacency, neighbour):
    """The only positive, above all others, is zeroed out or goes below them: less noise would not be private."""
    others = [[(3, 0)]] * 5000
    assert 0.999 < loss([*others, [(5, 1)]], [*others, neighbour], 1.0, adjacency) <= 1.0


def audit(one, other, epsilon, adjacency, runs):
    """Return a lower bound on ε by the most powerful tests, with a false alarm below 1e-6 for all of them."""
    rng = spawn(7, 1)[0].noise
    means = [np.array(draw(people, epsilon, adjacency)[:3]) for people in (one, other)]
    found = [np.array([draw(people, epsilon, adjacency, rng)[:3] for _ in range(runs)]) for people in (one, other)]
    ratios = [np.abs(own - means[1]).sum(axis=1) - np.abs(own - means[0]).sum(axis=1) for own in found]
    best = -np.inf
    for threshold in np.linspace(ratios[0].min(), ratios[0].max(), 20)[:-1]:
        hits = [int((own > threshold).sum()) for own in ratios]
        low, high = stats.beta.ppf([1e-8, 1 - 1e-8], [hits[0], hits[1] + 1], [runs - hits[0] + 1, runs - hits[1]])
        best = max(best, math.log(low / high))
    return best


AUDITED = {
    "won": ([(5, 1)], []),
    "of both classes": ([(5, 1), (1, 0)], []),
    "replaced": ([(5, 1)], [(0, 1)]),
}


def audited(name, runs):
    others = [[(3, 0)]] * 30 + [[(4, 1)]]
    adjacency = "replace-one" if name == "replaced" else "zero-out"
    return audit(*([*others, person] for person in AUDITED[name]), 1.0, adjacency, runs)


def test_an_audit_finds_most_of_epsilon_and_no_more():
    assert 0.5 < audited("won", 4000) <= 1.0


@pytest.mark.verify
@pytest.mark.parametrize("name", AUDITED)
def test_an_audit_of_100000_draws_finds_no_more_than_epsilon(name):
    assert 0.4 < audited(name, 100_000) <= 1.0


def test_nothing_but_the_noisy_sums_is_learnt(monkeypatch, model):
    monkeypatch.setattr(triples, "sum_triples", lambda negatives, positives: (3 * 10**38, 10**38, 10**37))
    rng = np.random.default_rng(0)
    tables = [(rng.normal(size=(500, 2)), rng.integers(0, 2, 500)) for _ in range(2)]
    results = [cs.private_scores(model, *own, 1.0, figures="auc", random_state=0).to_dict() for own in tables]
    assert results[0] == results[1]


# -- the interval -----------------------------------------------------------------------------------------------------


def test_noise_that_hides_a_class_leaves_everything_open():
    hidden = estimate_area(Triples(lead=700.0, same=680.0, split=1.0, total=1333.0, scale=2.0))
    assert math.isnan(hidden.value)
    assert (hidden.low, hidden.high) == (0.0, 1.0)
    rare = estimate_area(Triples(lead=668.0, same=665.0, split=1.0, total=1333.0, scale=2.0))
    assert (rare.low, rare.high) == (0.0, 1.0)
    assert rare.value == 1.0


@pytest.mark.parametrize("epsilon", [0.01, 0.5, 20.0, 1e6])
def test_perfect_and_useless_scores(epsilon):
    for above, truth in ((5, 1.0), (0, 0.0), (3, 0.5)):
        people = [[(3, 0)]] * 300 + [[(above, 1)]] * 100
        found = estimate_area(draw(people, epsilon))
        assert 0 <= found.low <= truth <= found.high <= 1
        assert found.margin < 0.06 or epsilon < 20


# -- the public function ----------------------------------------------------------------------------------------------


def table(people=3000):
    rng = np.random.default_rng(5)
    X = rng.normal(size=(people, 2))
    return X, (X[:, 0] + rng.normal(size=people) > 1.5).astype(int)


@pytest.fixture(scope="module")
def model():
    return LogisticRegression().fit(*table())


def test_the_area_is_that_of_scikit_learn(model):
    X, y = table()
    for fitted, scores in ((model, model.decision_function(X)), (LinearSVC().fit(X, y), None)):
        exact = roc_auc_score(y, fitted.decision_function(X) if scores is None else scores)
        found = cs.private_scores(fitted, X, y, 1e5, figures="auc", random_state=0)
        assert found.figures["roc_auc"].value == pytest.approx(exact, abs=1e-4)
        assert list(found.figures) == ["roc_auc"]
        assert (found.roc, found.calibration, found.positive, found.people) == (None, None, "1", 3000)
    flat = cs.private_scores(DummyClassifier().fit(X, y), X, y, 1e5, figures="auc", random_state=0)
    assert flat.figures["roc_auc"].value == pytest.approx(0.5, abs=1e-4)
    assert "AUC: 0.5" in str(flat)


def test_everybody_counts_the_same(model):
    """A person with half of the rows, all of them lost, is one of 1,001."""
    X, y = table()
    best = np.where(y == 1, 5.0, -5.0)[:1000]
    X = np.column_stack([np.concatenate([best, np.full(1000, -9.0)]), np.zeros(2000)])
    people = [*range(1000), *[1000] * 1000]
    found = cs.private_scores(
        model, X, np.concatenate([y[:1000], np.ones(1000, int)]), 1e4, figures="auc", groups=people
    )
    positives = y[:1000].sum()
    assert found.people == 1001
    assert found.figures["roc_auc"].value == pytest.approx(positives / (positives + 1), abs=1e-3)


@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_the_statement_is_of_pure_privacy(model, adjacency, tmp_path):
    X, y = table()
    budget = cs.Budget(tmp_path / "file", 1.0, 1e-4, adjacency=adjacency)
    found = cs.private_scores(model, X, y, 0.7, figures="auc", adjacency=adjacency, budget=budget)
    statement = found.statement
    assert (statement.certified, statement.adjacency, statement.records) == (0.7, adjacency, 3000)
    assert statement.epsilon(1e-15) == 0.7
    assert statement.delta_at(0.7) == 0.0
    assert "ε = 0.7 with δ = 0" in statement.reasons[0]
    assert budget.spent().epsilon == 0.7
    with pytest.raises(cs.BudgetError, match="would pass the limit"):
        cs.private_scores(model, X, y, 0.7, figures="auc", adjacency=adjacency, budget=budget)
    seeded = cs.private_scores(model, X, y, 0.7, figures="auc", adjacency=adjacency, random_state=0).statement
    assert (seeded.certified, seeded.nominal) == (math.inf, 0.7)


class Unsure(LogisticRegression):
    def predict_proba(self, X):
        return np.full((len(X), 2), np.nan)


REFUSED = {
    "figures must be one of 'all', 'auc', got 'roc'": {"figures": "roc"},
    "adjacency must be 'zero-out' or 'replace-one' for figures 'auc', whose noise": {"adjacency": "add-remove"},
    "epsilon must be large enough for noise of at most 65536 people, got 1e+05": {"epsilon": 1e-5},
    "figures must be 'all' unless the model has two classes, got 'auc'.": {
        "model": LogisticRegression().fit(np.arange(9.0)[:, None].repeat(2, axis=1), np.arange(9) % 3)
    },
    "figures must be 'all' unless the model has two classes, got 'auc'. ": {
        "model": LinearRegression().fit(*table()),
        "target_range": (0, 1),
    },
    "model must predict finite numbers for every row, got NaN or infinity.": {"model": Unsure().fit(*table())},
}


@pytest.mark.parametrize("message", REFUSED)
def test_bad_input_is_refused_in_one_sentence_and_costs_nothing(model, message, tmp_path):
    X, y = table()
    budget = cs.Budget(tmp_path / "file", 1.0, 1e-4)
    asked = {"model": model, "X": X, "y": y, "epsilon": 1.0, "figures": "auc", "budget": budget, **REFUSED[message]}
    with pytest.raises(ValueError, match=re.escape(message.strip())):
        cs.private_scores(**asked)
    assert budget.charges() == []
