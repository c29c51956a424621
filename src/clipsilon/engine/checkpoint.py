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

from clipsilon._core.parts import fingerprint
from clipsilon._core.rows import Sparse, stored
from clipsilon._core.sources import SOURCE_DIGEST
from clipsilon._core.storage import write_atomically
from clipsilon.engine.replicate import Replicate
from clipsilon.problems.problem import Problem
from clipsilon.rules.rule import Rule

_FORMAT = "clipsilon-checkpoint-1"


class CheckpointError(ValueError):
    """A checkpoint file that cannot be used for this run; it is left as it was."""


def identity(problem: Problem, rule: Rule, settings: dict[str, Any]) -> dict[str, Any]:
    """What makes a run this run: data, parts and settings, as digests that can be compared."""
    return {
        "version of clipsilon": SOURCE_DIGEST,
        "data": [list(problem.features.shape), _digest(problem)],
        "loss": fingerprint(problem.loss),
        "response": fingerprint(problem.response),
        "region": fingerprint(problem.region),
        "rule": fingerprint(rule.update()),
        **settings,
    }


def _digest(problem: Problem) -> str:
    """A digest of the records, of how their features are stored, and of their weights."""
    table = stored(problem.features)
    arrays = [*table[:3]] if isinstance(table, Sparse) else [table]
    data = hashlib.sha256()
    for array in [*arrays, problem.labels, *([] if problem.weights is None else [problem.weights])]:
        data.update(f"{array.dtype} {array.size}".encode())
        data.update(array.data)
    return data.hexdigest()


def save(path: Path, run: dict[str, Any], replicates: list[Replicate]) -> None:
    """Write the state of all replicates; the caller sees to it that none is moving."""
    arrays = {name: value for r, replicate in enumerate(replicates) for name, value in _arrays(r, replicate).items()}
    about = {"format": _FORMAT, "run": run, "streams": [replicate.streams.state() for replicate in replicates]}
    write_atomically(path, lambda file: np.savez(file, about=np.array(json.dumps(about)), **arrays))


def load(path: Path, run: dict[str, Any], replicates: list[Replicate]) -> None:
    """Bring the replicates to the state that `path` holds; nothing changes if the file is not theirs."""
    arrays, about = _read(path)
    wrong = [name for name in run if about.get("run", {}).get(name) != json.loads(json.dumps(run[name]))]
    if wrong:
        raise CheckpointError(f"{path} is the checkpoint of another run ({', '.join(wrong)}); it was left untouched.")
    try:
        _check(arrays, about, replicates)
    except (KeyError, TypeError, ValueError):
        raise _damaged(path) from None
    for r, replicate in enumerate(replicates):
        replicate.order = arrays[f"{r}.order"]
        for name, value in _arrays(r, replicate).items():
            value[...] = arrays[name]
        replicate.streams.restore(about["streams"][r])


def _check(arrays: dict[str, Any], about: dict[str, Any], replicates: list[Replicate]) -> None:
    """Raise unless the file holds just what these replicates need: nothing is changed before this has passed."""
    expected = {name: value for r, replicate in enumerate(replicates) for name, value in _arrays(r, replicate).items()}
    fits = arrays.keys() == expected.keys() and len(about["streams"]) == len(replicates)
    for name, value in expected.items():
        fits = fits and arrays[name].dtype == value.dtype
        fits = fits and (name.endswith(".order") or arrays[name].shape == value.shape)
    if not fits:
        raise ValueError
    for replicate, saved in zip(replicates, about["streams"], strict=True):
        replicate.streams.copy().restore(saved)


def _arrays(r: int, replicate: Replicate) -> dict[str, Any]:
    """The arrays of the r-th replicate, by the names they have in the file."""
    groups = {**replicate.state._asdict(), "order": replicate.order}
    kept = {f"recording.{name}": value for name, value in replicate.recording._asdict().items()}
    return {f"{r}.{name}": value for name, value in {**groups, **kept}.items()}


def _damaged(path: Path) -> CheckpointError:
    return CheckpointError(f"{path} is damaged or not a clipsilon checkpoint; it was left untouched.")


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    try:
        with path.open("rb") as handle, np.load(handle, allow_pickle=False) as file:
            arrays = dict(file)
        about = json.loads(str(arrays.pop("about")))
        if about["format"] != _FORMAT:
            raise KeyError("format")
    except Exception:
        raise _damaged(path) from None
    return arrays, about
