"""Reactions from logs: found within their regions, privately, and never guessed where nothing was tried."""

import warnings

import numpy as np
import pytest

import clipsilon as cs
from clipsilon.privacy.accounting import gaussian
from clipsilon.privacy.budget_file import BudgetError
from clipsilon.theory.reactions.means import Question, _noisy_deployment, deviations

verify = pytest.mark.verify
COLUMNS = [0, 5, 7]  # what applicants can change, in Perdomo et al.'s credit map


def linear_logs(seed, strengths, deployments=20, people=50, spread=0.25):
    """Normal rows that move by −S·θ; correlated columns of different sizes."""
    rng = np.random.default_rng(seed)
    d = len(strengths)
    mix = np.diag(np.geomspace(0.5, 2.0, d)) @ (np.eye(d) + 0.5)
    models = rng.uniform(-spread, spread, (deployments, d)) + rng.standard_normal(d)
    return [(theta, rng.standard_normal((people, d)) @ mix - strengths @ theta) for theta in models]


def test_a_matrix_is_found_exactly_from_logs_without_chance():
    rng = np.random.default_rng(0)
    matrices = rng.standard_normal((2, 3, 3))
    rows, labels = rng.standard_normal((40, 3)), np.arange(40) % 2
    logs = [(t, rows - np.einsum("nij,j->ni", matrices[labels], t), labels) for t in rng.standard_normal((6, 3))]
    found = cs.responses.estimate(logs)
    np.testing.assert_allclose(found.strengths, matrices, atol=1e-12)
    np.testing.assert_allclose(found.part.strengths, matrices, atol=1e-12)
    assert found.statement.certified == np.inf
    assert "in the circle" in found.statement.reasons[0]


@verify
@pytest.mark.parametrize("structure", ["matrix", "columns", "strength"])
def test_regions_hold_what_they_promise(structure):
    """3,000 logs: at least 93 % of 95 % intervals; false with probability 3e-7 per interval, if they hold exactly."""
    true = 0.6 * np.eye(2)
    inside = []
    for seed in range(3000):
        found = cs.responses.estimate(linear_logs(seed, true, 8, 20), classes=1, structure=structure)
        inside.append(found.low[0, 0, 0] <= 0.6 <= found.high[0, 0, 0])
    assert np.mean(inside) >= 0.93


@verify
def test_the_region_of_the_strength_holds_what_it_promises():
    """As above, for correlated columns of different variances, whose covariance is estimated."""
    inside = 0
    for seed in range(3000):
        found = cs.responses.estimate(linear_logs(seed, 0.6 * np.eye(3), 8, 20), classes=1, structure="columns")
        inside += found.strength_low[0] <= 0.6 <= found.strength_high[0]
    assert inside >= 0.93 * 3000


def test_directions_that_were_never_tried_are_unknown():
    rng = np.random.default_rng(0)
    models = rng.standard_normal((9, 3))
    models[:, 2] = models[:, 0]  # only the sum of the two was tried
    logs = [(t, rng.standard_normal((30, 3))) for t in models]
    found = cs.responses.estimate(logs, classes=1)
    np.testing.assert_allclose(np.abs(found.unknown[0]), [[0.5**0.5, 0, 0.5**0.5]], atol=1e-9)
    assert "1 of 3 directions of θ were never tried" in str(found)
    with pytest.raises(ValueError, match=r"^response must be known in all 3 directions of θ, got one with 1 that were"):
        cs.Problem(np.ones((4, 3)), [0, 1, 0, 1], loss=cs.losses.Logistic(), response=found)
    still = cs.responses.estimate(logs, classes=1, unknown="still")
    np.testing.assert_allclose(still.part.strengths[0] @ found.unknown[0][0], 0.0, atol=1e-9)


def test_entries_of_directions_that_were_never_tried_have_no_interval():
    rng = np.random.default_rng(0)
    models = np.column_stack([rng.standard_normal((9, 2)), np.ones(9)])
    found = cs.responses.estimate([(t, rng.standard_normal((30, 3)) - t) for t in models], classes=1)
    assert np.isinf(found.high[0, :, 2]).all()
    assert np.isfinite(found.high[0, :, :2]).all()
    same = [([0.1 * (1 + k * 2e-16)], rng.standard_normal((20 + 30 * k, 1))) for k in range(3)]
    nothing = cs.responses.estimate(same, classes=1)  # models that differ by rounding alone
    assert nothing.strength[0] == 0.0
    assert nothing.strength_high[0] == nothing.high[0, 0, 0] == np.inf


