"""`clipsilon bias`, as its users type it."""

import csv
import io

import numpy as np
import pytest

import clipsilon as cs
import reference
from clipsilon.analysis.bias import BiasRow
from clipsilon.cli import bias
from clipsilon.reproduce import problems
from command_line import run
from credit_stand_in import stand_in


@pytest.fixture
def small(monkeypatch):
    """Shrink the demo's problems to a size for tests."""
    monkeypatch.setattr(problems, "PAPER_ROWS", 400)
    monkeypatch.setattr(problems, "bernoulli", lambda records, p, scale: cs.datasets.bernoulli(1000, p, scale))
    with stand_in(monkeypatch):
        yield


@pytest.fixture
def table(tmp_path):
    """A table with a text target, columns of different sizes and one that is constant."""
    x, y = reference.data()
    x = 5.0 + x * [1.0, 100.0, 0.01, 3.0]
    path = tmp_path / "loans.csv"
    with path.open("w", newline="") as file:
        rows = ([*values, 1, "bad" if label else "ok"] for values, label in zip(x.tolist(), y, strict=True))
        csv.writer(file).writerows([["a", "b", "c", "d", "always", "outcome"], *rows])
    return path, x, y


def flat(output):
    """Return the words of an output, independent of the width of the terminal."""
    return " ".join(output.split())


def bias_rows(*words):
    done = run("bias", *words, "--csv")
    assert done.exit_code == 0, done.output
    assert flat(done.stderr) == bias.WARNING
    return [dict(row) for row in csv.DictReader(io.StringIO(done.stdout))]


def assert_same(rows, expected):
    """Assert that printed rows are those of `bias_table` up to the rounding of means."""
    numbers = BiasRow._fields[:6]
    assert [tuple(row) for row in rows] == [BiasRow._fields] * len(expected)
    np.testing.assert_allclose(
        [[float(row[name]) for name in numbers] for row in rows], [row[:6] for row in expected], rtol=1e-9
    )
    assert [tuple(row.values())[6:] for row in rows] == [tuple(map(str, row[6:])) for row in expected]


def test_bias_of_the_quadratic_matches_the_closed_form(small, tmp_path):
    share = cs.datasets.bernoulli(1000, 0.1).mean()
    words = ("--problem", "quadratic", "--clip", "1,0.5,3", "--beta", "0,0.05", "--plot", str(tmp_path / "bias.svg"))
    rows = bias_rows(*words)
    assert [(float(row["beta"]), float(row["clip"])) for row in rows] == [
        (b, c) for b in (0, 0.05) for c in (0.5, 1, 3)
    ]
    for row in rows:
        clip, beta = float(row["clip"]), float(row["beta"])
        exact = (share / (1 - 10 * beta)) ** 2 * (10 - clip / (1 - share)) ** 2
        assert float(row["bias"]) == pytest.approx(exact, abs=1e-8)
    assert (tmp_path / "bias.svg").read_text(encoding="utf-8").startswith("<?xml")


def test_bias_of_a_table_matches_the_library(table):
    path, x, y = table
    x = (x - x.mean(axis=0)) / x.std(axis=0)

    def problem_at(beta, columns=slice(None)):
        response = cs.responses.BestResponse(beta)
        return cs.Problem(x[:, columns], 1.0 - y, loss=cs.losses.Logistic(0.01), response=response)

    expected = cs.bias_table(problem_at, [0.2, 1.0], [0.0, 0.3])  # "ok" comes after "bad", so it is label 1
    words = ["--target", "outcome", "--clip", "1,0.2", "--beta", "0,0.3"]
    assert_same(bias_rows(str(path), *words), expected)
    few = cs.bias_table(lambda beta: problem_at(beta, slice(0, 3)), [0.2, 1.0], [0.0, 0.3])
    assert_same(bias_rows(str(path), *words, "--ignore", "d", "--ignore", "always"), few)


@pytest.mark.parametrize("loss", [None, "squared-error", "huber"])
def test_bias_of_a_table_with_a_target_of_numbers(table, loss):
    path, x, _ = table
    part = cs.losses.Huber(l2=0.5) if loss == "huber" else cs.losses.SquaredError(l2=0.5)
    features, target = np.column_stack([x[:, [0, 2, 3]], np.ones(len(x))]), x[:, 1]
    whole = np.genfromtxt(path, delimiter=",", skip_header=1, usecols=range(5))
    np.testing.assert_array_equal(whole[:, [0, 2, 3, 4]], features)
    path.write_text("\n".join(",".join(line.split(",")[:5]) for line in path.read_text().splitlines()))
    shift = cs.responses.LocationShift
    words = [str(path), "--target", "b", "--l2", "0.5", "--clip", "0.5,2", "--beta", "0,0.2"]
    words += [] if loss is None else ["--loss", loss]
    as_is = cs.bias_table(
        lambda beta: cs.Problem(features, target, loss=part, response=shift(beta)), [0.5, 2], [0, 0.2]
    )
    assert_same(bias_rows(*words, "--as-is"), as_is)
    scaled, label = ((v - v.mean(axis=0)) / v.std(axis=0) for v in (features[:, :3], target))
    usual = cs.bias_table(lambda beta: cs.Problem(scaled, label, loss=part, response=shift(beta)), [0.5, 2], [0, 0.2])
    assert_same(bias_rows(*words), usual)


