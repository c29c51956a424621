"""The demo as a newcomer runs it, at a size for tests, and what it writes."""

from html.parser import HTMLParser

import pytest
from click.testing import CliRunner

from clipwise import cli, demo
from clipwise.datasets import generated_credit
from clipwise.datasets import give_me_some_credit as module


class Checker(HTMLParser):
    """Collects tags, and whether all of them were closed."""

    def __init__(self):
        super().__init__()
        self.open, self.seen = [], []

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.fixture
def small(monkeypatch):
    quadratic = demo.quadratic_case()._replace(run_steps=30_000, replicates=4, audit_runs=20)
    monkeypatch.setattr(demo, "quadratic_case", lambda: quadratic)
    real = demo.credit_case

    def short():
        case, source = real()
        return case._replace(run_steps=2000, replicates=2, audit_runs=20), source

    monkeypatch.setattr(demo, "credit_case", short)
    monkeypatch.setattr(demo, "credit", generated_credit)


def test_demo(small, tmp_path):
    done = CliRunner().invoke(cli.main, ["demo", "--out", str(tmp_path / "out"), "--quiet"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert "a generated stand-in" in done.output
    for word in ("SGD", "PCSGD", "DiceSGD", "Quadratic", "Credit"):
        assert word in done.output
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"gap.png", "gap.svg", "index.html"}
    assert (tmp_path / "out" / "gap.png").read_bytes().startswith(b"\x89PNG")
    page = (tmp_path / "out" / "index.html").read_text(encoding="utf-8")
    checker = Checker()
    checker.feed(page)
    assert checker.open == []
    assert {"svg", "table", "h1"} <= set(checker.seen)
    assert "http://" not in page.split("</head>")[0]  # the page stands on its own
    assert "a generated stand-in" in page


def test_the_demo_shows_what_it_says(small):
    result = demo.compare(demo.quadratic_case(), progress=False)
    gap = {name: float(value) for name, value, *_ in result.rows}
    assert gap["PCSGD"] == pytest.approx(result.panel.bias, rel=0.03)
    assert gap["DiceSGD"] < 0.02 * gap["PCSGD"]
    assert gap["SGD"] < 0.02 * gap["PCSGD"]


def test_fetching_data_that_cannot_be_had(monkeypatch, tmp_path):
    monkeypatch.setenv("CLIPWISE_CACHE", str(tmp_path))
    monkeypatch.setattr(module, "_download", lambda: b"wrong")
    done = CliRunner().invoke(cli.main, ["data", "credit"])
    assert done.exit_code == 1
    assert done.output == "Error: The credit data that was downloaded has the wrong digest and was refused.\n"


def test_help_and_version():
    runner = CliRunner()
    assert "demo" in runner.invoke(cli.main, ["--help"]).output
    assert "0.1.0" in runner.invoke(cli.main, ["--version"]).output
