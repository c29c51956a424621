"""Checkpoints of a private training: model, optimiser, error, accounting, and the states of both generators.

Whoever reads one can undo the noise and see the error: keep it as private as the data.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from clipsilon._core.storage import write_atomically
from clipsilon.engine.checkpoint import CheckpointError
from clipsilon.rules.noise import Correlated
from clipsilon.rules.rule import Rule

FORMAT = "clipsilon-torch-4"


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
    write_atomically(Path(path), lambda file: torch.save(content, file))


def load(path: str | PathLike[str]) -> Any:
    """Read a checkpoint, which `check` must be called with; raise CheckpointError if the file cannot be read."""
    try:
        return torch.load(Path(path), weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError) as error:
        raise CheckpointError(
            f"{path} is not a checkpoint, is damaged, or holds more than tensors and plain values."
        ) from error


def check(source: str, content: Any, expected: dict[str, Any]) -> None:
    """Raise CheckpointError unless the content is that of a checkpoint with the expected `identity`.

    Parameters
    ----------
    source : str
        Where it comes from, for the message.
    content : dict
        What was read.
    expected : dict
        The identity.
    """
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise CheckpointError(f"{source} is not a checkpoint of clipsilon.torch.")
    for name, value in expected.items():
        saved = content["identity"].get(name)
        if saved != value:
            raise CheckpointError(f"{source} has another {name}: {saved}, and not {value}.")


def check_memory(source: str, saved: dict[int, Tensor], trained: Sequence[Tensor]) -> None:
    """Raise CheckpointError if the memory of correlated noise is that of other parameters.

    Parameters
    ----------
    source : str
        Where the checkpoint comes from, for the message.
    saved : dict
        The memory in the checkpoint, by the number of the parameter; empty before the first step.
    trained : sequence of Tensor
        The parameters that are trained.
    """
    sizes = {number: p.numel() for number, p in enumerate(trained)}
    if saved and {number: memory.shape[-1] for number, memory in saved.items()} != sizes:
        raise CheckpointError(f"{source} has correlated noise of other trained parameters; freeze the same ones.")


def check_shapes(source: str, saved: dict[str, Tensor], module: nn.Module) -> None:
    """Raise CheckpointError if the parameters are those of another model.

    Parameters
    ----------
    source : str
        Where the checkpoint comes from, for the message.
    saved : dict
        The parameters in the checkpoint, by name.
    module : nn.Module
        The model that is to load them.
    """
    if {name: t.shape for name, t in saved.items()} != {name: t.shape for name, t in module.state_dict().items()}:
        raise CheckpointError(f"{source} is of a model with other parameters.")
