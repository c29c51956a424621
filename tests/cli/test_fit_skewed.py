"""`clipsilon fit --model poisson|gamma|quantile`: the same as the estimators, from a file to predictions."""

import csv
import json

import numpy as np
import pytest
from sklearn.metrics import d2_pinball_score, d2_tweedie_score, mean_absolute_error, mean_pinball_loss

from clipsilon.cli.fit_file import split
from clipsilon.estimators import PrivateGammaRegressor, PrivatePoissonRegressor, PrivateQuantileRegressor
from clipsilon.estimators import model_files as models
from command_line import run
from fitted_tables import write

ROWS = 2000
TARGETS = ("claims", "cost", "days")
CASES = {
    "poisson": ("claims", ["--target-range", "0,4"], PrivatePoissonRegressor),
    "gamma": ("cost", ["--target-range", "20,2000"], PrivateGammaRegressor),
    "quantile": ("days", ["--target-range", "0,40", "--quantile", "0.9"], PrivateQuantileRegressor),
}
cases = pytest.mark.parametrize("kind", CASES)


def insured():
    rng = np.random.default_rng(3)
    x = rng.normal(size=(ROWS, 2))
    signal = x @ [0.5, -0.3]
    return {
        "age": x[:, 0],
        "power": x[:, 1],
        "claims": rng.poisson(np.exp(signal)),
        "cost": rng.gamma(2.0, 100 * np.exp(signal)),
        "days": 20 + 5 * signal + 4 * rng.normal(size=ROWS),
    }


@pytest.fixture
def data(tmp_path):
    return write(tmp_path / "insured.csv", insured())


def fitted(data, kind, *words):
    target, about, _ = CASES[kind]
    path = data.parent / "model.json"
    ignored = [word for name in TARGETS if name != target for word in ("--ignore", name)]
    words = ["--target", target, "--epsilon", 2, "--model", kind, *about, *ignored, "--as-is", *words, "--output", path]
    done = run("fit", data, *words)
    assert done.exit_code == 0, done.output
    return done, path


@cases
def test_the_file_holds_the_estimators_model(data, kind):
    target, _, expected = CASES[kind]
    _, path = fitted(data, kind, "--seed", 5)
    model = models.read_model(path)
    found = model.pipeline.named_steps["model"]
    assert (model.kind, type(found)) == (kind, expected)
    seeds = np.random.SeedSequence(5).generate_state(3).tolist()
    train, _ = split(ROWS, 0.2, seeds[0])
    table = insured()
    twin = expected(**{**found.get_params(), "random_state": seeds[2]})
    twin.fit(np.column_stack([table["age"], table["power"]])[train], table[target][train])
    np.testing.assert_array_equal(twin.coef_, found.coef_)
    np.testing.assert_array_equal(twin.intercept_, found.intercept_)
    np.testing.assert_allclose(twin.theta_, found.theta_, rtol=1e-12, atol=1e-12)
    assert twin.statement_.to_dict() == found.statement_.to_dict()


@cases
def test_certified_and_predicted(data, kind):
    done, path = fitted(data, kind, "--format", "json")
    assert json.loads(done.stdout)["privacy"]["epsilon"] <= 2
    rows = list(csv.reader(run("predict", path, data).stdout.splitlines()))
    assert rows[0] == ["prediction"]
    table = insured()
    expected = models.read_model(path).pipeline.predict(np.column_stack([table["age"], table["power"]]))
    np.testing.assert_allclose([float(row[0]) for row in rows[1:]], expected, rtol=1e-12)
    if kind != "quantile":
        assert (expected > 0).all()


@cases
def test_quality(data, kind):
    target = CASES[kind][0]
    done, path = fitted(data, kind, "--seed", 1, "--format", "json")
    found = json.loads(done.stdout)
    quality = {row["measure"]: (row["model"], row["baseline"]) for row in found["quality_not_private"]}
    _, held = split(ROWS, 0.2, np.random.SeedSequence(1).generate_state(3).tolist()[0])
    table = insured()
    y = np.asarray(table[target], dtype=float)[held]
    predicted = models.read_model(path).pipeline.predict(np.column_stack([table["age"], table["power"]])[held])
    if kind == "quantile":
        errors = [mean_pinball_loss(y, one, alpha=0.9) for one in (predicted, np.full_like(y, np.quantile(y, 0.9)))]
        expected = {"D²": (d2_pinball_score(y, predicted, alpha=0.9), 0.0), "pinball loss": tuple(errors)}
        assert found["baseline"] == "always their quantile"
    else:
        explained = d2_tweedie_score(y, predicted, power=1 if kind == "poisson" else 2)
        errors = [mean_absolute_error(y, one) for one in (predicted, np.full_like(y, y.mean()))]
        expected = {"D²": (explained, 0.0), "mean absolute error": tuple(errors)}
        assert found["baseline"] == "always their mean"
    assert quality.keys() == expected.keys()
    for name, values in expected.items():
        assert quality[name] == pytest.approx(values, rel=1e-9)
    assert quality["D²"][0] > 0.1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--target", "x", "--model", "poisson"], "target 'x' must hold numbers of at least 0 for model 'poisson', got -3."),
        (["--target", "y", "--model", "gamma"], "target 'y' must hold numbers above 0 for model 'gamma', got 0."),
        (["--target", "y", "--model", "poisson", "--quantile", "0.9"], "quantile must be omitted unless model is 'quantile', got 0.9."),
        (["--target", "y", "--model", "quantile", "--quantile", "9"], "quantile must be a number above 0 and below 1, got 9.0."),
        (["--target", "y", "--model", "poisson", "--target-range", "-1,9"], "target_range must be a low and a high number of at least 0, got (-1.0, 9.0)."),
    ],
)  # fmt: skip
def test_refusals(tmp_path, words, message):
    data = write(tmp_path / "data.csv", {"x": np.arange(40) - 3, "y": np.arange(40) % 5})
    done = run("fit", data, *words, "--epsilon", 1, "--as-is", "--quiet", "--output", tmp_path / "m.json")
    assert done.output == f"Error: {message}\n"
    assert not (tmp_path / "m.json").exists()
