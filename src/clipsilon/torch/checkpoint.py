"""Checkpoints of a private training: model, optimiser, error, accounting, and the states of both generators.

Whoever reads one can undo the noise and see the error: keep it as private as the data.
"""

from __future__ import annotations

import pickle
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from clipsilon._core.storage import write_atomically
from clipsilon.engine.checkpoint import CheckpointError
from clipsilon.rules.noise import Correlated
from clipsilon.rules.rule import Rule

_FORMAT = "clipsilon-torch-4"


def identity(rule: Rule, records: int, *, has_people: bool) -> dict[str, Any]:
    """Return what identifies a training, as far as its checkpoint can tell.

    Parameters
    ----------
    rule : Rule
        The rule.
    records : int
        The number of records.
    has_people : bool
        Whether they are people with several rows: steps that protect rows are not steps that protect people.
    """
    parts = {name: repr(getattr(rule, name)) for name in ("clip", "feedback", "sampling", "noise")}
    if isinstance(rule.noise, Correlated):
        parts["buffers"] = repr(rule.noise.buffers.tolist())  # all digits
    return {"algorithm": rule.name, **parts, "people" if has_people else "records": records}


def save(path: str | PathLike[str], content: dict[str, Any]) -> None:
    """Write a checkpoint atomically."""
    write_atomically(Path(path), lambda file: torch.save({"format": _FORMAT, **content}, file))


def load(path: str | PathLike[str], expected: dict[str, Any]) -> dict[str, Any]:
    """Read a checkpoint; raise CheckpointError if its `identity` is not the expected one."""
    try:
        content = torch.load(Path(path), weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError) as error:
        raise CheckpointError(
            f"{path} is not a checkpoint, is damaged, or holds more than tensors and plain values."
        ) from error
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise CheckpointError(f"{path} is not a checkpoint of clipsilon.torch.")
    for name, value in expected.items():
        saved = content["identity"].get(name)
        if saved != value:
            raise CheckpointError(f"{path} has another {name}: {saved}, and not {value}.")
    return dict(content)


def check_shapes(path: str | PathLike[str], saved: dict[str, Tensor], module: nn.Module) -> None:
    """Raise CheckpointError if the parameters are those of another model.

    Parameters
    ----------
    path : path-like
        The checkpoint's file, for the message.
    saved : dict
        The parameters in the checkpoint, by name.
    module : nn.Module
        The model that is to load them.
    """
    if {name: t.shape for name, t in saved.items()} != {name: t.shape for name, t in module.state_dict().items()}:
        raise CheckpointError(f"{path} is of a model with other parameters.")
