"""Paper 3, Fig. 2: the best step for each C1."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from clipsilon.report.charts import Chart, Table, band
from clipsilon.reproduce.base import Finding, Lab, Result, experiment
from clipsilon.reproduce.paper3.fig1 import CLIPS, REMARK, Accuracies, small_is_better
from clipsilon.reproduce.paper3.networks import Image, image, image_scale, paper_multiplier, privacy

if TYPE_CHECKING:
    from clipsilon.reproduce.paper3.networks import TrainingConfig

STEPS = (3.0, 1.0, 0.3, 0.1, 0.03, 0.01)  # times C1


@experiment(
    "paper3-fig2",
    paper=3,
    where="Fig. 2",
    title="Clipping threshold and step of DiceSGD on images",
    parameters={"C1 = C2": "100, 10, 1, 0.1", "η·C1": "3, 1, 0.3, 0.1, 0.03, 0.01", "ε, δ": "8, 10⁻⁵ by the paper"},
    extra="torch",
)
def steps(lab: Lab) -> Result:
    """Test accuracy of DiceSGD for each C1 and step, with C2 = C1. For small C1 one product η·C1 is best."""
    model = image(lab, "CNN", image_scale(lab, seeds=2))
    found = {clip: np.array([model.accuracies(lab, _plan(model, clip, step)) for step in STEPS]) for clip in CLIPS}
    series = [band(f"C1 = {clip:g}", STEPS, values.T, level=0.0) for clip, values in found.items()]
    chart = Chart("DiceSGD with C2 = C1", "η·C1", "test accuracy, %", series, x_log=True)
    claimed, certified = privacy(model.scale, _plan(model, 1.0, 1.0))
    table = Table(
        "Privacy, the same for all", ("algorithm", "claimed ε", "certified ε"), [["DiceSGD", claimed, certified]]
    )
    return Result([_inner_best(found), small_is_better(found, None)], [chart], [table])


def _plan(model: Image, clip: float, step: float) -> TrainingConfig:
    return model.scale.plan("dice", step / clip, 0, clip=clip, noise_multiplier=paper_multiplier(model.scale))


def _inner_best(found: Accuracies) -> Finding:
    best = {clip: STEPS[int(values.mean(axis=1).argmax())] for clip, values in found.items()}
    small = [best[clip] for clip in sorted(best)[:2]]
    return Finding(
        "There is a product η·C1 that gives the best accuracy.",
        "; ".join(f"C1 = {clip:g}: best at η·C1 = {step:g}" for clip, step in best.items()) + ".",
        all(STEPS[-1] < step < STEPS[0] for step in small),
        REMARK,
    )
