"""Lower bounds on ε by JAX Privacy's auditor in its own environment: one command per line in, one bound out.

    python jax_privacy_audit.py

`{"file": …, "method": …, "strategy": …, "delta": …, "significance": …}` reads scores (an .npz file with `absent` and
`present`) and answers with the bound and its time, which includes the construction of the auditor. Both directions of
a test count where the method allows it.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from typing import Any

import numpy as np
from jax_privacy import auditing

STRATEGIES = {
    "bonferroni": auditing.Bonferroni(),
    "split": auditing.Split(seed=0),
    "multi-split": auditing.MultiSplit(seed=0),
}


def bound(scores: Any, method: str, strategy: str, delta: float, significance: float) -> float:
    """Return the bound that a method derives from the scores."""
    auditor = auditing.CanaryScoreAuditor(scores["present"], scores["absent"])
    chosen = STRATEGIES[strategy]
    if method == "Clopper–Pearson":
        found = auditor.epsilon_clopper_pearson(significance, delta, one_sided=False, threshold_strategy=chosen)
    elif method == "Gaussian":
        found = auditor.epsilon_from_gdp(significance, delta)
    elif method == "one run":
        found = auditor.epsilon_one_run(significance, delta, threshold_strategy=chosen)
    else:
        found = auditor.epsilon_one_run_fdp(significance, delta, threshold_strategy=chosen)
    return float(found)


def main() -> None:
    """Execute commands, one per line."""
    warnings.simplefilter("ignore")
    for line in sys.stdin:
        command = json.loads(line)
        scores = dict(np.load(command.pop("file")))
        began = time.perf_counter()
        found = bound(scores, **command)
        print(json.dumps({"epsilon": found, "seconds": time.perf_counter() - began}), flush=True)


if __name__ == "__main__":
    main()
