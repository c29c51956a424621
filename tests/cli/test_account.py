"""`clipsilon account`, as its users type it."""

import json
import re

import dp_accounting
import dp_accounting.pld
import dp_accounting.rdp
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
    rate = str(250 / 59535)
    gamma = run("account", "GammaDPSGD", "--scale", "0.57", "--sample-rate", rate, "--adjacency", "add-remove", *words)
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


# Settings as Opacus has them.

OPACUS = {"noise_multiplier": 1.1, "sample_rate": 0.01, "epochs": 5, "max_grad_norm": 1.0, "accountant": "prv"}
RUN = ["--records", "25000", "--delta", "1e-5", "--adjacency", "add-remove"]


def certified(*words):
    return json.loads(run("account", "DPSGD", *words, "--format", "json").stdout)["certified_epsilon"]


def test_a_noise_multiplier_is_not_the_noise_on_the_mean():
    """The old hint, --noise-std for --noise-multiplier, was followed: the noise is then B times as large."""
    batch = ["--records", "25000", "--delta", "1e-5", "--adjacency", "zero-out", "--batch", "250", "--steps", "500"]
    misled = certified(*batch, "--noise-std", "1.1")
    right = certified(*batch, "--noise-multiplier", "1.1")
    assert right > 700 * misled
    assert right == certified(*batch, "--noise-std", str(1.1 / 250))
    assert right == pytest.approx(certified(*batch, "--noise-multiplier", "1.1", "--clip", "3"), rel=1e-9)


def test_options_of_opacus_give_its_epsilon():
    rdp, pld = (other_epsilon(kind) for kind in (dp_accounting.rdp.RdpAccountant, dp_accounting.pld.PLDAccountant))
    found = certified(*RUN, "--noise-multiplier", "1.1", "--sample-rate", "0.01", "--steps", "500")
    assert 0.99 * pld <= found <= min(1.01 * pld, rdp)
    assert found == certified(*RUN, "--noise-multiplier", "1.1", "--sample-rate", "0.01", "--epochs", "5")
    assert found == certified(
        *RUN, "--noise-multiplier", "1.1", "--sample-rate", "0.01", "--epochs", "5", "--clip", "4"
    )


def other_epsilon(kind):
    """Return the ε of an accountant of dp-accounting at the settings above."""
    accountant = kind(neighboring_relation=dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
    event = dp_accounting.PoissonSampledDpEvent(0.01, dp_accounting.GaussianDpEvent(1.1))
    return accountant.compose(event, 500).get_epsilon(1e-5)


def test_a_file_of_opacus_settings(tmp_path):
    path = tmp_path / "opacus.json"
    path.write_text(json.dumps(OPACUS), encoding="utf-8")
    done = run("account", "DPSGD", "--config", path, *RUN, "--format", "json")
    assert "accountant 'prv' is not used" in done.stderr
    expected = certified(*RUN, "--noise-multiplier", "1.1", "--sample-rate", "0.01", "--steps", "500")
    assert json.loads(done.stdout)["certified_epsilon"] == expected
    more = {**OPACUS, "target_delta": 1e-5, "records": 25_000, "poisson_sampling": True}
    path.write_text(json.dumps(more), encoding="utf-8")
    assert certified("--config", path, "--adjacency", "add-remove") == expected
    tighter = certified("--config", path, "--adjacency", "add-remove", "--noise-multiplier", "2.2")
    assert tighter < expected  # options take precedence


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"learning_rate": 0.1}, "must have keys among noise_multiplier, sample_rate, .*, got 'learning_rate'"),
        ({"poisson_sampling": False}, "must have true as poisson_sampling, got False"),
        ({"accountant": "mine"}, 'must have "rdp" or "prv" or "gdp" as accountant, got \'mine\''),
        ({"noise_multiplier": "1.1"}, "must hold a number as noise_multiplier, got '1.1'"),
        ({"steps": 500.5}, "must hold a whole number as steps, got 500.5"),
        ({"delta": 1e-5, "target_delta": 1e-5}, "must name delta once, got 'target_delta' besides another name"),
        ({"steps": 500}, "Either --steps or --epochs must be given"),
        ({"sample_rate": 1.5}, "sample rate must be a number above 0 and at most 1, got 1.5"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_file_that_cannot_be_used_is_refused(tmp_path, change, message):
    path = tmp_path / "opacus.json"
    path.write_text(json.dumps({**OPACUS, **change}), encoding="utf-8")
    done = run("account", "DPSGD", "--config", path, *RUN)
    assert done.exit_code > 0
    assert re.search(message, " ".join(done.output.split()))


def test_a_file_with_a_batch_size_alone_is_refused(tmp_path):
    """With drop_last, Opacus draws 150 records in batches of 150 where batch_size is 100."""
    settings = {"batch_size": 100} | {name: value for name, value in OPACUS.items() if name != "sample_rate"}
    (tmp_path / "opacus.json").write_text(json.dumps(settings), encoding="utf-8")
    done = run("account", "DPSGD", "--config", tmp_path / "opacus.json", *RUN)
    assert done.exit_code > 0
    assert "must have sample_rate, 1/len(data_loader)," in done.output


def test_a_file_that_is_no_settings_is_refused(tmp_path):
    for content, message in (("[1]", "must hold one JSON object"), ("{", "must be a JSON file")):
        (tmp_path / "opacus.json").write_text(content, encoding="utf-8")
        done = run("account", "DPSGD", "--config", tmp_path / "opacus.json", *RUN)
        assert message in " ".join(done.output.split())
    assert "must be a JSON file" in run("account", "DPSGD", "--config", tmp_path / "none.json", *RUN).output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--max-grad-norm", "1"], "--max-grad-norm is called --clip here."),
        (["--accountant", "rdp"], "--accountant must be left out: there is one accountant"),
        (["--noise-std", "1", "--noise-multiplier", "1"], "Only one of --noise-std and --noise-multiplier"),
        (["--sampling", "epochs"], "--sampling must be poisson with --sample-rate, got epochs."),
        (["--epochs", "3", "--steps", "4"], "Either --steps or --epochs must be given."),
    ],
)
def test_options_that_mislead_say_what_to_write(words, message):
    given = ["--noise-multiplier", "1.1", "--sample-rate", "0.01", *([] if "--epochs" in words else ["--steps", "5"])]
    done = run("account", "DPSGD", *given, *words, *RUN)
    assert done.exit_code == 2
    assert message in " ".join(done.output.split())


