"""Paper 3, Fig. 3 and Table 3: GPT-2 on descriptions of restaurants, its test loss and its sentences."""

from __future__ import annotations

from typing import Any

import numpy as np

from clipsilon.report.charts import Chart, Table, band
from clipsilon.reproduce.base import Finding, Lab, Result, experiment
from clipsilon.reproduce.paper3.networks import paper_multiplier, privacy
from clipsilon.reproduce.paper3.texts import TITLES, Writer, Written, mean, text_scale

CLIP = 1.0
STEPS = 60
SIZE = {"C1 = C2": "1", "ε, δ": "8, 8·10⁻⁶ by the paper", "N": "5,000", "B": "100", "T": "60", "optimiser": "AdamW"}
REMARK = (
    "A GPT-2 of 30 thousand random parameters on made-up restaurants here, and App. C.4's noise for both; what the "
    "paper claims at it is not certified."
)


def trained(lab: Lab) -> tuple[Writer, dict[str, tuple[Any, list[Written]]]]:
    """Each algorithm with its best step: the plan, and what its seeds gave."""
    writer = Writer(text_scale(lab, STEPS))
    noise = {"clip": CLIP, "noise_multiplier": paper_multiplier(writer.scale)}
    return writer, {title: writer.tuned(lab, name, **noise) for title, name in TITLES.items()}


@experiment(
    "paper3-fig3",
    paper=3,
    where="Fig. 3",
    title="A GPT-2's test loss along a private training",
    parameters=SIZE,
    extra="language",
)
def curves(lab: Lab) -> Result:
    """Test loss of a token, for DPSGD-GC and DiceSGD at the same noise, each with its best step, beside training that
    is not private.
    """
    _, found = trained(lab)
    series = [
        band(title, written[0].iterations, np.array([each.losses for each in written]), level=0.0)
        for title, (_, written) in found.items()
    ]
    ends = {title: mean([each.losses[-1] for each in written]) for title, (_, written) in found.items()}
    finding = Finding(
        "At the same noise, DiceSGD's test loss ends below DPSGD-GC's.",
        "; ".join(f"{title}: {value:.3f}" for title, value in ends.items()),
        ends["DiceSGD"] < ends["DPSGD-GC"],
        REMARK,
    )
    return Result([finding], [Chart("GPT-2 on restaurants", "step", "test loss of a token, nats", series)])


@experiment(
    "paper3-table3",
    paper=3,
    where="Table 3",
    title="The sentences of a privately trained GPT-2",
    parameters=SIZE,
    extra="language",
)
def sentences(lab: Lab) -> Result:
    """BLEU (sacrebleu) and ROUGE-L (rouge-score) of descriptions of restaurants that the model has not seen, against
    all sentences that would be right; the runs are those of Fig. 3.
    """
    writer, found = trained(lab)
    rows: list[list[Any]] = []
    for title, (plan, written) in found.items():
        marks = [mean([each.bleu for each in written]), mean([each.rouge for each in written])]
        rows.append([title, f"{plan.step:g}", *(f"{mark:.1f}" for mark in marks), *privacy(writer.scale, plan)])
    findings = [_better(found, "BLEU", "bleu"), _better(found, "ROUGE-L", "rouge")]
    columns = ("algorithm", "step", "BLEU", "ROUGE-L", "claimed ε", "certified ε")
    return Result(findings, tables=[Table("Means over seeds, at one noise", columns, rows)])


def _better(found: dict[str, tuple[Any, list[Written]]], name: str, field: str) -> Finding:
    marks = {title: mean([getattr(each, field) for each in written]) for title, (_, written) in found.items()}
    return Finding(
        f"At the same noise, DiceSGD's {name} is above DPSGD-GC's.",
        "; ".join(f"{title}: {value:.1f}" for title, value in marks.items()),
        marks["DiceSGD"] > marks["DPSGD-GC"],
        REMARK,
    )
