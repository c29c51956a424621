"""The demo at a size for tests, and what it writes."""

import sys

import pytest
from click.testing import CliRunner

from browser import Browser
from clipsilon.cli import demo_report as demo
from clipsilon.cli import main as cli
from clipsilon.datasets import give_me_some_credit as module
from clipsilon.report.charts import Table
from clipsilon.report.results import Finding, Result
from clipsilon.report.text import to_html
from clipsilon.reproduce.laboratory import Laboratory
from credit_stand_in import stand_in


@pytest.fixture
def small(monkeypatch, tmp_path):
    quadratic = demo.quadratic_case()._replace(run_steps=30_000, replicates=4, audit_runs=20, private_steps=30_000)
    monkeypatch.setattr(demo, "quadratic_case", lambda: quadratic)
    real = demo.credit_case

    def short():
        case, source = real()
        return case._replace(run_steps=2000, replicates=2, audit_runs=20, private_steps=500), source

    monkeypatch.setattr(demo, "credit_case", short)
    # Each test has its own store; kernels stay in the cache that all tests share.
    monkeypatch.setattr(
        sys.modules["clipsilon.engine.sweep"], "cache_folder", lambda: tmp_path
    )  # the name is also a function's
    with stand_in(monkeypatch):
        yield


def test_demo(small, tmp_path):
    out = tmp_path / "out"
    done = CliRunner().invoke(cli.main, ["demo", "--output", str(out), "--quiet"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert "a generated stand-in" in done.output
    for word in (
        "SGD",
        "PCSGD",
        "DiceSGD",
        "CorrelatedSGD",
        "Quadratic",
        "Credit",
        "claimed ε",
        "certified ε",
        "audited ε",
    ):
        assert word in done.output
    names = {path.relative_to(out).as_posix() for path in out.rglob("*.*")}
    each = {"chart-1.svg", "chart-1.png", "chart-1.csv", "table-1.csv", "result.json"}
    assert names == {"index.html"} | {f"{name}/{file}" for name in ("quadratic", "credit") for file in each}
    page = (out / "index.html").read_text(encoding="utf-8")
    assert "a generated stand-in" in page
    assert page.count("<figure") == 4  # each result in the story, and again among the details
    for column in demo.COLUMNS[3:]:
        assert column in page


def test_the_first_screen_is_for_a_newcomer(small, tmp_path):
    """A picture and what to take away from it come before any verdict; the numbers are those of the runs."""
    lines = []
    done = demo.demo(Laboratory(folder=tmp_path / "store", progress=False), tmp_path / "out", lines.append)
    text = (tmp_path / "out" / "index.html").read_text(encoding="utf-8")
    places = [text.index(mark) for mark in ("<h1>", "<figure", 'class="takeaways"', 'class="next"', 'class="verdict ')]
    assert places == sorted(places)
    assert 'class="tally"' not in text
    assert lines[0].startswith(f"{demo.TITLE}\n\n{demo.LEAD}")
    _, clipped, fed_back, private = done[0].result.tables[0].rows
    lessons = demo.takeaways(done[0].result)
    assert f"distance of {clipped.gap:.3g}. The exact limit, {clipped.bias:.3g}" in lessons[0].text
    assert lessons[1].heading == "Error feedback removes that price."
    assert f"{round(clipped.gap / fed_back.gap)} times closer" in lessons[1].text
    assert lessons[3].heading == "A model can be private and good."
    assert private.certified <= 1
    assert f"ends at {private.gap:.2g} with a proven ε of at most 1." in lessons[3].text
    for heading, words in lessons:
        assert to_html(heading) in text
        assert to_html(words) in text
    shown = [piece for piece in demo.summary(done) if isinstance(piece, str)]
    assert "PCSGD          ████████████████████████████████████████" in shown[2]
    assert [f"{k}. {heading} {words}" for k, (heading, words) in enumerate(lessons, start=1)] == shown[-5:-1]


def test_lessons_follow_from_the_findings():
    """If the statements do not hold, the headings do not claim that they do."""
    row = demo.Row("PCSGD", 2.0, 4.0, 1.0, 0.5, 0.1)
    table = Table("", demo.COLUMNS, [row._replace(rule=name) for name in ("SGD", "PCSGD", "DiceSGD", "CorrelatedSGD")])
    findings = [Finding("", "", holds) for holds in (False, False, True, True, False)]
    headings = [heading for heading, _ in demo.takeaways(Result(findings, tables=[table]))]
    assert headings == [
        "Clipping has a price, and this run does not show it yet.",
        "Error feedback has not removed that price.",
        "The claimed ε is proven.",
        "The private rule is not good enough yet.",
    ]


def test_a_page_that_others_wrote_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "compare", lambda *about: pytest.fail("nothing must be computed"))
    page = tmp_path / "index.html"
    page.write_text("<title>mine</title>", encoding="utf-8")
    refused = CliRunner().invoke(cli.main, ["demo", "--output", str(tmp_path)], catch_exceptions=False)
    assert refused.exit_code == 1
    assert (
        refused.output
        == f"Error: output must not replace {page}, which clipsilon did not write: choose another name.\n"
    )
    assert page.read_text(encoding="utf-8") == "<title>mine</title>"


def test_the_demo_shows_what_it_says(small, tmp_path):
    result = demo.compare(demo.quadratic_case(), Laboratory(folder=tmp_path, progress=False))
    (_, plain, *_), (_, clipped, bias, *_), (_, fed_back, *_), private = result.tables[0].rows
    assert clipped == pytest.approx(bias, rel=0.03)
    assert fed_back < 0.02 * clipped
    assert plain < 0.02 * clipped
    assert [finding.verdict for finding in result.findings[:2]] == ["holds", "holds"]
    assert [finding.holds for finding in result.findings[2:4]] == [False, False]  # far more can be proven than claimed
    assert result.findings[4].holds
    assert private.gap < 0.05 * clipped
    assert 0.97 < private.certified <= 1.0


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


@pytest.mark.verify
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize(("width", "height"), [(1280, 900), (390, 844)])
def test_the_picture_is_on_the_first_screen(small, tmp_path, width, height, dark):
    demo.demo(Laboratory(folder=tmp_path / "store", progress=False), tmp_path / "out")
    with Browser() as browser:
        browser.open(tmp_path / "out" / "index.html", width, height, dark)
        assert browser.errors == []
        assert browser.run("document.documentElement.scrollWidth <= window.innerWidth")
        top = "document.querySelector('{}').getBoundingClientRect().top"
        assert browser.run(top.format(".first .plot svg")) < height - 200
        assert browser.run(top.format(".takeaways")) < height + (0 if width > 600 else 400)
        assert browser.run(top.format(".verdict")) > height  # verdicts are details
