"""Private logistic regression by Opacus, run in its own environment: jobs in as JSON, models out as JSON.

    python opacus_logistic.py < jobs.json > models.json

A job names a split (an .npz file with features and labels), the batch, the epochs, the learning rate, the clip, the
noise multiplier and a seed. A model is its weights, followed by its intercept.
"""

from __future__ import annotations

import json
import sys
import warnings

import numpy as np
import torch
from opacus import PrivacyEngine
from torch.utils.data import DataLoader, Dataset


class Table(Dataset):
    """Rows of a tensor. A batch is taken at once, which is many times as fast as row by row."""

    def __init__(self, features: torch.Tensor, labels: torch.Tensor):
        self.features, self.labels = features, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.features[i], self.labels[i]

    def __getitems__(self, rows: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        return self.features[rows], self.labels[rows]


def fit(features: torch.Tensor, labels: torch.Tensor, job: dict) -> list[float]:
    """Train with Opacus's DP-SGD on Poisson batches, from zero, and return the last iterate."""
    torch.manual_seed(job["seed"])
    model = torch.nn.Linear(features.shape[1], 1).double()
    torch.nn.init.zeros_(model.weight)
    torch.nn.init.zeros_(model.bias)
    optimiser = torch.optim.SGD(model.parameters(), lr=job["rate"])
    loader = DataLoader(Table(features, labels), batch_size=job["batch"], collate_fn=lambda batch: batch)
    model, optimiser, loader = PrivacyEngine().make_private(
        module=model,
        optimizer=optimiser,
        data_loader=loader,
        noise_multiplier=job["noise_multiplier"],
        max_grad_norm=job["clip"],
    )
    criterion = torch.nn.BCEWithLogitsLoss()
    for _ in range(job["epochs"]):
        for rows, targets in loader:
            optimiser.zero_grad()
            criterion(model(rows)[:, 0], targets).backward()
            optimiser.step()
    return [*model._module.weight.detach().numpy()[0].tolist(), float(model._module.bias.detach()[0])]


def main() -> None:
    """Read jobs, fit models and write them."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    tables: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
    models = []
    for job in json.load(sys.stdin):
        if job["split"] not in tables:
            file = np.load(job["split"])
            tables[job["split"]] = torch.from_numpy(file["features"]), torch.from_numpy(file["labels"])
        models.append(fit(*tables[job["split"]], job))
    json.dump(models, sys.stdout)


if __name__ == "__main__":
    main()
