"""`clipsilon ledger`, as its users type it."""

import json

import pytest

import clipsilon as cs
from command_line import run

STEP = cs.schedules.Power(0.2, 0.5)


@pytest.fixture
def ledger(tmp_path):
    path = tmp_path / "ledger.db"
    with cs.local.Server(path, start=[0.0, 0.0], step=STEP, repeats="compose") as server:
        for user, mu in [("ann", 3.0), ("bob", 1.0), ("ann", 4.0)]:
            server.apply(user, mu, server.version, [0.1, 0.2])
    return path


def test_ledger(ledger):
    done = run("ledger", ledger, "--delta", "1e-5")
    assert done.exit_code == 0
    assert done.output.startswith(
        "3 reports from 2 users, 1 of whom sent several; at δ = 1e-05, ε ranges from 4.377 to"
    )
    content = json.loads(run("ledger", ledger, "--delta", "1e-5", "--format", "json").output)
    assert content["each"]["ann"]["mu"] == 5.0
    for name, count in (("users", 2), ("reports", 3), ("users_with_several_reports", 1)):
        assert content[name] == count
        assert isinstance(content[name], int)


def test_ledger_refuses_in_one_sentence(ledger, tmp_path):
    assert (
        run("ledger", ledger, "--delta", "2").output == "Error: delta must be a number above 0 and below 1, got 2.0.\n"
    )
    done = run("ledger", tmp_path / "missing.db", "--delta", "1e-5")
    assert (done.exit_code, done.output.count("\n")) == (1, 1)
    assert "cannot be opened as a ledger: No such file or directory." in done.output
    with cs.local.Server(ledger, start=[0.0, 0.0], step=STEP, repeats="compose"):
        assert "is in use" in run("ledger", ledger, "--delta", "1e-5").output
