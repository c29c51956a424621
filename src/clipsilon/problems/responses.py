"""Responses: how a record reacts to the deployed model, z = respond(z̄, θ) ~ D(θ) (paper 1, eq. 3).

A response writes the features after the reaction into `moved` and returns the label, which it
may change as well. A random response draws from the generator that it receives and declares
`random = True`, so that the solvers for fixed points average over draws.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple, Protocol

import numpy as np
from numba.extending import register_jitable
from numpy.random import Generator
from numpy.typing import NDArray

from clipsilon._core.checks import columns, matrices, nonnegative, number, positive, positive_or_infinite, rate
from clipsilon._core.options import CONTAINED
from clipsilon._core.parts import Part, checked, fallback, implements, operation, require, traits
from clipsilon._core.vectors import norm

__all__ = [
    "BestResponse",
    "Deployment",  # noqa: F822
    "EstimatedResponse",  # noqa: F822
    "Exploration",  # noqa: F822
    "FixedIntercept",
    "Identity",
    "LinearShift",
    "LocationShift",
    "MatrixShift",
    "Response",
    "Slow",
    "estimate",  # noqa: F822
    "explore",  # noqa: F822
    "lag",
    "pull_back",
    "respond",
]

Array = NDArray[np.float64]

_FROM_LOGS = ("Deployment", "EstimatedResponse", "Exploration", "estimate", "explore")


def __dir__() -> list[str]:
    return sorted({*globals(), *_FROM_LOGS})


def __getattr__(name: str) -> Any:
    if name not in _FROM_LOGS:  # these need statements of privacy, which come later in the order of imports
        raise AttributeError(f"module 'clipsilon.problems.responses' has no attribute {name!r}")
    return getattr(import_module("clipsilon.theory.reactions"), name)


class Response(Part, Protocol):
    """How one record reacts to the deployed model: implements `respond`."""


@operation
def respond(response: Response, deployed: Array, features: Array, label: float, moved: Array, rng: Generator) -> float:
    """Write the features of one record after its reaction into `moved`; return its label.

    Parameters
    ----------
    response : Response
        The part that selects the implementation.
    deployed : ndarray
        The deployed model θ, to which the record reacts.
    features : ndarray
        x̄, the features before the reaction. Do not write to it.
    label : float
        ȳ, the label before the reaction.
    moved : ndarray
        Receives the features x after the reaction.
    rng : numpy.random.Generator
        The source of randomness, for responses with `random = True` only.

    Returns
    -------
    float
        The label after the reaction.
    """


@operation
def pull_back(response: Response, deployed: Array, label: float, direction: Array, out: Array) -> None:
    """Add Aᵀ·direction to `out`, A being the derivative in θ of the features after the reaction.

    Losses that anticipate (`clipsilon.losses.Anticipating`) need it. It must not depend on the features.

    Parameters
    ----------
    response : Response
        The part that selects the implementation.
    deployed : ndarray
        The model θ at which the derivative is taken.
    label : float
        y, the label of the record.
    direction : ndarray
        A vector with one entry per feature.
    out : ndarray
        What is added to, of the length of θ.
    """


@operation
def lag(response: Response) -> float:
    """Return the weight of the past: records react to lag·(what they reacted to before) + (1 − lag)·θ.

    Parameters
    ----------
    response : Response
        The part that selects the implementation; 0 for all but `Slow`.

    Returns
    -------
    float
        At least 0 and below 1.
    """


@fallback(lag)
def _without_lag(response: type) -> Callable[..., float]:
    return _no_lag


def _no_lag(response):  # type: ignore[no-untyped-def]
    return 0.0


def is_random(response: Response) -> bool:
    """Return whether a response draws from its generator."""
    return bool(getattr(response, "random", False))


class Identity(NamedTuple):
    """No reaction: D(θ) is the data as it is."""

    def sensitivity(self, labels: Array) -> float:
        """Return β of Assumption 3.2: 0."""
        return 0.0

    def reach(self, radius: float, labels: Array) -> float:
        """Return how far a record can move while ‖θ‖ ≤ radius: 0."""
        return 0.0


@implements(respond, Identity)
def _(response, deployed, features, label, moved, rng):
    for j in range(features.size):
        moved[j] = features[j]
    return label


@implements(pull_back, Identity)
def _(response, deployed, label, direction, out):
    pass


@checked(beta=number)
class LocationShift(NamedTuple):
    """A shift of every record by the model: z = z̄ − β·θ (paper 1, eq. 24)."""

    beta: float

    def sensitivity(self, labels: Array) -> float:
        """Return β of Assumption 3.2, which is attained."""
        return abs(self.beta)

    def reach(self, radius: float, labels: Array) -> float:
        """Return how far a record can move while ‖θ‖ ≤ radius."""
        return abs(self.beta) * radius


@implements(respond, LocationShift)
def _(response, deployed, features, label, moved, rng):
    for j in range(features.size):
        moved[j] = features[j] - response.beta * deployed[j]
    return label


@implements(pull_back, LocationShift)
def _(response, deployed, label, direction, out):
    for j in range(direction.size):
        out[j] -= response.beta * direction[j]


@traits(needs_labels=True)
@checked(beta=nonnegative, floor=positive)
class BestResponse(NamedTuple):
    """Gaming by the records with label 1: x = x̄ − β·y·θ/max(floor, ‖θ‖) (paper 1, eq. 8).

    This maximises the utility −y⟨θ, x⟩/max(ε_U, ‖θ‖) − ‖x − x̄‖²/(2β), with ε_U = `floor`. The
    map is (β/floor)-Lipschitz in θ, so with the default floor of 1 `beta` is a bound on the
    sensitivity of Assumption 3.2.
    """

    beta: float
    floor: float = 1.0

    def sensitivity(self, labels: Array) -> float:
        """Return β of Assumption 3.2; records with label 0 do not move."""
        return self.beta / self.floor * float(np.mean(np.abs(labels)))

    def reach(self, radius: float, labels: Array) -> float:
        """Return how far a record can move while ‖θ‖ ≤ radius."""
        return self.beta * min(1.0, radius / self.floor) * float(np.max(np.abs(labels)))


@implements(respond, BestResponse)
def _(response, deployed, features, label, moved, rng):
    shift = 0.0
    if label != 0.0:  # most records have label 0, and ‖θ‖ is not needed for them
        shift = response.beta * label / max(response.floor, norm(deployed[: features.size]))
    for j in range(features.size):
        moved[j] = features[j] - shift * deployed[j]
    return label


@implements(pull_back, BestResponse)
def _(response, deployed, label, direction, out):
    if label == 0.0:
        return
    length = norm(deployed[: direction.size])
    shift = response.beta * label / max(response.floor, length)
    along = 0.0  # beyond the floor only the direction of θ counts: moves along θ change nothing
    if length > response.floor:
        for j in range(direction.size):
            along += direction[j] * (deployed[j] / length) / length
    for j in range(direction.size):
        out[j] -= shift * (direction[j] - along * deployed[j])


@checked(strength=number, columns=columns)
class LinearShift(NamedTuple):
    """A shift of some columns: x_j = x̄_j − strength·θ_j for the listed columns; the others do not change.

    This is the credit model of Perdomo et al. (2020), where applicants can change some of their features.
    """

    strength: float
    columns: NDArray[np.int64]

    def sensitivity(self, labels: Array) -> float:
        """Return β of Assumption 3.2, which is attained."""
        return abs(self.strength)

    def reach(self, radius: float, labels: Array) -> float:
        """Return how far a record can move while ‖θ‖ ≤ radius."""
        return abs(self.strength) * radius

    def check_features(self, features: int) -> None:
        """Raise ValueError if a column is not below `features`, the number of columns of the data."""
        if self.columns.max() >= features:
            raise ValueError(f"columns of LinearShift must be below {features}, got {self.columns.max()}.")


@implements(respond, LinearShift)
def _(response, deployed, features, label, moved, rng):
    for j in range(features.size):
        moved[j] = features[j]
    for j in response.columns:
        moved[j] = features[j] - response.strength * deployed[j]
    return label


@implements(pull_back, LinearShift)
def _(response, deployed, label, direction, out):
    for j in response.columns:
        out[j] -= response.strength * direction[j]


@checked(strengths=matrices, saturation=positive_or_infinite)
class MatrixShift(NamedTuple):
    """A shift by a matrix per class: x = x̄ − S_y·θ/max(1, ‖θ‖/saturation).

    `strengths` holds one square matrix S_y per class y = 0, 1, …, or a single matrix for all records, with as many rows
    as there are features. Models longer than `saturation` move records no further than models of this length in the
    same direction do; by default the shift is linear. `BestResponse(beta, floor)` is the case S_0 = 0,
    S_1 = (beta/floor)·I, saturation = floor. This is what `estimate` finds.

    Examples
    --------
    >>> import clipsilon as cs
    >>> import numpy as np
    >>> response = cs.responses.MatrixShift([np.zeros((2, 2)), np.diag([0.5, 0.0])])
    >>> moved = np.empty(2)
    >>> cs.responses.respond(response, np.array([1.0, 1.0]), np.array([2.0, 3.0]), 1.0, moved, None)
    1.0
    >>> print(moved)
    [1.5 3. ]
    """

    strengths: Array
    saturation: float = np.inf

    @property
    def needs_labels(self) -> bool:
        """Whether classes react differently."""
        return bool(self.strengths.shape[0] > 1)

    def sensitivity(self, labels: Array) -> float:
        """Return a bound on β of Assumption 3.2: the mean of the largest singular values of S_y."""
        return float(np.mean(self._sizes(labels)))

    def reach(self, radius: float, labels: Array) -> float:
        """Return how far a record can move while ‖θ‖ ≤ radius."""
        return float(np.max(self._sizes(labels))) * min(radius, self.saturation)

    def _sizes(self, labels: Array) -> Array:
        known = np.clip(np.asarray(labels), 0, len(self.strengths) - 1).astype(np.int64)
        return np.asarray(np.linalg.norm(self.strengths, ord=2, axis=(1, 2))[known])

    def check_features(self, features: int) -> None:
        """Raise ValueError unless the matrices have as many rows as there are columns of data."""
        if self.strengths.shape[1] != features:
            raise ValueError(
                f"strengths of MatrixShift must be matrices of {features} rows, got {self.strengths.shape[1]}."
            )


@register_jitable(**CONTAINED)
def _class_of(strengths: Array, label: float) -> int:
    """Return the number of a record's matrix; labels beyond the classes count as the nearest one."""
    return int(min(max(label, 0.0), strengths.shape[0] - 1.0))


