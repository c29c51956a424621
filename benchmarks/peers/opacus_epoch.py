"""Time epochs of Opacus's private logistic regression in its own environment: one command per line in, seconds out.

    python opacus_epoch.py

`{"file": …, "batch": …, "threads": …}` loads a table (an .npz file with features and labels) and makes a model
private; `"loader"` times an epoch with Opacus's DataLoader, and `"batches"` one over batches fetched in advance.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from opacus import PrivacyEngine
from torch.utils.data import DataLoader, TensorDataset


def make_private(file: str, batch: int, threads: int) -> tuple[Any, Any, Any]:
    """Return Opacus's private model, optimiser and Poisson loader, in float64."""
    torch.set_num_threads(threads)
    table = np.load(file)
    data = TensorDataset(torch.from_numpy(table["features"]), torch.from_numpy(table["labels"]))
    model = torch.nn.Linear(table["features"].shape[1], 1, bias=False).double()
    return PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.5),
        data_loader=DataLoader(data, batch_size=batch),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )


def epoch(model: Any, optimiser: Any, batches: Iterable[Any]) -> float:
    """Return the seconds of one pass."""
    criterion = torch.nn.BCEWithLogitsLoss()
    began = time.perf_counter()
    for rows, targets in batches:
        optimiser.zero_grad()
        criterion(model(rows)[:, 0], targets).backward()
        optimiser.step()
    return time.perf_counter() - began


def main() -> None:
    """Execute commands, one per line."""
    warnings.simplefilter("ignore")
    for line in sys.stdin:
        command = json.loads(line)
        if isinstance(command, dict):
            model, optimiser, loader = make_private(**command)
            seconds = 0.0
        else:
            seconds = epoch(model, optimiser, loader if command == "loader" else list(loader))
        print(json.dumps(seconds), flush=True)


if __name__ == "__main__":
    main()
