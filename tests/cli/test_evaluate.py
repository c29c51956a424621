"""`clipsilon evaluate` and `clipsilon fit --evaluate-epsilon --report`, as their users type them."""

import json
import re

import pandas as pd
import pytest

from clipsilon.estimators import noise_spread
from command_line import run
from fitted_tables import fitted, records, write

CLASSES = ("--classes", "no,yes")


@pytest.fixture(autouse=True)
def few_repetitions(monkeypatch):
    monkeypatch.setattr(noise_spread, "RUNS", 2)


def test_fit_evaluates_privately_and_writes_a_page(data):
    page = data.parent / "page.html"
    done, _ = fitted(data, "paid", *CLASSES, "--evaluate-epsilon", 0.5, "--report", page)
    assert done.exit_code == 0
    assert "Private quality on 800 held-out rows" in done.stdout
    assert "Not private" not in done.stdout
    assert re.search(r"AUC +│ 0\.\d+ +│ 0\.\d+ to [01]\.?\d*", done.stdout), done.stdout
    assert "Certified: ε = 0.5 at δ = 1e-05, for the 800 rows that evaluated it. Each row is in one of" in done.stdout
    assert "private evaluation, 2 steps on 800 records" in done.stdout
    assert done.stdout.endswith(f"wrote {page}\n")
    assert "A private model of paid" in page.read_text("utf-8")


def test_fit_in_json(data):
    done, _ = fitted(data, "paid", *CLASSES, "--evaluate-epsilon", 0.5, "--format", "json", "--quiet")
    found = json.loads(done.stdout)
    assert found["quality_not_private"] == []
    assert found["baseline"] == ""
    assert found["evaluation"]["statement"]["certified_epsilon"] == pytest.approx(0.5)
    assert found["evaluation"]["held_out"] is True
    assert set(found["evaluation"]["figures"]) == {"accuracy", "roc_auc", "log_loss", "positive_rate"}


def test_equal_rows_in_both_parts_are_not_counted_in_a_note(data):
    """Who is held out is known from the split, and the number of equal rows is not private."""
    frame = pd.read_csv(data).iloc[:1000]
    twice = data.parent / "twice.csv"
    pd.concat([frame, frame]).to_csv(twice, index=False)
    done, _ = fitted(twice, "paid", *CLASSES, "--evaluate-epsilon", 0.5, "--as-is")
    assert "rows equal rows" not in done.stdout
    assert "Each row is in one of the two" in done.stdout


def test_the_same_seed_gives_the_same_model_with_and_without_evaluation(data):
    _, one = fitted(data, "paid", *CLASSES, "--seed", 1, output="one.json")
    _, other = fitted(data, "paid", *CLASSES, "--seed", 1, "--evaluate-epsilon", 1, output="other.json")
    assert one.read_text("utf-8") == other.read_text("utf-8")


def test_evaluate_prints_figures_and_what_both_spend(data):
    _, model = fitted(data, "paid", *CLASSES)
    done = run("evaluate", model, data, "--epsilon", 0.5)
    assert done.exit_code == 0
    assert "Private quality on 4000 records" in done.output
    assert "share of yes" in done.output
    assert "without --held-out, a record may be in both" in done.output
    page = data.parent / "page.html"
    for _ in range(2):  # our own page is replaced
        apart = run("evaluate", model, data, "--target", "paid", "--epsilon", 0.5, "--held-out", "--report", page)
        assert "each record is in one of the two" in apart.output
        assert apart.output.endswith(f"wrote {page}\n")
    found = json.loads(run("evaluate", model, data, "--epsilon", 0.5, "--format", "json").output)
    assert found["privacy_with_training"]["epsilon"] > 1
    assert found["people"] == 4000


def test_evaluate_the_auc_alone(data, content):
    model, page = data.parent / "model.json", data.parent / "page.html"
    model.write_text(content)
    done = run("evaluate", model, data, "--epsilon", 0.5, "--figures", "auc", "--report", page)
    assert done.exit_code == 0
    assert re.search(r"AUC +│ 0\.\d+ +│ 0\.\d+ to [01]\.?\d*", done.output), done.output
    assert "accuracy" not in done.output
    assert "Three sums over triples of people with Laplace noise: ε = 0.5 with δ = 0." in done.output
    assert "AUC" in page.read_text("utf-8")
    other = run("evaluate", model, data, "--epsilon", 0.5, "--figures", "roc")
    assert "'roc' is not one of 'all', 'auc'" in other.stderr


def test_evaluate_numbers_and_groups(data):
    frame = pd.read_csv(data).assign(person=[f"p{k // 4}" for k in range(4000)])
    frame.to_csv(data.parent / "people.csv", index=False)
    _, model = fitted(data.parent / "people.csv", "price", "--target-range", "100,300", "--group", "person", "--as-is")
    without = run("evaluate", model, data, "--epsilon", 1)
    assert "group must be given for a model that protects people, got none." in without.stderr
    feature = run("evaluate", model, data.parent / "people.csv", "--epsilon", 1, "--group", "age")
    assert "group must be a column that the model does not predict from, got 'age'." in feature.stderr
    done = run("evaluate", model, data.parent / "people.csv", "--epsilon", 1, "--group", "person")
    assert "Private quality on 1000 people" in done.output
    assert "mean absolute error" in done.output
    assert "which their rows share" in done.output


def test_integer_classes(data):
    _, model = fitted(data, "grade", "--model", "logistic", "--classes", "0,1,2")
    assert "log loss" in run("evaluate", model, data, "--epsilon", 1).output


def test_bad_input_is_refused_in_one_sentence(data, content):
    model = data.parent / "model.json"
    model.write_text(content)
    other = write(data.parent / "other.csv", {**records(), "paid": ["maybe"] * 4000})
    taken = data.parent / "taken.html"
    taken.write_text("<p>mine")
    for words, message in {
        (data, "--epsilon", 0): "epsilon must be a number above 0, got 0.0.",
        (data, "--epsilon", 1, "--delta", 1): "delta must be a number above 0 and below 1, got 1.0.",
        (data, "--epsilon", 1, "--target", "x"): "target must be one of",
        (data, "--epsilon", 1, "--group", "x"): "group must be omitted for a model that protects single rows, got 'x'",
        (other, "--epsilon", 1): "y must hold the model's classes ['no', 'yes'] only, got 'maybe'.",
        (data, "--epsilon", 1, "--report", taken): f"report must not replace {taken}, which clipsilon did not write",
        (data, "--epsilon", 1, "--report", data.parent / "a.txt"): "report must be an .html file in an existing folder",
    }.items():
        done = run("evaluate", model, *words)
        assert done.exit_code == 1
        assert done.output.startswith(f"Error: {message}")
        assert done.output.count("\n") == 1
    assert taken.read_text() == "<p>mine"


def test_fit_refuses_before_anything_is_spent(data):
    taken = data.parent / "taken.html"
    taken.write_text("<p>mine")
    for words, message in {
        ("--evaluate-epsilon", 0): "evaluate epsilon must be a number above 0, got 0.0.",
        ("--evaluate-epsilon", 1, "--holdout", 0): "holdout must be above 0 with --evaluate-epsilon, got 0.",
        ("--report", taken): f"report must not replace {taken}",
    }.items():
        done = run("fit", data, "--target", "paid", "--epsilon", 1, "--output", data.parent / "m.json", *words)
        assert done.exit_code == 1
        assert f"Error: {message}" in done.output
    assert not (data.parent / "m.json").exists()
    assert taken.read_text() == "<p>mine"