@register_jitable(**CONTAINED)
def _shrinkage(saturation: float, length: float) -> float:
    """Return 1/max(1, length/saturation); NaN is passed on."""
    return saturation / length if length > saturation else 1.0


@implements(respond, MatrixShift)
def _(response, deployed, features, label, moved, rng):
    k = _class_of(response.strengths, label)
    scale = _shrinkage(response.saturation, norm(deployed[: features.size]))
    for i in range(features.size):
        total = 0.0
        for j in range(features.size):
            total += response.strengths[k, i, j] * deployed[j]
        moved[i] = features[i] - scale * total
    return label


@implements(pull_back, MatrixShift)
def _(response, deployed, label, direction, out):
    k, size = _class_of(response.strengths, label), direction.size
    length = norm(deployed[:size])
    scale = _shrinkage(response.saturation, length)
    along = 0.0  # beyond the saturation only the direction of θ counts
    if length > response.saturation:
        for i in range(size):
            for j in range(size):
                along += direction[i] * response.strengths[k, i, j] * (deployed[j] / length) / length
    for j in range(size):
        total = 0.0
        for i in range(size):
            total += response.strengths[k, i, j] * direction[i]
        out[j] -= scale * (total - along * deployed[j])


def as_part(response: Any) -> Any:
    """Return a response itself, or the part of one that was estimated (`EstimatedResponse.part`)."""
    return response.part if hasattr(response, "part") and not isinstance(response, tuple) else response


