"""Reading a user's table, and one sentence for each fault."""

import csv
import datetime
import decimal
import sys

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from clipsilon.cli import columns
from clipsilon.cli.tables import binary_labels, read_features, read_table, real_labels


@pytest.fixture
def write(tmp_path):
    def write(text, encoding="utf-8"):
        path = tmp_path / "data.csv"
        path.write_bytes(text.encode(encoding) if isinstance(text, str) else text)
        return path

    return write


@pytest.mark.parametrize("mark", [",", ";", "\t"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_read_table(write, mark, end):
    rows = [["age", "paid", "debt, total"], ["31", "no", "1e3"], ["-4.5", "yes", " 7 "], ["0", "no", "0.25"]]
    quoted = [[f'"{cell}"' if "," in cell else cell for cell in row] for row in rows]
    table = read_table(write(end.join(mark.join(row) for row in quoted)), "paid")
    np.testing.assert_array_equal(table.features, [[31, 1000], [-4.5, 7], [0, 0.25]])
    assert table.features.dtype == np.float64
    assert table.columns == ("age", "debt, total")
    assert table.target_name == "paid"
    assert table.target.tolist() == ["no", "yes", "no"]
    labels, one = binary_labels(table)
    assert labels.tolist() == [0.0, 1.0, 0.0]
    assert one == "yes"


def test_labels_follow_the_sorted_order(write):
    numbers = read_table(write("x,y\n1,10\n2,9\n3,9.0\n"), "y")  # as text, "10" would come first
    labels, one = binary_labels(numbers)
    assert labels.tolist() == [1.0, 0.0, 0.0]
    assert one == "10"
    assert real_labels(numbers).tolist() == [10.0, 9.0, 9.0]
    words = read_table(write("x,y\n1,good\n2,bad\n"), "y")
    assert binary_labels(words)[1] == "good"


def test_numbers_are_read_exactly(write):
    values = np.random.default_rng(0).standard_normal((20, 3)) * 10.0 ** np.arange(-8, 10, 6)
    path = write("")
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([["a", "b", "y"], *values.tolist()])
    table = read_table(str(path), "y")
    np.testing.assert_array_equal(np.column_stack([table.features, real_labels(table)]), values)


def test_a_byte_order_mark_blank_lines_and_quoted_line_ends(write):
    table = read_table(write('y,"a\nb"\n1,2\n\n3,4\n\n', encoding="utf-8-sig"), "y")
    assert table.columns == ("a\nb",)
    assert table.target.tolist() == [1.0, 3.0]


REFUSED = {
    "no target": ("a,b\n1,2\n3,4\n", "y", "target must be one of 'a', 'b', got 'y'."),
    "text": (
        "a,b,c,y\n1,x,red,0\n2,5,blue,1\n", "y",
        "features in {path} must be finite numbers, got other values in 'b' (such as 'x'), 'c' (such as 'red'): encode or drop these columns.",
    ),
    "infinite": (
        "a,y\n1,0\ninf,1\n", "y",
        "features in {path} must be finite numbers, got other values in 'a' (such as 'inf'): encode or drop these columns.",
    ),
    "empty cell": ("a,b,y\n1,2,0\n1,,1\n", "y", "features in {path} must be finite numbers, got other values in 'b' (1 gap(s), the first '' in row 3): encode or drop these columns."),
    "many empty": (
        "a,b,y\n1,2,0\nNA,,1\n,,1\n3,4,1\n", "y",
        "features in {path} must be finite numbers, got other values in 'a' (2 gap(s), the first 'NA' in row 3), 'b' (2 gap(s), the first '' in row 3): encode or drop these columns.",
    ),
    "after a blank line": ("a,y\n1,0\n\nNaN,1\n", "y", "features in {path} must be finite numbers, got other values in 'a' (1 gap(s), the first 'NaN' in row 4): encode or drop these columns."),
    "NA": ("a,y\n1,0\n2,NA\n", "y", "target 'y' must have a value in every row, got 1 gap(s), the first 'NA' in row 3."),
    "constant target": ("a,y\n1,7\n2,7.0\n", "y", "target 'y' must take more than one value, got '7' in every row."),
    "constant text": ("a,y\n1,no\n2,no\n", "y", "target 'y' must take more than one value, got 'no' in every row."),
    "short row": ("a,b,y\n1,2,0\n1,2\n", "y", "row 3 of {path} must have 3 cells, like the header, got 2."),
    "long row": ("a,y\n1,0\n1,2,3\n", "y", "row 3 of {path} must have 2 cells, like the header, got 3."),
    "no rows": ("a,y\n", "y", "{path} must have rows below its header, got none."),
    "blank rows": ("a,y\n\n\n", "y", "{path} must have rows below its header, got none."),
    "empty file": ("", "y", "the first row of {path} must name the columns, got nothing."),
    "no header": ("1,2\n3,4\n", "2", "the first row of {path} must name the columns, got 1, 2."),
    "no name": (",a,y\n0,1,2\n1,2,3\n", "y", "column 1 of {path} must have a name, got none (if it is an index, remove it)."),
    "same name": ("a,y,a\n0,1,2\n1,2,3\n", "y", "the columns of {path} must have distinct names, got 'a' twice."),
    "target only": ("y\n0\n1\n", "y", "{path} must have columns besides the target 'y', got none."),
    "not UTF-8": (b"a,y\n\xff\xfe,1\n", "y", "path must be a CSV file in UTF-8, got {path}, which is not one."),
    "not text": (b"PAR1\x00\x15\x04\xff", "y", "path must be a CSV file in UTF-8, got {path}, which is not one."),
}  # fmt: skip


@pytest.mark.parametrize(("content", "target", "message"), REFUSED.values(), ids=REFUSED)
def test_refusals(write, content, target, message):
    path = write(content)
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        read_table(path, target)
    assert str(caught.value) == message.format(path=path)


def test_a_missing_file(tmp_path):
    for path in (tmp_path / "none.csv", tmp_path):
        with pytest.raises(FileNotFoundError) as caught:
            read_table(path, "y")
        assert str(caught.value) == f"path must be an existing file, got {path}."


def test_labels_that_a_loss_does_not_accept(write):
    three = read_table(write("a,y\n1,0\n2,1\n3,2\n"), "y")
    with pytest.raises(ValueError, match="^target 'y' must take two values for labels 0 and 1, got 3.$"):
        binary_labels(three)
    words = read_table(write("a,y\n1,0\n2,many\n"), "y")
    with pytest.raises(ValueError, match="^target 'y' must hold numbers, got text such as 'many'.$"):
        real_labels(words)


def test_ignored_columns_may_hold_anything(write):
    path = write("id,a,note,y\nx1,1,,0\nx2,2,late,1\n")
    table = read_table(path, "y", ignore=["note", "id"])
    assert table.columns == ("a",)
    assert table.features.tolist() == [[1.0], [2.0]]
    for name in ("y", "b"):
        with pytest.raises(ValueError, match=f"^ignore must be one of 'id', 'a', 'note', got '{name}'.$"):
            read_table(path, "y", ignore=[name])
    with pytest.raises(ValueError, match="must have columns besides the target 'y', got none.$"):
        read_table(path, "y", ignore=["note", "id", "a"])


def test_features_have_the_requested_order(write):
    path = write("a,b,c\n1,2,x\n3,4,\n")
    assert read_features(path, ["b", "a"]).tolist() == [[2.0, 1.0], [4.0, 3.0]]
    with pytest.raises(ValueError, match="must have the columns of the model, got none named 'z', 'd'.$"):
        read_features(path, ["z", "a", "d"])
    with pytest.raises(
        ValueError, match=r"got other values in 'c' \(such as 'x'; 1 gap\(s\), the first '' in row 3\): the model"
    ):
        read_features(path, ["c"])


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 100])
def test_chunks_make_no_difference(write, monkeypatch, chunk):
    monkeypatch.setattr(columns, "_CHUNK", chunk)
    words = read_table(write("a,y\n1,1\n2,2\n\n3,three\n4,2\n5,1\n\n"), "y")  # text that appears in a late chunk
    assert words.features.ravel().tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert words.target.tolist() == ["1", "2", "three", "2", "1"]
    with pytest.raises(ValueError, match=r"other values in 'a' \(3 gap\(s\), the first '' in row 3\): encode"):
        read_table(write("a,y\n1,1\n,2\n3,1\nNA,2\n\nnull,2\n"), "y")
    with pytest.raises(ValueError, match="got other values in 'a' \\(such as 'x'\\), 'b' \\(such as 'z'\\)"):
        read_table(write("a,b,y\n1,1,1\nx,2,2\n3,z,1\ny,w,1\n"), "y")
    with pytest.raises(ValueError, match="^row 5 of .* must have 2 cells, like the header, got 1.$"):
        read_table(write("a,y\n1,1\n\n1,2\n7\n"), "y")


