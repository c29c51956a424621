"""A budget file: what it counts, what it refuses, and that neither crashes nor a second process make it lose count."""

import copy
import json
import pickle
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sklearn.base import clone

import clipsilon as cs
from clipsilon.estimators import PrivateLinearRegression, PrivateLogisticRegression, PrivateScaler
from clipsilon.privacy.statement import fail_closed, point_statement

RNG = np.random.default_rng(0)
X = RNG.normal(size=(400, 2))
Y = X[:, 0] > 0


def point(epsilon=0.1, delta=1e-7, adjacency="zero-out"):
    return point_statement("thing", 100, epsilon, delta, adjacency)


@pytest.fixture
def budget(tmp_path):
    return cs.Budget(tmp_path / "people.budget", epsilon=1.0, delta=1e-5)


def classifier(budget, epsilon=0.4, **settings):
    return PrivateLogisticRegression(epsilon, 1e-6, classes=[False, True], epochs=1, budget=budget, **settings)


def test_a_file_is_created_once_and_reopened(budget):
    again = cs.Budget(budget.path)
    assert (again.epsilon, again.delta, again.adjacency) == (1.0, 1e-5, "zero-out")
    assert cs.Budget(budget.path, 1.0, 1e-5, "zero-out").salt == budget.salt
    assert budget.path.stat().st_mode & 0o077 == 0
    assert [path.name for path in budget.path.parent.iterdir()] == ["people.budget"]


def test_charges_add_up_and_the_limit_refuses(budget):
    for _ in range(10):
        budget.charge(point())
    assert budget.spent() == (1.0, pytest.approx(1e-6))
    before = budget.path.read_bytes()
    with pytest.raises(cs.BudgetError, match=r"thing would pass the limit of .*: it costs ε = 0.1 at δ = 1e-07, and"):
        budget.charge(point())
    assert budget.path.read_bytes() == before
    assert budget.left().epsilon == 0


