"""The parts of the report's page: all verdicts at a glance, and each result with its verdict, numbers and command."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from clipsilon.report.charts import Chart
from clipsilon.report.page import chart_data, chart_figure, element, link, table_sheet, wrapped
from clipsilon.report.results import VERDICTS, Experiment, Finding, Result

SIGNS = dict(zip(VERDICTS, (("good", "✓"), ("fair", "✓"), ("bad", "✗")), strict=True))


class Done(NamedTuple):
    """An experiment with what it found."""

    experiment: Experiment
    result: Result


class Chapter(NamedTuple):
    """A piece of the story, and the chart that shows it: its key, or None."""

    heading: str
    paragraphs: Sequence[str]
    chart: str | None = None


def header(title: str, lead: str, done: Sequence[Done], places: Mapping[str, str]) -> str:
    """The title, what the page is, how many statements hold, and links to places of the page, by their ids."""
    ways = wrapped("nav", "".join(link(f"#{key}", text) for key, text in places.items()), aria_label="On this page")
    return wrapped("header", element("h1", title) + element("p", lead, class_="lead") + tally(done) + ways)


def footer(text: str) -> str:
    """How the page was made."""
    return wrapped("footer", element("p", text))


def badge(verdict: str) -> str:
    """A verdict as a sign and words."""
    tone, sign = SIGNS[verdict]
    return element("span", f"{sign} {verdict}", class_=f"verdict {tone}")


def source(experiment: Experiment) -> str:
    """Where the statement stands."""
    return experiment.where if experiment.paper is None else f"Paper {experiment.paper}, {experiment.where}"


def told(chapter: Chapter, done: Sequence[Done]) -> str:
    """A chapter with its chart, if it is there."""
    words = wrapped("div", "".join(element("p", text) for text in chapter.paragraphs))
    figures = (_quoted(each, key) for each in done for key in _charts(each) if key == chapter.chart)
    drawn = next(figures, "")
    return wrapped("section", element("h2", chapter.heading) + words + drawn, class_="tale shown" if drawn else "tale")


def _quoted(done: Done, key: str) -> str:
    """A figure of the story, with the way to the result that it is from."""
    chart = _charts(done)[key]
    title = ": ".join(dict.fromkeys(filter(None, (done.experiment.title, chart.title))))  # neither twice
    caption = element("span", title) + link(f"#{done.experiment.name}", source(done.experiment), class_="from")
    return chart_figure(key, chart, caption)


def tally(done: Sequence[Done]) -> str:
    """How many statements hold."""
    counts = Counter(finding.verdict for each in done for finding in each.result.findings)
    tiles = (
        wrapped("li", f"<b>{counts[verdict]}</b>{element('span', _counted(verdict, counts[verdict]))}", class_=tone)
        for verdict, (tone, _) in SIGNS.items()
        if counts[verdict]
    )
    return wrapped("ul", "".join(tiles), class_="tally")


def _counted(verdict: str, count: int) -> str:
    many = {"holds": "hold", "holds with a remark": "hold with a remark", "does not hold": "do not hold"}
    return f"statement {verdict}" if count == 1 else f"statements {many[verdict]}"


def glance(done: Sequence[Done]) -> str:
    """A line for each result, which leads to it."""
    lines = (
        wrapped(
            "li",
            wrapped("div", element("span", source(each.experiment), class_="where") + _to(each.experiment))
            + badge(each.result.verdict),
        )
        for each in done
    )
    return wrapped("ul", "".join(lines), class_="glance")


def _to(experiment: Experiment) -> str:
    return link(f"#{experiment.name}", experiment.title)


def section(done: Done, command: str) -> str:
    """One experiment: what to look for, the figures, the tables, each statement beside what was measured."""
    experiment, result = done
    kicker = element("span", source(experiment)) + badge(result.verdict) + link("#verdicts", "all verdicts ↑")
    settings = "".join(
        wrapped("li", f"{element('b', name)} {element('span', value)}") for name, value in experiment.parameters.items()
    )
    figures = "".join(
        chart_data(key, chart) + chart_figure(key, chart, element("span", chart.title) if chart.title else "")
        for key, chart in _charts(done).items()
    )
    findings = wrapped("ul", "".join(map(_finding, result.findings)), class_="findings")
    inside = [
        wrapped("div", kicker, class_="kicker"),
        element("h3", experiment.title),
        element("p", experiment.story) if experiment.story else "",
        wrapped("div", figures + findings, class_=_layout(len(result.charts))),
        *(table_sheet(f"{experiment.name}/table-{k}", table) for k, table in enumerate(result.tables, start=1)),
        wrapped("ul", settings, class_="settings") if settings else "",
        wrapped("div", wrapped("code", command), class_="command"),
    ]
    return wrapped("section", "\n".join(inside), id=experiment.name, class_="result")


def _layout(charts: int) -> str:
    """One chart stands beside its findings, several above them."""
    return "figures " + ("none" if charts == 0 else "one" if charts == 1 else "many")


def _charts(done: Done) -> dict[str, Chart]:
    """The charts of a result, by the paths of their files."""
    return {f"{done.experiment.name}/chart-{k}": chart for k, chart in enumerate(done.result.charts, start=1)}


def _finding(finding: Finding) -> str:
    lines = {"Statement": finding.says, "Measured": finding.measured, "Remark": finding.remark}
    pairs = "".join(element("dt", name) + element("dd", text) for name, text in lines.items() if text)
    return wrapped("li", badge(finding.verdict) + wrapped("dl", pairs))