def test_columns_that_did_not_vary_are_unknown():
    logs = [([a, 1.0], np.ones((5, 2))) for a in (0.0, 1.0, 2.0)]
    found = cs.responses.estimate(logs, classes=1, structure="columns")
    np.testing.assert_array_equal(found.unknown[0], [[0.0, 1.0]])
    assert found.high[0, 1, 1] == np.inf


@pytest.mark.parametrize(("adjacency", "change"), [("zero-out", 1.0), ("replace-one", 2.0)])
def test_one_person_changes_no_more_than_is_accounted_for(adjacency, change):
    """With the same noise, what two neighbouring deployments release differs by at most μ, in units of the noise."""
    mu, clip, rng = 0.7, 1.5, np.random.default_rng(0)
    noise = deviations(mu, clip, 2, change)
    asked = Question(np.array([0, 2]), 2, np.array([0.3, -0.2]), clip)
    table, labels = 10.0 ** rng.uniform(-1, 2, (30, 1)) * rng.standard_normal((30, 3)), rng.integers(2, size=30)

    def release(rows, classes):
        return _noisy_deployment(rows, classes, asked, noise, np.random.Generator(np.random.SFC64(5)))

    largest = 0.0
    for i in range(30):
        if adjacency == "zero-out":
            other = release(np.delete(table, i, axis=0), np.delete(labels, i))
        else:
            rows, classes = table.copy(), labels.copy()
            rows[i], classes[i] = -rows[i], classes[i] ^ (i % 2)
            other = release(rows, classes)
        moves = [np.linalg.norm(a - b) for a, b in zip(release(table, labels), other, strict=True)]
        shift = np.linalg.norm(np.array(moves) / np.array(noise))
        assert shift <= mu
        largest = max(largest, shift)
    assert largest > (0.99 if adjacency == "zero-out" else 0.86) * mu


def test_a_private_estimate_is_certified_and_charged(tmp_path):
    logs = linear_logs(0, 0.6 * np.eye(2), people=500)
    budget = cs.Budget(tmp_path / "people.budget", epsilon=1.5, delta=1e-5)
    found = cs.responses.estimate(logs, classes=1, epsilon=1.0, delta=5e-6, clip=8.0, budget=budget)
    assert 0.999 < found.statement.certified <= 1.0
    assert found.statement.records == 20 * 500
    assert found.statement.certificate.profile.mu == gaussian.largest_mu(1.0, 5e-6)
    assert any("parallel" in reason for reason in found.statement.reasons)
    assert len(budget.charges()) == 1
    with pytest.raises(BudgetError):
        cs.responses.estimate(logs, classes=1, epsilon=1.0, delta=5e-6, budget=budget)
    with pytest.warns(cs.PrivacyWarning, match="Seeded"):
        seeded = cs.responses.estimate(logs, classes=1, epsilon=1.0, clip=8.0, seed=1)
    assert seeded.statement.certified == np.inf
    assert 0.999 < seeded.statement.nominal <= 1.0


@pytest.mark.filterwarnings("ignore::clipsilon.PrivacyWarning")
def test_intervals_hold_what_clipping_does_to_other_columns():
    """The second column moves; clipped rows of correlated columns move in the first one, too. No chance to speak of."""
    rng, strengths = np.random.default_rng(0), np.array([[0.0, 0.0], [1.0, 0.0]])
    mix = np.array([[1.5, 1.2], [1.2, 1.5]])
    models = rng.uniform(-0.5, 0.5, (12, 2))
    logs = [(t, rng.standard_normal((40_000, 2)) @ mix - strengths @ t) for t in models]
    found = cs.responses.estimate(logs, classes=1, epsilon=50.0, delta=1e-9, clip=5.0, seed=0)
    assert 0.05 < found.means.clipped[0] < 0.08
    assert found.strengths[0, 0, 0] < -0.01  # by chance, the standard error is 0.005
    assert (found.low <= strengths).all()
    assert (found.high >= strengths).all()
    assert np.isfinite(found.high).all()


@pytest.mark.filterwarnings("ignore::clipsilon.PrivacyWarning")
@pytest.mark.parametrize("structure", ["matrix", "columns", "strength"])
def test_the_region_holds_moves_that_clipping_hides(structure):
    """Rows move from 0.45 to 2.45 and are clipped to 0.5: half of them are clipped, and hardly any move is left."""
    rng = np.random.default_rng(0)
    logs = [([u], 1.45 + 0.01 * rng.standard_normal((10_000, 1)) - u) for u in (1.0, -1.0) * 3]
    found = cs.responses.estimate(logs, classes=1, structure=structure, epsilon=50.0, delta=1e-9, clip=0.5, seed=0)
    assert found.strength[0] < 0.1
    assert found.strength_low[0] <= 1.0 <= found.strength_high[0]
    assert found.low[0, 0, 0] <= 1.0 <= found.high[0, 0, 0]


