"""The kinds of model that `clipsilon fit` offers, each by its loss, which states what kind of target it takes."""

from __future__ import annotations

from clipsilon.problems.losses import GammaDeviance, Huber, Logistic, Pinball, PoissonDeviance, SquaredError
from clipsilon.problems.losses.base import Loss, label_kind

MODELS: dict[str, Loss] = {
    "logistic": Logistic(),
    "linear": SquaredError(),
    "huber": Huber(),
    "poisson": PoissonDeviance(),
    "gamma": GammaDeviance(),
    "quantile": Pinball(),
}


def predicts_classes(kind: str) -> bool:
    """Return whether a kind of model predicts classes, and not numbers."""
    return label_kind(MODELS[kind]) in ("binary", "class")
