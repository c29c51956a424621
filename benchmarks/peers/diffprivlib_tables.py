"""Private logistic regression by diffprivlib in its own environment: one command per line in, an answer per line out.

    python diffprivlib_tables.py

`{"file": …, "epsilon": …, "data_norm": …, "seed": …}` trains with defaults on a file (.npz with `train`, `test` and
`labels`) and answers with scores of the test rows and the seconds of the fit.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from typing import Any

import numpy as np
from diffprivlib.models import LogisticRegression


def fit(file: str, epsilon: float, data_norm: float, seed: int) -> dict[str, Any]:
    """Train a model, and return its scores and the seconds."""
    found = dict(np.load(file))
    model = LogisticRegression(epsilon=epsilon, data_norm=data_norm, random_state=seed)
    began = time.perf_counter()
    model.fit(found["train"], found["labels"])
    seconds = time.perf_counter() - began
    return {"scores": model.decision_function(found["test"]).tolist(), "seconds": seconds}


def main() -> None:
    """Execute commands, one per line."""
    warnings.simplefilter("ignore")
    for line in sys.stdin:
        print(json.dumps(fit(**json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
