"""`clipsilon account`, as its users type it."""

import json

import pytest

import clipsilon as cs
from command_line import run

DICE = ["DiceSGD", "--noise-std", "1", "--records", "1000", "--steps", "50", "--delta", "1e-5", "--residual-cap", "2"]


def test_account():
    rule = cs.DiceSGD(cs.schedules.Constant(1.0), 1.0, 1.0, 1.0, residual_cap=2.0)
    expected = cs.account(rule, 1000, 50, 1e-5)
    assert run("account", *DICE).output == f"{expected}\n"
    assert json.loads(run("account", *DICE, "--format", "json").output) == expected.to_dict()
    assert run("account", *DICE, "--format", "markdown").output.startswith("**DiceSGD**, 50 steps on 1000 records")


def test_every_preset_has_a_statement():
    for preset in ("PCSGD", "DPSGD", "AdamDiceSGD", "AutoDiceSGD"):
        words = [preset, "--noise-std", "1", "--records", "100", "--steps", "5", "--delta", "1e-5", "--batch", "3"]
        assert "certified: ε = " in run("account", *words, "--sampling", "epochs").output


def test_presets_ignore_case():
    assert run("account", "dicesgd", *DICE[1:]).output == run("account", *DICE).output


def test_presets_of_paper_5():
    words = ["--records", "59535", "--steps", "2381", "--delta", "1e-5"]
    gamma = run("account", "GammaDPSGD", "--scale", "0.57", "--batch", "250", "--adjacency", "add-remove", *words)
    assert "certified: ε = 1.62" in gamma.output
    assert "--scale must be given for GammaDPSGD" in run("account", "GammaDPSGD", *words).output
    full = run("account", "DPGD", "--lipschitz", "2", "--noise-std", "0.1", *words)
    assert "certified: ε = " in full.output
    assert full.output == run("account", "ClippedDPGD", "--clip", "2", "--noise-std", "0.1", *words).output.replace(
        "ClippedDPGD", "DPGD"
    )
    selection = ["NoisySelection", "--lipschitz", "2", "--noise-std", "0.1", *words]
    rule = cs.NoisySelection(cs.schedules.Constant(1.0), 2.0, 0.1, 0.5)
    stated = run("account", *selection, "--selection-epsilon", "0.5").output
    assert stated == f"{cs.account(rule, 59_535, 2381, 1e-5)}\n"
    assert "--selection-epsilon must be given for NoisySelection" in run("account", *selection).output


def test_local_presets_have_budgets():
    words = ["--records", "100", "--steps", "100", "--delta", "1e-5"]
    assert "μ = 2 for the least protected" in run("account", "LDPSGD", "--budget", "2", *words).output
    assert "--budget must be given for LDPASGD" in run("account", "LDPASGD", *words).output
    assert "--noise-std does not apply to LDPSGD" in run("account", "LDPSGD", "--noise-std", "1", *words).output
    assert "--noise-std must be given for DPSGD" in run("account", "DPSGD", *words).output
    assert "clipsilon.local.audit" in run("audit", "LDPSGD", "--budget", "2", *words).output


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
        assert done.output.endswith("Error: --residual-cap does not apply to PCSGD.\n")
    else:
        assert done.output.count("\n") == 1
