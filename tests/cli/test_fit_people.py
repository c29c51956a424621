"""`clipsilon fit --group`: people with several rows."""

import json
import re

import numpy as np
import pytest

import clipsilon as cs
from command_line import run
from fitted_tables import RECORDS, others, records, write

WHO = [f"p{k}" for k in np.random.default_rng(4).integers(0, 1800, RECORDS)]
AGES = np.random.default_rng(5).integers(18, 90, RECORDS)


@pytest.fixture
def visits(tmp_path):
    return write(tmp_path / "visits.csv", {**records(), "person": WHO})


def fit(path, *options, output="model.json"):
    found = path.with_name(output)
    return run("fit", path, "--target", "paid", "--epsilon", 2, "--output", found, *others("paid"), *options), found


def test_people_are_protected_and_held_out_with_all_rows(visits):
    done, path = fit(visits, "--group", "person", "--classes", "no,yes", "--max-rows", 3, "--scale-epsilon", 1)
    assert done.exit_code == 0, done.stderr
    people = np.unique(WHO).size
    trained = people - round(0.2 * people)
    assert f"for the {trained} people who trained" in done.stdout
    assert f"Quality on {people - trained} held-out people" in done.stdout
    assert f"Training on {trained} people and" in done.stderr
    assert "(one person, with all rows, contributes to nothing" in done.stdout
    content = json.loads(path.read_text("utf-8"))
    assert "person" not in content["columns"]
    assert content["privacy"]["unit"] == content["model"]["statement"]["unit"] == "person"
    assert content["scaling"]["statement"]["records"] == content["model"]["statement"]["records"] == trained
    assert content["privacy"]["epsilon"] <= 2.0
    predicted = run("predict", path, visits, "--output", path.with_name("predicted.csv"))
    assert predicted.exit_code == 0


def test_numbers_are_ids_too(tmp_path):
    table = write(tmp_path / "visits.csv", {**records(), "person": [int(name[1:]) for name in WHO]})
    done, path = fit(table, "--group", "person", "--classes", "no,yes", "--as-is", "--holdout", 0)
    assert json.loads(path.read_text("utf-8"))["model"]["statement"]["records"] == np.unique(WHO).size
    assert "looks like the id" not in done.stdout
    done, _ = fit(table, "--classes", "no,yes", "--as-is", output="rows.json")
    assert "Note: Column 'person' looks like the id of a person, and repeats: one row is protected" in done.stdout
    assert "Name it with --group." in done.stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--group", "nobody"], "group must be one of"),
        (["--group", "paid"], "group must be one of"),
        (["--max-rows", 3], "max rows must be omitted without --group"),
        (["--group", "person", "--max-rows", 0], "max rows must be a whole number of at least 1"),
    ],
)
def test_wrong_options_are_refused(visits, options, message):
    done, path = fit(visits, *options)
    assert done.exit_code != 0
    assert message in done.stderr.replace("\n", " ")
    assert not path.exists()


def test_a_row_without_a_person_is_refused(tmp_path):
    gaps = ["" if k in (5, 9) else name for k, name in enumerate(WHO)]
    done, path = fit(write(tmp_path / "visits.csv", {**records(), "person": gaps}), "--group", "person")
    assert "group 'person' must have a value in every row, got 2 gap(s), the first '' in row 7." in done.stderr
    assert done.exit_code != 0
    assert not path.exists()


def test_a_schema_names_the_people_of_a_whole_fit(tmp_path):
    """The split, the charge, the model and its evaluation are all about people."""
    table = write(tmp_path / "visits.csv", {"age": AGES, "person": WHO, "late": np.where(AGES > 40, "yes", "no")})
    schema, budget = tmp_path / "schema.toml", cs.Budget(tmp_path / "people.budget", 3.0, 1e-4)
    cs.Schema({"age": cs.tables.Number(18, 90)}, target="late", group="person").save(schema)
    how = ["--target", "late", "--classes", "no,yes", "--schema", schema, "--epsilon", 1, "--quiet"]
    more = ["--evaluate-epsilon", 2, "--budget", budget.path, "--max-rows", 2, "--format", "json"]
    done = run("fit", table, *how, *more, "--output", tmp_path / "model.json")
    assert done.exit_code == 0, done.stderr
    found, people = json.loads(done.stdout), np.unique(WHO).size
    trained = people - round(0.2 * people)
    assert (found["privacy"]["unit"], found["statements"][-1]["records"]) == ("person", trained)
    assert (found["trained_people"], found["held_out_people"]) == (trained, people - trained)
    text = done.stdout.split('"notes_not_private"')[0]  # the number of rows is not public, where people are protected
    assert not re.search(rf"\b{RECORDS}\b|_rows", text)
    assert (found["evaluation"]["statement"]["unit"], found["evaluation"]["people"]) == ("person", people - trained)
    charge = budget.charges()[0]
    assert (charge.unit, charge.records, charge.epsilon) == ("person", trained, 2.0)
    other = run("fit", table, *how, "--group", "age", "--output", tmp_path / "other.json")
    assert f"group must be 'person', as in {schema}, got 'age'." in other.stderr.replace("\n", " ")
    evaluated = "evaluate", tmp_path / "model.json", table, "--epsilon", 1, "--delta", 1e-6, "--format", "json"
    again = json.loads(run(*evaluated).stdout)  # the model file holds the schema, which names the people
    assert (again["statement"]["unit"], again["people"]) == ("person", people)
    elsewhere = run(*evaluated, "--group", "late")
    assert "group must be 'person', as in the model's schema, got 'late'." in elsewhere.stderr.replace("\n", " ")
