"""The public description of a table: files, round trips, and one sentence for each inconsistency."""

import json
import pickle
import re
import tomllib
from datetime import date, datetime
from pathlib import Path

import numpy as np
import pytest

import clipsilon as cs
from clipsilon.tables import Category, Date, Number, YesNo
from clipsilon.tables.kinds import KINDS

COLUMNS = {
    "age": Number(18, 90, gap=45),
    "amount": Number(0.5, 1e5, log=True),
    "region": Category(["north", 'the "south"', "naïve\ttab", "1"]),
    "opened on": Date(date(2015, 1, 1), date(2024, 12, 31), gap=date(2020, 1, 1)),
    "closed.at": Date(date(2015, 1, 1), date(2024, 12, 31), pattern="%d.%m.%Y"),
    "member": YesNo(),
    "alive": YesNo("1", "0", gap="0"),
}
SCHEMA = cs.Schema(COLUMNS, target="late", group="person", ignore=["note", "id\x7f"])


@pytest.mark.parametrize("name", ["schema.toml", "schema.json", "SCHEMA.TOML"])
def test_a_schema_survives_a_file(tmp_path, name):
    SCHEMA.save(tmp_path / name)
    assert cs.Schema.load(str(tmp_path / name)) == SCHEMA
    assert (tmp_path / name).read_text("utf-8").startswith(("target =", "{"))


def test_a_schema_survives_a_dict_of_json_and_a_pickle():
    assert cs.Schema.from_dict(json.loads(json.dumps(SCHEMA.to_dict()))) == SCHEMA
    assert pickle.loads(pickle.dumps(SCHEMA)) == SCHEMA
    assert {kind.name for kind in COLUMNS.values()} == set(KINDS)


def test_comments_are_comments():
    text = SCHEMA.to_toml(["Two paragraphs.", "Of\ncontrol\x00 characters. " * 20], {"age": "8 %.\n[columns.b]"})
    assert tomllib.loads(text) == tomllib.loads(SCHEMA.to_toml())
    assert "# 8 %.?[columns.b]\n[columns.age]\n" in text
    assert max(map(len, text.splitlines())) <= 102


def test_long_lists_are_broken_into_lines():
    levels = [f"level number {k}" for k in range(40)]
    text = cs.Schema({"a": Category(levels)}).to_toml()
    assert text.count("\n") > 40
    assert tomllib.loads(text)["columns"]["a"]["levels"] == levels


def test_numbers_of_numpy_are_written_as_numbers(tmp_path):
    schema = cs.Schema({"a": Number(np.float64(1.5), np.int64(4), gap=np.float32(2.5))})
    schema.save(tmp_path / "a.toml")
    assert cs.Schema.load(tmp_path / "a.toml") == schema


def test_a_schema_does_not_change_with_what_it_was_made_of():
    columns, ignore = {"a": Number(0, 1)}, ["b"]
    schema = cs.Schema(columns, ignore=ignore)
    columns["c"] = Number(0, 1)
    ignore.append("d")
    assert (list(schema.columns), schema.ignore) == (["a"], ("b",))


def test_levels_and_words_may_be_written_as_numbers():
    content = {
        "columns": {"a": {"kind": "category", "levels": [1, 2.0, True]}, "b": {"kind": "yes/no", "yes": 1, "no": 0}}
    }
    schema = cs.Schema.from_dict(content)
    assert schema.columns == {"a": Category(["1", "2", "True"]), "b": YesNo("1", "0")}


def test_the_file_on_the_page_is_a_schema():
    page = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "tables.md"
    schema = cs.Schema.from_dict(tomllib.loads(re.search("```toml\n(.*?)```", page.read_text("utf-8"), re.DOTALL)[1]))
    assert {kind.name for kind in schema.columns.values()} == set(KINDS)


