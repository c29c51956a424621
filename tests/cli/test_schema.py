"""`clipsilon schema`, and `fit` and `predict` by the schema that it proposes."""

import json
import re
import shlex
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler

import clipsilon as cs
from clipsilon.cli.fit_file import split
from clipsilon.estimators import model_files as models
from clipsilon.estimators import total_privacy
from clipsilon.tables.propose import NOT_PRIVATE
from command_line import run
from messy_tables import messy, write

ROWS, PEOPLE = 4000, 1600
RULE = cs.DPGD(cs.schedules.Constant(0.5), lipschitz=1.0, noise_std=1.0)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write(tmp_path_factory.mktemp("messy") / "visits.csv", messy(rows=ROWS, people=PEOPLE))


PROPOSED = "proposed = true\n"


@pytest.fixture(scope="module")
def proposed(data):
    path = data.parent / "proposed.toml"
    done = run("schema", data, "--target", "late", "--group", "person", "--output", path)
    assert done.exit_code == 0, done.output
    return path


@pytest.fixture(scope="module")
def schema(data, proposed):
    """Return a schema that somebody has checked."""
    path = data.parent / "schema.toml"
    path.write_text(proposed.read_text("utf-8").replace(PROPOSED, ""), "utf-8")
    return path


def fit(data, schema, *words, output="model.json"):
    usual = ["--target", "late", "--epsilon", 1, "--classes", "no,yes", "--output", data.parent / output]
    return run("fit", data, "--schema", schema, *usual, *words), data.parent / output


@pytest.fixture(scope="module")
def model(data, schema):
    done, path = fit(data, schema)
    assert done.exit_code == 0, done.output
    return done, path


def test_what_is_proposed_is_printed_and_written_with_comments(data, schema):
    text = schema.read_text("utf-8")
    assert text.startswith("# Proposed by clipsilon schema from visits.csv.\n# Looking at the data is not private")
    assert re.search(r"# \S+ % of the rows have a gap.\n\[columns.age\]\nkind = \"number\"\nrange = ", text)
    output = data.parent / "other.toml"
    done = run("schema", data, "--target", "late", "--output", output)
    assert f"Note: {NOT_PRIVATE}\n" in done.output
    assert (
        "Note: Values of 'person' repeat and look like ids. If it names the person of a row, give it as --group"
        in done.output
    )
    assert "wrote " in done.output
    assert f"clipsilon fit {data} --schema {output} --target late --classes no,yes --epsilon 1\n" in done.output
    assert cs.Schema.load(output).ignore == ("person",)


def test_the_options_for_the_target(tmp_path):
    table = {"a": np.arange(60) / 7, "b": np.arange(60) % 3, "c": np.char.add("w", np.arange(60).astype(str))}
    data = write(tmp_path / "t.csv", table)
    for target, words in {"a": "--target-range 0,8.4", "b": "--classes 0,1,2", "c": "--model logistic"}.items():
        done = run("schema", data, "--target", target, "--output", tmp_path / f"{target}.json")
        assert f"--target {target} {words} --epsilon 1\n" in done.output, done.output
        assert cs.Schema.load(tmp_path / f"{target}.json").target == target


def test_the_command_that_is_shown_can_be_typed(tmp_path):
    data = write(
        tmp_path / "my table.csv", {"a": np.arange(60) % 7, "in come": np.where(np.arange(60) % 2, ">50K", "<=50K")}
    )
    done = run("schema", data, "--target", "in come", "--output", tmp_path / "s.toml")
    words = ["fit", str(data), "--schema", str(tmp_path / "s.toml"), "--target", "in come", "--classes", "<=50K,>50K"]
    assert shlex.split(done.output.splitlines()[-1]) == ["clipsilon", *words, "--epsilon", "1"]