PLAIN = {"a": [1.5, -2.0, 3.25], "b": [7, 8, 9], "y": ["no", "yes", "no"]}


@pytest.fixture
def save(tmp_path):
    def save(content, name="data.parquet"):
        parquet.write_table(content if isinstance(content, pa.Table) else pa.table(content), tmp_path / name)
        return tmp_path / name

    return save


@pytest.mark.parametrize("name", ["data.parquet", "data.PQ", "data.parq"])
def test_parquet_is_read_as_csv_is(write, save, name):
    one = read_table(write("a,b,y\n1.5,7,no\n-2,8,yes\n3.25,9,no\n"), "y")
    other = read_table(save(PLAIN, name), "y")
    np.testing.assert_array_equal(one.features, other.features)
    assert one.target.tolist() == other.target.tolist()
    assert one[2:] == other[2:]
    assert read_features(save(PLAIN, name), ["b", "a"]).tolist() == [[7.0, 1.5], [8.0, -2.0], [9.0, 3.25]]


def test_every_type_of_number_in_parquet(save):
    kinds = {
        "int8": pa.array([1, 2], pa.int8()),
        "uint64": pa.array([1, 2**63], pa.uint64()),
        "half": pa.array(np.array([1.0, 2.0], dtype=np.float16)),
        "float": pa.array([1.0, 2.5], pa.float32()),
        "decimal": pa.array([decimal.Decimal("1.25"), decimal.Decimal("2.50")]),
        "true": pa.array([True, False]),
        "text": pa.array(["1", " 2e3"]),
        "category": pa.array(["1", "2"]).dictionary_encode(),
    }
    table = read_table(save({**kinds, "y": [True, False]}), "y")
    assert table.features.T.tolist() == [[1, 2], [1, 2.0**63], [1, 2], [1, 2.5], [1.25, 2.5], [1, 0], [1, 2000], [1, 2]]
    assert table.target.tolist() == ["True", "False"]  # as a CSV file would have it
    assert read_table(save({"x": [1, 2], "y": [4, 5]}), "y").target.tolist() == [4.0, 5.0]


