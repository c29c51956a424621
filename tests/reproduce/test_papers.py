"""The experiments of papers 3 to 5 in their quick form: they run, and their verdicts are the expected ones.

The default run includes those that take a few seconds; `make verify` includes all.
"""

import importlib
import warnings

import numpy as np
import pytest

from clipsilon.reproduce import EXPERIMENTS
from clipsilon.reproduce.laboratory import Laboratory

HOLDS, REMARK, FAILS = "holds", "holds with a remark", "does not hold"

# The verdict of each finding, in order.
FAST = {
    "paper3-bias": [HOLDS, FAILS, HOLDS],
    "paper5-fig1": [HOLDS] * 4,
    "paper5-curl": [HOLDS] * 3,
}
SLOW = {
    "paper3-table1": [HOLDS, HOLDS, HOLDS, FAILS, FAILS],
    "paper4-fig1": [HOLDS, HOLDS],
    "paper4-fig2": [HOLDS, HOLDS, REMARK, HOLDS, HOLDS, HOLDS, FAILS],
    "paper4-fig3": [HOLDS, REMARK],
    "paper4-fig4": [FAILS, HOLDS, REMARK],
    "paper4-dimensions": [REMARK, HOLDS],
    "paper5-fig2": [REMARK, REMARK, REMARK],  # on the stand-in
    "paper5-aggressive": [REMARK, HOLDS],
    "paper5-hard": [HOLDS, REMARK, HOLDS],
    "paper5-rank": [HOLDS, HOLDS, REMARK],
}
MODULES = [f"clipsilon.reproduce.{name.replace('-', '.')}" for name in FAST | SLOW]
for module in MODULES:
    importlib.import_module(module)


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    return Laboratory(quick=True, folder=tmp_path_factory.mktemp("store"), progress=False)


def check(name, lab, verdicts):
    result = EXPERIMENTS[name].make(lab)
    assert [finding.verdict for finding in result.findings] == verdicts
    assert result.charts
    for chart in result.charts:
        assert len({series.name for series in chart.series}) == len(chart.series)
        for series in chart.series:
            values = np.array([series.x, series.y], float)
            assert values.ndim == 2
            assert np.isfinite(values).all()
            assert not chart.x_log or (values[0] > 0).all()
            assert not chart.y_log or (values[1] > 0).all()
    for table in result.tables:
        assert all(len(row) == len(table.columns) for row in table.rows)
    return result


@pytest.mark.parametrize("name", FAST)
def test_a_fast_one_finds_what_it_should(name, lab):
    check(name, lab, FAST[name])


@pytest.mark.verify
@pytest.mark.parametrize("name", SLOW)
def test_a_slow_one_finds_what_it_should(name, lab, monkeypatch):
    monkeypatch.delenv("CLIPSILON_COD_RNA", raising=False)
    check(name, lab, SLOW[name])


@pytest.mark.verify
def test_cod_rna_itself(lab):
    """Run on the real files; skipped if they are not available."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from clipsilon.datasets import codrna

        if not codrna()[0].real:
            pytest.skip("CLIPSILON_COD_RNA names no folder with the data")
    check("paper5-fig2", lab, [HOLDS, HOLDS, REMARK, HOLDS])


def test_every_experiment_says_what_it_is():
    for name in FAST | SLOW:
        about = EXPERIMENTS[name]
        assert name.startswith(f"paper{about.paper}-")
        assert about.story.endswith(".")
        assert about.parameters
        assert about.where
        assert about.title
