"""Checkpoints: a run's whole state in one file, written atomically, refused when it is not this run's.

A checkpoint holds the hidden error e and the state of the noise generators. Whoever reads it can undo
the noise: keep it as private as the data. (The file is readable by its owner only.)
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from clipwise.engine.replicate import Replicate
from clipwise.parts import fingerprint
from clipwise.problem import Problem
from clipwise.rule import Rule
from clipwise.storage import write_atomically

_FORMAT = "clipwise-checkpoint-1"


class CheckpointError(ValueError):
    """A checkpoint file that cannot be used for this run; it is left as it was."""


def identity(problem: Problem, rule: Rule, settings: dict[str, Any]) -> dict[str, Any]:
    """What makes a run this run: data, parts and settings, as digests that can be compared."""
    data = hashlib.sha256(problem.features.tobytes() + problem.labels.tobytes()).hexdigest()
    return {
        "data": [list(problem.features.shape), data],
        "loss": fingerprint(problem.loss),
        "response": fingerprint(problem.response),
        "region": fingerprint(problem.region),
        "rule": fingerprint(rule.update()),
        **settings,
    }


def save(path: Path, run: dict[str, Any], replicates: list[Replicate]) -> None:
    """Write the state of all replicates; the caller sees to it that none is moving."""
    arrays = {name: value for r, replicate in enumerate(replicates) for name, value in _arrays(r, replicate).items()}
    about = {"format": _FORMAT, "run": run, "streams": [replicate.streams.state() for replicate in replicates]}
    write_atomically(path, lambda file: np.savez(file, about=np.array(json.dumps(about)), **arrays))


def load(path: Path, run: dict[str, Any], replicates: list[Replicate]) -> None:
    """Bring the replicates to the state that `path` holds; nothing changes if the file is not theirs."""
    arrays, about = _read(path)
    wrong = [name for name in run if about["run"].get(name) != json.loads(json.dumps(run[name]))]
    if wrong:
        raise CheckpointError(f"{path} is the checkpoint of another run ({', '.join(wrong)}); it was left untouched.")
    for r, replicate in enumerate(replicates):
        replicate.order = arrays.pop(f"{r}.order")
        for name, value in _arrays(r, replicate).items():
            if name in arrays:
                value[...] = arrays[name]
        replicate.streams.restore(about["streams"][r])


def _arrays(r: int, replicate: Replicate) -> dict[str, Any]:
    """The arrays of the r-th replicate, by the names they have in the file."""
    groups = {**replicate.state._asdict(), "order": replicate.order}
    kept = {f"records.{name}": value for name, value in replicate.records._asdict().items()}
    return {f"{r}.{name}": value for name, value in {**groups, **kept}.items()}


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = dict(file)
        about = json.loads(str(arrays.pop("about")))
        if about["format"] != _FORMAT:
            raise KeyError("format")
    except Exception:
        raise CheckpointError(f"{path} is damaged or not a clipwise checkpoint; it was left untouched.") from None
    return arrays, about