AGE = "[columns.age]\nkind = 'number'\n"
REFUSED = {
    "inverted": (AGE + "range = [90, 18]", "range of column 'age' must have low below high, got 90.0 to 18.0."),
    "empty range": (AGE + "range = [5, 5]", "range of column 'age' must have low below high, got 5.0 to 5.0."),
    "one end": (AGE + "range = [5]", "range of column 'age' must be [low, high], got [5]."),
    "no range": (AGE, "column 'age' must have an entry 'range', got none."),
    "text as range": (AGE + "range = ['a', 'b']", "range of column 'age' must be a finite number, got 'a'."),
    "infinite": (AGE + "range = [0, inf]", "range of column 'age' must be a finite number, got inf."),
    "log of 0": (AGE + "range = [0, 5]\nlog = true", "range of column 'age' must be above 0 for log = true, got 0 to 5."),
    "log": (AGE + "range = [0, 5]\nlog = 'yes'", "log of column 'age' must be True or False, got 'yes'."),
    "gap": (AGE + "range = [0, 5]\ngap = 7", "gap of column 'age' must be within its range, 0.0 to 5.0, got 7.0."),
    "unknown entry": (AGE + "range = [0, 5]\nlgo = true", "an entry of column 'age' must be one of 'range', 'log', 'gap', got 'lgo'."),
    "unknown kind": ("[columns.age]\nkind = 'numeric'", "kind of column 'age' must be one of 'number', 'category', 'date', 'yes/no', got 'numeric'."),
    "no kind": ("[columns.age]\nrange = [0, 1]", "column 'age' must have a kind, got {{'range': [0, 1]}}."),
    "no table": ("[columns]\nage = 5", "column 'age' must have a kind, got 5."),
    "no levels": ("[columns.b]\nkind = 'category'\nlevels = []", "levels of column 'b' must be a list of at least one, got ()."),
    "one word": ("[columns.b]\nkind = 'category'\nlevels = 'north'", "levels of column 'b' must be a list of at least one, got 'north'."),
    "level twice": ("[columns.b]\nkind = 'category'\nlevels = ['a', 'c', 'a']", "levels of column 'b' must be different, got 'a' twice."),
    "inverted dates": ("[columns.d]\nkind = 'date'\nrange = [2024-01-01, 2020-01-01]", "range of column 'd' must have low below high, got 2024-01-01 to 2020-01-01."),
    "no dates": ("[columns.d]\nkind = 'date'\nrange = ['spring', 'autumn']", "column 'd' must have dates such as 2024-12-31, got 'spring'."),
    "times": ("[columns.d]\nkind = 'date'\nrange = [2020-01-01T10:00:00, 2024-01-01]", "column 'd' must have dates such as 2024-12-31, got datetime.datetime(2020, 1, 1, 10, 0)."),
    "gap of dates": ("[columns.d]\nkind = 'date'\nrange = [2020-01-01, 2024-01-01]\ngap = 1999-01-01", "gap of column 'd' must be within its range, 2020-01-01 to 2024-01-01, got 1999-01-01."),
    "pattern": ("[columns.d]\nkind = 'date'\nrange = [2020-01-01, 2024-01-01]\npattern = 'day'", "pattern of column 'd' must be one such as '%d.%m.%Y', got 'day'."),
    "number as pattern": ("[columns.d]\nkind = 'date'\nrange = [2020-01-01, 2024-01-01]\npattern = 5", "pattern of column 'd' must be one such as '%d.%m.%Y', got 5."),
    "number to ignore": ("ignore = 5\n" + AGE + "range = [0, 1]", "ignore must be a list of columns, got 5."),
    "same words": ("[columns.e]\nkind = 'yes/no'\nyes = 'Y'\nno = 'y'", "yes and no of column 'e' must differ, got 'Y' for both."),
    "gap of words": ("[columns.e]\nkind = 'yes/no'\ngap = 'perhaps'", "gap of column 'e' must be 'yes' or 'no', got 'perhaps'."),
    "target as feature": ("target = 'age'\n" + AGE + "range = [0, 1]", "column 'age' must have one role, got a feature and the target."),
    "group as target": ("target = 'y'\ngroup = 'y'\n" + AGE + "range = [0, 1]", "column 'y' must have one role, got the target and the group."),
    "ignored feature": ("ignore = ['age']\n" + AGE + "range = [0, 1]", "column 'age' must have one role, got a feature and ignored."),
    "ignore of one word": ("ignore = 'b'\n" + AGE + "range = [0, 1]", "ignore must be a list of columns, got 'b'."),
    "group of numbers": ("group = 3\n" + AGE + "range = [0, 1]", "group must name a column, got 3."),
    "unknown role": ("traget = 'y'\n" + AGE + "range = [0, 1]", "an entry of the schema must be one of 'proposed', 'target', 'group', 'ignore', 'columns', got 'traget'."),
    "no columns": ("target = 'y'", "columns must describe at least one column, got None."),
    "empty columns": ("[columns]", "columns must describe at least one column, got {{}}."),
    "same feature": ("[columns.'a=b']\nkind = 'number'\nrange = [0, 1]\n[columns.a]\nkind = 'category'\nlevels = ['b']", "columns and levels must have names that give different features, got 'a=b' twice."),
}  # fmt: skip