def test_bias_offers_every_problem_and_loss():
    choices = {option.name: getattr(option.type, "choices", None) for option in bias.command.params}
    assert list(choices["problem"]) == list(bias.SUBJECTS)
    assert list(choices["loss"]) == list(bias.LOSSES)


def test_bias_in_words(small, table):
    words = [str(table[0]), "--target", "outcome", "--clip", "1", "--beta", "0,0.3"]
    text = flat(run("bias", *words).output)
    assert "loans.csv: 60 records, 4 columns, standardised; no intercept." in text
    assert "Loss: logistic of 'outcome' with l2 = 0.01; label 1 is 'ok'." in text
    assert "Left out because they are constant: always." in text
    assert bias.GAMING in text
    assert text.endswith(bias.WARNING)
    weak, strong = (float(row["bias"]) for row in bias_rows(*words))
    assert f"At c = 1 and β = 0.3 clipping alone moves the model by {np.sqrt(strong):.3g} (squared" in text
    assert f"At β = 0 this is {np.sqrt(weak):.3g}." in text
    text = flat(run("bias", "--problem", "credit").output)
    assert "a generated stand-in, because the real data could not be downloaded" in text
    assert "β = 0.3" in text
    assert "At c = " in text


def test_bias_marks_unreliable_numbers(small):
    text = flat(run("bias", "--problem", "quadratic", "--clip", "1", "--beta", "0.05,0.15").output)
    assert "* the stable point is held at the boundary of the region" in text
    assert "‡ β ≥ μ/L by the bounds, so the points need not be the only ones" in text
    assert "0 (100.0%)*†‡" in text
    assert "At c = 1 and β = 0.05 clipping alone" in text  # not at 0.15
    text = flat(run("bias", "--problem", "quadratic", "--clip", "1", "--beta", "0.15").output)
    assert "No bias here is reliable: see the remarks." in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "Error: Give either a FILE or --problem.\n"),
        (["{path}", "--problem", "credit"], "Error: Give either a FILE or --problem.\n"),
        (["{path}"], "Error: FILE requires --target, the column to predict.\n"),
        (["--problem", "credit", "--as-is"], "--standardise and --as-is require a FILE.\n"),
        (["--problem", "credit", "--ignore", "a"], "Error: --target, --ignore, --loss, --l2, --standardise and --as-is require"),
        (["--problem", "credit", "--l2", "1"], "--standardise and --as-is require a FILE.\n"),
        (["--problem", "quadratic", "--clip", "1,a"], "'--clip': must be comma-separated numbers, got '1,a'.\n"),
        (["--problem", "quadratic", "--beta", ""], "'--beta': must be comma-separated numbers, got ''.\n"),
        (["--problem", "quadratic", "--clip", "0,1"], "Error: clips must be a number above 0, got 0.0.\n"),
        (["{path}", "--target", "outcome", "--beta", "-1"], "Error: beta must be a number of at least 0, got -1.0.\n"),
        (["{path}", "--target", "paid"], "Error: target must be one of 'a', 'b', 'c', 'd', 'always', 'outcome', got 'paid'.\n"),
        (["{path}", "--target", "a"], "got other values in 'outcome' (such as '"),
        (["{path}", "--target", "outcome", "--loss", "huber"], "Error: target 'outcome' must hold numbers, got text such as '"),
        (["{path}", "--target", "outcome", "--l2", "-1"], "Error: l2 must be a number of at least 0, got -1.0.\n"),
        (["none.csv", "--target", "y"], "Error: path must be an existing file, got none.csv.\n"),
    ],
)  # fmt: skip
def test_bias_refuses_in_one_sentence(table, words, message):
    done = run("bias", *(word.format(path=table[0]) for word in words))
    assert done.exit_code > 0
    assert message in done.output
    assert done.output.count("\n") == (1 if done.exit_code == 1 else 4)  # a wrong call prints the usage, too


def test_bias_refuses_a_table_of_constant_columns(tmp_path):
    path = tmp_path / "flat.csv"
    path.write_text("a,y\n1,0\n1,1\n")
    done = run("bias", str(path), "--target", "y")
    assert done.output == "Error: features must have a column that is not constant, got none.\n"
