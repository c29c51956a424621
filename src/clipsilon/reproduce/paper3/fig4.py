"""Paper 3, Fig. 4: test loss of GPT-2 by clipping threshold and step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from clipsilon.report.charts import Chart, Series, Table
from clipsilon.reproduce.base import Finding, Lab, Result, experiment
from clipsilon.reproduce.paper3.fig3 import REMARK
from clipsilon.reproduce.paper3.networks import Scale, paper_multiplier, privacy
from clipsilon.reproduce.paper3.texts import Writer, text_scale

if TYPE_CHECKING:
    from clipsilon.reproduce.paper3.networks import TrainingConfig

CLIPS = (100.0, 10.0, 1.0, 0.1)
STEPS = (2e-2, 1e-2, 5e-3, 2e-3, 1e-3, 5e-4)


@experiment(
    "paper3-fig4",
    paper=3,
    where="Fig. 4",
    title="Clipping threshold and step of DiceSGD on a GPT-2",
    parameters={
        "C1 = C2": "100, 10, 1, 0.1",
        "η": "{2, 1, 0.5}·{10⁻², 10⁻³}",
        "ε, δ": "8, 8·10⁻⁶ by the paper",
        "T": "30",
    },
    extra="language",
)
def thresholds(lab: Lab) -> Result:
    """The last test loss of DiceSGD with AdamW, whose rescaling leaves only the noise dependent on C1."""
    writer = Writer(text_scale(lab, 30, seeds=1), described=1)
    steps = STEPS[::2] if lab.quick else STEPS
    found = {clip: [writer(lab, _plan(writer.scale, clip, step)) for step in steps] for clip in CLIPS}
    series = [Series(f"C1 = {clip:g}", steps, values) for clip, values in found.items()]
    chart = Chart("DiceSGD on restaurants", "largest step η", "last test loss per token, nats", series, x_log=True)
    best = {clip: float(np.min(values)) for clip, values in found.items()}
    finding = Finding(
        "A smaller clipping threshold gives DiceSGD a smaller test loss.",
        "; ".join(f"C1 = {clip:g}: {value:.3f} at its best step" for clip, value in best.items()) + ".",
        best[min(best)] < best[max(best)],
        REMARK,
    )
    row = ["DiceSGD", *privacy(writer.scale, _plan(writer.scale, 1.0, STEPS[0]))]
    table = Table("Privacy, the same for all", ("algorithm", "claimed ε", "certified ε"), [row])
    return Result([finding], [chart], [table])


def _plan(scale: Scale, clip: float, step: float) -> TrainingConfig:
    return scale.plan("dice", step, 0, clip=clip, noise_multiplier=paper_multiplier(scale))
