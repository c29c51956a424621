"""`clipsilon warm-up`: afterwards, fits compile nothing."""

import pytest
from numba.core import event

from clipsilon.cli.model_kinds import MODELS
from command_line import run
from fitted_tables import fitted


@pytest.fixture(scope="module")
def warm():
    return run("warm-up")


def test_every_kind_of_model_is_made_ready(warm):
    assert warm.exit_code == 0
    assert [line for line in warm.output.splitlines() if line.endswith("ready")] == [
        f"{kind}: ready" for kind in MODELS
    ]


@pytest.mark.parametrize(("target", "kind"), [("paid", "logistic"), ("price", "quantile")])
def test_a_fit_compiles_nothing_afterwards(warm, data, target, kind):
    with event.install_recorder("numba:compile") as compiled:
        fitted(data, target, "--model", kind)
    assert [happening.data["dispatcher"].py_func for _, happening in compiled.buffer] == []
