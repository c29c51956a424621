"""A trace: the recorded iterates of a run."""

from __future__ import annotations

import json
from dataclasses import dataclass
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clipsilon._core import checks
from clipsilon._core.extras import needs_package
from clipsilon._core.storage import write_atomically

Array = NDArray[np.float64]

_FORMAT = "clipsilon-trace-2"


@dataclass(frozen=True, eq=False)
class Trace:
    """The recorded iterates of all replicates.

    Entries that an interrupted run did not reach are NaN.

    Parameters
    ----------
    rule : str
        The name of the rule.
    seed : int or None
        The seed; None for cryptographic randomness.
    iterations : ndarray of shape (K,)
        The recorded iterations t.
    theta : ndarray of shape (replicates, K, d)
        θ_t.
    error : ndarray of shape (replicates, K, d) or None
        e_t, for rules with error feedback.
    average : ndarray of shape (replicates, K, d) or None
        The running average, for rules that release it.
    output : ndarray of shape (replicates, d)
        What the rule releases.
    steps_done : ndarray of shape (replicates,)
        The number of steps that each replicate completed.
    """

    rule: str
    seed: int | None
    iterations: NDArray[np.int64]
    theta: Array
    error: Array | None
    average: Array | None
    output: Array
    steps_done: NDArray[np.int64]

    def gap(self, reference: ArrayLike, of: str = "theta") -> Array:
        """Return ‖θ_t − reference‖² for every replicate and recorded iteration.

        Parameters
        ----------
        reference : float or array-like of shape (d,)
            The point to compare with, such as `stable_point(problem).theta`.
        of : {"theta", "average"}
            Whether to compare the iterates or their running average.

        Returns
        -------
        ndarray of shape (replicates, K)
            The squared distances.
        """
        iterates = checks.choice("of", of, {"theta": self.theta, "average": self.average})
        if iterates is None:
            raise ValueError(f"of must be 'theta' for {self.rule}, which does not average, got 'average'.")
        target = checks.vector("reference", reference, self.theta.shape[2])
        return np.asarray(((iterates - target) ** 2).sum(axis=2))

    def error_norm(self) -> Array:
        """Return ‖e_t‖ for every replicate and recorded iteration, of shape (replicates, K)."""
        if self.error is None:
            raise ValueError(f"{self.rule} has no feedback, so its trace holds no error.")
        return np.asarray(np.sqrt((self.error**2).sum(axis=2)))

    def save(self, path: str | PathLike[str]) -> None:
        """Write the trace to a .npz file, atomically."""
        path = checks.path("path", path)
        if not path.parent.is_dir():
            raise ValueError(f"path must be in a folder that exists, got {str(path)!r}.")
        arrays: dict[str, Any] = {name: value for name, value in self.__dict__.items() if isinstance(value, np.ndarray)}
        about = json.dumps({"format": _FORMAT, "rule": self.rule, "seed": self.seed})
        write_atomically(path, lambda file: np.savez_compressed(file, about=np.array(about), **arrays))

    @staticmethod
    def load(path: str | PathLike[str]) -> Trace:
        """Read a trace that `save` has written."""
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
        """Return a pandas DataFrame with one row per replicate and recorded iteration."""
        try:
            import pandas as pd
        except ImportError:
            raise ImportError(needs_package("to_frame", "pandas", "pandas")) from None
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