def _response(name: str, value: Response) -> Response:
    part: Response = as_part(value)
    require(name, part, [respond])
    return part


@checked(response=_response)
class FixedIntercept(NamedTuple):
    """A response of all columns but the last, the column of ones of an intercept, which nobody can move.

    `response` sees a record without its last feature, and the deployed model without the intercept and whatever a loss
    appends to it. So it depends on the record and the model alone, as `response` does, and certificates, which assume
    no more of a response, stay the same.
    """

    response: Any

    @property
    def random(self) -> bool:
        """Whether the response draws from its generator."""
        return is_random(self.response)

    @property
    def needs_labels(self) -> bool:
        """Whether the response depends on the label."""
        return bool(getattr(self.response, "needs_labels", False))

    @property
    def sensitivity(self) -> Callable[[Array], float]:
        """The bound on β of the response, if it has one: the slopes move by no more than θ."""
        bound: Callable[[Array], float] = self.response.sensitivity
        return bound

    @property
    def reach(self) -> Callable[[float, Array], float]:
        """The bound on how far a record can move of the response, if it has one: the slopes are no longer than θ."""
        bound: Callable[[float, Array], float] = self.response.reach
        return bound

    def check_features(self, features: int) -> None:
        """Raise ValueError unless a column is left that can move, and the response takes the others."""
        if features < 2:
            raise ValueError(f"features must have a column besides that of ones for FixedIntercept, got {features}.")
        if hasattr(self.response, "check_features"):
            self.response.check_features(features - 1)


