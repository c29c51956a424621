"""Levels and ranges within a budget: what one person can change, the noise, the threshold, and what is found."""

import math
from fractions import Fraction

import numpy as np
import pytest
from numpy.random import SFC64, Generator
from scipy.stats import norm

import clipsilon as cs
from clipsilon.engine import exact_noise
from clipsilon.estimators import PrivateScaler, total_privacy
from clipsilon.privacy.accounting import gaussian, profiles
from clipsilon.privacy.quantiles import balance_noise
from clipsilon.privacy.statement import SEEDED
from clipsilon.tables import Category, Number, learn_levels, learn_ranges
from clipsilon.tables.learn import _count, find_threshold

RNG = np.random.default_rng(0)


# -- what one person can change -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("most", [1, 2, 3])
def test_a_person_adds_one_to_at_most_so_many_levels(most):
    """Drop each person from random tables: counts fall by 1 in at most `most` levels, which is attained."""
    rng = np.random.default_rng(1)
    largest = 0
    for _ in range(60):
        people, texts = rng.integers(0, 6, 30), rng.choice(["a", "b", "c", "d", "e", None], 30).tolist()
        whole = _count(texts, people, most)
        for person in range(6):
            kept = people != person
            rest = _count([text for text, keep in zip(texts, kept, strict=True) if keep], people[kept], most)
            changed = {level: whole[level] - rest[level] for level in whole if whole[level] != rest[level]}
            assert set(changed.values()) <= {1}
            largest = max(largest, len(changed))
    assert largest == most


def test_many_rows_of_one_person_count_once():
    people, sizes = ["ann"] * 5000 + [f"p{k}" for k in range(3000)], ["secret"] * 5000 + ["usual"] * 3000
    assert learn_levels({"size": sizes}, 1.0, 1e-6, groups=people).found == {"size": ("usual",)}
    assert learn_levels({"size": sizes}, 1.0, 1e-6).found == {"size": ("secret", "usual")}  # rows are protected


# -- noise and threshold ------------------------------------------------------------------------------------------------


def passes(count, std, threshold):
    """The probability that a level of this count is released: ⌊(Z + ⌊M/2⌋)/M⌋ ≥ T − c with Z = ⌊2^32·N⌋, exactly."""
    spacing = int(2**32 / Fraction(std))
    return norm.sf(((threshold - count) * spacing - spacing // 2) / 2**32)


@pytest.mark.parametrize("touched", [1, 4, 60])
@pytest.mark.parametrize("delta", [1e-12, 1e-6, 0.01])
@pytest.mark.parametrize("std", [0.3, 5.0, 1234.5, 2.0**16])
def test_the_threshold_is_the_least_that_holds(std, delta, touched):
    threshold, beyond = find_threshold(std, touched, delta)
    assert touched * passes(1, std, threshold) <= beyond <= delta
    assert touched * passes(1, std, threshold - 1) > 0.98 * delta


def test_the_probability_of_release_is_that_of_the_noise():
    """False alarms have probability below 1e-6: a count of 200,000 coins, within five standard deviations."""
    std, threshold, number = 3.0, 5, 200_000
    drawn = exact_noise.draw_whole(Generator(SFC64(0)), std, number)
    p = passes(1, std, threshold)
    assert abs(np.count_nonzero(1 + drawn >= threshold) - p * number) < 5 * math.sqrt(number * p * (1 - p))


def hockey_stick(p, q, epsilon):
    """sup over events of P − e^ε·Q for two coins, in the worse direction."""
    pairs = [(p, q), (1 - p, 1 - q), (q, p), (1 - q, 1 - p)]
    return max(one - math.exp(epsilon) * other for one, other in pairs)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 1e-6), (1.0, 1e-3), (5.0, 1e-9)])