@pytest.mark.parametrize(("text", "message"), REFUSED.values(), ids=REFUSED)
def test_an_inconsistency_is_one_sentence_with_file_column_and_value(tmp_path, text, message):
    path = tmp_path / "schema.toml"
    path.write_text(text)
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        cs.Schema.load(path)
    assert str(caught.value) == f"{path}: {message.format()}"


def test_files_that_are_no_schema(tmp_path):
    path = tmp_path / "a.toml"
    with pytest.raises(FileNotFoundError, match=f"^path must be an existing file, got {path}.$"):
        cs.Schema.load(path)
    for name, text in {"a.toml": "target = ", "a.json": "{", "b.json": "[" * 100_000, "b.toml": "\xff"}.items():
        (tmp_path / name).write_text(text, "latin-1")
        with pytest.raises(ValueError, match=r"must be a schema in (TOML|JSON), got a file that is not: "):
            cs.Schema.load(tmp_path / name)
    (tmp_path / "c.json").write_text("[]")
    with pytest.raises(ValueError, match=r"c.json must be a schema, got \[\].$"):
        cs.Schema.load(tmp_path / "c.json")
    for use in (cs.Schema.load, SCHEMA.save):
        with pytest.raises(ValueError, match=r"^the ending of a.yaml must be one of '.toml', '.json', got '.yaml'.$"):
            use("a.yaml")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: cs.Schema({}), "columns must describe at least one column, got {}."),
        (lambda: cs.Schema([Number(0, 1)]), "columns must describe at least one column, got [Number(low=0"),
        (lambda: cs.Schema({"a": Number}), "columns must map names to kinds such as Number(0, 1), got 'a': <class"),
        (
            lambda: cs.Schema({"a": "number"}),
            "columns must map names to kinds such as Number(0, 1), got 'a': 'number'.",
        ),
        (lambda: cs.Schema({"a": Category("abc")}), "levels of column 'a' must be a list of at least one, got 'abc'."),
        (lambda: cs.Schema({"a": Category([1])}), "levels of column 'a' must be words without outer spaces, got 1."),
        (lambda: cs.Schema({"a": Category(None)}), "levels of column 'a' must be a list of at least one, got None."),
        (lambda: cs.Schema({"a": YesNo(1, 0)}), "yes, no and gap of column 'a' must be words, got 1."),
        (lambda: cs.Schema({"a": YesNo(gap=True)}), "yes, no and gap of column 'a' must be words, got True."),
        (lambda: cs.Schema({"a": Date(datetime(2020, 1, 1), date(2021, 1, 1))}), "column 'a' must have dates such as"),
    ],
)
def test_mistakes_in_python(make, message):
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        make()
    assert str(caught.value).startswith(message)
