"""The pictures of a private evaluation: the ROC curve and the calibration curve, with their intervals."""

from __future__ import annotations

import numpy as np

from clipsilon.estimators.evaluation import PrivateScores
from clipsilon.report.charts import Chart, Series

_GREY = "#7f7f7f"


def quality_charts(scores: PrivateScores) -> dict[str, Chart]:
    """Return the charts that an evaluation has, by name."""
    found = {}
    if scores.roc is not None:
        guess = Series("guessing", [0.0, 1.0], [0.0, 1.0], kind="dashed", colour=_GREY)
        curve = Series("the model, with 95 % intervals", *scores.roc)
        found["roc"] = Chart("ROC curve", "false positive rate", "true positive rate", [curve, guess])
    if scores.calibration is not None:
        x, y, low, high = scores.calibration
        known = np.isfinite(y)
        end = float(max(np.max(x, initial=0.0), np.max(high[known], initial=0.0)))
        ideal = Series("perfectly calibrated", [0.0, end], [0.0, end], kind="dashed", colour=_GREY)
        curve = Series("the model, with 95 % intervals", x[known], y[known], low[known], high[known])
        words = f"observed frequency of {scores.positive}"
        found["calibration"] = Chart(
            "Calibration", f"predicted probability of {scores.positive}", words, [curve, ideal]
        )
    return found
