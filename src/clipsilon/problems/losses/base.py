"""The operations of a loss, and how they are derived for generalised linear losses."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from clipsilon._core.checks import positive, vector
from clipsilon._core.parts import Part, fallback, implementation, operation
from clipsilon._core.products import dot

Array = NDArray[np.float64]


class Loss(Part, Protocol):
    """The loss of one record: implements `margin_value` and `slope`, or `value` and `gradient`."""


@operation
def value(loss: Loss, theta: Array, features: Array, label: float) -> float:
    """Return ℓ(θ; z) of one record z = (features, label).

    Parameters
    ----------
    loss : Loss
        The part that selects the implementation.
    theta : ndarray
        The model θ.
    features : ndarray
        x, the features after the reaction.
    label : float
        y, the label after the reaction; 0 for losses without labels.

    Returns
    -------
    float
        The loss, including the penalty if there is one.
    """


@operation
def gradient(loss: Loss, theta: Array, features: Array, label: float, out: Array) -> None:
    """Write ∇_θ ℓ(θ; z) of one record z = (features, label) into `out`.

    Parameters
    ----------
    loss : Loss
        The part that selects the implementation.
    theta : ndarray
        The model θ.
    features : ndarray
        x, the features after the reaction.
    label : float
        y, the label after the reaction; 0 for losses without labels.
    out : ndarray
        Receives the gradient, of the length of θ.
    """


@operation
def feature_gradient(loss: Loss, theta: Array, features: Array, label: float, out: Array) -> None:
    """Write ∇_x ℓ(θ; x, y) of one record into `out`, for losses that anticipate; φ'·θ for generalised linear losses.

    Parameters
    ----------
    loss : Loss
        The part that selects the implementation.
    theta : ndarray
        The model θ.
    features : ndarray
        x, the features after the reaction.
    label : float
        y, the label after the reaction; 0 for losses without labels.
    out : ndarray
        Receives the gradient, of the length of x.
    """


@operation
def margin_value(loss: Loss, margin: float, label: float) -> float:
    """Return a generalised linear loss as a function of the margin.

    Parameters
    ----------
    loss : Loss
        The part that selects the implementation.
    margin : float
        ⟨x, θ⟩.
    label : float
        y, the label after the reaction.

    Returns
    -------
    float
        The loss, without the penalty.
    """


@operation
def slope(loss: Loss, margin: float, label: float) -> float:
    """Return the derivative of `margin_value` in the margin.

    Parameters
    ----------
    loss : Loss
        The part that selects the implementation.
    margin : float
        ⟨x, θ⟩.
    label : float
        y, the label after the reaction.

    Returns
    -------
    float
        The derivative, without the penalty.
    """


@operation
def slopes(loss: Loss, scores: Array, label: float) -> None:
    """Replace the margins of a loss with several classes by the derivatives in them, in place.

    Parameters
    ----------
    loss : Loss
        The part that selects the implementation.
    scores : ndarray
        One margin ⟨x, θ_k⟩ per class, replaced by the derivative of the loss in it.
    label : float
        y, the class of the record.
    """


class MarginBounds(NamedTuple):
    """Bounds on the derivatives of a generalised linear loss while |margin| ≤ reach, one entry per record.

    Parameters
    ----------
    slope : ndarray
        The largest absolute value of the first derivative.
    low : ndarray
        The smallest second derivative.
    high : ndarray
        The largest absolute value of the second derivative.
    """

    slope: Array
    low: Array
    high: Array


def label_kind(loss: Loss) -> str:
    """Return the labels of a loss: "binary", "class" (0 to `loss.classes` − 1), "nonnegative", "real" or "none"."""
    return getattr(loss, "labels", "real")


def unclipped_slope(loss: Loss) -> float:
    """Return up to which size slopes should stay unclipped; 0 unless the loss states it.

    Clipping skewed residuals moves what is estimated: a mean towards the median, a quantile towards another one.
    """
    return float(getattr(loss, "unclipped_slope", 0.0))


def dimension(loss: Loss, columns: int) -> int:
    """Return the length of θ: the number of columns, unless the loss has a method `dimension`."""
    return int(loss.dimension(columns)) if hasattr(loss, "dimension") else columns


def sensitivity_of(loss: Loss) -> float:
    """Return Δ, the most that a gradient changes when its record is replaced.

    Raises
    ------
    ValueError
        If the loss has no method `sensitivity`.
    """
    if not hasattr(loss, "sensitivity"):
        raise ValueError(
            "loss must state its sensitivity for local privacy (as MallowsLogistic and HuberRegression do), "
            f"got {type(loss).__name__}."
        )
    return positive("sensitivity", loss.sensitivity())


def gradient_center_of(loss: Loss, dimension: int) -> Array:
    """Return the public centre of a loss's gradients, which are within Δ/2 of it; zero unless the loss states another.

    A loss states it by a method `gradient_center(dimension)`. Local reports clip gradients to this ball.
    """
    if not hasattr(loss, "gradient_center"):
        return np.zeros(dimension)
    return vector("gradient_center", loss.gradient_center(dimension), dimension)


def is_margin_loss(loss: Loss) -> bool:
    """Return whether a loss is generalised linear, that is, implements `slope`."""
    return implementation(slope, type(loss)) is not None


def is_linear(loss: Loss) -> bool:
    """Return whether a loss depends on θ through ⟨x, θ⟩ alone, apart from a penalty."""
    return is_margin_loss(loss) or bool(getattr(loss, "linear", False))


def is_convex(loss: Loss, labels: Iterable[float] = (0.0, 1.0)) -> bool:
    """Return whether the slope of a margin loss never decreases, on a grid of margins within ±1000."""
    sizes = np.geomspace(1e-2, 1e3, 80)
    margins = np.concatenate((-sizes[::-1], [0.0], sizes))
    with np.errstate(all="ignore"):
        slopes = np.array([[slope(loss, margin, label) for margin in margins] for label in labels])
        falls = slopes[:, :-1] - slopes[:, 1:]
        return not np.any(falls > 1e-9 * (1.0 + np.abs(slopes[:, 1:])))


def penalty(loss: Loss) -> float:
    """Return the weight of ½‖θ‖² in the loss (η in paper 1, eq. 7)."""
    return float(getattr(loss, "l2", 0.0))


# A generalised linear loss φ(⟨x, θ⟩, y) + (l2/2)‖θ‖² has the gradient φ'·x + l2·θ. Losses without
# a field l2 get a function of their own, so that the loop does not add zeros.


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


@fallback(feature_gradient)
def _feature_gradient_from_slope(loss: type) -> Callable[..., None] | None:
    return None if implementation(slope, loss) is None else _linear_feature_gradient


def _linear_feature_gradient(loss, theta, features, label, out):  # type: ignore[no-untyped-def]
    rate = slope(loss, dot(features, theta), label)
    for j in range(features.size):
        out[j] = rate * theta[j]


def _plain_value(loss, theta, features, label):  # type: ignore[no-untyped-def]
    return margin_value(loss, dot(features, theta), label)


def _penalised_value(loss, theta, features, label):  # type: ignore[no-untyped-def]
    return margin_value(loss, dot(features, theta), label) + 0.5 * loss.l2 * dot(theta, theta)


def _plain_gradient(loss, theta, features, label, out):  # type: ignore[no-untyped-def]
    rate = slope(loss, dot(features, theta), label)
    for j in range(theta.size):
        out[j] = rate * features[j]


def _penalised_gradient(loss, theta, features, label, out):  # type: ignore[no-untyped-def]
    rate = slope(loss, dot(features, theta), label)
    for j in range(theta.size):
        out[j] = rate * features[j] + loss.l2 * theta[j]
