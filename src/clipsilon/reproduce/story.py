"""The story that the report's page begins with.

Its numbers are read off the results that are there, by the names of experiments, charts and series; what was not run
is not told.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from clipsilon.report.charts import Array
from clipsilon.report.sections import Chapter
from clipsilon.report.text import shown
from clipsilon.reproduce.base import Result

GAP, MEMORY = "paper1-fig1-first", "paper1-fig1-fourth"
CREDIT, CLAIMS, EXAMPLE = "ours-bias-credit", "ours-claims", "ours-counterexample"
FRONTIERS = {"ours-frontier-quadratic": "On the quadratic problem", "ours-frontier-credit": "On credit data"}

Results = Mapping[str, Result]


def chapters(found: Results) -> list[Chapter]:
    """What clipping costs, what feedback repairs, what is really private; and what that costs."""
    return [_cost(found), _repair(found), _privacy(found), *_frontier(found)]


def _cost(found: Results) -> Chapter:
    text = [
        "Each step takes from every record no more than a fixed share: longer gradients are clipped. That bounds what "
        "one record can reveal, and it is unfair in a way that does not average out. The run settles where the clipped "
        "gradients cancel, and not where the gradients do. A smaller step or a longer run does not help, and when the "
        "records react to the model, their reaction can amplify the error."
    ]
    if GAP in found:
        text += [_of_bias(found[GAP])]
    if CREDIT in found:
        text += [_of_credit(found[CREDIT])]
    return Chapter("What clipping costs", text, f"{GAP}/chart-2")


def _of_bias(result: Result) -> str:
    ends = [(chart.title, _ends(result, k)) for k, chart in enumerate(result.charts)]
    found = " and ".join(f"{_rounded(end['PCSGD'])} for {title}" for title, end in ends)
    exact = " and ".join(_rounded(end["exact clipping bias"]) for _, end in ends)
    return (
        f"In paper 1's first experiment PCSGD ends at a squared distance from the stable point θ_PS of {found}, the "
        f"strength of the reaction. Both can be computed before any run: {exact}."
    )


def _of_credit(result: Result) -> str:
    lines = {series.name: series for series in result.charts[0].series}
    line, zero = lines["β = 0"], lines["not to train at all (β = 0)"]
    bias, untrained = float(np.asarray(line.y)[list(line.x).index(1.0)]), float(np.asarray(zero.y)[0])
    farther = "farther away than a model of zeros, at" if bias > untrained else "against a model of zeros at"
    return (
        f"On credit data, even with records that do not react, a clip of one leads to a squared distance of "
        f"{_rounded(bias)}: {farther} {_rounded(untrained)}."
    )


def _repair(found: Results) -> Chapter:
    text = (
        "DiceSGD clips just as hard, but remembers what clipping took away, in an error e_t, and feeds it back a "
        "little at a time. Nothing is lost, only late."
    )
    if GAP in found:
        ends = _ends(found[GAP], -1)
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
        "claim is false."
    ]
    if CLAIMS in found:
        text[0] += _of_claims(found[CLAIMS])
    text += [
        "Feedback has a price here. DiceSGD's memory is never noised, and a record that was drawn once goes on leaving "
        "it step by step, for whoever watches."
    ]
    if EXAMPLE in found:
        text[1] += _of_example(found[EXAMPLE])
    return Chapter("What is really private", text, f"{EXAMPLE}/chart-1")


def _of_claims(result: Result) -> str:
    """How many of the settings in the table are private as claimed; a cell without a number was not attacked."""
    claimed, certified, audited = (_column(result, name) for name in ("claimed", "certified", "audited"))
    proven, broken = int((certified <= claimed * 1.001).sum()), int((audited > claimed).sum())
    return (
        f" Of {len(claimed)} settings in the papers' experiments, {proven} are proven to be as private as they claim; "
        f"{broken or 'none'} of the others {'is' if broken == 1 else 'are'} refuted by an attack."
    )


def _of_example(result: Result) -> str:
    claimed, true = _column(result, "claimed")[0], _column(result, "true")[0]
    verdict = (
        "so the published guarantee fails. With a cap on what one record may leave there, one can be proven; it takes "
        "more noise."
        if true > claimed
        else "as the published guarantee says."
    )
    return f" In a setting that claims ε = {shown(claimed)}, the true one is at least {_rounded(true)}: {verdict}"


def _column(result: Result, begin: str) -> Array:
    """The numbers in the column of a result's first table whose name begins so."""
    table = result.tables[0]
    place = next(k for k, name in enumerate(table.columns) if name.startswith(begin))
    return np.array([row[place] for row in table.rows], dtype=np.float64)


def _frontier(found: Results) -> list[Chapter]:
    """What an honest ε costs, if it was measured."""
    told = [f"{where}: {found[name].findings[0].measured}" for name, where in FRONTIERS.items() if name in found]
    text = (
        "What does feedback buy once every rule has to pay for an ε that is certified? It saves bias, and it needs "
        "more noise for the same guarantee."
    )
    return [Chapter("What honesty costs", [text, *told], f"{next(iter(FRONTIERS))}/chart-1")] if told else []


def _ends(result: Result, chart: int) -> dict[str, float]:
    """Where each series of a chart ends."""
    return {series.name: float(np.asarray(series.y)[-1]) for series in result.charts[chart].series}


def _rounded(value: float, digits: int = 3) -> str:
    return shown(float(f"{value:.{digits}g}"))
