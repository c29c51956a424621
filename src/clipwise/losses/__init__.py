"""Losses: what one record costs at θ. Each is a NamedTuple; see `clipwise.parts`."""

from clipwise.losses.base import MarginBounds, gradient, margin_value, slope, slopes, value
from clipwise.losses.clipped import Clipped, clipped_loss
from clipwise.losses.glm import Logistic, SquaredError
from clipwise.losses.local import HuberRegression, MallowsLogistic
from clipwise.losses.nonconvex import Savage, Sigmoid, Tangent
from clipwise.losses.quadratic import Quadratic
from clipwise.losses.robust import Absolute, Huber
from clipwise.losses.softmax import Softmax

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
