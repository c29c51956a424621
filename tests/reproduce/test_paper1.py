"""Paper 1's experiments and ours: the verdicts of their quick form."""

import numpy as np
import pytest

import clipsilon as cs
from clipsilon.reproduce import EXPERIMENTS
from clipsilon.reproduce.laboratory import Laboratory
from clipsilon.reproduce.numbers import slope
from clipsilon.reproduce.ours import bias as ours_bias
from clipsilon.reproduce.ours import claims as ours_claims
from clipsilon.reproduce.ours import counterexample as ours_counterexample
from clipsilon.reproduce.ours import frontier as ours_frontier
from clipsilon.reproduce.paper1 import credit as paper1_credit
from clipsilon.reproduce.paper1 import figure1_runs as paper1_figure1_runs
from clipsilon.reproduce.paper1 import figure1_steps as paper1_figure1_steps
from clipsilon.reproduce.paper1.rules import decade_means

MODULES = (
    ours_bias,
    ours_claims,
    ours_counterexample,
    ours_frontier,
    paper1_credit,
    paper1_figure1_runs,
    paper1_figure1_steps,
)
OURS = [name for name, one in EXPERIMENTS.items() if one.make.__module__ in {module.__name__ for module in MODULES}]

VERDICTS = {
    "ours-bias-credit": ["holds with a remark", "does not hold"],
    "ours-claims": ["does not hold"] * 4 + ["holds", "holds with a remark", "does not hold"],
    "ours-counterexample": ["does not hold"],
    "ours-frontier-quadratic": ["does not hold", "does not hold", "holds", "holds", "holds", "holds"],
    "ours-frontier-credit": ["does not hold", "does not hold", "holds", "does not hold", "does not hold", "holds"],
    "ours-frontier-imbalanced": ["does not hold", "does not hold", "does not hold", "holds"],
    "ours-frontier-skewed": ["does not hold", "does not hold", "holds"],
    "paper1-fig1-first": ["holds", "holds", "holds with a remark"],
    "paper1-fig1-second": ["holds with a remark", "holds with a remark"],
    "paper1-fig1-third": ["holds with a remark", "holds with a remark"],
    "paper1-fig1-fourth": ["holds"],
    "paper1-fig2-first": ["holds with a remark", "holds with a remark"],
    "paper1-fig2-second": ["holds", "holds with a remark"],
    "paper1-fig2-fourth": ["holds"],
    "paper1-fig3": ["holds with a remark"],
    "paper1-fig4": ["holds"],
}
FAST = ["ours-counterexample"]
NEEDS_CREDIT = ["ours-bias-credit", "ours-frontier-credit", "paper1-fig3", "paper1-fig4"]
NEEDS_CREDIT += ["paper1-fig2-first", "paper1-fig2-second", "paper1-fig2-fourth"]


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    return Laboratory(quick=True, folder=tmp_path_factory.mktemp("store"), progress=False)


def check(name, lab):
    result = EXPERIMENTS[name].make(lab)
    assert [finding.verdict for finding in result.findings] == VERDICTS[name], result.findings
    for chart in result.charts:
        for series in chart.series:
            x, y = np.asarray(series.x, float), np.asarray(series.y, float)
            assert x.shape == y.shape
            assert np.isfinite(x).all()
            assert np.isfinite(y).any()
            assert not (chart.x_log and (x <= 0).any()), (chart.title, series.name)
            assert not (chart.y_log and (y <= 0).any()), (chart.title, series.name)
    for table in result.tables:
        assert all(len(row) == len(table.columns) for row in table.rows)


def test_all_experiments_are_named_here():
    assert sorted(OURS) == sorted(VERDICTS)
    assert all(EXPERIMENTS[name].story for name in OURS)


@pytest.mark.parametrize("name", FAST)
def test_fast_ones(name, lab):
    check(name, lab)


@pytest.mark.verify
@pytest.mark.parametrize("name", [name for name in VERDICTS if name not in FAST])
def test_quick_form(name, lab):
    if name in NEEDS_CREDIT and not cs.datasets.credit().real:
        pytest.skip("the verdicts are those of the real credit data")
    check(name, lab)


def test_the_counterexamples_formula_is_what_a_run_shows():
    """Compare 20,000 draws of the shifted mean with the formula at one threshold, up to six standard errors."""
    size, chance = ours_counterexample.shift(10_000)
    rng = np.random.default_rng(0)
    shifted = size * (rng.random(20_000) < chance) + rng.standard_normal(20_000)
    power = ours_counterexample.true_positives(10_000, np.array([0.01]))[0]
    assert np.mean(shifted > 2.3263) == pytest.approx(power, abs=6 * np.sqrt(0.25 / 20_000))
    assert ours_counterexample.least_epsilon(10_000) == pytest.approx(48.5, abs=0.05)
    assert ours_counterexample.least_epsilon(1_000_000) == pytest.approx(51.2, abs=0.05)


def test_slopes_and_means_over_decades():
    times = np.array([0, 1, 10, 100, 1000, 10_000])
    assert slope(times[1:], 3.0 * times[1:] ** -0.7, 10) == pytest.approx(-0.7)
    assert decade_means(times, times.astype(float)) == [550.0, 5500.0]


def test_the_saving_of_a_step_comes_with_its_error():
    point = paper1_figure1_steps.Point(np.array([1.0, 2.0]), np.array([2.0, 5.0]))
    assert point.saving() == (2.0, pytest.approx(1.0 / np.sqrt(2.0)))