@pytest.mark.filterwarnings("ignore:Noise hid")  # there is no seed under a budget
def test_rows_and_people_do_not_mix(budget):
    """Several rows of a person, each protected by itself, reveal more than their statements say of one."""
    assert budget.to_dict()["unit"] is None
    budget.charge(point_statement("visits", 100, 0.1, 1e-7, "zero-out", "person"))
    before = budget.path.read_bytes()
    with pytest.raises(cs.BudgetError, match="adds up releases that protect people, got one that protects records;"):
        budget.charge(point())
    assert budget.path.read_bytes() == before
    model = PrivateScaler(0.3, 1e-6, budget=budget).fit(np.tile(X, (10, 1)), groups=np.arange(4000) // 2)
    assert [charge.unit for charge in budget.charges()] == ["person"] * 2
    assert (budget.charges()[1].records, model.statement_.unit) == (2000, "person")
    assert budget.to_dict()["unit"] == "person"


def test_a_charge_says_who_spent_what_when_on_which_data(budget):
    charge = budget.charge(point(), data="abc")
    assert (charge.what, charge.records, charge.epsilon, charge.delta, charge.data) == ("thing", 100, 0.1, 1e-7, "abc")
    assert charge.when.endswith("+00:00")
    assert charge.who
    assert budget.charges() == [charge]
    content = json.loads(json.dumps(budget.to_dict()))
    assert content["left"]["epsilon"] == pytest.approx(0.9)
    assert content["charges"][0]["data"] == 1
    assert "abc" not in json.dumps(content)


def test_a_key_is_charged_once(budget):
    first = budget.charge(point(), key="week 7")
    assert budget.charge(point(), key="week 7") == first
    assert budget.spent().epsilon == 0.1
    others = (
        {"data": "abc"},
        {"statement": point(0.2)},
        {"statement": point_statement("thing", 99, 0.1, 1e-7, "zero-out")},
    )
    for other in others:
        with pytest.raises(cs.BudgetError, match="key must be that of one release"):
            budget.charge(**{"statement": point(), "key": "week 7", **other})
    assert len(budget.charges()) == 1


@pytest.mark.filterwarnings("ignore:Noise hid")
def test_only_gaussian_certificates_count_by_their_squares(budget):
    for _ in range(12):
        PrivateScaler(0.1, 1e-6, budget=budget).fit(RNG.normal(size=(20_000, 1)))
    assert [charge.counted.mu is not None for charge in budget.charges()] == [True] * 12
    assert budget.spent().epsilon == pytest.approx(0.8)
    sampled = cs.DPSGD(cs.schedules.Constant(0.5), clip=1.0, noise_std=0.05, batch=50)
    statement = cs.account(sampled, records=5000, steps=10, delta=1e-7, adjacency="zero-out")
    assert budget.charge(statement).counted == (statement.certified, 1e-7, None, None, None)


def test_what_costs_nothing_is_not_charged(budget):
    PrivateScaler(None, 1e-6, bounds=(-1, 1), budget=budget).fit(X)
    assert budget.charges() == []


def test_estimators_are_charged_before_they_train(budget):
    model = classifier(budget).fit(X, Y)
    assert budget.spent().epsilon == pytest.approx(model.statement_.certified)
    classifier(str(budget.path)).fit(X, Y)
    with pytest.raises(cs.BudgetError, match="would pass the limit"):
        model.fit(X, Y)
    assert model.statement_.certified <= 0.4  # as it was
    assert len(budget.charges()) == 2
    assert len({charge.data for charge in budget.charges()}) == 1  # the same rows
    with pytest.raises(cs.BudgetError, match="would pass the limit"):
        PrivateLinearRegression(0.5, 1e-6, target_range=(0, 1), budget=budget).fit(X[::-1], Y)


def test_rows_are_recognised_in_any_order_and_others_are_not(budget):
    for table, labels in [(X, Y), (X[::-1], Y[::-1]), (X[:-1], Y[:-1])]:
        classifier(budget, 0.1).fit(table, labels)
    first, second, third = (charge.data for charge in budget.charges())
    assert first == second != third
    other = cs.Budget(budget.path.with_name("other"), 1.0, 1e-5)
    classifier(other, 0.1).fit(X, Y)
    assert other.charges()[0].data != first  # another salt


def test_a_fit_that_fails_stays_charged(budget, monkeypatch):
    monkeypatch.setattr("clipsilon.estimators.base.execute", lambda *args, **named: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        classifier(budget).fit(X, Y)
    assert len(budget.charges()) == 1


@pytest.mark.filterwarnings("ignore::clipsilon.PrivacyWarning")
@pytest.mark.parametrize("settings", [{"random_state": 0}, {"classes": None}])
def test_uncertified_fits_are_refused(budget, settings):
    model = classifier(budget).set_params(**settings)
    with pytest.raises(cs.BudgetError, match="must be certified to be charged to .*, got ε = ∞"):
        model.fit(X, Y)
    assert not hasattr(model, "coef_")
    assert budget.charges() == []


def test_uncertified_statements_are_refused(budget):
    with pytest.raises(cs.BudgetError, match="got ε = ∞: A fault."):
        budget.charge(fail_closed(point(), "A fault."))


def test_another_adjacency_is_refused(budget):
    with pytest.raises(cs.BudgetError, match="is for adjacency 'zero-out', got a release of 'replace-one'"):
        budget.charge(point(adjacency="replace-one"))
    with pytest.raises(cs.BudgetError, match="is for adjacency 'zero-out', got 'replace-one'"):
        cs.Budget(budget.path, adjacency="replace-one")
    with pytest.raises(cs.BudgetError, match="is for adjacency"):
        classifier(budget, adjacency="replace-one").fit(X, Y)
    assert budget.charges() == []


def test_another_limit_is_refused(budget):
    for epsilon, delta in [(0.5, 1e-5), (2.0, 1e-5), (1.0, 1e-6)]:
        with pytest.raises(cs.BudgetError, match="has a limit of ε = 1 at δ = 1e-05, which stays as it is, got"):
            cs.Budget(budget.path, epsilon, delta)


def test_a_replaced_file_is_noticed(budget):
    budget.path.unlink()
    cs.Budget(budget.path, 5.0, 1e-5)
    with pytest.raises(cs.BudgetError, match="was replaced by another budget file"):
        budget.charge(point())


def test_a_file_is_created_by_one_of_several_threads(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: cs.Budget(tmp_path / "new", 1.0, 1e-5).salt, range(16)))
    assert len(set(made)) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


def test_what_exceeds_its_curve_is_not_gaussian(budget):
    rule = cs.DPGD(cs.schedules.Constant(0.5), lipschitz=1.0, noise_std=1.0)
    statement = cs.account(rule, records=100, steps=50, delta=1e-6, adjacency="zero-out")
    more = replace(statement, certified=2 * statement.certified)
    assert budget.charge(more).counted == (more.certified, 1e-6, None, None, None)


def test_bad_arguments_create_nothing(tmp_path):
    path = tmp_path / "new"
    for arguments in [(0.0, 1e-5), (1.0, None), (None, 1e-5), (1.0, 2.0), (1.0, 1e-5, "both")]:
        with pytest.raises(ValueError, match="must be"):
            cs.Budget(path, *arguments)
    with pytest.raises(cs.BudgetError, match="must be a budget file, and does not exist: create it by"):
        cs.Budget(path)
    assert not path.exists()


def damage(path, how):
    if how == "cut":
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    elif how == "text":
        path.write_text("ε = 1\n" * 1000, "utf-8")
    elif how == "empty":
        path.write_bytes(b"")
    else:
        with sqlite3.connect(path) as database:
            database.execute(how)
        database.close()


@pytest.mark.parametrize(
    "how",
    [
        *("cut", "text", "empty"),
        "DELETE FROM charge WHERE place = 2",
        "DELETE FROM charge WHERE place = 1",
        "UPDATE charge SET content = replace(content, '0.1', '0.0')",
        "UPDATE settings SET value = replace(value, '1.0', '9.0')",
        "UPDATE charge SET content = '[]'",
        "DROP TABLE charge",
        "DELETE FROM settings WHERE name = 'head'",
        "PRAGMA application_id = 0",
    ],
)
def test_a_damaged_file_is_refused_in_one_sentence(budget, how):
    for _ in range(3):
        budget.charge(point())
    damage(budget.path, how)
    before = budget.path.read_bytes()
    with pytest.raises(cs.BudgetError, match=r"damaged|cannot be used|not a budget file|replaced") as caught:
        budget.charge(point())
    assert "\n" not in str(caught.value)
    assert "('" not in str(caught.value)  # a Python error is no sentence
    for limit in [(), (1.0, 1e-5)]:  # a limit does not make a damaged file a new one
        with pytest.raises(cs.BudgetError):
            cs.Budget(budget.path, *limit).charges()
    assert budget.path.read_bytes() == before


def test_budgets_can_be_copied_with_their_estimators(budget):
    for copied in (copy.deepcopy(budget), pickle.loads(pickle.dumps(budget)), clone(classifier(budget)).budget):
        copied.charge(point())
    assert len(budget.charges()) == 3


@pytest.mark.parametrize("limit", [2.0, 1.5])
def test_two_processes_that_are_killed_lose_and_double_nothing(tmp_path, limit):
    """200 charges of 0.01 by two processes that are killed at random; the second limit has room for 150."""
    path = tmp_path / "people.budget"
    script = Path(__file__).parents[1] / "helpers" / "killed_charges.py"
    done = subprocess.run(
        [sys.executable, str(script), str(path), str(limit)], capture_output=True, text=True, timeout=300, check=True
    )
    told = json.loads(done.stdout)
    assert told["kills"] >= 10
    budget = cs.Budget(path)
    keys = [charge.key for charge in budget.charges()]
    assert len(keys) == len(set(keys)) == round(100 * limit)
    assert set(told["charged"]) <= set(keys)  # whatever a process was told is there
    assert budget.spent().epsilon == limit
    with pytest.raises(cs.BudgetError):
        budget.charge(point(0.01))
