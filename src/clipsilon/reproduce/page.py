"""The report's page: the story, all verdicts, then every figure and table with what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from clipsilon.report.page import element, frame
from clipsilon.report.sections import Done, footer, glance, header, section, told
from clipsilon.reproduce.base import Experiment
from clipsilon.reproduce.story import chapters

TITLE = "What clipping costs, what feedback repairs, what is really private"
LEAD = (
    "A model is deployed, and the records it learns from react to it. To keep them private, training clips what each "
    "of them contributes and adds noise. This page sets what five papers state about such training beside what was "
    "measured. Every number and every verdict on it is computed."
)
PAPERS = {
    1: "Paper 1: clipped descent on data that react",
    3: "Paper 3: error feedback",
    4: "Paper 4: a budget for every user",
    5: "Paper 5: generalised linear models",
    None: "Not in the papers",
}


def page(done: Sequence[Done], quick: bool) -> str:
    """The whole page; the story tells what the results that are there can support."""
    found = {each.experiment.name: each.result for each in done}
    papers = [(paper, list(group)) for paper, group in groupby(done, key=lambda each: each.experiment.paper)]
    places = {"verdicts": "Every verdict", **{_place(paper): _short(paper) for paper, _ in papers}}
    body = [header(TITLE, LEAD, done, places), *(told(chapter, done) for chapter in chapters(found))]
    body += [element("h2", "Every verdict", id="verdicts"), glance(done)]
    for paper, group in papers:
        body.append(element("h2", PAPERS.get(paper, _short(paper)), id=_place(paper)))
        body += [section(each, command(each.experiment, quick)) for each in group]
    return frame(TITLE, [*body, footer(_made(quick))])


def _place(paper: int | None) -> str:
    return "others" if paper is None else f"paper-{paper}"


def _short(paper: int | None) -> str:
    return "Not in the papers" if paper is None else f"Paper {paper}"


def command(experiment: Experiment, quick: bool) -> str:
    """What makes this result again."""
    return f"clipsilon reproduce {experiment.name}{' --quick' if quick else ''}"


def _made(quick: bool) -> str:
    scale = "a smaller scale, for a look: `clipsilon reproduce` takes the published one" if quick else "published scale"
    return f"Made by `clipsilon reproduce{' --quick' if quick else ''}` at {scale}. It needs no network."
