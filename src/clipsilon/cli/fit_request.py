"""What `clipsilon fit` was asked for, checked before any file is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from clipsilon._core import checks
from clipsilon.cli.model_kinds import MODELS, predicts_classes
from clipsilon.privacy.certificate import require_public_size

METHODS = (
    *("dpsgd", "adaptive-dpsgd", "pcsgd", "dice", "adam-dice", "auto-dice", "tracked", "correlated"),
    *("dpgd", "clipped-dpgd", "noisy-selection", "gamma-dpsgd"),
)
NO_GROUP = "max rows must be omitted without --group, or a group in the schema."


@dataclass(frozen=True)
class Request:
    """The options of `clipsilon fit`, checked before any file is read.

    Parameters
    ----------
    path : Path
        A CSV or Parquet file.
    target : str
        The column to predict.
    epsilon, delta : float
        Budget of scaling and training together.
    model : str, optional
        Kind of model, a key of `MODELS`; by default linear with `target_range`, and logistic with `classes` or for two
        values.
    method : str, default "dpsgd"
        One of `METHODS`.
    adjacency : str, default "zero-out"
        How neighbouring data sets differ.
    l2 : float, default 0.0
        Weight of ½‖θ‖² in the loss.
    classes : sequence of str, optional
        All labels of the target; by default learnt without noise.
    target_range : pair of numbers, optional
        Range of most targets; by default learnt without noise.
    quantile : float, optional
        What a model of kind "quantile" predicts; by default the median.
    ignore : sequence of str, optional
        Columns to leave out.
    group : str, optional
        The column that names the person of a row, which is not a feature; by default that of the schema, if it has one,
        and otherwise each row is protected by itself.
    max_rows : int, optional
        Largest number of rows used per person; by default all.
    scale_epsilon : float, optional
        Part of `epsilon` for learning the columns' scales; by default a tenth.
    bounds : Path, optional
        File with public bounds, which replace learnt scales.
    schema : Path, optional
        File with a schema, by which all columns are encoded.
    as_is : bool, default False
        Do not scale the columns.
    holdout : float, default 0.2
        Fraction of the rows to hold out for evaluation, in [0, 1).
    evaluate_epsilon : float, optional
        ε for evaluating the model privately on the held-out rows; by default it is evaluated without noise.
    seed : int, optional
        Makes the fit repeatable; such a model is not for release.
    budget : Path, optional
        Budget file, charged with `epsilon` and `delta` before anything is learnt.
    """

    path: Path
    target: str
    epsilon: float
    delta: float = 1e-5
    model: str | None = None
    method: str = "dpsgd"
    adjacency: str = "zero-out"
    l2: float = 0.0
    classes: Sequence[str] | None = None
    target_range: Sequence[float] | None = None
    quantile: float | None = None
    ignore: Sequence[str] = ()
    group: str | None = None
    max_rows: int | None = None
    scale_epsilon: float | None = None
    bounds: Path | None = None
    schema: Path | None = None
    as_is: bool = False
    holdout: float = 0.2
    evaluate_epsilon: float | None = None
    seed: int | None = None
    budget: Path | None = None

    def __post_init__(self) -> None:
        checks.positive("epsilon", self.epsilon)
        checks.open_fraction("delta", self.delta)
        checks.nonnegative("l2", self.l2)
        checks.fraction("holdout", self.holdout)
        checks.choice("method", self.method, dict.fromkeys(METHODS))
        require_public_size(self.adjacency)
        if self.seed is not None:
            checks.integer("seed", self.seed, least=0)
        if self.evaluate_epsilon is not None:
            checks.positive("evaluate epsilon", self.evaluate_epsilon)
            if self.holdout == 0:
                raise ValueError("holdout must be above 0 with --evaluate-epsilon, got 0.")
        if self.max_rows is not None:
            checks.count("max rows", self.max_rows)
            if self.group is None and self.schema is None:
                raise ValueError(NO_GROUP)
        self._check_model()
        self._check_scaling()

    def _check_model(self) -> None:
        if self.model is not None:
            checks.choice("model", self.model, MODELS)
        takes_classes = self.model is None or predicts_classes(self.model)
        if self.classes is not None and (self.target_range is not None or not takes_classes):
            raise ValueError("classes must be omitted for a target of numbers, which has a target range instead.")
        if self.target_range is not None and self.model is not None and takes_classes:
            raise ValueError(f"target range must be omitted for model {self.model!r}, which has classes instead.")
        if self.target_range is not None and not _is_range(self.target_range):
            given = ", ".join(f"{number:g}" for number in self.target_range)
            raise ValueError(f"target range must be a low and a high number, in this order, got {given}.")
        if self.quantile is not None:
            checks.open_fraction("quantile", self.quantile)
            if self.model != "quantile":
                raise ValueError(f"quantile must be omitted unless model is 'quantile', got {self.quantile:g}.")
        if self.classes is not None and len(set(self.classes)) < 2:
            raise ValueError(f"classes must be at least two different labels, got {', '.join(self.classes)!r}.")

    def _check_scaling(self) -> None:
        ways = (self.scale_epsilon is not None, self.bounds is not None, self.schema is not None, self.as_is)
        if sum(ways) > 1:
            raise ValueError(
                "columns must be scaled in one way only: by --schema, --scale-epsilon, --bounds or --as-is."
            )
        if self.schema is not None and self.ignore:
            raise ValueError(f"columns to ignore must be in the schema, if there is one, got {self.ignore[0]!r}.")
        if self.scale_epsilon is not None and checks.positive("scale epsilon", self.scale_epsilon) >= self.epsilon:
            raise ValueError(f"scale epsilon must be below epsilon ({self.epsilon:g}), got {self.scale_epsilon!r}.")


def _is_range(numbers: Sequence[float]) -> bool:
    return len(numbers) == 2 and bool(np.isfinite(numbers).all()) and numbers[0] < numbers[1]