TWICE = pa.Table.from_arrays([pa.array([1, 2])] * 3, names=["a", "a", "y"])
REFUSED_PARQUET = {
    "null": ({**PLAIN, "b": [7, None, None]}, "features in {path} must be finite numbers, got other values in 'b' (2 gap(s), the first 'nan' in row 2): encode or drop these columns."),
    "NaN": ({**PLAIN, "a": [1.0, 2.0, np.nan]}, "features in {path} must be finite numbers, got other values in 'a' (1 gap(s), the first 'nan' in row 3): encode or drop these columns."),
    "null target": ({**PLAIN, "y": ["no", None, "yes"]}, "target 'y' must have a value in every row, got 1 gap(s), the first '' in row 2."),
    "nothing": ({**PLAIN, "b": pa.nulls(3)}, "features in {path} must be finite numbers, got other values in 'b' (3 gap(s), the first '' in row 1): encode or drop these columns."),
    "infinite": ({**PLAIN, "a": [1.0, -np.inf, 2.0]}, "features in {path} must be finite numbers, got other values in 'a' (such as '-inf'): encode or drop these columns."),
    "text": ({**PLAIN, "b": ["x", "y", "z"]}, "features in {path} must be finite numbers, got other values in 'b' (such as 'x'): encode or drop these columns."),
    "date": ({**PLAIN, "b": [datetime.date(2020, 1, 2)] * 3}, "features in {path} must be finite numbers, got other values in 'b' (such as '2020-01-02'): encode or drop these columns."),
    "list": ({**PLAIN, "b": [[1], [2], [3]]}, "features in {path} must be finite numbers, got other values in 'b' (such as '[1]'): encode or drop these columns."),
    "constant": ({**PLAIN, "y": [3, 3, 3]}, "target 'y' must take more than one value, got '3' in every row."),
    "no target": ({"a": [1, 2]}, "target must be one of 'a', got 'y'."),
    "no rows": ({"a": pa.array([], pa.int64()), "y": pa.array([], pa.int64())}, "{path} must have rows below its header, got none."),
    "no columns": (pa.table({}), "{path} must have columns, got none."),
    "same name": (TWICE, "the columns of {path} must have distinct names, got 'a' twice."),
    "index": ({**PLAIN, "__index_level_0__": [5, 6, 7]}, "column '__index_level_0__' of {path} is an index that pandas wrote: leave it out."),
}  # fmt: skip


@pytest.mark.parametrize(("content", "message"), REFUSED_PARQUET.values(), ids=REFUSED_PARQUET)
def test_refusals_of_parquet(save, content, message):
    path = save(content)
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        read_table(path, "y")
    assert str(caught.value) == message.format(path=path)


def test_an_index_can_be_left_out(save):
    path = save({**PLAIN, "__index_level_0__": [5, 6, 7]})
    assert read_table(path, "y", ignore=["__index_level_0__"]).columns == ("a", "b")


def test_a_damaged_parquet_file(save):
    path = save({"a": np.arange(10_000) % 977, "y": np.arange(10_000)})
    whole = path.read_bytes()
    for content in (b"", b"a,y\n1,2\n", whole[:-20], whole[:200] + b"?" * 2000 + whole[2200:]):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="^path must be a Parquet file, got .*, which is not one or is damaged.$"):
            read_table(path, "y")


def test_parquet_without_pyarrow(save, monkeypatch):
    path = save(PLAIN)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        read_table(path, "y")
    assert str(caught.value) == f"Reading {path} needs pyarrow: run pip install 'clipsilon[parquet]'."
