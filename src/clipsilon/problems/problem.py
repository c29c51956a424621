"""A problem: data, a loss, how the records respond to the deployed model, and where θ may be."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from clipsilon._core import checks
from clipsilon._core.parts import is_ours, require
from clipsilon._core.rows import dense, first_row
from clipsilon.problems.constants import Constants, constants
from clipsilon.problems.losses.base import dimension, gradient, label_kind, value
from clipsilon.problems.regions import Everywhere, project
from clipsilon.problems.responses import Identity, is_random, respond

Array = NDArray[np.float64]


class Problem:
    """min_θ E_{Z ~ D(θ)} ℓ(θ; Z) over a region: the performative prediction problem (paper 1, eq. 2).

    The data is neither copied nor changed if it is a C-ordered array of floats already.

    Parameters
    ----------
    features
        One row a record (x̄_i), or a vector for records of one number. A float32 table stays float32, and a SciPy
        sparse one is kept in compressed rows.
    labels
        One a record (ȳ_i); leave out for losses of z alone.
    loss
        A part of `clipsilon.losses`, or one of your own.
    response
        A part of `clipsilon.responses`; None for records that do not react.
    region
        A part of `clipsilon.regions`; None for no constraint.
    weights
        One a record, by which its loss is multiplied (before its gradient is clipped); None for ones.

    Examples
    --------
    >>> import clipsilon as cs
    >>> problem = cs.Problem([0.0, 0.0, 1.0], loss=cs.losses.Quadratic(a=10.0),
    ...                      response=cs.responses.LocationShift(beta=0.05), region=cs.regions.Box(-10, 10))
    >>> problem.records, problem.dimension
    (3, 1)
    """

    def __init__(
        self,
        features: Any,
        labels: Any = None,
        *,
        loss: Any,
        response: Any = None,
        region: Any = None,
        weights: Any = None,
    ):
        self.loss: Any = loss
        self.response: Any = Identity() if response is None else response
        self.region: Any = Everywhere() if region is None else region
        require("loss", self.loss, [value, gradient])
        require("response", self.response, [respond])
        require("region", self.region, [project])
        self.features: Any = checks.records("features", features)
        self.labels: Array = self._labels(labels)
        self.weights: Array | None = None if weights is None else checks.weights("weights", weights, self.records)
        if hasattr(self.response, "check_features"):
            self.response.check_features(self.features.shape[1])
        if getattr(self.response, "needs_labels", False) and label_kind(self.loss) == "none":
            raise ValueError(f"response {type(self.response).__name__} moves by label, and {self.loss} has no labels.")
        if label_kind(self.loss) == "class" and is_ours(type(self.response)) and type(self.response) is not Identity:
            raise ValueError(
                f"response must be your own, or none, for {type(self.loss).__name__}: {type(self.response).__name__} "
                "moves records along one vector, and here each class has its own."
            )
        self._rehearse()

    def _rehearse(self) -> None:
        """Try the parts on one record, uncompiled: a slip in a part shows here as a short error of its own."""
        rng = np.random.Generator(np.random.SFC64(0))
        before = str(rng.bit_generator.state)
        moved, slope = np.zeros(self.features.shape[1]), np.zeros(self.dimension)
        theta = np.full(self.dimension, 0.5)
        with np.errstate(all="ignore"):
            label = respond(self.response, theta, first_row(self.features), self.labels[0], moved, rng)
            if not isinstance(label, float):
                raise TypeError(f"respond of {type(self.response).__name__} must return the label, got {label!r}.")
            gradient(self.loss, theta, moved, label, slope)
            value(self.loss, theta, moved, label)
        if str(rng.bit_generator.state) != before and not is_random(self.response):
            raise TypeError(f"response {type(self.response).__name__} draws at random but lacks `random = True`.")

    def _labels(self, labels: Any) -> Array:
        kind = label_kind(self.loss)
        if kind == "none":
            if labels is not None:
                raise ValueError(f"labels must be left out for {type(self.loss).__name__}, whose record is one vector.")
            return checks.frozen(np.zeros(self.records))
        if labels is None:
            raise ValueError(f"labels must be given for {type(self.loss).__name__}, got None.")
        classes = {"binary": 2, "class": getattr(self.loss, "classes", None)}.get(kind)
        return checks.labels("labels", labels, self.records, classes)

    @property
    def records(self) -> int:
        """m, the number of records."""
        return int(self.features.shape[0])

    @property
    def dimension(self) -> int:
        """d, the length of θ."""
        return dimension(self.loss, int(self.features.shape[1]))

    def table(self) -> Array:
        """The features as a dense table in float64, for formulas over all records; refuse weighted ones."""
        if self.weights is not None:
            raise ValueError("problem must have no weights: constants and theorems are for records that count alike.")
        return dense(self.features)

    def on(self, features: Any, labels: Any = None) -> Problem:
        """The same problem on other records, such as held-out ones; they count alike."""
        other = Problem(features, labels, loss=self.loss, response=self.response, region=self.region)
        if other.dimension != self.dimension:
            raise ValueError(f"features must have {self.dimension} columns, got {other.dimension}.")
        return other

    def constants(self, radius: float | None = None) -> Constants:
        """μ, L, β and G over ‖θ‖ ≤ radius (by default the region's)."""
        if radius is None:
            radius = self.region.radius(self.dimension) if hasattr(self.region, "radius") else np.inf
            if not np.isfinite(radius):
                raise ValueError("radius must be given for a problem without a bounded region, got None.")
        radius = checks.positive("radius", radius)
        return constants(self.table(), self.labels, self.loss, self.response, radius, self.dimension)

    def __repr__(self) -> str:
        return (
            f"Problem({self.records} records × {self.features.shape[1]}, loss={self.loss}, "
            f"response={self.response}, region={self.region})"
        )