def test_multipliers_of_other_presets():
    full = ["--records", "1000", "--steps", "50", "--delta", "1e-5"]
    expected = cs.account(cs.ClippedDPGD(cs.schedules.Constant(1.0), 2.0, 3 * 2.0 / 1000), 1000, 50, 1e-5)
    assert run("account", "ClippedDPGD", "--clip", "2", "--noise-multiplier", "3", *full).output == f"{expected}\n"
    rule = cs.DPSGD(cs.schedules.Constant(1.0), 2.0, 3 * 2.0 / 1000, 1, "full")
    words = ["--clip", "2", "--noise-multiplier", "3", "--sampling", "full", *full]
    assert run("account", "DPSGD", *words).output == f"{cs.account(rule, 1000, 50, 1e-5)}\n"
    auto = run("account", "AutoDiceSGD", "--noise-multiplier", "3", "--batch", "10", *full).output
    assert auto == f"{cs.account(cs.AutoDiceSGD(cs.schedules.Constant(1.0), 0.3, 10), 1000, 50, 1e-5)}\n"
    assert (
        "--noise-multiplier does not apply to GammaDPSGD"
        in run("account", "GammaDPSGD", "--noise-multiplier", "3", *full).output
    )


def test_a_delta_of_one_in_the_records_is_named():
    words = ["DPSGD", "--noise-multiplier", "1", "--batch", "10", "--records", "1000", "--steps", "5", "--delta"]
    assert "δ = 0.001 is at least 1 in 1000 records" in run("account", *words, "0.001").output
    assert "is at least 1 in" not in run("account", *words, "0.0009").output


def test_the_adaptive_clip_takes_its_own_noise_multiplier():
    words = ["--records", "60000", "--steps", "240", "--batch", "250", "--delta", "1e-5", "--adjacency", "zero-out"]
    adaptive = ["account", "AdaptiveDPSGD", "--noise-multiplier", "1", "--count-noise", "12.5", *words]
    assert "--quantile must be given for AdaptiveDPSGD" in run(*adaptive).output
    found = run(*adaptive, "--quantile", "0.95").output
    assert "certified: ε = 0.3866 at δ = 1e-05" in found
    assert "certified: ε = 0.3866 at δ = 1e-05" in run("account", "DPSGD", "--noise-multiplier", "1", *words).output
    assert "--quantile does not apply to DPSGD" in run("account", "DPSGD", "--quantile", "0.5", *words).output
