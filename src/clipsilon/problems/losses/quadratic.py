"""The quadratic loss of paper 1's synthetic experiments."""

from __future__ import annotations

from typing import NamedTuple

from clipsilon._core.checks import number
from clipsilon._core.parts import checked, implements, traits
from clipsilon.problems.losses.base import feature_gradient, gradient, value


@checked(a=number)
@traits(labels="none")
class Quadratic(NamedTuple):
    """The quadratic loss ℓ(θ; z) = ½‖θ + a·z‖² (paper 1, eq. 24).

    It is strongly convex with μ = 1, and its gradient is |a|-Lipschitz in z. The record is the vector z, without a
    label.

    Examples
    --------
    >>> import clipsilon as cs
    >>> cs.Problem([0.0, 1.0], loss=cs.losses.Quadratic(a=10.0)).dimension
    1
    """

    a: float = 1.0


@implements(value, Quadratic)
def _(loss, theta, features, label):
    total = 0.0
    for j in range(theta.size):
        term = theta[j] + loss.a * features[j]
        total += term * term
    return 0.5 * total


@implements(gradient, Quadratic)
def _(loss, theta, features, label, out):
    for j in range(theta.size):
        out[j] = theta[j] + loss.a * features[j]


@implements(feature_gradient, Quadratic)
def _(loss, theta, features, label, out):
    for j in range(theta.size):
        out[j] = loss.a * (theta[j] + loss.a * features[j])
