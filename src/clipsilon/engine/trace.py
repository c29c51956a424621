"""A trace: what was recorded of a run."""

from __future__ import annotations

import json
from dataclasses import dataclass
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clipsilon._core import checks
from clipsilon._core.storage import write_atomically

Array = NDArray[np.float64]

_FORMAT = "clipsilon-trace-2"


@dataclass(frozen=True, eq=False)
class Trace:
    """The recorded iterates of all replicates.

    Entries that a stopped run did not reach are NaN; `steps_done` says how far each replicate came.
    """

    rule: str  #: the rule's name
    seed: int | None  #: None: noise from the operating system
    iterations: NDArray[np.int64]  #: (K,) recorded t
    theta: Array  #: (replicates, K, d)
    error: Array | None  #: (replicates, K, d) for rules with feedback
    average: Array | None  #: (replicates, K, d) for rules that release an average
    output: Array  #: (replicates, d) what the rule releases
    steps_done: NDArray[np.int64]  #: (replicates,)

    def gap(self, reference: Any, of: str = "theta") -> Array:
        """‖θ_t − reference‖² for every replicate and recorded iteration, (replicates, K); or `of` the "average"."""
        iterates = checks.choice("of", of, {"theta": self.theta, "average": self.average})
        if iterates is None:
            raise ValueError(f"of must be 'theta' for {self.rule}, which does not average, got 'average'.")
        target = checks.vector("reference", reference, self.theta.shape[2])
        return np.asarray(((iterates - target) ** 2).sum(axis=2))

    def error_norm(self) -> Array:
        """‖e_t‖ for every replicate and recorded iteration, (replicates, K)."""
        if self.error is None:
            raise ValueError(f"{self.rule} has no feedback, so there is no error to measure.")
        return np.asarray(np.sqrt((self.error**2).sum(axis=2)))

    def save(self, path: str | PathLike[str]) -> None:
        """Write the trace to a .npz file, whole or not at all."""
        path = checks.path("path", path)
        if not path.parent.is_dir():
            raise ValueError(f"path must be in a folder that exists, got {str(path)!r}.")
        arrays: dict[str, Any] = {name: value for name, value in self.__dict__.items() if isinstance(value, np.ndarray)}
        about = json.dumps({"format": _FORMAT, "rule": self.rule, "seed": self.seed})
        write_atomically(path, lambda file: np.savez_compressed(file, about=np.array(about), **arrays))

    @staticmethod
    def load(path: str | PathLike[str]) -> Trace:
        """Read a trace that `save` wrote."""
        path = checks.path("path", path)
        try:
            with path.open("rb") as handle, np.load(handle, allow_pickle=False) as file:
                arrays = dict(file)
            about = json.loads(str(arrays.pop("about")))
            if about.pop("format") != _FORMAT:
                raise KeyError("format")
            return Trace(**about, **{"error": None, "average": None, **arrays})
        except FileNotFoundError:
            raise
        except Exception:
            raise ValueError(f"{path} is not a trace that this version of clipsilon can read.") from None

    def to_frame(self) -> Any:
        """One row a replicate and recorded iteration, as a pandas DataFrame."""
        try:
            import pandas as pd
        except ImportError:
            raise ImportError("to_frame needs pandas, which is not installed.") from None
        replicates, kept, d = self.theta.shape
        columns: dict[str, Any] = {
            "replicate": np.repeat(np.arange(replicates), kept),
            "iteration": np.tile(self.iterations, replicates),
        }
        for name, values in (("theta", self.theta), ("error", self.error), ("average", self.average)):
            if values is not None:
                columns |= {f"{name}_{j}": values[:, :, j].ravel() for j in range(d)}
        return pd.DataFrame(columns)

    def __repr__(self) -> str:
        replicates, kept, d = self.theta.shape
        size = f"{replicates} replicates × {kept} recorded iterations × {d}"
        return f"Trace({self.rule}: {size}, {self.iterations[-1]} steps)"
