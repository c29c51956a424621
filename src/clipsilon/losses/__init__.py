"""Losses: what one record costs at θ. Each is a NamedTuple; see `clipsilon.parts`."""

from clipsilon.losses.base import MarginBounds, gradient, margin_value, slope, slopes, value
from clipsilon.losses.clipped import Clipped, clipped_loss
from clipsilon.losses.glm import Logistic, SquaredError
from clipsilon.losses.local import HuberRegression, MallowsLogistic
from clipsilon.losses.nonconvex import Savage, Sigmoid, Tangent
from clipsilon.losses.quadratic import Quadratic
from clipsilon.losses.robust import Absolute, Huber
from clipsilon.losses.softmax import Softmax

__all__ = [
    "Absolute",
    "Clipped",
    "Huber",
    "HuberRegression",
    "Logistic",
    "MallowsLogistic",
    "MarginBounds",
    "Quadratic",
    "Savage",
    "Sigmoid",
    "Softmax",
    "SquaredError",
    "Tangent",
    "clipped_loss",
    "gradient",
    "margin_value",
    "slope",
    "slopes",
    "value",
]