def test_a_row_too_far_away_is_clipped_and_raises_nothing():
    """An error would tell that the row is there."""
    noise, asked = deviations(1.0, 1.0, 1, 1.0), Question(np.array([0]), 1, np.array([-1e308]), 1.0)
    rng = np.random.Generator(np.random.SFC64(0))
    sums, _, clipped = _noisy_deployment(np.array([[1.7e308]] * 1000), np.zeros(1000, int), asked, noise, rng)
    assert sums[0, 0] == pytest.approx(1000, abs=20 * noise.sums)
    assert clipped[0] == pytest.approx(1000, abs=20 * noise.clipped)


def test_few_people_are_left_out_rather_than_divided_by():
    logs = [([a, b], np.ones((200, 2)), np.zeros(200)) for a, b in ((0, 0), (0, 1), (1, 0), (1, 1))]
    with pytest.warns(cs.PrivacyWarning):
        found = cs.responses.estimate(logs, epsilon=1.0, seed=0)
    assert np.isnan(found.means.means[:, 1]).all()
    assert len(found.unknown[1]) == 2
    assert found.strength_high[1] == np.inf


def test_an_estimate_is_a_response_everywhere():
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((2000, 2)), rng.integers(2, size=2000).astype(float)
    logs = [(t, x - 0.3 * y[:, None] * t, y) for t in cs.responses.explore([0.1, 0.2], 0.2, 8).models]
    found = cs.responses.estimate(logs, structure="strength", saturation=1.0)
    problem = cs.Problem(x, y, loss=cs.losses.Logistic(l2=0.1), response=found)
    exact = cs.Problem(x, y, loss=problem.loss, response=cs.responses.BestResponse(0.3))
    np.testing.assert_allclose(cs.stable_point(problem).theta, cs.stable_point(exact).theta, atol=1e-9)
    assert cs.clipping_bias(problem, 0.5) == pytest.approx(cs.clipping_bias(exact, 0.5), abs=1e-9)
    rule = cs.PCSGD(cs.schedules.Constant(0.1), clip=1.0, noise_std=0.1)
    traces = [cs.run(one, rule, steps=50, seed=0).theta for one in (problem, exact)]
    np.testing.assert_allclose(*traces, atol=1e-9)


def test_estimators_take_an_estimate():
    from clipsilon.estimators import PrivateLogisticRegression

    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((2000, 2)), rng.integers(2, size=2000)
    logs = [(t, x - 0.3 * t, y) for t in cs.responses.explore([0.1, 0.2], 0.2, 8).models]
    found = cs.responses.estimate(logs, structure="columns", classes=1)
    for response in (found, found.part):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", cs.PrivacyWarning)
            fitted = PrivateLogisticRegression(epsilon=8.0, random_state=0, response=response).fit(x, y)
        assert np.isfinite(fitted.coef_).all()


def test_it_says_what_it_found_and_draws_it():
    found = cs.responses.estimate(linear_logs(0, 0.6 * np.eye(3), people=5000), classes=1, structure="columns")
    assert "Reaction estimated from 20 deployments and 100000 people:" in str(found)
    assert "everybody moves against θ with strength 0." in str(found)
    axes = found.plot().axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["0", "1", "2"]


def test_explore_spans_all_directions_and_states_its_cost():
    center = np.array([0.5, -1.0, 2.0])
    x = np.random.default_rng(0).standard_normal((50, 3))
    problem = cs.Problem(x, x.sum(axis=1), loss=cs.losses.SquaredError(), response=cs.responses.LocationShift(0.1))
    found = cs.responses.explore(center, 0.2, 6, problem=problem)
    np.testing.assert_allclose(np.abs(found.models - center), 0.2)
    np.testing.assert_allclose(found.models.mean(axis=0), center, atol=1e-12)
    assert np.linalg.matrix_rank(found.models - center) == 3
    risks = [cs.metrics.performative_risk(problem, theta) for theta in (*found.models, center)]
    assert found.cost == pytest.approx(np.mean(risks[:-1]) - risks[-1])
    for d in range(1, 9):
        assert np.linalg.matrix_rank(cs.responses.explore(np.zeros(d), 1.0, 2 * d).models) == d