def test_the_release_of_a_level_is_as_private_as_certified(epsilon, delta):
    """A person changes a count of c to c − 1, and a count of 1 to none at all: both releases are coins."""
    mu = gaussian.largest_mu(epsilon, delta / 2)
    std = balance_noise(mu, 1, "zero-out")
    threshold, beyond = find_threshold(std, 1, delta / 2)
    profile = profiles.gaussian_or(mu, beyond)
    for level in (0.0, 0.5 * epsilon, epsilon, 2 * epsilon):
        assert hockey_stick(passes(1, std, threshold), 0.0, level) <= profile.delta(level)
        for count in {2, threshold - 1, threshold, threshold + 1, 2 * threshold}:
            p, q = (passes(number, std, threshold) for number in (count, count - 1))
            assert hockey_stick(p, q, level) <= profile.delta(level)
    assert profile.delta(epsilon) <= delta
    assert profile.epsilon(delta) <= epsilon
    assert profile.epsilon(beyond) == math.inf


@pytest.mark.parametrize("learn", [learn_levels, learn_ranges])
@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
@pytest.mark.parametrize("epsilon", [0.3, 1.0, 20.0])
def test_no_more_is_certified_than_was_asked_for(learn, adjacency, epsilon):
    columns = {"a": RNG.integers(0, 3, 20_000), "b": RNG.integers(0, 5, 20_000)}
    statement = learn(columns, epsilon, 1e-6, adjacency=adjacency).statement
    assert 0.9 * epsilon < statement.certified <= epsilon
    assert (statement.adjacency, statement.records, statement.delta) == (adjacency, 20_000, 1e-6)
    seeded = learn(columns, epsilon, 1e-6, adjacency=adjacency, random_state=0).statement
    assert (seeded.certified, seeded.nominal, seeded.faults) == (math.inf, statement.certified, (SEEDED,))


def test_statements_compose_with_those_of_other_steps():
    columns = {"a": RNG.integers(0, 3, 20_000)}
    levels, ranges = (learn(columns, 0.3, 1e-6).statement for learn in (learn_levels, learn_ranges))
    scaler = PrivateScaler(0.4, 1e-6).fit(np.column_stack([columns["a"]]))
    total = total_privacy([levels, ranges, scaler])
    assert max(0.4, levels.certified) < total.epsilon <= 1.0
    assert total.delta == pytest.approx(3e-6)


