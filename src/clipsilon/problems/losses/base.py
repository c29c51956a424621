"""What every loss offers the engine, and how generalised linear losses get it for free."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from clipsilon._core.checks import positive
from clipsilon._core.parts import Part, fallback, implementation, operation

Array = NDArray[np.float64]


class Loss(Part, Protocol):
    """The loss of one record: implements `margin_value` and `slope`, or `value` and `gradient`."""


@operation
def value(loss: Loss, theta: Array, features: Array, label: float) -> float:
    """ℓ(θ; z) of one record z = (features, label)."""


@operation
def gradient(loss: Loss, theta: Array, features: Array, label: float, out: Array) -> None:
    """Write ∇_θ ℓ(θ; z) of one record into `out`."""


@operation
def margin_value(loss: Loss, margin: float, label: float) -> float:
    """For generalised linear losses: ℓ as a function of the margin ⟨x, θ⟩, without the penalty."""


@operation
def slope(loss: Loss, margin: float, label: float) -> float:
    """For generalised linear losses: the derivative of `margin_value` in the margin."""


@operation
def slopes(loss: Loss, scores: Array, label: float) -> None:
    """For losses of several margins ⟨x, θ_k⟩, one a class: turn the margins into the derivatives by them, in place."""


class MarginBounds(NamedTuple):
    """What a generalised linear loss can do while |margin| ≤ reach, one entry a record."""

    slope: Array  #: largest |derivative|
    low: Array  #: smallest second derivative
    high: Array  #: largest |second derivative|


def label_kind(loss: Loss) -> str:
    """Which labels a loss takes: "binary", "class" (0, 1, …, `loss.classes` − 1), "real" (the default) or "none"."""
    return getattr(loss, "labels", "real")


def dimension(loss: Loss, columns: int) -> int:
    """The length of θ for records of so many columns: one entry a column, unless the loss says otherwise."""
    return int(loss.dimension(columns)) if hasattr(loss, "dimension") else columns


def sensitivity_of(loss: Loss) -> float:
    """Δ, by how much a gradient changes at most when its record is replaced; refuse a loss that does not know it."""
    if not hasattr(loss, "sensitivity"):
        raise ValueError(
            "loss must know its sensitivity for local privacy (as MallowsLogistic and HuberRegression do), "
            f"got {type(loss).__name__}."
        )
    return positive("sensitivity", loss.sensitivity())


def is_margin_loss(loss: Loss) -> bool:
    """Whether a loss is a generalised linear one: it has a slope in the margin."""
    return implementation(slope, type(loss)) is not None


def is_linear(loss: Loss) -> bool:
    """Whether a loss sees the model through the margin ⟨x, θ⟩, but for a penalty: a margin loss, or made of one."""
    return is_margin_loss(loss) or bool(getattr(loss, "linear", False))


def is_convex(loss: Loss, labels: Iterable[float] = (0.0, 1.0)) -> bool:
    """Whether the slope of a margin loss never falls, at margins up to ±1000 and for the labels given."""
    sizes = np.geomspace(1e-2, 1e3, 80)
    margins = np.concatenate((-sizes[::-1], [0.0], sizes))
    with np.errstate(all="ignore"):
        slopes = np.array([[slope(loss, margin, label) for margin in margins] for label in labels])
        falls = slopes[:, :-1] - slopes[:, 1:]
        return not np.any(falls > 1e-9 * (1.0 + np.abs(slopes[:, 1:])))


def penalty(loss: Loss) -> float:
    """The weight of ½‖θ‖² in the loss (η in paper 1 eq. 7)."""
    return float(getattr(loss, "l2", 0.0))


# A generalised linear loss φ(⟨x, θ⟩, y) + (l2/2)‖θ‖² has gradient φ'·x + l2·θ. Losses without
# an l2 field get their own function, so that the loop does not add zeros.


@fallback(value)
def _value_from_margin(loss: type) -> Callable[..., float] | None:
    if implementation(margin_value, loss) is None:
        return None
    return _penalised_value if "l2" in loss._fields else _plain_value  # type: ignore[attr-defined]


@fallback(gradient)
def _gradient_from_slope(loss: type) -> Callable[..., None] | None:
    if implementation(slope, loss) is None:
        return None
    return _penalised_gradient if "l2" in loss._fields else _plain_gradient  # type: ignore[attr-defined]


def _plain_value(loss, theta, features, label):  # type: ignore[no-untyped-def]
    margin = 0.0
    for j in range(theta.size):
        margin += features[j] * theta[j]
    return margin_value(loss, margin, label)


def _penalised_value(loss, theta, features, label):  # type: ignore[no-untyped-def]
    margin = 0.0
    square = 0.0
    for j in range(theta.size):
        margin += features[j] * theta[j]
        square += theta[j] * theta[j]
    return margin_value(loss, margin, label) + 0.5 * loss.l2 * square


def _plain_gradient(loss, theta, features, label, out):  # type: ignore[no-untyped-def]
    margin = 0.0
    for j in range(theta.size):
        margin += features[j] * theta[j]
    rate = slope(loss, margin, label)
    for j in range(theta.size):
        out[j] = rate * features[j]


def _penalised_gradient(loss, theta, features, label, out):  # type: ignore[no-untyped-def]
    margin = 0.0
    for j in range(theta.size):
        margin += features[j] * theta[j]
    rate = slope(loss, margin, label)
    for j in range(theta.size):
        out[j] = rate * features[j] + loss.l2 * theta[j]
