"""The parts of a page: header, story, list of verdicts, and one section per result.

A verdict always stands beside the statement that it judges, with the remark, if there is one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from clipsilon.report.charts import Chart
from clipsilon.report.page import chart_data, chart_figure, element, link, table_sheet, wrap
from clipsilon.report.results import VERDICTS, Experiment, Finding, Result

SIGNS = dict(zip(VERDICTS, (("good", "✓"), ("fair", "✓"), ("bad", "✗")), strict=True))


class Done(NamedTuple):
    """A completed experiment with its result."""

    experiment: Experiment
    result: Result


class Chapter(NamedTuple):
    """A part of the story.

    Parameters
    ----------
    heading : str
        Heading of the chapter.
    paragraphs : sequence of str
        Plain text.
    chart : str, optional
        Key of the chart that illustrates it, e.g. "paper1-fig1-first/chart-2".
    """

    heading: str
    paragraphs: Sequence[str]
    chart: str | None = None


def header(title: str, lead: str, *parts: str) -> str:
    """Return the top of a page.

    Parameters
    ----------
    title : str
        Heading.
    lead : str
        Paragraph that says what the page is.
    *parts : str
        Further HTML.

    Returns
    -------
    str
        HTML.
    """
    return wrap("header", element("h1", title) + element("p", lead, class_="lead") + "".join(parts))


def contents(places: Mapping[str, str]) -> str:
    """Return links to places on the page; `places` maps ids to titles."""
    return wrap("nav", "".join(link(f"#{key}", text) for key, text in places.items()), aria_label="On this page")


def footer(text: str) -> str:
    """Return the bottom of a page, which says how it was made."""
    return wrap("footer", element("p", text))


def badge(verdict: str) -> str:
    """Return a verdict as a sign and words."""
    tone, sign = SIGNS[verdict]
    return element("span", f"{sign} {verdict}", class_=f"verdict {tone}")


def citation(experiment: Experiment) -> str:
    """Return where the statements of an experiment are made."""
    return experiment.where if experiment.paper is None else f"Paper {experiment.paper}, {experiment.where}"


def chapter_section(chapter: Chapter, done: Sequence[Done]) -> str:
    """Return a chapter with its chart, if that experiment is among those that were run."""
    words = wrap("div", "".join(element("p", text) for text in chapter.paragraphs))
    drawn = quoted_figure(done, chapter.chart)
    return wrap("section", element("h2", chapter.heading) + words + drawn, class_="tale shown" if drawn else "tale")


def quoted_figure(done: Sequence[Done], key: str | None) -> str:
    """Return the figure with that key and a link to its result, or nothing if it was not run."""
    for each in done:
        if key in (charts := _charts(each)):
            chart = charts[str(key)]
            title = ": ".join(dict.fromkeys(filter(None, (each.experiment.title, chart.title))))  # neither twice
            more = link(f"#{each.experiment.name}", citation(each.experiment), class_="from")
            return chart_figure(str(key), chart, element("span", title) + more)
    return ""


def tally(done: Sequence[Done]) -> str:
    """Return how many statements got each verdict."""
    counts = Counter(finding.verdict for each in done for finding in each.result.findings)
    tiles = (
        wrap("li", f"<b>{counts[verdict]}</b>{element('span', _counted(verdict, counts[verdict]))}", class_=tone)
        for verdict, (tone, _) in SIGNS.items()
        if counts[verdict]
    )
    return wrap("ul", "".join(tiles), class_="tally")


def _counted(verdict: str, count: int) -> str:
    plural = {"holds": "hold", "holds with a remark": "hold with a remark", "does not hold": "do not hold"}
    return f"statement {verdict}" if count == 1 else f"statements {plural[verdict]}"


def verdict_list(done: Sequence[Done]) -> str:
    """Return all statements, each beside its verdict, grouped by result with a link to it."""
    return "".join(
        wrap(
            "section",
            wrap("h3", link(f"#{each.experiment.name}", each.experiment.title))
            + element("span", citation(each.experiment), class_="where")
            + wrap("ul", "".join(map(_judged_line, each.result.findings))),
            class_="glance",
        )
        for each in done
    )


def _judged_line(finding: Finding) -> str:
    """Return a statement beside its verdict, and the remark that qualifies it."""
    words = element("span", finding.statement, class_="statement")
    remark = element("span", finding.remark, class_="remark") if finding.remark else ""
    return wrap("li", badge(finding.verdict) + wrap("div", words + remark))


def result_section(done: Done, command: str) -> str:
    """Return one experiment: what to look for, its figures, its findings, its tables, and the command to repeat it."""
    experiment, result = done
    figures = "".join(
        chart_data(key, chart) + chart_figure(key, chart, element("span", chart.title) if chart.title else "")
        for key, chart in _charts(done).items()
    )
    findings = wrap("ul", "".join(map(_finding, result.findings)), class_="findings")
    inside = [
        wrap("div", element("span", citation(experiment)) + link("#verdicts", "all verdicts ↑"), class_="kicker"),
        element("h3", experiment.title),
        element("p", experiment.story) if experiment.story else "",
        wrap("div", figures + findings, class_=_layout(len(result.charts))),
        *(table_sheet(f"{experiment.name}/table-{k}", table) for k, table in enumerate(result.tables, start=1)),
        _parameters(experiment),
        wrap("div", wrap("code", command), class_="command"),
    ]
    return wrap("section", "\n".join(inside), id=experiment.name, class_="result")


def _parameters(experiment: Experiment) -> str:
    items = (
        wrap("li", f"{element('b', name)} {element('span', value)}") for name, value in experiment.parameters.items()
    )
    return wrap("ul", "".join(items), class_="parameters") if experiment.parameters else ""


def _layout(charts: int) -> str:
    """Return the CSS class by which one chart stands beside the findings, and several above them."""
    return "figures " + ("none" if charts == 0 else "one" if charts == 1 else "many")


def _charts(done: Done) -> dict[str, Chart]:
    """Return the charts of a result by the paths of their files."""
    return {f"{done.experiment.name}/chart-{k}": chart for k, chart in enumerate(done.result.charts, start=1)}


def _finding(finding: Finding) -> str:
    """Return a statement beside its verdict, then what was measured and the remark."""
    lines = {"Measured": finding.measured, "Remark": finding.remark}
    pairs = "".join(element("dt", name) + element("dd", text) for name, text in lines.items() if text)
    judged = wrap("p", badge(finding.verdict) + element("span", finding.statement), class_="judged")
    return wrap("li", judged + wrap("dl", pairs))
