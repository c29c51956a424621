"""`clipsilon audit-training`, as its users type it: scripts that read a CSV file and write predictions."""

import csv
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from clipsilon.cli.main import main
from clipsilon.cli.scripts import parse_command, read_predictions
from command_line import run

PYTHON = (sys.executable, "-I", "-S")  # starts in a hundredth of a second
WORDS = ["--target", "paid", "--delta", "1e-5", "--adjacency", "add-remove", "--quiet"]
PLACES = ["{train}", "{test}", "{predictions}"]

# The share of "yes" among the records, with noise that the last line sets.
SCRIPT = """
import csv, random, sys
train, test, predictions = sys.argv[1:4]
with open(train, newline="") as file:
    rows = list(csv.DictReader(file, delimiter=";"))
with open(test, newline="") as file:
    asked = list(csv.DictReader(file, delimiter=";"))
assert set(rows[0]) - set(asked[0]) == {"paid"} and {row["town"] for row in rows} == {"A;B", "C"}
share = sum(row["paid"] == "yes" for row in rows) / 30
"""
WRITE = """
with open(predictions, "w", newline="") as file:
    csv.writer(file).writerows([["P(no)", "P(yes)"], *([1 - share, share] for _ in asked)])
"""
NOISE = "share += random.SystemRandom().gauss(0, {std}); share = min(max(share, 1e-3), 1 - 1e-3)"


@pytest.fixture
def data(tmp_path):
    draw = random.Random(0)
    path = tmp_path / "data.csv"
    with path.open("w", newline="") as file:
        rows = [[draw.choice(["A;B", "C"]), f"{draw.gauss(0, 1):.3f}", draw.choice(["no", "yes"])] for _ in range(30)]
        csv.writer(file, delimiter=";").writerows([["town", "income", "paid"], *rows])
    return path


@pytest.fixture
def script(tmp_path):
    def write(*lines):
        path = tmp_path / "train.py"
        path.write_text("\n".join(lines))
        return [*PYTHON, str(path), *PLACES]

    return write


@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
def test_a_script_whose_noise_is_divided_twice_is_found(data, script, adjacency):
    """The share changes by 1/30; a deviation of 1/6 on it is an ε of about 1 at most, and one of 1/180 is the bug."""
    command = script(SCRIPT, NOISE.format(std=1 / 180), WRITE)
    words = [*WORDS[:-2], adjacency, "--quiet"]
    done = run("audit-training", data, *words, "--claimed", "1", "--runs", "40", "--seed", "0", "--", *command)
    assert done.exit_code == 0
    assert "Training, 40 runs with 1 canary each: an attack shows ε ≥ 1." in done.output
    assert done.output.endswith("The claimed ε = 1 is refuted.\n")


def test_a_script_with_its_noise_is_not_accused(data, script):
    """False alarm: below 1e-6. To refute, 38 of 40 guesses must be right, and each is with a probability of 0.54."""
    command = script(SCRIPT, NOISE.format(std=1 / 6), WRITE)
    options = ["--claimed", "1", "--runs", "40", "--confidence", "0.99", "--format", "json", "--seed", "0"]
    done = run("audit-training", data, *WORDS, *options, "--", *command)
    found = json.loads(done.output)
    assert found["refuted"] is False
    assert found["limit"] > 1  # it could have been
    assert (found["runs"], found["planned_runs"], found["adjacency"]) == (40, 40, "add-remove")


def test_the_command_may_be_one_text(data, script):
    command = script(SCRIPT, WRITE)
    done = run("audit-training", data, *WORDS, "--runs", "3", " ".join(command))
    assert done.exit_code == 0


def test_a_failing_script_is_reported_with_its_run(data, script):
    done = run("audit-training", data, *WORDS, "--", *script("import sys", "sys.exit('out of data')"))
    assert done.exit_code == 1
    message = "Error: The audited code failed in run 1 of 100: ChildProcessError: the script ended with exit code 1: "
    assert done.output == f"{message}out of data\n"


def test_what_was_found_before_a_failure_is_printed(data, script, tmp_path):
    counter = f"from pathlib import Path; calls = Path({str(tmp_path / 'calls')!r})"
    count = "seen = len(calls.read_text()) if calls.exists() else 0; calls.write_text('x' * (seen + 1))"
    command = script(SCRIPT, counter, count, "if seen == 2: sys.exit(4)", WRITE)
    done = run("audit-training", data, *WORDS, "--runs", "4", "--", *command)
    assert done.output.startswith("Training, 2 runs with 1 canary each")
    assert "exit code 4: it wrote no error message (above is what the 2 runs before it show)" in done.output
    (tmp_path / "calls").unlink()
    done = run("audit-training", data, *WORDS, "--runs", "4", "--skip-errors", "--", *command)
    assert done.exit_code == 0
    assert "1 run failed and counts as a blind guess: run 3 of 4" in done.output


