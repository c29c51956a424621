"""Paper 3, Fig. 1: the best C2 for each C1."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from clipsilon.report.charts import Array, Chart, Table, band
from clipsilon.reproduce.base import Finding, Lab, Result, experiment
from clipsilon.reproduce.paper3.networks import Image, image, image_scale, paper_multiplier, privacy

if TYPE_CHECKING:
    from clipsilon.reproduce.paper3.networks import TrainingConfig

Accuracies = dict[float, Array]  # (steps or ratios, seeds), by clip

CLIPS = (100.0, 10.0, 1.0, 0.1)
RATIOS = (1.0, 3.0, 10.0, 30.0)
STEP = 0.3  # the "effective" step η·C1, which the paper keeps fixed but does not state

REMARK = (
    "Measured with a CNN on digits. The noise follows Theorem 3.8 with C2 in place of C, and its claimed ε is not "
    "certified."
)


@experiment(
    "paper3-fig1",
    paper=3,
    where="Fig. 1",
    title="How much of the error DiceSGD should feed back",
    parameters={"C1": "100, 10, 1, 0.1", "C2/C1": "1, 3, 10, 30", "η·C1": "0.3", "ε, δ": "8, 10⁻⁵ by the paper"},
    extra="torch",
)
def thresholds(lab: Lab) -> Result:
    """Test accuracy of DiceSGD for each C1 and C2, with the step η = 0.3/C1. A larger C2 feeds back more of the error,
    and by the paper's formula needs more noise.
    """
    model = image(lab, "CNN", image_scale(lab, seeds=2))
    found = {clip: np.array([model.accuracies(lab, _plan(model, clip, ratio)) for ratio in RATIOS]) for clip in CLIPS}
    series = [band(f"C1 = {clip:g}", RATIOS, values.T, level=0.0) for clip, values in found.items()]
    chart = Chart("DiceSGD at a fixed effective step", "C2/C1", "test accuracy, %", series, x_log=True)
    return Result([_equal_is_best(found), small_is_better(found, 0)], [chart], [_table(model)])


def _plan(model: Image, clip: float, ratio: float) -> TrainingConfig:
    noise = paper_multiplier(model.scale, ratio)
    return model.scale.plan("dice", STEP / clip, 0, clip=clip, error_clip=ratio * clip, noise_multiplier=noise)


def _table(model: Image) -> Table:
    plans = [_plan(model, 1.0, ratio) for ratio in RATIOS]
    rows = [
        [f"{ratio:g}", f"{plan.noise_multiplier:.3g}·C1/B", *privacy(model.scale, plan)]
        for ratio, plan in zip(RATIOS, plans, strict=True)
    ]
    return Table("Privacy, the same for every C1", ("C2/C1", "noise", "claimed ε", "certified ε"), rows)


def _equal_is_best(found: Accuracies) -> Finding:
    best = {clip: RATIOS[int(values.mean(axis=1).argmax())] for clip, values in found.items()}
    return Finding(
        "C2 = C1 gives the best accuracy in most cases.",
        "; ".join(f"C1 = {clip:g}: best at C2 = {ratio:g}·C1" for clip, ratio in best.items()) + ".",
        sum(ratio == 1.0 for ratio in best.values()) > len(best) / 2,
        REMARK,
    )


def small_is_better(found: Accuracies, column: int | None) -> Finding:
    """Test whether the smallest C1 is better than the largest, in one column or at the best entry of each row."""
    means = {clip: values.mean(axis=1) for clip, values in found.items()}
    chosen = {clip: float(each.max() if column is None else each[column]) for clip, each in means.items()}
    return Finding(
        "DiceSGD benefits from a small clipping threshold C1.",
        "; ".join(f"C1 = {clip:g}: {value:.1f} %" for clip, value in chosen.items()) + ".",
        chosen[min(chosen)] > chosen[max(chosen)],
        REMARK,
    )
