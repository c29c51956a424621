"""Settings of Opacus are accounted for as the same settings of DP-SGD."""

import json

import pytest

import clipsilon as cs

SETTINGS = {"noise_multiplier": 1.1, "sample_rate": 0.01, "epochs": 5, "max_grad_norm": 2.0, "accountant": "rdp"}
RUN = {"records": 25_000, "delta": 1e-5}


def direct(adjacency="replace-one", **sampled):
    rule = cs.DPSGD(cs.schedules.Constant(1.0), clip=2.0, noise_std=1.1 * 2.0 / 250, batch=250, **sampled)
    return cs.account(rule, 25_000, 500, 1e-5, adjacency)


@pytest.mark.parametrize("adjacency", ["replace-one", "zero-out", "add-remove"])
def test_a_dict(adjacency):
    stated = cs.account_opacus(SETTINGS, **RUN, adjacency=adjacency)
    assert stated.certified == direct(adjacency, rate=0.01).certified
    assert (stated.records, stated.steps, stated.delta) == (25_000, 500, 1e-5)


def test_steps_and_batches():
    settings = {"noise_multiplier": 1.1, "batch_size": 250, "steps": 500, "records": 25_000, "target_delta": 1e-5}
    assert cs.account_opacus(settings).certified == direct().certified
    assert cs.account_opacus(settings, delta=1e-6).delta == 1e-6  # arguments take precedence
    with pytest.raises(ValueError, match="add-remove"):  # the rate follows from the number of records
        cs.account_opacus(settings, adjacency="add-remove")


@pytest.mark.parametrize("drop_last", [False, True])
def test_a_batch_size_covers_loaders_that_drop_the_last_batch(drop_last):
    """Opacus draws records with probability 1 in the number of batches, which is one less with `drop_last`."""
    records, batch, epochs = 1_050, 100, 3.5
    batches = records // batch if drop_last else -(-records // batch)
    shared = {"noise_multiplier": 1.1, "records": records, "delta": 1e-5}
    for adjacency in ("replace-one", "zero-out"):
        true = {"sample_rate": 1 / batches, "steps": round(epochs * batches)}
        needed = cs.account_opacus({**shared, **true}, adjacency=adjacency).certified
        stated = cs.account_opacus({**shared, "batch_size": batch, "epochs": epochs}, adjacency=adjacency).certified
        assert needed <= stated < 1.2 * needed


def test_files(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps(SETTINGS), "utf-8")
    lines = [f"{key} = {json.dumps(value)}" for key, value in SETTINGS.items()]
    (tmp_path / "a.toml").write_text("\n".join(lines), "utf-8")
    found = {cs.account_opacus(tmp_path / name, **RUN).certified for name in ("a.json", "a.toml")}
    assert found == {direct(rate=0.01).certified}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"learning_rate": 0.1}, "settings must have keys among noise_multiplier, .*, got 'learning_rate'"),
        ({"clipping": "adaptive"}, "settings must have \"flat\" as clipping, got 'adaptive'"),
        ({"max_grad_norm": [1.0, 2.0]}, r"settings must hold a number as max_grad_norm, got \[1.0, 2.0\]"),
        ({"steps": 500}, "settings must have steps or epochs, got both"),
        ({"sample_rate": 2.0}, "sample_rate must be a number above 0 and at most 1, got 2.0"),
        ({"noise_multiplier": -1.0}, "noise_multiplier must be a number of at least 0, got -1.0"),
    ],
)
def test_wrong_settings(change, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        cs.account_opacus({**SETTINGS, **change}, **RUN)


@pytest.mark.parametrize(
    ("missing", "named"),
    [
        ("noise_multiplier", "noise_multiplier"),
        ("sample_rate", "sample_rate or batch_size"),
        ("epochs", "steps or epochs"),
    ],
)
def test_missing_settings(missing, named):
    with pytest.raises(ValueError, match=f"^settings must have {named}, got"):
        cs.account_opacus({key: value for key, value in SETTINGS.items() if key != missing}, **RUN)
    with pytest.raises(ValueError, match="^settings must have records, got"):
        cs.account_opacus(SETTINGS, delta=1e-5)
    with pytest.raises(ValueError, match="^settings must have delta, got"):
        cs.account_opacus(SETTINGS, records=10)


def test_files_that_cannot_be_read(tmp_path):
    (tmp_path / "a.toml").write_text("=", "utf-8")
    with pytest.raises(ValueError, match="^settings must be a TOML file, got"):
        cs.account_opacus(tmp_path / "a.toml", **RUN)
    with pytest.raises(ValueError, match="^settings must be a JSON file, got"):
        cs.account_opacus(tmp_path / "none.json", **RUN)
    with pytest.raises(ValueError, match="^settings must be the name of a file, got 3"):
        cs.account_opacus(3, **RUN)
