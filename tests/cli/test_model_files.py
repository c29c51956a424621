"""The file that `clipsilon fit` writes: how it is read back, and which files are refused."""

import json

import numpy as np
import pandas as pd
import pytest

import clipsilon as cs
from clipsilon.cli.fit_file import fit_file
from clipsilon.cli.fit_request import Request
from clipsilon.estimators import PrivateLinearRegression, PrivateLogisticRegression
from clipsilon.estimators import model_files as models
from clipsilon.privacy.accounting import profiles
from clipsilon.privacy.statement import SEEDED
from command_line import run
from fitted_tables import COLUMNS, TARGETS, fitted, records


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("paid", []),
        ("paid", ["--as-is", "--classes", "no,yes"]),
        ("grade", ["--classes", "0,1,2"]),
        ("price", ["--target-range", "0,400"]),
        ("price", ["--model", "huber", "--method", "noisy-selection"]),
    ],
)
def test_a_model_survives_the_round_trip(data, target, words):
    about = {"path": data, "target": target, "epsilon": 2.0, "ignore": [name for name in TARGETS if name != target]}
    options = dict(zip(words[::2], words[1::2], strict=False))
    if "--as-is" in words:
        about |= {"as_is": True, "classes": ["no", "yes"]}
    if target == "grade":
        about |= {"classes": ["0", "1", "2"]}
    if "--target-range" in options:
        about |= {"target_range": [0.0, 400.0]}
    if "--model" in options:
        about |= {"model": "huber", "method": "noisy-selection"}
    result = fit_file(Request(**about))
    path = data.parent / "model.json"
    models.write_model(path, result.model, result.total)
    frame = pd.read_csv(data)[list(COLUMNS)]
    one, other = result.model.pipeline, cs.load_model(path)
    np.testing.assert_array_equal(one.predict(frame.to_numpy()), other.predict(frame))
    if target != "price":
        np.testing.assert_array_equal(one.predict_proba(frame.to_numpy()), other.predict_proba(frame))
        np.testing.assert_array_equal(one.decision_function(frame.to_numpy()), other.decision_function(frame))
        np.testing.assert_array_equal(one.classes_, other.classes_)
        assert one.classes_.dtype.kind == other.classes_.dtype.kind
    assert other.feature_names_in_.tolist() == list(COLUMNS)
    for (_, left), (_, right) in zip(one.steps, other.steps, strict=True):
        assert type(left) is type(right)
        assert left.statement_.to_dict() == right.statement_.to_dict()
        assert left.statement_.epsilon(left.delta) == pytest.approx(right.statement_.epsilon(left.delta), rel=1e-12)
        mended = [one.statement_.mended or one.statement_ for one in (left, right)]
        assert mended[0].epsilon(left.delta) == pytest.approx(mended[1].epsilon(left.delta), rel=1e-12)
    models.write_model(data.parent / "again.json", result.model._replace(pipeline=other), result.total)
    assert (data.parent / "again.json").read_bytes() == path.read_bytes()


def test_a_loaded_model_checks_names(data):
    model = cs.load_model(fitted(data, "paid")[1])
    frame = pd.read_csv(data)[list(COLUMNS)]
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(frame[["income", "age", "rate"]])
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(frame.rename(columns={"rate": "ratio"}))


def test_a_loaded_model_can_be_trained_further(data):
    table = records()
    x, y = np.column_stack([table[name] for name in COLUMNS]), table["paid"]
    loaded = cs.load_model(fitted(data, "paid", "--classes", "no,yes")[1])
    scaler, model = loaded[0], loaded[-1]
    before = model.theta_
    del scaler.feature_names_in_
    model.partial_fit(scaler.transform(x), y)
    assert isinstance(model, PrivateLogisticRegression)
    assert not np.array_equal(before, model.theta_)
    assert np.linalg.norm(before - model.theta_) < 0.5 * np.linalg.norm(before)  # it starts from there, not from 0
    assert "parallel composition" in model.statement_.reasons[-1]


def test_a_loaded_regression_keeps_its_units(data):
    model = cs.load_model(fitted(data, "price", "--target-range", "100,300")[1])[-1]
    assert isinstance(model, PrivateLinearRegression)
    coefficients, intercept = model.coef_.copy(), model.intercept_
    model._set_coefficients(model.theta_)
    np.testing.assert_allclose(model.coef_, coefficients, rtol=1e-12)
    assert model.intercept_ == pytest.approx(intercept, rel=1e-12)


def test_the_statements_of_a_seeded_fit_are_closed(data):
    path = fitted(data, "paid", "--classes", "no,yes", "--seed", 1)[1]
    for _, step in cs.load_model(path).steps:
        assert step.statement_.faults == (SEEDED,)
        assert step.statement_.certified == step.statement_.epsilon(0.1) == np.inf
        assert 0.1 < step.statement_.nominal <= 2.0


