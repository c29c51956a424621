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