def test_a_script_that_hangs_is_ended_with_its_children(data, tmp_path):
    """A shell has started its child long before three seconds are over."""
    pid = tmp_path / "pid"
    command = ["sh", "-c", f"sleep 600 & echo $! > {pid}; sleep 600", *PLACES]
    done = run("audit-training", data, *WORDS, "--timeout", "3", "--", *command)
    assert done.exit_code == 1
    assert "run 1 of 100: TimeoutError: the script did not finish within 3 seconds." in done.output
    assert is_gone(int(pid.read_text()))


def is_gone(pid):
    """Wait until a process has ended; a killed one may be waiting for its parent."""
    for _ in range(100):
        try:
            os.kill(pid, 0)
            if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                return True
        except (ProcessLookupError, FileNotFoundError):
            return True
        time.sleep(0.05)
    return False


def test_control_c_prints_what_was_found(data, script, tmp_path):
    """In a process of its own: the third run waits until it is interrupted."""
    calls = tmp_path / "calls"
    count = f"from pathlib import Path; calls = Path({str(calls)!r})\nseen = len(calls.read_text()) if calls.exists() else 0\ncalls.write_text('x' * (seen + 1))"
    command = script(SCRIPT, count, "if seen == 2:\n    import time; time.sleep(600)", WRITE)
    code = "from clipsilon.cli.main import main; main()"
    words = [sys.executable, "-c", code, "audit-training", str(data), *WORDS, "--", *command]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    while not (calls.exists() and len(calls.read_text()) == 3):
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 130
    assert output.startswith("Training, 2 runs with 1 canary each")
    assert "Stopped before the planned 100 runs" in output


def test_bad_input(data, tmp_path):
    command = ["--", "python", "train.py", *PLACES]
    done = run("audit-training", data, *WORDS, "--", "python", "train.py", "{train}")
    assert done.output == (
        "Error: COMMAND must have a place for each of the three files, got none for {test}, {predictions}.\n"
    )
    done = run("audit-training", data, "--target", "x", *WORDS[2:], *command)
    assert "target must be one of 'town', 'income', 'paid', got 'x'" in done.output
    done = run("audit-training", data, *WORDS, "--timeout", "0", *command)
    assert "timeout must be a number above 0, got 0.0" in done.output
    done = run("audit-training", data, *WORDS, "--", "no-such-program", *PLACES)
    assert "run 1 of 100: FileNotFoundError" in done.output
    (tmp_path / "gap.csv").write_text("x,paid\n1,\n2,yes\n")
    done = run("audit-training", tmp_path / "gap.csv", *WORDS, *command)
    assert "column 'paid' must have a value in every row, got none in row 2" in done.output
    (tmp_path / "table.parquet").write_text("")
    assert "Error: path must be" in run("audit-training", tmp_path / "table.parquet", *WORDS, *command).output
    done = run("audit-training", data, "--target", "paid", "--delta", "0", *command)
    assert "Missing option '--adjacency'" in done.output


PREDICTIONS = {
    "by label": ("no,yes\n0.25,0.75\n", ["no", "yes"], [[0.25, 0.75]]),
    "as our own": ("prediction,P(no),P(yes)\nyes,0.25,0.75\n", ["no", "yes"], [[0.25, 0.75]]),
    "labels": ("prediction\nyes\n", [], ["yes"]),
    "one column": ("guess\nno\n", [], ["no"]),
}


@pytest.mark.parametrize("name", PREDICTIONS)
def test_predictions(name, tmp_path):
    text, classes, values = PREDICTIONS[name]
    (tmp_path / "p.csv").write_text(text)
    found = read_predictions(tmp_path / "p.csv", {"no": "no", "yes": "yes"}, 1)
    assert found.classes == classes
    assert found.values.tolist() == values


def test_predicted_numbers(tmp_path):
    (tmp_path / "p.csv").write_text("prediction,spread\n3.5,1\n4,1\n")
    assert read_predictions(tmp_path / "p.csv", {1.0: "1", 2.0: "2.0"}, 2).values.tolist() == [3.5, 4.0]


BAD = {
    "several columns": ("a,b\n1,2\n", "predictions must have a column 'prediction', or one per label, got a, b"),
    "numbers for labels": ("prediction\n0.7\n", "must hold labels, like the target, got numbers: write probabilities"),
    "text for probabilities": ("no,yes\n0.5,x\n", "column 'yes' of the predictions must hold finite numbers, got 'x'"),
    "rows": ("prediction\nyes\nno\n", "predictions must have a row for each of 1 in {test}, got 2"),
    "no header": ("0.7\n", "must name the columns"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_predictions(name, tmp_path):
    text, message = BAD[name]
    (tmp_path / "p.csv").write_text(text)
    with pytest.raises(ValueError, match=message):
        read_predictions(tmp_path / "p.csv", {"no": "no", "yes": "yes"}, 1)
    with pytest.raises(ValueError, match="the script must write its predictions to {predictions}, got no such file"):
        read_predictions(tmp_path / "none.csv", {"no": "no"}, 1)


def test_a_text_is_split_as_a_shell_would():
    assert parse_command(["python 'my train.py' {train} {test} {predictions}"])[1] == "my train.py"


def test_the_help_shows_an_example():
    help_text = run("audit-training", "--help").output
    assert "{train}" in help_text
    assert main.get_command(None, "audit-training").name == "audit-training"