def test_files_of_earlier_versions_are_read_and_closed_if_seeded(tmp_path, data):
    """They hold a finite certified ε, even of a seeded fit, and know neither faults nor nominal values."""
    content = json.loads(fitted(data, "paid", "--classes", "no,yes")[1].read_text("utf-8"))
    nominal = [one["statement"]["certified_epsilon"] for one in (content["scaling"], content["model"])]
    for one in (content["scaling"], content["model"]):
        for name in ("nominal_epsilon", "faults", "nominal_gaussian_mu"):
            del one["statement"][name]
    for seeded, certified in ((False, nominal), (True, [np.inf, np.inf])):
        path = tmp_path / f"{seeded}.json"
        path.write_text(json.dumps({**content, "seeded": seeded}), "utf-8")
        found = [step.statement_ for _, step in cs.load_model(path).steps]
        assert [statement.certified for statement in found] == certified
        assert [statement.nominal for statement in found] == nominal
    learnt = "The classes were learnt from y without budget; give them as classes=."
    content["model"]["statement"]["reasons"].append(learnt)
    path.write_text(json.dumps({**content, "seeded": False}), "utf-8")
    statement = cs.load_model(path).named_steps["model"].statement_
    assert (statement.certified, statement.nominal, statement.faults) == (np.inf, nominal[1], (learnt,))


def edited(change):
    def edit(content):
        change(content)
        return json.dumps(content)

    return edit


NOT_ONE = "path must be a model file of clipsilon, got {path}, which is not one, or not whole."
DAMAGED = "path must be a whole model file, got {path}, which is damaged: "
DAMAGES = {
    "empty": (lambda content: "", NOT_ONE),
    "half": (lambda content: json.dumps(content)[:500], NOT_ONE),
    "not UTF-8": (lambda content: b"\xff\xfe{}", NOT_ONE),
    "list": (lambda content: "[]", NOT_ONE),
    "deep": (lambda content: "[" * 100_000, NOT_ONE),
    "other": (lambda content: '{"format": "something"}', NOT_ONE),
    "version": (edited(lambda c: c.update(version=2)), "path must be a model file of version 1, got {path} of version 2: another version of clipsilon wrote it."),
    "no version": (edited(lambda c: c.pop("version")), "path must be a model file of version 1, got {path} of version None:"),
    "no model": (edited(lambda c: c.pop("model")), DAMAGED),
    "no scaling": (edited(lambda c: c.pop("scaling")), DAMAGED),
    "kind": (edited(lambda c: c["model"].update(kind="tree")), DAMAGED),
    "column lost": (edited(lambda c: c["columns"].pop()), DAMAGED),
    "number as name": (edited(lambda c: c["columns"].insert(0, 3)), DAMAGED),
    "coefficient lost": (edited(lambda c: c["model"]["coefficients"][0].pop()), DAMAGED),
    "NaN": (edited(lambda c: c["model"].update(intercept=[float("nan")])), DAMAGED),
    "words": (edited(lambda c: c["model"].update(intercept=["a"])), DAMAGED),
    "scale of 0": (edited(lambda c: c["scaling"]["scale"].__setitem__(0, 0.0)), DAMAGED),
    "one class": (edited(lambda c: c["model"].update(classes=["no"])), DAMAGED),
    "classes turned round": (edited(lambda c: c["model"]["classes"].reverse()), DAMAGED),
    "settings": (edited(lambda c: c["model"]["settings"].update(colour="red")), DAMAGED),
    "statement": (edited(lambda c: c["model"]["statement"].pop("rule")), DAMAGED),
    "adjacency": (edited(lambda c: c["model"]["statement"].update(adjacency="none")), DAMAGED),
    "not a record": (edited(lambda c: c.update(model=[1])), DAMAGED),
}  # fmt: skip


@pytest.mark.parametrize(("damage", "message"), DAMAGES.values(), ids=DAMAGES)
def test_damaged_model_files_are_refused(tmp_path, content, damage, message):
    path = tmp_path / "model.json"
    text = damage(json.loads(content))
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        cs.load_model(path)
    assert str(caught.value).startswith(message.format(path=path))
    done = run("predict", path, tmp_path / "data.csv")
    assert done.exit_code == 1
    assert done.output == f"Error: {caught.value}\n"


def test_a_missing_model_file(tmp_path):
    with pytest.raises(FileNotFoundError, match="^path must name a file, got .*, where there is none.$"):
        cs.load_model(tmp_path / "none.json")


def test_a_profile_of_one_point():
    profile = profiles.point(0.5, 1e-6)
    assert [profile.epsilon(delta) for delta in (1e-7, 1e-6, 1e-5)] == [np.inf, 0.5, 0.5]
    assert [profile.delta(epsilon) for epsilon in (0.4, 0.5, 0.6)] == [1.0, 1e-6, 1e-6]
    assert profile.mu is None
