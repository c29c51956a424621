"""`clipsilon predict`, as its users type it."""

import csv
import io

import pandas as pd

import clipsilon as cs
from command_line import run
from fitted_tables import COLUMNS, fitted


def test_predictions_of_classes(data):
    path = fitted(data, "paid")[1]
    printed = run("predict", path, data)
    rows = list(csv.DictReader(io.StringIO(printed.output)))
    model = cs.load_model(path)
    frame = pd.read_csv(data)[list(COLUMNS)]
    assert [row["prediction"] for row in rows] == model.predict(frame).tolist()
    assert [[float(row["P(no)"]), float(row["P(yes)"])] for row in rows] == model.predict_proba(frame).tolist()
    output = data.parent / "predictions.csv"
    assert run("predict", path, data, "--output", output).output == ""
    assert output.read_text("utf-8") == printed.output


def test_predictions_of_numbers_with_reordered_columns(data):
    path = fitted(data, "price", "--target-range", "100,300")[1]
    frame = pd.read_csv(data)[["rate", "age", "income"]].assign(note="")
    frame.to_parquet(data.parent / "new.parquet")
    lines = run("predict", path, data.parent / "new.parquet").output.splitlines()
    assert lines[0] == "prediction"
    assert list(map(float, lines[1:])) == cs.load_model(path).predict(frame[list(COLUMNS)]).tolist()


def test_integer_classes_stay_integers(data):
    path = fitted(data, "grade", "--model", "logistic")[1]
    rows = list(csv.reader(io.StringIO(run("predict", path, data).output)))
    assert rows[0] == ["prediction", "P(0)", "P(1)", "P(2)"]
    assert {row[0] for row in rows[1:]} <= {"0", "1", "2"}


def test_predict_refuses_in_one_sentence(tmp_path, content):
    model, data = tmp_path / "model.json", tmp_path / "new.csv"
    model.write_text(content)
    for text, message in {
        "age,income\n1,2\n": f"{data} must have the columns of the model, got none named 'rate'.",
        "age,income,rate\n1,2,\n": f"features in {data} must be finite numbers, got other values in 'rate' (1 gap(s), the first '' in row 2): the model was fitted without a schema that could help.",
        "age,income,rate\n1,2,x\n": f"features in {data} must be finite numbers, got other values in 'rate' (such as 'x'): the model was fitted without a schema that could help.",
        "age,income,rate\n": f"{data} must have rows below its header, got none.",
    }.items():
        data.write_text(text)
        for words in ([], ["--output", tmp_path / "predictions.csv"]):
            done = run("predict", model, data, *words)
            assert done.exit_code == 1
            assert done.output == f"Error: {message}\n"
    assert run("predict", model, data, "--output", model).output.endswith("which exists.\n")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["model.json", "new.csv"]