@implements(respond, FixedIntercept)
def _(response, deployed, features, label, moved, rng):
    last = features.size - 1
    label = respond(response.response, deployed[:last], features[:last], label, moved[:last], rng)
    moved[last] = features[last]
    return label


@implements(pull_back, FixedIntercept)
def _(response, deployed, label, direction, out):
    last = direction.size - 1
    pull_back(response.response, deployed[:last], label, direction[:last], out[:last])


@implements(lag, FixedIntercept)
def _(response):
    return lag(response.response)


def is_linear_in_model(response: Response) -> bool:
    """Return whether a response of the package moves records linearly in θ."""
    inner = moving(response)
    if isinstance(inner, MatrixShift):
        return inner.saturation == np.inf
    return isinstance(inner, Identity | LocationShift | LinearShift)


def _linear_response(name: str, value: Response) -> Response:
    part = _response(name, value)
    if isinstance(part, FixedIntercept) or not is_linear_in_model(part):
        raise ValueError(
            f"{name} must be linear in θ (LocationShift, LinearShift, or MatrixShift without saturation), got "
            f"{type(part).__name__}: others would need a memory per record."
        )
    return part


@checked(response=_linear_response, speed=rate)
class Slow(NamedTuple):
    """A reaction with memory: z_t = (1 − speed)·z_{t−1} + speed·respond(z̄, θ_t), for responses that are linear in θ.

    Before the first step, records have adapted to the start. Because the response is linear, the memory of every record
    is that of one model, θ̄_t = (1 − speed)·θ̄_{t−1} + speed·θ_t: z_t = respond(z̄, θ̄_t). Runs carry θ̄ as the model that
    records react to; with `deploy_every` above 1, records adapt when a model is deployed. Points are those of
    `response`, since memory does not change where records come to rest.
    """

    response: Any
    speed: float

    @property
    def needs_labels(self) -> bool:
        """Whether the response depends on the label."""
        return bool(getattr(self.response, "needs_labels", False))

    def sensitivity(self, labels: Array) -> float:
        """Return the bound on β of the response."""
        bound: float = self.response.sensitivity(labels)
        return bound

    def reach(self, radius: float, labels: Array) -> float:
        """Return the bound of the response: θ̄ is no longer than the longest θ."""
        bound: float = self.response.reach(radius, labels)
        return bound

    def check_features(self, features: int) -> None:
        """Raise ValueError if the response does not take so many columns."""
        if hasattr(self.response, "check_features"):
            self.response.check_features(features)


@implements(respond, Slow)
def _(response, deployed, features, label, moved, rng):
    return respond(response.response, deployed, features, label, moved, rng)


@implements(pull_back, Slow)
def _(response, deployed, label, direction, out):
    pull_back(response.response, deployed, label, direction, out)


@implements(lag, Slow)
def _(response):
    return 1.0 - response.speed


def moving(response: Response) -> Response:
    """Return the response that moves records: without the `FixedIntercept` around it, if there is one."""
    return response.response if isinstance(response, FixedIntercept) else response
