"""`clipsilon claims`, as its users type it."""

import csv
import io

import clipsilon as cs
from command_line import run


def test_claims():
    rows = list(csv.reader(io.StringIO(run("claims", "--csv").output)))
    assert rows[0][0] == "paper"
    assert len(rows) == 1 + len(cs.claims())
    assert "DP-SGD with Gamma noise" in run("claims").output


def test_an_interrupted_table_ends_in_one_line(monkeypatch):
    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr("clipsilon.cli.claims.claims", interrupted)
    done = run("claims", "--audit-runs", 10)
    assert (done.exit_code, done.output) == (130, "Stopped: the table was not complete.\n")
