"""Checkpoints: the complete state of a run in one file. It is written atomically, and resumes only the run it is of.

A checkpoint holds the hidden error e, the records' memories and the state of the noise generators. Anyone who can read
it can remove the noise: keep it as private as the data. (The file is readable by its owner only.)
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
    """Raised for a checkpoint file that cannot be used for this run. The file is left unchanged."""


def identity(problem: Problem, rule: Rule, settings: dict[str, Any]) -> dict[str, Any]:
    """Return what distinguishes a run from others: digests of its data and parts, and its settings.

    Parameters
    ----------
    problem : Problem
        Data, loss, response and region.
    rule : Rule
        The rule; its name does not count.
    settings : dict
        Further settings of the run, under the names that error messages use. JSON must be able to represent them.

    Returns
    -------
    dict
        A run can resume a checkpoint if all of these values are equal. JSON can represent them.
    """
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
    """Return a digest of the records, their weights and people, and the storage format of the features."""
    table = stored(problem.features)
    arrays = [*table[:3]] if isinstance(table, Sparse) else [table]
    data = hashlib.sha256()
    for array in [*arrays, problem.labels, *(own for own in (problem.weights, problem.starts) if own is not None)]:
        data.update(f"{array.dtype} {array.size}".encode())
        data.update(array.data)
    return data.hexdigest()


def save(path: Path, run: dict[str, Any], replicates: list[Replicate]) -> None:
    """Write the state of all replicates atomically. None of them may advance meanwhile.

    Parameters
    ----------
    path : Path
        The file, which is replaced if it exists.
    run : dict
        The result of `identity`.
    replicates : list of Replicate
        All replicates of the run.
    """
    arrays = {name: value for r, replicate in enumerate(replicates) for name, value in _arrays(r, replicate).items()}
    about = {"format": _FORMAT, "run": run, "streams": [replicate.streams.state() for replicate in replicates]}
    write_atomically(path, lambda file: np.savez(file, about=np.array(json.dumps(about)), **arrays))


def load(path: Path, run: dict[str, Any], replicates: list[Replicate]) -> None:
    """Restore all replicates from a checkpoint.

    Parameters
    ----------
    path : Path
        The file.
    run : dict
        The result of `identity` for the present run.
    replicates : list of Replicate
        Replicates in their initial state; updated in place, or left unchanged on failure.

    Raises
    ------
    CheckpointError
        If the file belongs to another run, is damaged, or is not a checkpoint.
    """
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
    """Raise KeyError, TypeError or ValueError unless the file holds what the replicates need, before any is changed."""
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
    """Return the arrays of the r-th replicate by their names in the file."""
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