def test_a_parquet_file_has_the_same_schema(data, schema, tmp_path):
    frame = pd.read_csv(data, parse_dates=["joined"]).assign(
        last_visit=lambda f: pd.to_datetime(f["last_visit"]).dt.date
    )
    frame.to_parquet(tmp_path / "visits.parquet")
    done = run(
        "schema", tmp_path / "visits.parquet", "--target", "late", "--group", "person", "--output", tmp_path / "s.toml"
    )
    assert done.exit_code == 0, done.output
    assert replace(cs.Schema.load(tmp_path / "s.toml"), proposed=False) == cs.Schema.load(schema)


def test_nothing_is_certified_by_a_schema_that_nobody_has_checked(data, proposed, tmp_path):
    assert f"until then, a fit certifies nothing.\n{PROPOSED}" in proposed.read_text("utf-8")
    done, path = fit(data, proposed, "--evaluate-epsilon", 1, "--format", "json", output="unchecked.json")
    told = json.loads(done.stdout)
    assert told["privacy"]["epsilon"] is None
    assert told["privacy"]["nominal"] <= 1
    assert [one["certified_epsilon"] for one in (*told["statements"], told["evaluation"]["statement"])] == [None, None]
    pipeline = cs.load_model(path)
    assert pipeline[0].schema.proposed
    with pytest.warns(cs.PrivacyWarning, match="Learnt from the data without budget: SchemaEncoder"):
        assert total_privacy([pipeline[0], cs.account(RULE, 100, 5, 1e-5)]).epsilon == np.inf
    cs.Budget(tmp_path / "budget", 3.0, 1e-4)
    done, path = fit(data, proposed, "--budget", tmp_path / "budget", output="charged.json")
    assert done.exit_code == 1
    assert not path.exists()
    assert cs.Budget(tmp_path / "budget").charges() == []


def test_a_fit_by_a_schema_spends_all_on_the_model(model, schema):
    done, path = model
    assert "PrivateScaler" not in done.output
    assert re.search(r"^Certified: ε = 0\.9\d+ at δ = 1e-05, for the 1280 people who trained", done.stdout, re.M)
    content = json.loads(path.read_text("utf-8"))
    assert content["schema"] == cs.Schema.load(schema).to_dict()
    assert content["scaling"] is None
    assert (content["privacy"]["unit"], content["model"]["statement"]["records"]) == ("person", 1280)


def test_a_model_file_predicts_raw_tables(data, model, tmp_path):
    path = model[1]
    frame = pd.read_csv(data)
    pipeline = cs.load_model(path)
    assert roc_auc_score(frame["late"] == "yes", pipeline.predict_proba(frame)[:, 1]) > 0.6
    new = frame.drop(columns=["late", "person"]).iloc[::-1]
    new.loc[new.index[:3], "region"] = "Atlantis"
    new.to_csv(tmp_path / "new.csv", index=False)
    done = run("predict", path, tmp_path / "new.csv")
    assert done.exit_code == 0, done.output
    assert done.stderr.splitlines()[0] == (
        "Note: 3 of 4000 rows have a level of 'region' that the schema does not list: they count as other "
        "(counted without noise: not private)."
    )
    shown = [float(line.split(",")[2]) for line in done.stdout.splitlines()[1:]]
    assert shown == pipeline.predict_proba(new)[:, 1].tolist()


def test_a_model_with_a_schema_survives_the_round_trip(data, model):
    one = models.read_model(model[1])
    frame = pd.read_csv(data)
    assert one.pipeline.named_steps["model"].n_features_in_ == len(one.schema.feature_names())
    np.testing.assert_array_equal(one.pipeline.predict(frame), cs.load_model(model[1]).predict(frame))
    content = json.loads(model[1].read_text("utf-8"))
    for change in (lambda c: c["columns"].pop(), lambda c: c["schema"]["columns"]["region"]["levels"].pop()):
        damaged = json.loads(json.dumps(content))
        change(damaged)
        path = data.parent / "damaged.json"
        path.write_text(json.dumps(damaged))
        with pytest.raises(ValueError, match="^path must be a whole model file, got .*, which is damaged: "):
            models.read_model(path)


