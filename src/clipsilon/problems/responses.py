"""Responses: how a record reacts to the deployed model, z = respond(z̄, θ) ~ D(θ) (paper 1, eq. 3).

A response writes the features after the reaction into `moved` and returns the label, which it
may change as well. A random response draws from the generator that it receives and declares
`random = True`, so that the solvers for fixed points average over draws.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from clipsilon._core.checks import columns, nonnegative, number, positive
from clipsilon._core.parts import Part, checked, implements, operation, require, traits
from clipsilon._core.vectors import norm

__all__ = ["BestResponse", "FixedIntercept", "Identity", "LinearShift", "LocationShift", "Response", "respond"]

Array = NDArray[np.float64]


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


def _response(name: str, value: Response) -> Response:
    require(name, value, [respond])
    return value


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


def moving(response: Response) -> Response:
    """Return the response that moves records: without the `FixedIntercept` around it, if there is one."""
    return response.response if isinstance(response, FixedIntercept) else response
