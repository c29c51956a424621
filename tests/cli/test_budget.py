"""`clipsilon budget` and `clipsilon fit --budget`, as their users type them."""

import json

import pytest

import clipsilon as cs
from clipsilon.privacy.statement import point_statement
from command_line import run
from fitted_tables import others


@pytest.fixture
def budget(tmp_path):
    path = tmp_path / "people.budget"
    done = run("budget", path, "--create", "--epsilon", "1", "--delta", "1e-4")
    assert done.exit_code == 0
    assert done.output.startswith("limit: ε = 1, δ = 0.0001\nspent: ε = 0, δ = 0\nleft: ε = 1, δ = 0.0001\n")
    return path


def fit(data, output, budget, *words):
    about = "--target", "paid", "--classes", "no,yes", "--epsilon", "0.6", "--delta", "1e-6", *others("paid")
    return run("fit", data, *about, "--output", output, "--budget", budget, "--quiet", "--scale-epsilon", "0.3", *words)


def test_fits_are_charged_and_refused_before_they_begin(data, budget, tmp_path):
    assert fit(data, tmp_path / "a.json", budget).exit_code == 0
    refused = fit(data, tmp_path / "b.json", budget)
    assert refused.exit_code == 1
    assert "fit would pass the limit" in refused.output
    assert not (tmp_path / "b.json").exists()
    shown = run("budget", budget)
    assert "spent: ε = 0.6, δ = 1e-06" in shown.output
    assert run("evaluate", tmp_path / "a.json", data, "--epsilon", "0.3", "--budget", budget).exit_code == 0
    refused = run("evaluate", tmp_path / "a.json", data, "--epsilon", "0.3", "--budget", budget)
    assert "private evaluation would pass the limit" in refused.output
    content = json.loads(run("budget", budget, "--format", "json").output)
    charges = [(one["what"], one["data"], round(one["epsilon"], 6)) for one in content["charges"]]
    assert charges == [("fit", 1, 0.6), ("private evaluation", 1, 0.3)]  # whoever trains, the rows are the same


@pytest.mark.parametrize(
    "option",
    [("--seed", "1"), ("--adjacency", "replace-one"), ("--method", "gamma-dpsgd")],  # whose noise is not exact
)
def test_what_cannot_be_charged_is_not_fitted(data, budget, tmp_path, option):
    refused = fit(data, tmp_path / "a.json", budget, *option)
    assert (refused.exit_code, refused.output.count("\n")) == (1, 1)
    assert cs.Budget(budget).charges() == []


def test_classes_must_be_given(data, budget, tmp_path):
    about = (
        "--target",
        "paid",
        "--epsilon",
        "0.5",
        "--scale-epsilon",
        "0.3",
        "--quiet",
        "--budget",
        budget,
        *others("paid"),
    )
    refused = run("fit", data, *about, "--output", tmp_path / "a.json")
    assert "must be certified" in refused.output
    assert "--classes" in refused.output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--create", "--epsilon", "1", "--delta", "1e-5"], "must be a new file for --create"),
        (["--epsilon", "2"], "must be omitted without --create"),
    ],
)
def test_the_limit_stays_as_it_is(budget, words, message):
    done = run("budget", budget, *words)
    assert (done.exit_code, done.output.count("\n")) == (1, 1)
    assert message in done.output


def test_people_are_called_so(tmp_path):
    budget = cs.Budget(tmp_path / "people.budget", 1.0, 1e-5)
    budget.charge(point_statement("fit", 1200, 0.5, 1e-6, "zero-out", "person"))
    shown = run("budget", budget.path).output
    assert "people" in shown.splitlines()[1]
    assert "records" not in shown


def test_refused_in_one_sentence(tmp_path):
    missing = run("budget", tmp_path / "missing")
    assert (
        missing.output
        == f"Error: {tmp_path / 'missing'} must be a budget file, and does not exist: create it by clipsilon.Budget with a "
        "limit, or by clipsilon budget --create.\n"
    )
    assert "must be given with --create" in run("budget", tmp_path / "new", "--create", "--epsilon", "1").output
    (tmp_path / "text").write_text("not a budget" * 100)
    assert "cannot be used as a budget file" in run("budget", tmp_path / "text").output
