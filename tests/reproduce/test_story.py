"""The story: every number comes from a result, and what was not run is left out."""

import numpy as np
import pytest

from clipsilon.report.charts import Chart, Series, Table
from clipsilon.reproduce import story
from clipsilon.reproduce.base import Finding, Result
from clipsilon.reproduce.laboratory import Laboratory
from clipsilon.reproduce.runner import catalogue

HELD = Finding("It stays bounded.", "The largest is 12.5.", True)


def gap(title, clipped, bias, fed_back):
    ends = {"PCSGD": clipped, "exact clipping bias": bias, "DiceSGD": fed_back}
    return Chart(title, "t", "gap", [Series(name, [1, 2], [9.0, end]) for name, end in ends.items()])


def words(found):
    return [" ".join(chapter.paragraphs) for chapter in story.chapters(found)]


def test_without_results_there_are_no_numbers():
    assert [chapter.heading for chapter in story.chapters({})] == [
        "What clipping costs",
        "What feedback repairs",
        "What is really private",
    ]
    assert not any(character.isdigit() for text in words({}) for character in text)


def test_numbers_are_those_of_the_results():
    rows = [["a", 1.0, 0.9, None], ["b", 1.0, np.inf, 2.5], ["c", 0.1, 4.0, 0.05]]
    claims = Table("", ["setting", "claimed ε", "certified ε", "audited ε ≥"], rows)
    example = Table("", ["T", "claimed ε", "true ε, at least"], [[10, 0.03, 48.54]])
    lines = [Series("β = 0", [0.1, 1.0], [9.0, 7.0]), Series("not training at all (β = 0)", [0.1, 1.0], [5.0, 5.0])]
    found = {
        story.GAP: Result([HELD], [gap("β = 1", 1.0149, 1.01, 0.5), gap("β = 2", 3.27, 3.26, 0.001)]),
        story.MEMORY: Result([HELD]),
        story.CREDIT: Result([HELD], [Chart("", "clip c", "bias", lines)]),
        story.CLAIMS: Result([HELD], tables=[claims]),
        story.EXAMPLE: Result([HELD], tables=[example]),
        "ours-frontier-credit": Result([Finding("", "DiceSGD costs 7 times as much.", True)]),
    }
    cost, repair, private, honest = words(found)
    for number in (
        "of 1.01 for β = 1 and 3.27 for β = 2",
        "any run: 1.01 and 3.26",
        "of 7, farther away than a model of zeros, at 5.",
    ):
        assert number in cost
    assert "ends at 0.001, which is 3300 times closer" in repair
    assert "The largest is 12.5." in repair
    assert "Of 3 experiments in the papers, 1 is proven" in private
    assert "of the 2 others that were attacked, 1 is refuted." in private
    assert "Where ε = 0.03 is claimed, the true ε is at least 48.5, so the published guarantee fails." in private
    assert "On credit data: DiceSGD costs 7 times as much." in honest


def test_without_an_attack_none_is_said_to_fail():
    claims = Table("", ["setting", "claimed ε", "certified ε", "audited ε ≥"], [["a", 1.0, 9.0, None]])
    private = words({story.CLAIMS: Result([HELD], tables=[claims])})[2]
    assert "0 are proven to be as private as claimed; the others were not attacked here." in private


def test_what_was_not_attacked_is_not_said_to_have_withstood():
    """Of four rows without a proof one was attacked: nothing is said of the other three but that."""
    rows = [["a", 1.0, 9.0, None], ["b", 1.0, 9.0, 0.5], ["c", 1.0, 9.0, None], ["d", 1.0, np.inf, None]]
    claims = Table("", ["setting", "claimed ε", "certified ε", "audited ε ≥"], rows)
    private = words({story.CLAIMS: Result([HELD], tables=[claims])})[2]
    assert "0 are proven to be as private as claimed; " in private
    assert "of the 1 other that was attacked, none is refuted, and 3 were not attacked." in private
    rows = [["a", 1.0, 0.9, 2.0]]
    claims = Table("", ["setting", "claimed ε", "certified ε", "audited ε ≥"], rows)
    assert "1 is proven to be as private as claimed." in words({story.CLAIMS: Result([HELD], tables=[claims])})[2]


@pytest.mark.verify
def test_the_experiments_have_what_the_story_reads(tmp_path):
    lab = Laboratory(quick=True, folder=tmp_path, progress=False)
    read = (story.GAP, story.MEMORY, story.CREDIT, story.CLAIMS, story.EXAMPLE, *story.FRONTIERS)
    found = {each.name: each.make(lab) for each in catalogue() if each.name in read}
    assert set(found) == set(read)
    for chapter in story.chapters(found):
        name, chart = str(chapter.chart).split("/chart-")
        assert len(found[name].charts) >= int(chart)
        assert any(character.isdigit() for text in chapter.paragraphs for character in text)
