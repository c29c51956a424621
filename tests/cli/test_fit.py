"""`clipsilon fit`, as its users type it."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import nullcontext

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet
from sklearn.metrics import accuracy_score, log_loss, mean_absolute_error, r2_score, roc_auc_score

import clipsilon as cs
from clipsilon.cli import fit
from clipsilon.cli.budgets import remaining
from clipsilon.cli.fit_file import split
from clipsilon.estimators import PrivateLogisticRegression, PrivateScaler, total_privacy
from clipsilon.estimators import methods as estimator_methods
from clipsilon.estimators import model_files as models
from clipsilon.estimators.methods import Budget
from clipsilon.privacy.accounting import gaussian
from clipsilon.privacy.statement import SEEDED
from command_line import run
from fitted_tables import COLUMNS, RECORDS, fitted, others, records, write


def coefficients(path):
    return json.loads(path.read_text("utf-8"))["model"]["coefficients"]


# -- from end to end ----------------------------------------------------------------------------------------------------


def test_csv_and_parquet_give_the_same_model(data):
    table = data.with_name("data.parquet")
    parquet.write_table(pa.table(records()), table)
    _, one = fitted(data, "paid", "--seed", 3, output="one.json")
    _, other = fitted(table, "paid", "--seed", 3, output="other.json")
    assert one.read_text("utf-8") == other.read_text("utf-8")


def test_what_is_printed(data):
    done, path = fitted(data, "paid")
    assert (
        done.stderr == f"Reading {data}…\nLearning the scales of the columns…\nTraining on 3200 rows and 3 columns…\n"
    )
    assert "Quality on 800 held-out rows" in done.stdout
    assert " ".join(fit.QUALITY_WARNING.split()) in " ".join(done.stdout.split())
    assert "with this mended, for the 3200 rows that trained the model" in done.stdout
    for rule in ("PrivateScaler, 31 steps on 3200 records\n  certified: ε = ", "DPSGD, "):
        assert rule in done.stdout
    assert "Note: The classes were learnt from y without budget; give them as --classes.\n" in done.stdout
    assert done.stdout.endswith(f"wrote {path}\n")
    # Columns as they are: without a seed, noise hides a scale now and then, which would be a note.
    quiet, _ = fitted(data, "paid", "--classes", "no,yes", "--as-is", "--quiet", output="quiet.json")
    assert quiet.stderr == ""
    assert "Note:" not in quiet.stdout


def test_the_default_model_file(data, monkeypatch):
    monkeypatch.chdir(data.parent)
    done = run("fit", "data.csv", "--target", "paid", "--epsilon", 2, *others("paid"))
    assert done.output.endswith("wrote model.json\n")
    assert cs.load_model("model.json").classes_.tolist() == ["no", "yes"]


@pytest.mark.parametrize(
    ("target", "words", "kind"),
    [
        ("paid", [], "logistic"),
        ("paid", ["--classes", "no,perhaps,yes"], "logistic"),
        ("grade", ["--model", "logistic"], "logistic"),
        ("grade", ["--classes", "0, 1, 2"], "logistic"),
        ("grade", ["--model", "linear"], "linear"),
        ("price", ["--target-range", "100,300"], "linear"),
        ("price", ["--model", "huber", "--target-range", "100,300", "--l2", "0.01"], "huber"),
    ],
)
@pytest.mark.parametrize("scaling", [[], ["--as-is"]])
def test_fit_equals_a_scaler_and_an_estimator_of_the_library(data, target, words, kind, scaling):
    """The command fits a scaler and an estimator to the training rows, each with its own seed."""
    _, path = fitted(data, target, *words, *scaling, "--seed", 5, "--holdout", "0.25")
    model = models.read_model(path)
    assert (model.kind, model.columns, model.target) == (kind, COLUMNS, target)
    table = records()
    x = np.column_stack([table[name] for name in COLUMNS])
    seeds = np.random.SeedSequence(5).generate_state(3).tolist()
    train, held = split(RECORDS, 0.25, seeds[0])
    assert sorted([*train, *held]) == list(range(RECORDS))
    assert len(held) == 1000
    scaled = x[train]
    if not scaling:
        scaled = PrivateScaler(0.2, 1e-6, random_state=seeds[1]).fit_transform(scaled)
    found = model.pipeline.named_steps["model"]
    twin = type(found)(**{**found.get_params(), "random_state": seeds[2]})
    told = "--classes" in words or "--target-range" in words
    with nullcontext() if told else pytest.warns(cs.PrivacyWarning):
        twin.fit(scaled, table[target][train])
    np.testing.assert_array_equal(twin.coef_, found.coef_)
    np.testing.assert_array_equal(twin.intercept_, found.intercept_)
    np.testing.assert_allclose(twin.theta_, found.theta_, rtol=1e-12, atol=1e-12)
    assert twin.statement_.to_dict() == found.statement_.to_dict()


def test_without_a_seed_two_fits_differ(data):
    one, other = (fitted(data, "paid", output=name)[1] for name in ("one.json", "other.json"))
    assert coefficients(one) != coefficients(other)
    assert not json.loads(one.read_text("utf-8"))["seeded"]


def test_a_seed_is_mentioned_but_not_stored(data):
    done, path = fitted(data, "paid", "--seed", 918273645)
    assert f"Note: {SEEDED} Leave --seed out for a release; nothing is certified of this fit.\n" in done.stdout
    text = path.read_text("utf-8")
    assert json.loads(text)["seeded"]
    assert re.search(
        "^Certified: ε = ∞ at δ = 1e-05, nominal: ε = [12][.\\d]* with this mended, for the", done.stdout, re.M
    )
    assert "918273645" not in text
    for seed in np.random.SeedSequence(918273645).generate_state(3).tolist():
        assert str(seed) not in text


def test_held_out_rows_do_not_influence_the_model(data):
    seed = 7
    train, held = split(RECORDS, 0.2, np.random.SeedSequence(seed).generate_state(3).tolist()[0])

    def model_after(change, name):
        table = records()
        change(table)
        return fitted(write(data, table), "paid", "--seed", seed, output=name)[1].read_text("utf-8")

    def change_row(k):
        def change(table):
            table["age"][k], table["paid"][k] = 1e9, "no" if table["paid"][k] == "yes" else "yes"

        return change

    whole = model_after(lambda table: None, "whole.json")
    assert model_after(change_row(held[0]), "held.json") == whole
    assert model_after(change_row(train[0]), "train.json") != whole


def test_no_rows_held_out(data):
    done, _ = fitted(data, "paid", "--holdout", "0", "--classes", "no,yes", "--format", "json")
    found = json.loads(done.stdout)
    assert (found["trained_rows"], found["held_out_rows"], found["quality_not_private"]) == (RECORDS, 0, [])
    done, _ = fitted(data, "paid", "--holdout", "0", output="text.json")
    assert "Quality" not in done.stdout
    assert "Not private" not in done.stdout


# -- quality ------------------------------------------------------------------------------------------------------------


def held_out(seed, target):
    _, held = split(RECORDS, 0.2, np.random.SeedSequence(seed).generate_state(3).tolist()[0])
    table = records()
    return np.column_stack([table[name] for name in COLUMNS])[held], table[target][held]


def printed_quality(done):
    found = json.loads(done.stdout)
    return {row["measure"]: (row["model"], row["baseline"]) for row in found["quality_not_private"]}, found["baseline"]


def test_quality_of_a_classifier(data):
    done, path = fitted(data, "paid", "--seed", 1, "--format", "json")
    quality, baseline = printed_quality(done)
    x, y = held_out(1, "paid")
    pipeline = models.read_model(path).pipeline
    chances = pipeline.predict_proba(x)
    shares = np.array([np.mean(y == label) for label in ("no", "yes")])
    expected = {
        "accuracy": (accuracy_score(y, pipeline.predict(x)), shares.max()),
        "AUC": (roc_auc_score(y == "yes", pipeline.decision_function(x)), 0.5),
        "log loss": (log_loss(y, chances), -np.sum(shares * np.log(shares))),
    }
    assert quality.keys() == expected.keys()
    for name, values in expected.items():
        assert quality[name] == pytest.approx(values, rel=1e-12)
    assert baseline == f"always {('no', 'yes')[shares.argmax()]}"
    assert quality["AUC"][0] > 0.8


def test_quality_of_several_classes(data):
    quality, _ = printed_quality(fitted(data, "grade", "--model", "logistic", "--seed", 1, "--format", "json")[0])
    assert quality["accuracy"][0] > quality["accuracy"][1] + 0.1
    assert quality["AUC"][0] > 0.7


def test_quality_of_numbers(data):
    done, path = fitted(data, "price", "--target-range", "100,300", "--seed", 1, "--format", "json")
    quality, baseline = printed_quality(done)
    x, y = held_out(1, "price")
    predicted = models.read_model(path).pipeline.predict(x)
    assert quality["R²"] == pytest.approx((r2_score(y, predicted), 0.0), rel=1e-12)
    errors = mean_absolute_error(y, predicted), np.abs(y - y.mean()).mean()
    assert quality["mean absolute error"] == pytest.approx(errors, rel=1e-12)
    assert baseline == "always their mean"
    assert quality["R²"][0] > 0.8


def test_quality_that_the_rows_do_not_determine(data):
    table = records()
    seed = 2
    _, held = split(RECORDS, 0.2, np.random.SeedSequence(seed).generate_state(3).tolist()[0])
    table["paid"][held], table["price"][held] = "no", 7.0
    write(data, table)
    done, _ = fitted(data, "paid", "--seed", seed)
    row = next(line for line in done.stdout.splitlines() if "AUC" in line)
    assert row.count("–") == 2
    quality, _ = printed_quality(
        fitted(data, "price", "--target-range", "0,9", "--seed", seed, "--format", "json", output="b.json")[0]
    )
    assert quality["R²"] == (None, None)
    assert quality["mean absolute error"][1] == 0


# -- budget -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("epsilon", "words"),
    [
        (1.0, ["--method", "dpsgd", "--scale-epsilon", "0.3"]),
        (8.0, ["--method", "dpsgd"]),
        (1.0, ["--method", "dpsgd", "--adjacency", "replace-one", "--scale-epsilon", "0.9"]),
        (1.0, ["--method", "gamma-dpsgd", "--adjacency", "zero-out", "--scale-epsilon", "0.3"]),
        (8.0, ["--method", "gamma-dpsgd"]),
        (3.0, ["--method", "noisy-selection"]),
        (3.0, ["--method", "dpgd"]),
        (0.1, ["--method", "dice", "--as-is"]),
        (0.01, ["--method", "gamma-dpsgd", "--as-is"]),
    ],
)
def test_the_budget_is_never_exceeded(data, epsilon, words):
    done, path = fitted(data, "paid", "--delta", "1e-6", *words, "--format", "json", epsilon=epsilon)
    found = json.loads(done.stdout)["privacy"]
    assert found["delta"] == 1e-6
    assert 0.75 * epsilon < found["nominal"] <= epsilon
    assert json.loads(path.read_text("utf-8"))["privacy"] == found
    assert any("classes were learnt" in fault for fault in found["faults"])
    assert found["epsilon"] is None
    is_gamma = "gamma-dpsgd" in words
    assert any("drawn in floating point" in fault for fault in found["faults"]) == is_gamma
    with pytest.warns(cs.PrivacyWarning) as warned:
        again = total_privacy(cs.load_model(path), 1e-6)
    assert any("classes were learnt" in str(w.message) for w in warned)
    assert any("drawn in floating point" in str(w.message) for w in warned) == is_gamma
    assert [list(again.notes), list(again.faults)] == [found["notes"], found["faults"]]
    # A file keeps one point of a curve that is not Gaussian; then ε and δ add up.
    assert found["nominal"] * (1 - 1e-12) <= again.nominal <= epsilon
    assert again.epsilon == np.inf
    assert again.adjacency == found["adjacency"]


def test_classes_that_were_given_are_certified(data):
    done, path = fitted(data, "paid", "--classes", "no,yes", "--format", "json")
    found = json.loads(done.stdout)
    assert found["privacy"]["faults"] == []
    assert 1.6 < found["privacy"]["epsilon"] == found["privacy"]["nominal"] <= 2
    assert all(one["certified_epsilon"] == one["nominal_epsilon"] for one in found["statements"])
    assert total_privacy(cs.load_model(path), 1e-5).epsilon <= 2
    done, _ = fitted(data, "paid", "--classes", "no,yes", output="text.json")
    assert "Certified: ε = 1." in done.stdout
    assert "nominal" not in done.stdout


def test_gaussian_steps_compose_by_squares():
    """Where squares add up, a tenth of ε for the scaler costs the model about one hundredth of ε."""
    x = np.random.default_rng(0).normal(size=(4000, 2))
    spent = PrivateScaler(0.1, 1e-6, random_state=0).fit(x).statement_
    whole = Budget(1.0, 1e-5, "zero-out")
    left = remaining(whole, spent, "linear", "dpgd", 4000, 2)
    together = np.hypot(gaussian.largest_mu(left.epsilon, left.delta), spent.mended.certificate.profile.mu)
    assert together == pytest.approx(gaussian.largest_mu(1.0, 1e-5), rel=1e-6)
    assert left.epsilon > 0.99
    summed = remaining(whole, spent, "logistic", "noisy-selection", 4000, 2)
    assert summed.epsilon == pytest.approx(0.9, abs=1e-6)
    assert left.delta == summed.delta == pytest.approx(9e-6)


def test_a_scaler_must_leave_budget_for_the_model(data):
    done = run(
        "fit", data, "--target", "paid", "--epsilon", 1, "--scale-epsilon", 1, "--output", data.parent / "m.json"
    )
    assert done.output == "Error: scale epsilon must be below epsilon (1), got 1.0.\n"


def test_bounds_cost_nothing(data):
    bounds = data.parent / "bounds.csv"
    bounds.write_text("low,high,column\n-0.003,0.003,rate\n0,1,else\n20,80,age\n0,60000,income\n")
    done, path = fitted(data, "paid", "--bounds", bounds, "--format", "json", "--classes", "no,yes")
    scaler = cs.load_model(path)[0]
    np.testing.assert_allclose(scaler.center_, [50, 30_000, 0], atol=1e-12)
    np.testing.assert_allclose(scaler.scale_, [30, 30_000, 0.003])
    assert json.loads(done.stdout)["statements"][0]["certified_epsilon"] == 0


def test_columns_hidden_by_noise_are_named(tmp_path):
    wild = np.exp(30 * np.random.default_rng(1).normal(size=RECORDS))  # of every order of magnitude
    data = write(tmp_path / "wild.csv", {"wild": wild, **records()})
    done, _ = fitted(data, "paid", "--classes", "no,yes", "--seed", 0)
    assert "Note: Noise hid the scale of wild: more rows, a larger" in done.stdout


def test_too_few_rows_to_learn_scales(tmp_path):
    few = {name: values[:60] for name, values in records().items()}
    data, path = write(tmp_path / "few.csv", few), tmp_path / "model.json"
    words = ["--target", "paid", "--epsilon", 1, *others("paid"), "--quiet", "--output", path]
    done = run("fit", data, *words)
    assert done.output == (
        "Error: FILE must have more than 48 training rows to learn the scales of 3 column(s) at ε = 0.1; otherwise give "
        "--bounds, --as-is or a larger --scale-epsilon.\n"
    )
    assert not path.exists()
    assert run("fit", data, *words, "--as-is").exit_code == 0


def test_a_large_delta_is_noted(data):
    done, _ = fitted(data, "paid", "--delta", "0.001")
    assert done.stdout.count("Note: δ = 0.001 is at least 1 in 3200 records") == 1


# -- refusals -----------------------------------------------------------------------------------------------------------

SMALL = "a,b,y\n" + "\n".join(f"{k},{k % 3},{'ny'[k % 2]}" for k in range(40)) + "\n"
NUMBERS = "a,y\n" + "\n".join(f"{k},{k / 4}" for k in range(40)) + "\n"
GRADES = "a,y\n" + "\n".join(f"{k},{k % 3}" for k in range(40)) + "\n"
RARE = SMALL + "1,2,w\n"

REFUSED = {
    "no file": (None, [], "path must be an existing file, got {path}."),
    "no target": (SMALL, ["--target", "z"], "target must be one of 'a', 'b', 'y', got 'z'."),
    "text": (SMALL.replace("3,0", "3,x"), [], "features in {path} must be finite numbers, got other values in 'b' (such as 'x'): leave them out with --ignore, or describe the table by a schema (clipsilon schema {path} --target y --output schema.toml) and give it by --schema."),
    "missing": (SMALL.replace("3,0", "3,"), [], "features in {path} must be finite numbers, got other values in 'b' (2 gap(s), the first '' in row 5): leave them out with --ignore, or describe the table by a schema (clipsilon schema {path} --target y --output schema.toml) and give it by --schema."),
    "NaN": (SMALL.replace("\n5,", "\nNaN,"), [], "features in {path} must be finite numbers, got other values in 'a' (1 gap(s), the first 'NaN' in row 7): leave them out with --ignore, or describe the table by a schema (clipsilon schema {path} --target y --output schema.toml) and give it by --schema."),
    "missing target": (SMALL.replace("\n7,1,y", "\n7,1,"), [], "target 'y' must have a value in every row, got 1 gap(s), the first '' in row 9."),
    "constant": (SMALL.replace("y\n", "n\n").replace("a,b,n", "a,b,y"), [], "target 'y' must take more than one value, got 'n' in every row."),
    "empty": ("", [], "the first row of {path} must name the columns, got nothing."),
    "target only": (SMALL, ["--ignore", "a", "--ignore", "b"], "{path} must have columns besides the target 'y', got none."),
    "ignored target": (SMALL, ["--ignore", "y"], "ignore must be one of 'a', 'b', got 'y'."),
    "ignored twice": (SMALL, ["--ignore", "c"], "ignore must be one of 'a', 'b', got 'c'."),
    "no model": (GRADES, [], "model must be given for a target of more than two values, got none for 'y', which has 3: choose logistic (classes), linear or huber (numbers)."),
    "words as numbers": (SMALL, ["--model", "linear"], "target 'y' must hold numbers, got text such as 'n'."),
    "numbers as classes": (NUMBERS, ["--model", "logistic"], "target 'y' must hold classes for model 'logistic', got the number 0.25: use model 'linear' or 'huber'."),
    "epsilon": (SMALL, ["--epsilon", "0"], "epsilon must be a number above 0, got 0.0."),
    "NaN epsilon": (SMALL, ["--epsilon", "nan"], "epsilon must be a finite number, got nan."),
    "delta": (SMALL, ["--delta", "1"], "delta must be a number above 0 and below 1, got 1.0."),
    "l2": (SMALL, ["--l2", "-1"], "l2 must be a number of at least 0, got -1.0."),
    "holdout": (SMALL, ["--holdout", "1"], "holdout must be a number in [0, 1), got 1.0."),
    "holdout of nothing": (SMALL, ["--holdout", "0.001"], "holdout must leave rows for training and rows for evaluation, got 0.001 of 40 rows."),
    "holdout of all": (SMALL, ["--holdout", "0.999"], "holdout must leave rows for training and rows for evaluation, got 0.999 of 40 rows."),
    "seed": (SMALL, ["--seed", "-1"], "seed must be a whole number of at least 0, got -1."),
    "one class": (SMALL, ["--classes", "n"], "classes must be at least two different labels, got 'n'."),
    "wrong classes": (SMALL, ["--classes", "n,no"], "target 'y' must hold only the classes n, no, got y."),
    "classes in words": (GRADES, ["--classes", "low,high"], "classes must be numbers, like target 'y', got 'low, high'."),
    "classes of numbers": (GRADES, ["--model", "linear", "--classes", "0,1,2"], "classes must be omitted for a target of numbers, which has a target range instead."),
    "range of classes": (SMALL, ["--model", "logistic", "--target-range", "0,1"], "target range must be omitted for model 'logistic', which has classes instead."),
    "short range": (NUMBERS, ["--target-range", "1"], "target range must be a low and a high number, in this order, got 1."),
    "range that falls": (NUMBERS, ["--target-range", "5,1"], "target range must be a low and a high number, in this order, got 5, 1."),
    "two scalings": (SMALL, ["--as-is", "--scale-epsilon", "0.1"], "columns must be scaled in one way only: by --schema, --scale-epsilon, --bounds or --as-is."),
    "scale epsilon": (SMALL, ["--scale-epsilon", "-1"], "scale epsilon must be a number above 0, got -1.0."),
    "no bounds": (SMALL, ["--bounds", "{folder}/none.csv"], "path must be an existing file, got {folder}/none.csv."),
    "not bounds": (SMALL, ["--bounds", "{path}"], "bounds in {path} must have the columns column, low and high, got a, b, y."),
    "adjacency": (SMALL, ["--method", "dice", "--adjacency", "add-remove"], None),
    "existing output": (SMALL, ["--output", "{path}"], "output must be a new file, got {path}, which exists."),
    "no folder": (SMALL, ["--output", "{folder}/none/m.json"], "output must be in an existing folder, got {folder}/none/m.json."),
}  # fmt: skip


@pytest.mark.parametrize(("text", "words", "message"), REFUSED.values(), ids=REFUSED)
def test_fit_refuses_in_one_sentence_and_leaves_no_file(tmp_path, text, words, message):
    path = tmp_path / "data.csv"
    if text is not None:
        path.write_text(text)
    before = {file: file.read_bytes() for file in tmp_path.iterdir()}
    usual = ["--target", "y", "--epsilon", "1", "--quiet", "--output", str(tmp_path / "model.json")]
    words = [word.format(path=path, folder=tmp_path) for word in words]
    done = run("fit", path, *usual, *words)
    assert done.exit_code == 1
    assert done.stdout == ""
    assert done.stderr.startswith("Error: ")
    assert done.stderr.count("\n") == 1
    if message is not None:
        assert done.stderr == f"Error: {message.format(path=path, folder=tmp_path)}\n"
    assert {file: file.read_bytes() for file in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("column,low,high\na,0,40\n", "bounds in {path} must have a row for every feature, got none for 'b'."),
        ("column,low,high\na,0,40\nb,3,3\n", "bounds of column 'b' must have low below high, got (3.0, 3.0)."),
        ("column,low,high\na,0,40\nb,0,many\n", "bounds in {path} must name columns, with finite numbers as low and high."),
    ],
)  # fmt: skip
def test_wrong_bounds(tmp_path, text, message):
    data, bounds = tmp_path / "data.csv", tmp_path / "bounds.csv"
    data.write_text(SMALL)
    bounds.write_text(text)
    done = run("fit", data, "--target", "y", "--epsilon", 1, "--bounds", bounds, "--quiet", "--output", tmp_path / "m")
    assert done.output == f"Error: {message.format(path=bounds)}\n"


def test_a_class_among_held_out_rows_only_is_refused(tmp_path):
    data = tmp_path / "data.csv"
    data.write_text(RARE)

    def is_held(seed):
        return 40 in split(41, 0.2, np.random.SeedSequence(seed).generate_state(3).tolist()[0])[1]

    seed = next(seed for seed in range(1000) if is_held(seed))
    words = [
        "--target",
        "y",
        "--epsilon",
        1,
        "--model",
        "logistic",
        "--seed",
        seed,
        "--quiet",
        "--output",
        tmp_path / "m",
    ]
    done = run("fit", data, *words)
    expected = "target 'y' must have every class among the training rows, got w among the held-out rows only"
    assert done.output == f"Error: {expected}: list the classes with --classes.\n"
    assert run("fit", data, *words, "--classes", "n,y,w", "--as-is").exit_code == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["fit", "{path}"], "Error: Missing option '--target'.\n"),
        (["fit", "{path}", "--target", "y"], "Error: Missing option '--epsilon'.\n"),
        (["fit", "{path}", "--target", "y", "--epsilon", "1", "--model", "tree"], "'tree' is not one of 'logistic', 'linear', 'huber', 'poisson', 'gamma', 'quantile'.\n"),
        (["fit", "{path}", "--target", "y", "--epsilon", "1", "--target-range", "a,b"], "must be comma-separated numbers, got 'a,b'.\n"),
        (["predict", "{path}"], "Error: Missing argument 'FILE'.\n"),
    ],
)  # fmt: skip
def test_a_wrong_call_prints_the_usage(tmp_path, words, message):
    path = tmp_path / "data.csv"
    path.write_text(SMALL)
    done = run(*(word.format(path=path) for word in words))
    assert done.exit_code == 2
    assert done.output.endswith(message)


def test_fit_offers_every_model_and_method():
    choices = {option.name: getattr(option.type, "choices", None) for option in fit.command.params}
    assert tuple(choices["model"]) == tuple(fit.MODELS)
    assert [models.new_estimator(kind).get_params()["epsilon"] for kind in fit.MODELS] == [1.0] * 6
    assert list(choices["method"]) == [
        name for name in estimator_methods.METHODS if "ldp" not in name
    ]  # these need other losses


# -- Ctrl-C -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["fit", "write"])
def test_an_interrupted_fit_leaves_nothing(data, monkeypatch, place):
    def interrupted(*arguments, **named):
        raise KeyboardInterrupt

    if place == "fit":
        monkeypatch.setattr(PrivateLogisticRegression, "fit", interrupted)
    else:
        monkeypatch.setattr(os, "fsync", interrupted)
    words = ["--target", "paid", "--epsilon", 2, *others("paid"), "--quiet", "--output", data.parent / "model.json"]
    done = run("fit", data, *words)
    assert done.exit_code == 130
    assert done.output == "Stopped: nothing was written.\n"
    assert [file.name for file in data.parent.iterdir()] == ["data.csv"]


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_a_signal_stops_the_command(tmp_path):
    """Send SIGINT, as Ctrl-C does, while the process reads a long file."""
    pipe = tmp_path / "data.csv"
    pipe.write_text("a,y\n" + "1,2\n3,4\n" * 3_000_000)  # a few seconds of reading
    code = "from clipsilon.cli.main import main; main()"
    words = ["fit", str(pipe), "--target", "y", "--epsilon", "1", "--output", str(tmp_path / "model.json")]
    with subprocess.Popen([sys.executable, "-c", code, *words], stderr=subprocess.PIPE, text=True) as process:
        first = process.stderr.readline()
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()
    assert first == f"Reading {pipe}…\n"
    assert rest == "Stopped: nothing was written.\n"
    assert process.returncode == 130
    assert [file.name for file in tmp_path.iterdir()] == ["data.csv"]
