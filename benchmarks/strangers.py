"""Audit models of diffprivlib as strangers' code, beside the same models with a planted bug.

    python benchmarks/strangers.py [runs [model …]]

diffprivlib runs in an environment of its own, which is created if it does not exist. Each model claims ε = 1 when a
record is replaced. The bug is that its noise is divided by the number of records once more: it is trained with an ε
that is larger by that factor, and claims 1 as before.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import closing
from typing import Any

import numpy as np

import clipsilon as cs
from peers.environment import Peer

RECORDS, EPSILON, CONFIDENCE = 100, 1.0, 0.95
BOUND = 2.0  # on the length of a record; public, like the arguments below
MODELS: dict[str, dict[str, Any]] = {
    "LogisticRegression": {"data_norm": BOUND},
    "GaussianNB": {"bounds": [-BOUND, BOUND]},
}


def records(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return features of length at most `BOUND`, and labels 0 and 1."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(RECORDS, 3))
    features *= np.minimum(1.0, BOUND / np.linalg.norm(features, axis=1, keepdims=True))
    return features, (features[:, 0] + 0.5 * rng.normal(size=RECORDS) > 0).astype(int)


def trainer(peer: Peer, model: str, epsilon: float) -> Callable[[np.ndarray, np.ndarray], Any]:
    """Return a function that trains a model of the peer and returns its predictions as a function."""

    def train(features: np.ndarray, labels: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
        arguments = {"epsilon": epsilon, **MODELS[model]}
        peer.ask({"model": model, "arguments": arguments, "features": features.tolist(), "labels": labels.tolist()})
        return lambda rows: np.array(peer.ask({"rows": rows.tolist()}))

    return train


def main(runs: int, models: list[str]) -> None:
    """Print what the audits of these models show."""
    features, labels = records()
    with closing(Peer("diffprivlib", "diffprivlib_train.py")) as peer:
        for model in models:
            for name, epsilon in (("", EPSILON), (", noise divided twice", EPSILON * RECORDS)):
                audit = cs.audit_training(
                    trainer(peer, model, epsilon),
                    features,
                    labels,
                    delta=0.0,
                    adjacency="replace-one",
                    runs=runs,
                    confidence=CONFIDENCE,
                    claimed=EPSILON,
                )
                print(f"diffprivlib {model}{name}\n  " + str(audit).replace("\n", "\n  "), flush=True)


if __name__ == "__main__":
    main(int((sys.argv[1:] or [300])[0]), sys.argv[2:] or list(MODELS))
