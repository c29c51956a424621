"""The demo as a newcomer runs it, at a size for tests, and what it writes."""

import sys

import pytest
from click.testing import CliRunner

from clipsilon.cli import demo
from clipsilon.cli import main as cli
from clipsilon.datasets import generated_credit
from clipsilon.datasets import give_me_some_credit as module
from clipsilon.reproduce import problems
from clipsilon.reproduce.laboratory import Laboratory


@pytest.fixture
def small(monkeypatch, tmp_path):
    quadratic = demo.quadratic_case()._replace(run_steps=30_000, replicates=4, audit_runs=20)
    monkeypatch.setattr(demo, "quadratic_case", lambda: quadratic)
    real = demo.credit_case

    def short():
        case, source = real()
        return case._replace(run_steps=2000, replicates=2, audit_runs=20), source

    monkeypatch.setattr(demo, "credit_case", short)
    monkeypatch.setattr(problems, "credit", generated_credit)
    problems.credit_data.cache_clear()
    # A store of its own for each test; kernels stay in the cache that all tests share.
    monkeypatch.setattr(
        sys.modules["clipsilon.engine.sweep"], "cache_folder", lambda: tmp_path
    )  # the name is also a function's
    yield
    problems.credit_data.cache_clear()


def test_demo(small, tmp_path):
    out = tmp_path / "out"
    done = CliRunner().invoke(cli.main, ["demo", "--output", str(out), "--quiet"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert "a generated stand-in" in done.output
    for word in ("SGD", "PCSGD", "DiceSGD", "Quadratic", "Credit", "claimed ε", "certified ε", "audited ε"):
        assert word in done.output
    names = {path.relative_to(out).as_posix() for path in out.rglob("*.*")}
    each = {"chart-1.svg", "chart-1.png", "chart-1.csv", "table-1.csv", "result.json"}
    assert names == {"index.html"} | {f"{name}/{file}" for name in ("quadratic", "credit") for file in each}
    page = (out / "index.html").read_text(encoding="utf-8")
    assert "a generated stand-in" in page
    assert page.count("<figure") == 3  # two results, and one of them in the story
    for column in demo.COLUMNS[3:]:
        assert column in page


def test_the_demo_shows_what_it_says(small, tmp_path):
    result = demo.compare(demo.quadratic_case(), Laboratory(folder=tmp_path, progress=False))
    (_, plain, *_), (_, clipped, bias, *_), (_, fed_back, *_) = result.tables[0].rows
    assert clipped == pytest.approx(bias, rel=0.03)
    assert fed_back < 0.02 * clipped
    assert plain < 0.02 * clipped
    assert [finding.verdict for finding in result.findings[:2]] == ["holds", "holds"]
    assert [finding.holds for finding in result.findings[2:]] == [False, False]  # far more can be proven than claimed


def test_fetching_data_that_cannot_be_had(monkeypatch, tmp_path):
    monkeypatch.setenv("CLIPSILON_CACHE", str(tmp_path))
    monkeypatch.setattr(module, "_download", lambda: b"wrong")
    done = CliRunner().invoke(cli.main, ["data", "credit"])
    assert done.exit_code == 1
    assert done.output == "Error: The downloaded credit data has the wrong digest and was refused.\n"


def test_help_and_version():
    runner = CliRunner()
    assert "demo" in runner.invoke(cli.main, ["--help"]).output
    assert "0.1.0" in runner.invoke(cli.main, ["--version"]).output
