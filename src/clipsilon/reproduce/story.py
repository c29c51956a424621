"""The story at the beginning of the report's page.

Its numbers are taken from the results that are present, by the names of experiments, charts and series; what was not
run is left out.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from clipsilon.report.charts import Array
from clipsilon.report.sections import Chapter
from clipsilon.report.text import readable
from clipsilon.reproduce.base import Result

GAP, MEMORY = "paper1-fig1-first", "paper1-fig1-fourth"
CREDIT, CLAIMS, EXAMPLE = "ours-bias-credit", "ours-claims", "ours-counterexample"
FRONTIERS = {
    "ours-frontier-quadratic": "On the quadratic problem",
    "ours-frontier-credit": "On credit data",
    "ours-frontier-imbalanced": "With few labels of one kind",
    "ours-frontier-skewed": "With skewed targets",
}

Results = Mapping[str, Result]


def chapters(found: Results) -> list[Chapter]:
    """Return the chapters: what clipping costs, what feedback repairs, what is private, and what privacy costs."""
    return [_cost(found), _repair(found), _privacy(found), *_frontier(found)]


def _cost(found: Results) -> Chapter:
    text = [
        "Each record contributes a gradient of bounded length: longer gradients are clipped. Clipping bounds what one "
        "record can reveal, but its error does not average out. The run converges to a point where the clipped "
        "gradients cancel, not where the gradients cancel. Neither a smaller step nor a longer run helps, and when the "
        "records react to the model, their reaction can amplify the error."
    ]
    if GAP in found:
        text += [_bias_sentence(found[GAP])]
    if CREDIT in found:
        text += [_credit_sentence(found[CREDIT])]
    return Chapter("What clipping costs", text, f"{GAP}/chart-2")


def _bias_sentence(result: Result) -> str:
    ends = [(chart.title, _ends(result, k)) for k, chart in enumerate(result.charts)]
    found = " and ".join(f"{_rounded(end['PCSGD'])} for {title}" for title, end in ends)
    exact = " and ".join(_rounded(end["exact clipping bias"]) for _, end in ends)
    return (
        f"In paper 1's first experiment PCSGD ends at a squared distance from the stable point θ_PS of {found}, where "
        f"β is the strength of the reaction. Both distances can be computed before any run: {exact}."
    )


def _credit_sentence(result: Result) -> str:
    lines = {series.name: series for series in result.charts[0].series}
    line, zero = lines["β = 0"], lines["not training at all (β = 0)"]
    bias, untrained = float(np.asarray(line.y)[np.asarray(line.x) == 1.0][0]), float(np.asarray(zero.y)[0])
    farther = "farther away than a model of zeros, at" if bias > untrained else "compared with a model of zeros at"
    return (
        f"On credit data, even if the records do not react, a clip of 1 leads to a squared distance of "
        f"{_rounded(bias)}, {farther} {_rounded(untrained)}."
    )


def _repair(found: Results) -> Chapter:
    text = (
        "DiceSGD clips just as hard, but accumulates what clipping cut off in an error e_t, and feeds it back a "
        "little at a time. Nothing is lost; it only arrives later."
    )
    if GAP in found:
        ends = _ends(found[GAP], -1)
        text += (
            f" On the same problem it ends at {_rounded(ends['DiceSGD'])}, which is "
            f"{_rounded(ends['PCSGD'] / ends['DiceSGD'], 2)} times closer, and is still converging."
        )
    more = [f"{_error_bounded(found[MEMORY])} {found[MEMORY].findings[0].measured}"] if MEMORY in found else []
    return Chapter("What feedback repairs", [text, *more], f"{MEMORY}/chart-1")


def _error_bounded(result: Result) -> str:
    held = result.findings[0].holds
    return "The accumulated error stays bounded." if held else "The accumulated error does not stay within its bound."


def _privacy(found: Results) -> Chapter:
    text = [
        "Three numbers are easily confused. The claimed ε is what a paper's theorem states. The certified ε is what "
        "can be proven for exactly the algorithm that runs. The audited ε is what an attack on the runs demonstrates: "
        "the true ε is not below it. If the claimed ε is smaller than the audited ε, the claim is false."
    ]
    if CLAIMS in found:
        text[0] += _claims_sentence(found[CLAIMS])
    text += [
        "Feedback has a price here. No noise is added to DiceSGD's accumulated error, and a record that was drawn once "
        "keeps leaving it step by step, which an observer can see."
    ]
    if EXAMPLE in found:
        text[1] += _example_sentence(found[EXAMPLE])
    return Chapter("What is really private", text, f"{EXAMPLE}/chart-1")


def _claims_sentence(result: Result) -> str:
    """Say how many rows of the table are as private as claimed; a cell without a number was not attacked."""
    claimed, certified, audited = (_column(result, name) for name in ("claimed", "certified", "audited"))
    others = ~(certified <= claimed * 1.001)
    attacked = others & np.isfinite(audited)
    proven, tried, left = int((~others).sum()), int(attacked.sum()), int((others & ~attacked).sum())
    sentence = (
        f" Of {len(claimed)} experiments in the papers, {proven} {'is' if proven == 1 else 'are'} proven to be as "
        "private as claimed"
    )
    if not tried:
        return sentence + ("; the others were not attacked here." if left else ".")
    broken = int((audited[attacked] > claimed[attacked]).sum())
    rest = f", and {left} {'was' if left == 1 else 'were'} not attacked" if left else ""
    return (
        f"{sentence}; of the {tried} {'other that was' if tried == 1 else 'others that were'} attacked, "
        f"{broken or 'none'} {'is' if broken < 2 else 'are'} refuted{rest}."
    )


def _example_sentence(result: Result) -> str:
    claimed, true = _column(result, "claimed")[0], _column(result, "true")[0]
    verdict = (
        "so the published guarantee fails. With a cap on what one record may leave in the error, a guarantee can be "
        "proven; it requires more noise."
        if true > claimed
        else "so the published guarantee is not refuted."
    )
    return f" Where ε = {readable(claimed)} is claimed, the true ε is at least {_rounded(true)}, {verdict}"


def _column(result: Result, begin: str) -> Array:
    """Return the column of the first table whose name begins with `begin`."""
    table = result.tables[0]
    place = next(k for k, name in enumerate(table.columns) if name.startswith(begin))
    return np.array([row[place] for row in table.rows], dtype=np.float64)


def _frontier(found: Results) -> list[Chapter]:
    """Return a chapter on what is best at a certified ε, if that was measured."""
    lines = [f"{where}: {found[name].findings[-1].measured}" for name, where in FRONTIERS.items() if name in found]
    text = (
        "What is best if every rule has to add the noise that its certified ε requires, and each has its best clip, "
        "step, batch and number of epochs? Error feedback removes bias, but needs more noise for the same guarantee. "
        "Correlated noise takes back in later steps what it added in earlier ones, and clipping with a generous "
        "threshold costs little. No rule without bias can pass the limit that is given with each ε."
    )
    return (
        [Chapter("What is best at a certified ε", [text, *lines], f"{next(iter(FRONTIERS))}/chart-1")] if lines else []
    )


def _ends(result: Result, chart: int) -> dict[str, float]:
    """Return the last value of each series of a chart."""
    return {series.name: float(np.asarray(series.y)[-1]) for series in result.charts[chart].series}


def _rounded(value: float, digits: int = 3) -> str:
    return readable(float(f"{value:.{digits}g}"))
