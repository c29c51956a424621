"""Train models of diffprivlib in its own environment: one command per line in, an answer per line out, as JSON.

    python diffprivlib_train.py

`{"model": …, "arguments": …, "features": …, "labels": …}` trains a model; `{"rows": …}` asks for the probability that
it gives to the last class.
"""

from __future__ import annotations

import json
import sys
import warnings
from typing import Any

import numpy as np
from diffprivlib import models


def main() -> None:
    """Execute commands, one per line."""
    warnings.simplefilter("ignore")
    model: Any = None
    for line in sys.stdin:
        command = json.loads(line)
        if "rows" in command:
            print(json.dumps(model.predict_proba(np.array(command["rows"]))[:, -1].tolist()), flush=True)
        else:
            arguments = {name: tuple(v) if isinstance(v, list) else v for name, v in command["arguments"].items()}
            model = getattr(models, command["model"])(**arguments)
            model.fit(np.array(command["features"]), np.array(command["labels"]))
            print(json.dumps("trained"), flush=True)


if __name__ == "__main__":
    main()
