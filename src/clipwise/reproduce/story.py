"""The story that the report's page begins with.

Its numbers are read off the results that are there, by the names of experiments, charts and series; what was not run
is not told.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from clipwise.report.sections import Chapter
from clipwise.report.text import shown
from clipwise.reproduce.base import Result

GAP, MEMORY = "paper1-fig1-first", "paper1-fig1-fourth"
CLAIMS, FRONTIER = "ours-claims", "ours-frontier"

Results = Mapping[str, Result]


def chapters(found: Results) -> list[Chapter]:
    """What clipping costs, what feedback repairs, what is really private."""
    return [_cost(found), _repair(found), _privacy(found)]


def _cost(found: Results) -> Chapter:
    text = [
        "Each step takes from every record no more than a fixed share: longer gradients are clipped. That bounds what "
        "one record can reveal, and it is unfair in a way that does not average out. The run settles where the clipped "
        "gradients cancel, and not where the gradients do. A smaller step or a longer run does not help, and when the "
        "records react to the model, their reaction amplifies the error."
    ]
    if GAP in found:
        text += [_of_bias(found[GAP])]
    return Chapter("What clipping costs", text, f"{GAP}/chart-2")


def _of_bias(result: Result) -> str:
    weak, strong = (_ends(result, k) for k in (0, 1))
    return (
        f"In paper 1's first experiment PCSGD ends at a squared distance of {_rounded(weak['PCSGD'])} from the stable "
        f"point θ_PS where records react little, and of {_rounded(strong['PCSGD'])} where they react five times as "
        f"much. Both can be computed before any run: {_rounded(weak['exact clipping bias'])} and "
        f"{_rounded(strong['exact clipping bias'])}."
    )


def _repair(found: Results) -> Chapter:
    text = (
        "DiceSGD clips just as hard, but remembers what clipping took away, in an error e_t, and feeds it back a "
        "little at a time. Nothing is lost, only late."
    )
    if GAP in found:
        ends = _ends(found[GAP], 1)
        text += (
            f" On the same problem it ends at {_rounded(ends['DiceSGD'])}, which is "
            f"{_rounded(ends['PCSGD'] / ends['DiceSGD'], 2)} times closer, and is still on its way."
        )
    more = [f"Its memory stays bounded. {found[MEMORY].findings[0].measured}"] if MEMORY in found else []
    return Chapter("What feedback repairs", [text, *more], f"{MEMORY}/chart-1")


def _privacy(found: Results) -> Chapter:
    text = [
        "Three numbers are easily taken for one another. What a paper claims is the ε of its theorem. What is "
        "certified is an ε that can be proven for the very algorithm that runs. What an audit shows is an ε that an "
        "attack on its runs demonstrates: the truth is not below it. Where the first is smaller than the third, the "
        "claim is false.",
        "DiceSGD's published guarantee is such a case. Its memory is never noised, and a record that was drawn once "
        "goes on leaving it step by step. With a cap on what one record may leave there, a guarantee can be proven; it "
        "takes more noise.",
    ]
    if CLAIMS in found:
        text += [_of_claims(found[CLAIMS])]
    return Chapter("What is really private", text, f"{FRONTIER}/chart-1")


def _of_claims(result: Result) -> str:
    """How many of the settings in the table are private as claimed; a cell without a number was not run."""
    table = result.tables[0]
    claimed, certified, audited = (
        np.array([row[table.columns.index(name)] for row in table.rows], dtype=np.float64)
        for name in ("claimed ε", "certified ε", "audited ε")
    )
    proven, broken = int((certified <= claimed * 1.01).sum()), int((audited > claimed).sum())
    return (
        f"Of the {len(table.rows)} settings of the papers' experiments, {proven} are proven to be as private as they "
        f"claim, and {broken} are shown by an attack not to be."
    )


def _ends(result: Result, chart: int) -> dict[str, float]:
    """Where each series of a chart ends."""
    return {series.name: float(np.asarray(series.y)[-1]) for series in result.charts[chart].series}


def _rounded(value: float, digits: int = 3) -> str:
    return shown(float(f"{value:.{digits}g}"))
