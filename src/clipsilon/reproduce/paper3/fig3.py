"""Paper 3, Fig. 3 and Table 3: test loss and sentences of a GPT-2 trained on descriptions of restaurants."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from clipsilon.report.charts import Cell, Chart, Table, band
from clipsilon.reproduce.base import Finding, Lab, Result, experiment
from clipsilon.reproduce.paper3.networks import paper_multiplier, privacy
from clipsilon.reproduce.paper3.texts import TITLES, Writer, Written, mean, text_scale

if TYPE_CHECKING:
    from clipsilon.reproduce.paper3.networks import TrainingConfig

Trained = dict[str, tuple["TrainingConfig", list[Written]]]  # by algorithm

CLIP = 1.0
STEPS = 60
SIZE = {"C1 = C2": "1", "ε, δ": "8, 8·10⁻⁶ by the paper", "N": "5,000", "B": "100", "T": "60", "optimiser": "AdamW"}
REMARK = (
    "Measured with a GPT-2 of 30,000 randomly initialised parameters on made-up restaurants, with the noise of App. "
    "C.4 for both; the ε that the paper claims for it is not certified."
)


def trained(lab: Lab) -> tuple[Writer, Trained]:
    """Return the writer, and for each algorithm the plan with its best step and the outputs of all seeds."""
    writer = Writer(text_scale(lab, STEPS))
    noise = {"clip": CLIP, "noise_multiplier": paper_multiplier(writer.scale)}
    return writer, {title: writer.tuned(lab, name, **noise) for title, name in TITLES.items()}


@experiment(
    "paper3-fig3",
    paper=3,
    where="Fig. 3",
    title="Test loss of a GPT-2 during private training",
    parameters=SIZE,
    extra="language",
)
def curves(lab: Lab) -> Result:
    """Test loss per token for DPSGD-GC and DiceSGD at the same noise, each with its best step, beside training without
    privacy.
    """
    _, found = trained(lab)
    series = [
        band(title, written[0].iterations, np.array([each.losses for each in written]), level=0.0)
        for title, (_, written) in found.items()
    ]
    ends = {title: mean([each.losses[-1] for each in written]) for title, (_, written) in found.items()}
    finding = Finding(
        "At the same noise, DiceSGD's test loss ends below DPSGD-GC's.",
        "; ".join(f"{title}: {value:.3f}" for title, value in ends.items()) + ".",
        ends["DiceSGD"] < ends["DPSGD-GC"],
        REMARK,
    )
    return Result([finding], [Chart("GPT-2 on restaurants", "step", "test loss per token, nats", series)])


@experiment(
    "paper3-table3",
    paper=3,
    where="Table 3",
    title="Sentences of a privately trained GPT-2",
    parameters=SIZE,
    extra="language",
)
def sentences(lab: Lab) -> Result:
    """BLEU (sacrebleu), NIST, ROUGE-L (rouge-score) and CIDEr (its form CIDEr-D) for descriptions of restaurants that
    the model has not seen, against all correct sentences, for the runs of Fig. 3.
    """
    from clipsilon.torch.examples.scores import SCORES

    writer, found = trained(lab)
    rows: list[list[Cell]] = []
    for title, (plan, written) in found.items():
        scores = [_format(_mean_score(written, name)) for name in SCORES]
        rows.append([title, f"{plan.step:g}", *scores, *privacy(writer.scale, plan)])
    columns = ("algorithm", "step", *SCORES, "claimed ε", "certified ε")
    findings = [_better(found, name) for name in SCORES]
    return Result(findings, tables=[Table("Means over seeds, at the same noise", columns, rows)])


def _mean_score(written: list[Written], name: str) -> float:
    return mean([each.scores[name] for each in written])


def _format(score: float) -> str:
    return f"{score:.1f}" if score > 10 else f"{score:.2f}"  # BLEU and ROUGE-L are per cent, the others small


def _better(found: Trained, name: str) -> Finding:
    scores = {title: _mean_score(written, name) for title, (_, written) in found.items()}
    return Finding(
        f"At the same noise, DiceSGD's {name} is above DPSGD-GC's.",
        "; ".join(f"{title}: {_format(value)}" for title, value in scores.items()) + ".",
        scores["DiceSGD"] > scores["DPSGD-GC"],
        REMARK,
    )