def test_all_columns_are_named_at_once_with_the_command_that_helps(data):
    done = run("fit", data, "--target", "late", "--epsilon", 1, "--output", data.parent / "none.json")
    assert done.exit_code == 1
    line = done.stderr.splitlines()[-1]
    for name in ("person", "region", "occupation", "channel", "product", "joined", "last_visit", "member"):
        assert f"'{name}' (such as " in line
    assert re.search(r"'age' \(\d+ gap\(s\), the first '' in row \d+\)", line)
    assert line.endswith(
        "leave them out with --ignore, or describe the table by a schema "
        f"(clipsilon schema {data} --target late --output schema.toml) and give it by --schema."
    )
    assert not (data.parent / "none.json").exists()
    grouped = run(
        "fit", data, "--target", "late", "--group", "person", "--epsilon", 1, "--output", data.parent / "none.json"
    )
    assert f"(clipsilon schema {data} --target late --group person --output schema.toml)" in grouped.stderr


def edit(schema, folder, old, new):
    text = schema.read_text("utf-8")
    assert old in text
    path = folder / "edited.toml"
    path.write_text(text.replace(old, new, 1))
    return path


EDITS = {
    "inverted range": ('[columns.age]\nkind = "number"\nrange = [', '[columns.age]\nkind = "number"\nrange = [999, ', "{schema}: range of column 'age' must be [low, high], got [999, "),
    "column renamed": ("[columns.region]", "[columns.area]", "{data} must have the columns of the schema, got none named 'area'."),
    "column dropped": ("[columns.member]\nkind = \"yes/no\"\nyes = \"yes\"\nno = \"no\"\n", "", "each column of {data} must be in the schema, got none for 'member': describe or ignore it."),
    "other target": ('target = "late"', 'target = "paid"', "target must be 'paid', as in {schema}, got 'late'."),
    "target as a feature": ('target = "late"', '[columns.late]\nkind = "yes/no"', "column 'late' must have one role, got a feature and the target."),
    "wrong kind": ('[columns.channel]\nkind = "category"\nlevels', '[columns.channel]\nkind = "number"\nrange = [0, 1]\n#', "column 'channel' of {data} must hold numbers, got 'web'."),
    "no gaps allowed": ("gap = 47", "", "column 'age' of {data} must have a value in every row unless the schema has an entry gap for it, got "),
}  # fmt: skip


@pytest.mark.parametrize(("old", "new", "message"), EDITS.values(), ids=EDITS)
def test_a_schema_that_does_not_fit_is_refused_in_one_sentence(data, schema, tmp_path, old, new, message):
    if old == 'target = "late"' and new.startswith("["):
        edited = edit(schema, tmp_path, 'target = "late"\n', "")
        edited.write_text(edited.read_text("utf-8") + f"\n{new}\n")
    else:
        edited = edit(schema, tmp_path, old, new)
    done, path = fit(data, edited, "--quiet", output="refused.json")
    assert done.exit_code == 1
    assert done.stdout == ""
    assert done.stderr.startswith(f"Error: {message.format(data=data, schema=edited)}")
    assert done.stderr.count("\n") == 1
    assert not path.exists()


def test_a_person_without_a_name_is_refused(data, schema, tmp_path):
    frame = pd.read_csv(data)
    frame.loc[[5, 7], "person"] = None
    frame.to_csv(tmp_path / "gaps.csv", index=False)
    done, path = fit(tmp_path / "gaps.csv", schema, "--quiet")
    assert (
        done.stderr
        == f"Error: group 'person' of {tmp_path / 'gaps.csv'} must name the person of every row, got 2 row(s) without an id.\n"
    )
    assert not path.exists()
    said = run(
        "schema", tmp_path / "gaps.csv", "--target", "late", "--group", "person", "--output", tmp_path / "s.toml"
    )
    assert "Note: Group 'person' has 2 gap(s): clipsilon fit needs the person of every row.\n" in said.output


