"""Private logistic regression by diffprivlib, run in its own environment: jobs in as JSON, models out as JSON.

    python diffprivlib_logistic.py < jobs.json > models.json

A job names a split (an .npz file with features and labels), ε, `data_norm`, `C` and a seed. A model is its weights,
followed by its intercept.
"""

from __future__ import annotations

import json
import sys
import warnings

import numpy as np
from diffprivlib.models import LogisticRegression


def main() -> None:
    """Read jobs, fit models and write them."""
    warnings.simplefilter("ignore")
    tables: dict[str, dict[str, np.ndarray]] = {}
    models = []
    for job in json.load(sys.stdin):
        table = tables.setdefault(job["split"], dict(np.load(job["split"])))
        model = LogisticRegression(
            epsilon=job["epsilon"], data_norm=job["data_norm"], C=job["C"], max_iter=1000, random_state=job["seed"]
        ).fit(table["features"], table["labels"])
        models.append([*model.coef_[0].tolist(), float(model.intercept_[0])])
    json.dump(models, sys.stdout)


if __name__ == "__main__":
    main()
