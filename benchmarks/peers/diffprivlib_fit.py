"""Time fits of diffprivlib's logistic regression in its own environment: one command per line in, seconds out.

    python diffprivlib_fit.py

`{"file": …, "data_norm": …}` loads a table (an .npz file with features and labels); `"fit"` times one fit at ε = 1.
"""

from __future__ import annotations

import json
import sys
import time
import warnings

import numpy as np
from diffprivlib.models import LogisticRegression


def main() -> None:
    """Execute commands, one per line."""
    warnings.simplefilter("ignore")
    for line in sys.stdin:
        command = json.loads(line)
        began = time.perf_counter()
        if isinstance(command, dict):
            table, norm = dict(np.load(command["file"])), command["data_norm"]
        else:
            model = LogisticRegression(epsilon=1.0, data_norm=norm, fit_intercept=False, random_state=0)
            model.fit(table["features"], table["labels"])
        print(json.dumps(time.perf_counter() - began), flush=True)


if __name__ == "__main__":
    main()