def test_options_that_contradict_a_schema(data, schema):
    for words, message in {
        ("--as-is",): "columns must be scaled in one way only: by --schema, --scale-epsilon, --bounds or --as-is.",
        ("--ignore", "age"): "columns to ignore must be in the schema, if there is one, got 'age'.",
    }.items():
        done, path = fit(data, schema, *words, output="refused.json")
        assert done.stderr == f"Error: {message}\n"
        assert not path.exists()


def test_a_file_that_exists_is_not_overwritten(data, schema):
    before = schema.read_text("utf-8")
    done = run("schema", data, "--target", "late", "--output", schema)
    assert done.output == f"Error: output must be a new file, got {schema}, which exists.\n"
    done = run("schema", data, "--target", "none", "--output", data.parent / "no.toml")
    assert done.output.startswith("Error: target must be one of 'person', ")
    done = run("schema", data, "--target", "late", "--output", data.parent / "no.yaml")
    assert done.output.endswith("no.yaml must be one of '.toml', '.json', got '.yaml'.\n")
    assert not [*data.parent.glob("no.*")]
    assert schema.read_text("utf-8") == before


def test_what_the_schema_does_not_cover_is_counted(data, schema, tmp_path):
    edited = edit(schema, tmp_path, '  "R00",\n', "")
    done, _ = fit(data, edited, output="uncovered.json")
    missing = int((pd.read_csv(data)["region"] == "R00").sum())
    text = schema.read_text("utf-8")
    rare = 40 - len(re.findall(r'"R\d\d"', text))
    found = re.search(r"Note: (\d+) of 4000 rows have a level of 'region' that the schema does not list", done.stdout)
    assert int(found[1]) == missing if not rare else int(found[1]) > missing


def test_a_schema_an_edit_and_a_fit_come_close_to_a_model_without_privacy(tmp_path):
    """ε = 1, of people, costs less than 0.01 of AUC on average over eight splits and fits, with fixed seeds."""
    data, schema = write(tmp_path / "visits.csv", messy()), tmp_path / "schema.toml"
    assert run("schema", data, "--target", "late", "--group", "person", "--output", schema).exit_code == 0
    edited = edit(schema, tmp_path, "range = [18, ", "range = [16, ")
    costs = []
    for seed in range(8):
        done, _ = fit(data, edited, "--seed", seed, "--format", "json", "--quiet", output=f"{seed}.json")
        assert done.exit_code == 0, done.output
        private = {one["measure"]: one["model"] for one in json.loads(done.stdout)["quality_not_private"]}["AUC"]
        costs.append(usual_auc(pd.read_csv(data), seed) - private)
    assert np.mean(costs) < 0.01


def usual_auc(frame, seed):
    """Return what scikit-learn's usual pipeline achieves without privacy on the people that `fit` holds out."""
    names, people = np.unique(frame["person"], return_inverse=True)
    parts = split(len(names), 0.2, np.random.SeedSequence(seed).generate_state(1)[0])
    train, held = (frame[np.isin(people, part)] for part in parts)
    texts, numbers = ["region", "occupation", "channel", "product", "member"], ["amount", "age", "joined", "last_visit"]

    def to_numbers(table):
        days = {name: pd.to_datetime(table[name]).astype("int64") for name in ("joined", "last_visit")}
        return table.assign(**days, amount=np.log(table["amount"]))

    filled = make_pipeline(SimpleImputer(add_indicator=True), StandardScaler())
    encoded = ColumnTransformer(
        [("texts", OneHotEncoder(handle_unknown="ignore"), texts), ("numbers", filled, numbers)]
    )
    usual = make_pipeline(FunctionTransformer(to_numbers), encoded, LogisticRegression(max_iter=1000))
    usual.fit(train, train["late"])
    return roc_auc_score(held["late"] == "yes", usual.predict_proba(held)[:, 1])