BAD = {
    "one deployment": (lambda: cs.responses.estimate([([1.0], [[1.0]], [1])]), "logs must hold at least 2 deploy"),
    "no tuple": (lambda: cs.responses.estimate([1, 2]), r"logs\[0\] must be \(theta, features, labels\), got 1\."),
    "sizes": (
        lambda: cs.responses.estimate([([1.0], [[1.0]]), ([1.0, 2.0], [[1.0, 2.0]])], classes=1),
        r"features of logs\[1\] must have 1 columns, got 2\.",
    ),
    "theta": (
        lambda: cs.responses.estimate([([1.0, 2.0], [[1.0]])] * 2, classes=1),
        r"theta of logs\[0\] must be a number or 1 number\(s\), got shape \(2,\)\.",
    ),
    "labels": (
        lambda: cs.responses.estimate([([1.0], [[1.0]])] * 2),
        r"labels of logs\[0\] must be given for 2 classes, got None\.",
    ),
    "twice": (
        lambda: cs.responses.estimate([cs.responses.Deployment([1.0], [[1.0]], None, ["ann"])] * 2, classes=1),
        r"people must be in the logs once each, got 1 row\(s\) of people who are in them already\.",
    ),
    "sizes of people": (
        lambda: cs.responses.estimate([([1.0], [[1.0]], None, ids) for ids in ([], ["ann", "bob"])], classes=1),
        r"people of logs\[0\] must hold the id of a person for each of 1 rows, got shape \(0,\)\.",
    ),
    "hidden ids": (
        lambda: cs.responses.estimate(
            [([1.0], [[1.0]], None, np.ma.array([1], mask=[True])), ([1.0], [[1.0]], None, [2])], classes=1
        ),
        r"people of logs\[0\] must name the person of every row, got 1 row\(s\) without an id\.",
    ),
    "twice, as a number and as text": (
        lambda: cs.responses.estimate([([1.0], [[1.0]], None, ids) for ids in ([1.0], ["1"])], classes=1),
        r"people must be in the logs once each, got 1 row\(s\) of people who are in them already\.",
    ),
    "columns": (
        lambda: cs.responses.estimate([([1.0], [[1.0]])] * 2, classes=1, columns=[1]),
        "columns must be below 1, the number of features, got 1",
    ),
    "budget": (
        lambda: cs.responses.estimate([([1.0], [[1.0]])] * 2, classes=1, budget="x"),
        "epsilon must be given with a budget, got None",
    ),
    "explore": (lambda: cs.responses.explore([0.0, 0.0], 1.0, 3), "deployments must be even and at least 4, twice"),
    "matrices": (lambda: cs.responses.MatrixShift([[1.0, 2.0]]), r"strengths must be one or more square matrices"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_in_one_sentence(case):
    call, message = BAD[case]
    with pytest.raises(ValueError, match=f"^{message}"):
        call()


def credit_logs(kind, strength, seed):
    """20 deployments of 1,000 applicants each; models within 0.5 of each other per coordinate."""
    from clipsilon.reproduce.problems import credit_data

    train, rng = credit_data().train, np.random.default_rng(seed)
    center = 0.1 * rng.standard_normal(10)
    for theta in center + rng.uniform(-0.25, 0.25, (20, 10)):
        drawn = rng.integers(train.labels.size, size=1000)
        rows, labels = train.features[drawn].copy(), train.labels[drawn]
        if kind == "linear":
            rows[:, COLUMNS] -= strength * theta[COLUMNS]
        else:
            rows -= strength * np.outer(labels, theta) / max(1.0, np.linalg.norm(theta))
        yield theta, rows, labels


CREDIT = {
    "linear": {"classes": 1, "columns": COLUMNS},
    "best response": {"classes": 2, "saturation": 1.0, "clip": 4.0},
}


@verify
@pytest.mark.filterwarnings("ignore::clipsilon.PrivacyWarning")
@pytest.mark.parametrize(
    ("kind", "strength"), [("linear", 0.2), ("linear", 1.0), ("best response", 0.5), ("best response", 1.0)]
)
def test_strengths_of_credit_applicants_are_recovered_privately(kind, strength):
    """Of 300 logs at ε = 1, 93 % contain the strength (98 % in truth: false with probability below 1e-6).

    The median relative error is below 0.2.
    """
    errors, inside = [], 0
    for seed in range(300):
        logs = list(credit_logs(kind, strength, seed))
        options = CREDIT[kind] | {"structure": "strength", "epsilon": 1.0, "delta": 1e-5, "seed": seed}
        found = cs.responses.estimate(logs, **options)
        assert found.statement.nominal <= 1.0
        errors.append(abs(found.strength[-1] / strength - 1.0))
        inside += found.strength_low[-1] <= strength <= found.strength_high[-1]
    assert inside >= 0.93 * 300
    print(f"{kind} {strength}: {inside} of 300 inside, median relative error {np.median(errors):.3f}")
    assert np.median(errors) < 0.2
