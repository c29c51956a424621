"""Losses: the cost of one record at θ. Each is a NamedTuple; see `clipsilon._core.parts`."""

from clipsilon.problems.losses.anticipating import Anticipating
from clipsilon.problems.losses.base import (
    Loss,
    MarginBounds,
    feature_gradient,
    gradient,
    margin_value,
    slope,
    slopes,
    value,
)
from clipsilon.problems.losses.clipped import Clipped, clipped_loss
from clipsilon.problems.losses.glm import Logistic, SquaredError
from clipsilon.problems.losses.local import HuberRegression, MallowsLogistic
from clipsilon.problems.losses.log_link import GammaDeviance, PoissonDeviance
from clipsilon.problems.losses.nonconvex import Savage, Sigmoid, Tangent
from clipsilon.problems.losses.quadratic import Quadratic
from clipsilon.problems.losses.robust import Absolute, Huber, Pinball
from clipsilon.problems.losses.softmax import Softmax

__all__ = [
    "Absolute",
    "Anticipating",
    "Clipped",
    "GammaDeviance",
    "Huber",
    "HuberRegression",
    "Logistic",
    "Loss",
    "MallowsLogistic",
    "MarginBounds",
    "Pinball",
    "PoissonDeviance",
    "Quadratic",
    "Savage",
    "Sigmoid",
    "Softmax",
    "SquaredError",
    "Tangent",
    "clipped_loss",
    "feature_gradient",
    "gradient",
    "margin_value",
    "slope",
    "slopes",
    "value",
]
