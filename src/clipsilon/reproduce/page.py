"""The page of the report: the story, all verdicts, then every figure and table with what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from clipsilon.report.page import element, frame
from clipsilon.report.sections import (
    Done,
    chapter_section,
    contents,
    footer,
    header,
    result_section,
    tally,
    verdict_list,
)
from clipsilon.reproduce.base import Experiment
from clipsilon.reproduce.story import chapters

TITLE = "What clipping costs, what feedback repairs, what is really private"
LEAD = (
    "A model is deployed, and the records from which it learns react to it. To keep the records private, training "
    "clips the gradient of each record and adds noise. This page compares what five papers state about such training "
    "with what was measured. Every number and every verdict on it is computed."
)
PAPERS = {
    1: "Paper 1: clipped descent on data that react",
    3: "Paper 3: error feedback",
    4: "Paper 4: a budget for each user",
    5: "Paper 5: generalised linear models",
    None: "Not in the papers",
}


def page(done: Sequence[Done], quick: bool) -> str:
    """Return the whole page; the story quotes only results that are present."""
    found = {each.experiment.name: each.result for each in done}
    papers = [(paper, list(group)) for paper, group in groupby(done, key=lambda each: each.experiment.paper)]
    places = {"verdicts": "All statements and verdicts", **{_anchor(paper): _short(paper) for paper, _ in papers}}
    body = [header(TITLE, LEAD, tally(done), contents(places))]
    body += [chapter_section(chapter, done) for chapter in chapters(found)]
    body += [element("h2", "All statements and verdicts", id="verdicts"), verdict_list(done)]
    for paper, group in papers:
        body.append(element("h2", PAPERS.get(paper, _short(paper)), id=_anchor(paper)))
        body += [result_section(each, command(each.experiment, quick)) for each in group]
    return frame(TITLE, [*body, footer(_made_by(quick))])


def _anchor(paper: int | None) -> str:
    return "others" if paper is None else f"paper-{paper}"


def _short(paper: int | None) -> str:
    return "Not in the papers" if paper is None else f"Paper {paper}"


def command(experiment: Experiment, quick: bool) -> str:
    """Return the command that repeats the experiment."""
    return f"clipsilon reproduce {experiment.name}{' --quick' if quick else ''}"


def _made_by(quick: bool) -> str:
    scale = (
        "at a smaller scale; `clipsilon reproduce` without `--quick` runs at published scale"
        if quick
        else "at published scale"
    )
    return f"Written by `clipsilon reproduce{' --quick' if quick else ''}` {scale}. The page needs no network."