@pytest.mark.parametrize("learn", [learn_levels, learn_ranges])
@pytest.mark.parametrize("people", [None, np.arange(20_000) // 2], ids=["rows", "people"])
def test_a_budget_file_is_charged_before_anything_is_counted(learn, people, tmp_path, monkeypatch):
    cells = RNG.integers(0, 3, 20_000)
    budget = cs.Budget(tmp_path / "people.budget", 1.0, 1e-5)
    learnt = learn({"a": cells}, 0.4, 1e-6, groups=people, budget=budget)
    learn({"a": cells[::-1]}, 0.2, 1e-6, groups=None if people is None else people[::-1], budget=budget)
    learn({"a": cells % 2}, 0.2, 1e-6, groups=people, budget=budget)
    spent = budget.charges()
    assert (spent[0].what, spent[0].epsilon) == (learn.__name__, learnt.statement.certified)
    assert (spent[0].records, spent[0].unit) == ((20_000, "record") if people is None else (10_000, "person"))
    assert spent[0].data == spent[1].data != spent[2].data
    assert None not in {charge.data for charge in spent}
    monkeypatch.setattr(exact_noise, "draw_whole", None)  # nothing may be counted with noise
    for settings in (
        {"epsilon": 0.9},
        {"epsilon": 0.1, "random_state": 0},
        {"epsilon": 0.1, "adjacency": "replace-one"},
    ):
        with pytest.raises(cs.BudgetError):
            learn({"a": cells}, delta=1e-6, groups=people, budget=str(budget.path), **settings)
    assert budget.charges() == spent


# -- what is found ------------------------------------------------------------------------------------------------------


def test_frequent_levels_are_found_and_rare_ones_are_not():
    """False alarms have probability below 1e-6: 2,000 rows are more than 30 standard deviations above the threshold."""
    cells = ["north"] * 3000 + ["south"] * 2000 + [f"town {k}" for k in range(1000)] + ["", None, "NA"] * 100
    found = learn_levels({"region": cells, "flag": [True, False] * 3150}, 1.0, 1e-6).found
    assert found == {"region": ("north", "south"), "flag": ("False", "True")}
    assert cs.Schema({"region": Category(found["region"])}).feature_names()[0] == "region=north"


@pytest.mark.parametrize("gaps", [0.0, 0.3])
def test_ranges_hold_nearly_all_values(gaps):
    n = 50_000
    columns = {
        "age": np.where(RNG.random(n) < gaps, np.nan, RNG.normal(45, 12, n)),
        "income": np.where(RNG.random(n) < gaps, np.nan, RNG.lognormal(10, 0.5, n)),
        "rate": np.where(RNG.random(n) < gaps, np.nan, 1e-6 * RNG.random(n)),
    }
    found = learn_ranges(columns, 1.0, 1e-6, random_state=0).found
    for name, (low, high) in found.items():
        values = columns[name][~np.isnan(columns[name])]
        assert 0.95 < np.mean((low <= values) & (values <= high)) <= 1
        assert high - low < 2 * np.ptp(np.quantile(values, [0.005, 0.995]))
        cs.Schema({name: Number(low, high)})
    medians = learn_ranges({"age": columns["age"]}, 1.0, 1e-6, groups=np.arange(n) // 2, random_state=0)
    assert medians.statement.records == n // 2
    assert 0 < medians.found["age"][0] < 30 < 60 < medians.found["age"][1] < 100


def test_a_constant_column_has_a_range():
    low, high = learn_ranges({"a": np.full(20_000, 7.0)}, 1.0, 1e-6, random_state=0).found["a"]
    assert low < 7 < high


REFUSED = {
    "no columns": (lambda: learn_levels({}, 1.0, 1e-6), "columns must be a dict of at least one column, got {}."),
    "rows": (lambda: learn_levels({"a": [1, 2], "b": [1]}, 1.0, 1e-6), "columns and groups must have the same number of rows, above 0, got {1, 2}."),
    "no rows": (lambda: learn_levels({"a": []}, 1.0, 1e-6), "columns and groups must have the same number of rows, above 0, got {0}."),
    "person without a name": (lambda: learn_levels({"a": [1, 2]}, 1.0, 1e-6, groups=["ann", ""]), "groups must name the person of every row, got 1 row(s) without an id."),
    "text": (lambda: learn_ranges({"a": ["x"] * 5000}, 1.0, 1e-6), "column 'a' must hold numbers, got 'x'."),
    "few": (lambda: learn_ranges({"a": [1, 2, 3]}, 1.0, 1e-6), "columns must have more than 3 records to learn 1 range(s) at ε = 1; no budget was spent."),
    "epsilon": (lambda: learn_levels({"a": [1]}, 0, 1e-6), "epsilon must be a number above 0, got 0."),
    "delta": (lambda: learn_ranges({"a": [1]}, 1, 0), "delta must be a number above 0 and below 1, got 0."),
    "most": (lambda: learn_levels({"a": [1]}, 1, 1e-6, max_levels=0), "max_levels must be a whole number of at least 1, got 0."),
    "adjacency": (lambda: learn_levels({"a": [1]}, 1, 1e-6, adjacency="add-remove"), "adjacency must be 'replace-one' or 'zero-out' here"),
}  # fmt: skip


@pytest.mark.parametrize(("make", "message"), REFUSED.values(), ids=REFUSED)
def test_wrong_arguments_spend_nothing(make, message):
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        make()
    assert str(caught.value).startswith(message)
