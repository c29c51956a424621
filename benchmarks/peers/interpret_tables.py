"""Private boosted trees of InterpretML in their own environment: one command per line in, an answer per line out.

    python interpret_tables.py

`{"file": …, "epsilon": …, "delta": …, "seed": …}` trains on a file (.npz) and answers with scores of the test rows and
the seconds of the fit. The file has `train`, `test` and `labels`, tables of numbers between −1 and 1, and `nominal`,
which says which columns hold codes of levels.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from typing import Any

import numpy as np
import pandas as pd
from interpret.privacy import DPExplainableBoostingClassifier


def frame(table: Any, nominal: Any) -> pd.DataFrame:
    """Return a data frame with codes as text."""
    columns = {
        f"x{j}": [f"{code:g}" for code in table[:, j]] if nominal[j] else table[:, j] for j in range(len(nominal))
    }
    return pd.DataFrame(columns)


def fit(file: str, epsilon: float, delta: float, seed: int) -> dict[str, Any]:
    """Train with defaults, and with types and ranges of all columns."""
    found = dict(np.load(file))
    nominal = found["nominal"]
    model = DPExplainableBoostingClassifier(
        feature_types=["nominal" if one else "continuous" for one in nominal],
        privacy_bounds={f"x{j}": (-1.0, 1.0) for j in range(len(nominal)) if not nominal[j]},
        epsilon=epsilon,
        delta=delta,
        random_state=seed,
    )
    train, test = frame(found["train"], nominal), frame(found["test"], nominal)
    began = time.perf_counter()
    model.fit(train, found["labels"])
    seconds = time.perf_counter() - began
    return {"scores": model.predict_proba(test)[:, 1].tolist(), "seconds": seconds}


def main() -> None:
    """Execute commands, one per line."""
    warnings.simplefilter("ignore")
    for line in sys.stdin:
        print(json.dumps(fit(**json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
