"""`clipsilon local simulate`: its table, its page, and what it refuses."""

import re

from command_line import run

SMALL = ("local", "simulate", "--devices", "2000", "--dimension", "2", "--replicates", "2", "--seed", "0", "--quiet")


def test_a_table_and_a_page(tmp_path):
    page = tmp_path / "page.html"
    done = run(*SMALL, "--batch", 5, "--batch", 20, "--dropout", 0.2, "--delay", 1, "--report", page)
    assert done.exit_code == 0
    assert f"wrote {page}" in done.output
    rows = [re.split(r"\s*│\s*", line)[1:-1] for line in done.output.splitlines() if line.startswith("│")]
    assert [row[0] for row in rows] == ["5", "20"]
    assert all(float(cell) > 0 for row in rows for cell in row[2:5])
    text = page.read_text("utf-8")
    for words in ("2000 simulated devices", "Error against devices", "Error against rounds", "Error against budgets",
                  "20% vanish; reports are 1 rounds late on average, and refused after 4", "theory, rounds of 20"):  # fmt: skip
        assert words in text
    assert run(*SMALL, "--batch", 5, "--report", page).exit_code == 0  # our own page is replaced


def test_lies_have_no_theory(tmp_path):
    page = tmp_path / "page.html"
    done = run(*SMALL, "--batch", 20, "--liars", 0.1, "--trim", 0.1, "--report", page)
    (row,) = [re.split(r"\s*│\s*", line)[1:-1] for line in done.output.splitlines() if line.startswith("│")]
    assert row[4] == "–"
    assert 100 < int(row[7]) < 300
    text = page.read_text("utf-8")
    assert "theory, rounds" not in text
    assert "10.0% lie; 10% of the values at each end are left out" in text


def test_what_is_refused_before_anything_is_computed(tmp_path):
    other = tmp_path / "other.html"
    other.write_text("mine")
    for options, words in {
        ("--budgets", "normal:1,2"): "budgets must be constant:NUMBER",
        ("--trim", "0.6"): "trim must be at least 0 and below 0.5, got 0.6",
        ("--step-size", "0"): "step_size must be a number above 0",
        ("--weights", "equal", "--variance", "1"): "variance must be left out with equal weights",
        ("--report", str(other)): "other.html",
    }.items():
        done = run(*SMALL, *options)
        assert done.exit_code != 0
        assert words in done.output
    assert other.read_text() == "mine"
