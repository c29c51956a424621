"""The commands that state privacy, as a reviewer types them."""

import csv
import io
import json

import pytest
from click.testing import CliRunner

import clipwise as cw
from clipwise import cli

DICE = ["DiceSGD", "--noise-std", "1", "--records", "1000", "--steps", "50", "--delta", "1e-5", "--residual-cap", "2"]


def run(*words):
    return CliRunner().invoke(cli.main, list(words), catch_exceptions=False)


def test_account():
    rule = cw.DiceSGD(cw.steps.Constant(1.0), 1.0, 1.0, 1.0, residual_cap=2.0)
    expected = cw.account(rule, 1000, 50, 1e-5)
    assert run("account", *DICE).output == f"{expected}\n"
    assert json.loads(run("account", *DICE, "--format", "json").output) == expected.to_dict()
    assert run("account", *DICE, "--format", "markdown").output.startswith("**DiceSGD**, 50 steps on 1000 records")


def test_every_preset_can_be_accounted():
    for preset in ("PCSGD", "DPSGD", "AdamDiceSGD", "AutoDiceSGD"):
        words = [preset, "--noise-std", "1", "--records", "100", "--steps", "5", "--delta", "1e-5", "--batch", "3"]
        assert "certified ε = " in run("account", *words, "--sampling", "epochs").output


def test_local_presets_have_budgets():
    words = ["--records", "100", "--steps", "100", "--delta", "1e-5"]
    assert "μ = 2 for the least protected" in run("account", "LDPSGD", "--budget", "2", *words).output
    assert "--budget must be given for LDPASGD" in run("account", "LDPASGD", *words).output
    assert "--noise-std has no meaning for LDPSGD" in run("account", "LDPSGD", "--noise-std", "1", *words).output
    assert "--noise-std must be given for DPSGD" in run("account", "DPSGD", *words).output
    assert "audit_report" in run("audit", "LDPSGD", "--budget", "2", *words).output


def test_audit(tmp_path):
    words = ["DPSGD", "--noise-std", "0.2", "--records", "20", "--steps", "5", "--delta", "1e-5", "--sampling", "full"]
    done = run("audit", *words, "--runs", "300", "--seed", "0", "--plot", str(tmp_path / "curve.png"))
    assert done.exit_code == 0
    assert "an attack (whole run) on its noisy updates shows ε ≥" in done.output
    assert (tmp_path / "curve.png").exists()


def test_claims():
    rows = list(csv.reader(io.StringIO(run("claims", "--csv").output)))
    assert rows[0][0] == "paper"
    assert len(rows) == 1 + len(cw.claims())
    assert "DP-SGD with Gamma noise" in run("claims").output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([*DICE, "--delta", "2"], "Error: delta must be a number above 0 and below 1, got 2.0.\n"),
        ([*DICE, "--adjacency", "add-remove"], "Error: adjacency must be 'replace-one' or 'zero-out'"),
        ([*DICE, "--batch", "2000"], "Error: batch must be at most the number of records (1000), got 2000.\n"),
        (["PCSGD", *DICE[1:]], "Usage: "),
        ([*DICE, "--residual-cap", "0.5"], "Error: residual_cap must be at least clip (1.0), got 0.5.\n"),
    ],
)
def test_wrong_input_is_one_sentence(words, message):
    done = run("account", *words)
    assert done.exit_code > 0
    assert done.output.startswith(message)
    if done.exit_code == 2:
        assert done.output.endswith("Error: --residual-cap has no meaning for PCSGD.\n")
    else:
        assert done.output.count("\n") == 1
