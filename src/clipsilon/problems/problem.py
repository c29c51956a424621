"""A problem: data, a loss, the response of the records to the deployed model, and the region of θ."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from clipsilon._core import checks
from clipsilon._core.grouping import group_rows
from clipsilon._core.parts import is_ours, read_only, require
from clipsilon._core.rows import dense, first_row
from clipsilon.problems.constants import Constants, constants
from clipsilon.problems.losses.base import Loss, dimension, gradient, label_kind, value
from clipsilon.problems.regions import Everywhere, Region, project
from clipsilon.problems.responses import Identity, Response, as_part, is_random, moving, respond

Array = NDArray[np.float64]


class Problem:
    """The performative prediction problem, min_θ E_{Z ~ D(θ)} ℓ(θ; Z) over a region (paper 1, eq. 2).

    The data is never changed. It is not copied either if it is a C-ordered array of floats already.

    Parameters
    ----------
    features : array-like or SciPy sparse table
        One row x̄_i per record, or a vector for records of one number. A float32 table stays float32, and a sparse
        table is kept in compressed rows.
    labels : array-like, optional
        One label ȳ_i per record; leave out for losses of z alone.
    loss : Loss
        A part of `clipsilon.losses`, or one of your own.
    response : Response, optional
        A part of `clipsilon.responses`, or what `clipsilon.responses.estimate` returned. Without one, records do not
        react.
    region : Region, optional
        A part of `clipsilon.regions`. Without one, θ is not constrained.
    weights : array-like, optional
        One weight of at least 0 per row, by which its loss is multiplied (before its gradient is clipped). The
        default is 1 for all.
    groups : array-like, optional
        For people with several rows: the id of each row's person, a number or text. A person is then one record: people
        are sampled, and the mean of the gradients of a person's rows is clipped. The rows are sorted by person.
    max_rows : int, optional
        The largest number of rows per person. Of a person with more, the first ones of the table are kept, whatever
        others have. The default keeps all; privacy does not depend on it.

    Raises
    ------
    TypeError
        If a part lacks an operation, or fails on the first record.
    ValueError
        If the data is not finite, or does not suit the parts.

    Examples
    --------
    >>> import clipsilon as cs
    >>> problem = cs.Problem([0.0, 0.0, 1.0], loss=cs.losses.Quadratic(a=10.0),
    ...                      response=cs.responses.LocationShift(beta=0.05), region=cs.regions.Box(-10, 10))
    >>> problem.records, problem.dimension
    (3, 1)
    >>> visits = cs.Problem([0.0, 0.2, 1.0], loss=cs.losses.Quadratic(), groups=["ann", "ann", "bob"])
    >>> visits.records, visits.rows
    (2, 3)
    """

    def __init__(
        self,
        features: ArrayLike | sparse.spmatrix | sparse.sparray,
        labels: ArrayLike | None = None,
        *,
        loss: Loss,
        response: Response | None = None,
        region: Region | None = None,
        weights: ArrayLike | None = None,
        groups: ArrayLike | None = None,
        max_rows: int | None = None,
    ):
        self.loss: Any = loss
        self.response: Any = Identity() if response is None else as_part(response)
        self.region: Any = Everywhere() if region is None else region
        require("loss", self.loss, [value, gradient])
        require("response", self.response, [respond])
        require("region", self.region, [project])
        self.loss, self.response = read_only("loss", self.loss), read_only("response", self.response)
        self.starts: NDArray[np.int64] | None = None
        self.features: Any = checks.records("features", features)
        self.labels: Array = self._labels(labels)
        self.weights: Array | None = None if weights is None else checks.weights("weights", weights, self.rows)
        self._gather_people(groups, max_rows)
        for part in (self.response, self.loss):
            if hasattr(part, "check_features"):
                part.check_features(self.features.shape[1])
        if getattr(self.response, "needs_labels", False) and label_kind(self.loss) == "none":
            raise ValueError(
                f"response must not depend on labels for {self.loss}, which has none, "
                f"got {type(self.response).__name__}."
            )
        if label_kind(self.loss) == "class" and is_ours(type(self.response)) and type(self.response) is not Identity:
            raise ValueError(
                f"response must be None or a part of your own for {type(self.loss).__name__}, got "
                f"{type(self.response).__name__}, which moves records along one vector, while θ holds one per class."
            )
        self._try_first_record()

    def _gather_people(self, groups: ArrayLike | None, max_rows: int | None) -> None:
        """Sort the rows by person, if there are groups, and keep the first `max_rows` rows of each."""
        if groups is None:
            if max_rows is not None:
                raise ValueError(f"max_rows must be left out without groups, got {max_rows!r}.")
            return
        order, starts = group_rows(checks.people("groups", groups, self.rows), max_rows)
        if not np.array_equal(order, np.arange(self.rows)):
            self.features = checks.records("features", self.features[order])
            self.labels = checks.frozen(self.labels[order])
            self.weights = None if self.weights is None else checks.frozen(self.weights[order])
        self.starts = checks.frozen(starts)

    def _try_first_record(self) -> None:
        """Call the parts on one record, uncompiled, so that a mistake in them raises a short error here."""
        rng = np.random.Generator(np.random.SFC64(0))
        before = str(rng.bit_generator.state)
        moved = np.empty(self.features.shape[1])
        theta, features = checks.frozen(np.full(self.dimension, 0.5)), checks.frozen(first_row(self.features))
        with np.errstate(all="ignore"), _explain_writing(self):
            for before_reaction in self._trial_labels():
                moved[:] = np.nan  # what stays so would hold the features of the record before
                label = respond(self.response, theta, features, before_reaction, moved, rng)
                self._check_reaction(moved, label)
                self._check_gradient(theta, moved, label)
                value(self.loss, theta, moved, label)
        if str(rng.bit_generator.state) != before and not is_random(self.response):
            name = type(moving(self.response)).__name__
            raise TypeError(f"response {name} draws at random but lacks `random = True`.")

    def _check_gradient(self, theta: Array, moved: Array, label: float) -> None:
        """Raise TypeError unless a loss writes its whole gradient, whatever the array held before."""
        unknown, zero = np.full(self.dimension, np.nan), np.zeros(self.dimension)
        for out in (unknown, zero):
            gradient(self.loss, theta, moved, label, out)
        missing = np.flatnonzero(np.isnan(unknown) & ~np.isnan(zero))
        if missing.size:
            raise TypeError(
                f"gradient of {type(self.loss).__name__} must write a number into every entry of `out`, which holds "
                f"another record's gradient before, got none in entries {checks.short_repr(missing.tolist())}."
            )

    def _trial_labels(self) -> list[float]:
        """Return labels to try a response on, as it may treat them differently; that of the first record is last."""
        binary = (0.0, 1.0) if label_kind(self.loss) == "binary" else ()
        return [*binary, self.labels.min(), self.labels.max(), self.labels[0]]

    def _check_reaction(self, moved: Array, label: object) -> None:
        """Raise TypeError unless a response returned a label and wrote all features."""
        name = type(moving(self.response)).__name__
        if not isinstance(label, float):
            raise TypeError(f"respond of {name} must return the label, got {label!r}.")
        missing = np.flatnonzero(np.isnan(moved))
        if missing.size:
            raise TypeError(
                f"respond of {name} must write a number into every entry of `moved`, which holds another record's "
                f"features before, got none in entries {checks.short_repr(missing.tolist())}."
            )

    def _labels(self, labels: ArrayLike | None) -> Array:
        kind = label_kind(self.loss)
        if kind == "none":
            if labels is not None:
                raise ValueError(
                    f"labels must be left out for {type(self.loss).__name__}, whose records have no label."
                )
            return checks.frozen(np.zeros(self.rows))
        if labels is None:
            raise ValueError(f"labels must be given for {type(self.loss).__name__}, got None.")
        classes = {"binary": 2, "class": getattr(self.loss, "classes", None)}.get(kind)
        return checks.labels("labels", labels, self.rows, classes, 0.0 if kind == "nonnegative" else -np.inf)

    @property
    def records(self) -> int:
        """The number of records, m: of people if there are groups, else of rows."""
        return self.rows if self.starts is None else self.starts.size - 1

    @property
    def rows(self) -> int:
        """The number of rows, at least one per record."""
        return int(self.features.shape[0])

    @property
    def groups(self) -> NDArray[np.int64] | None:
        """The number of each row's person, in increasing order; None without groups."""
        return None if self.starts is None else np.repeat(np.arange(self.records), np.diff(self.starts))

    @property
    def dimension(self) -> int:
        """The length of θ, d."""
        return dimension(self.loss, int(self.features.shape[1]))

    def table(self) -> Array:
        """Return the features as a dense float64 table; raise ValueError if records have weights or several rows."""
        self.require_equal_rows()
        return dense(self.features)

    def require_equal_rows(self) -> None:
        """Raise ValueError if rows do not count alike: if they have weights, or belong to people."""
        if self.weights is not None:
            raise ValueError("problem must have no weights: constants and theorems assume that records count alike.")
        if self.starts is not None:
            raise ValueError("problem must have no groups: constants and theorems assume that records have one row.")

    def within(self, region: Region) -> Self:
        """Return the same problem, on the same records, in another region."""
        require("region", region, [project])
        other = copy(self)
        other.region = region
        return other

    def on(self, features: ArrayLike | sparse.spmatrix | sparse.sparray, labels: ArrayLike | None = None) -> Problem:
        """Return the same problem on other records, such as held-out ones, without weights and groups."""
        other = Problem(features, labels, loss=self.loss, response=self.response, region=self.region)
        if other.dimension != self.dimension:
            raise ValueError(f"features must have {self.dimension} columns, got {other.dimension}.")
        return other

    def constants(self, radius: float | None = None) -> Constants:
        """Return μ, L, β and G over ‖θ‖ ≤ radius; the default is the radius of the region."""
        if radius is None:
            radius = self.region.radius(self.dimension) if hasattr(self.region, "radius") else np.inf
            if not np.isfinite(radius):
                raise ValueError("radius must be given for a problem without a bounded region, got None.")
        radius = checks.positive("radius", radius)
        return constants(self.table(), self.labels, self.loss, self.response, radius, self.dimension)

    def __repr__(self) -> str:
        several = "" if self.starts is None else f"{self.records} people, "
        return (
            f"Problem({several}{self.rows} records × {self.features.shape[1]}, loss={self.loss}, "
            f"response={self.response}, region={self.region})"
        )


@contextmanager
def _explain_writing(problem: Problem) -> Iterator[None]:
    """Turn NumPy's error about a read-only array into one that names the parts."""
    try:
        yield
    except ValueError as error:
        if "read-only" not in str(error):
            raise
        names = f"loss {type(problem.loss).__name__} and response {type(moving(problem.response)).__name__}"
        raise TypeError(
            f"{names} must not write to θ, to the record or to their own arrays, got one that does."
        ) from error
