"""Reading a user's table: what comes out, and one sentence for each thing that can be wrong."""

import csv

import numpy as np
import pytest

from clipwise.tables import binary_labels, read_table, real_labels


@pytest.fixture
def write(tmp_path):
    def write(text, encoding="utf-8"):
        path = tmp_path / "data.csv"
        path.write_bytes(text.encode(encoding) if isinstance(text, str) else text)
        return path

    return write


@pytest.mark.parametrize("mark", [",", ";", "\t"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_what_comes_out(write, mark, end):
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


def test_labels_are_taken_in_sorted_order(write):
    numbers = read_table(write("x,y\n1,10\n2,9\n3,9.0\n"), "y")  # as text, "10" would come first
    labels, one = binary_labels(numbers)
    assert labels.tolist() == [1.0, 0.0, 0.0]
    assert one == "10"
    assert real_labels(numbers).tolist() == [10.0, 9.0, 9.0]
    words = read_table(write("x,y\n1,good\n2,bad\n"), "y")
    assert binary_labels(words)[1] == "good"


def test_numbers_survive_to_the_last_digit(write):
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
        "features in {path} must be finite numbers, got others in 'b' (such as 'x'), 'c' (such as 'red'): encode or remove.",
    ),
    "infinite": (
        "a,y\n1,0\ninf,1\n", "y",
        "features in {path} must be finite numbers, got others in 'a' (such as 'inf'): encode or remove.",
    ),
    "empty cell": ("a,b,y\n1,2,0\n1,,1\n", "y", "column 'b' must have a value in every row, got '' in row 3."),
    "after a blank line": ("a,y\n1,0\n\nNaN,1\n", "y", "column 'a' must have a value in every row, got 'NaN' in row 4."),
    "NA": ("a,y\n1,0\n2,NA\n", "y", "column 'y' must have a value in every row, got 'NA' in row 3."),
    "constant target": ("a,y\n1,7\n2,7.0\n", "y", "target 'y' must take more than one value, got '7' in every row."),
    "constant text": ("a,y\n1,no\n2,no\n", "y", "target 'y' must take more than one value, got 'no' in every row."),
    "short row": ("a,b,y\n1,2,0\n1,2\n", "y", "row 3 of {path} must have 3 cells, as the header, got 2."),
    "long row": ("a,y\n1,0\n1,2,3\n", "y", "row 3 of {path} must have 2 cells, as the header, got 3."),
    "no rows": ("a,y\n", "y", "{path} must have rows below its header, got none."),
    "blank rows": ("a,y\n\n\n", "y", "{path} must have rows below its header, got none."),
    "empty file": ("", "y", "the first row of {path} must name the columns, got nothing."),
    "no header": ("1,2\n3,4\n", "2", "the first row of {path} must name the columns, got 1, 2."),
    "no name": (",a,y\n0,1,2\n1,2,3\n", "y", "column 1 of {path} must have a name, got none (is it an index? take it out)."),
    "same name": ("a,y,a\n0,1,2\n1,2,3\n", "y", "the columns of {path} must have different names, got 'a' twice."),
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
        assert str(caught.value) == f"path must name a file, got {path}, where there is none."


def test_labels_that_a_loss_cannot_take(write):
    three = read_table(write("a,y\n1,0\n2,1\n3,2\n"), "y")
    with pytest.raises(ValueError, match="^target 'y' must take two values for labels 0 and 1, got 3.$"):
        binary_labels(three)
    words = read_table(write("a,y\n1,0\n2,many\n"), "y")
    with pytest.raises(ValueError, match="^target 'y' must hold numbers, got text such as 'many'.$"):
        real_labels(words)
