"""A loss that anticipates the reaction: descent leads to the performative optimum, not to the stable point."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from clipsilon._core.parts import checked, implements, require
from clipsilon.problems.losses.base import Loss, dimension, feature_gradient, gradient, label_kind, value
from clipsilon.problems.responses import Response, as_part, is_random, pull_back


def _with_feature_gradient(name: str, loss: Loss) -> Loss:
    require(name, loss, [value, gradient, feature_gradient])
    return loss


def _anticipated(name: str, response: Response) -> Response:
    part: Response = as_part(response)
    require(name, part, [pull_back])
    if is_random(part):
        raise ValueError(f"{name} must not draw at random to be anticipated, got {type(part).__name__}.")
    return part


@checked(loss=_with_feature_gradient, response=_anticipated)
class Anticipating(NamedTuple):
    """A loss whose gradient includes how records will react: ∇_θ ℓ + Aᵀ∇_x ℓ, with A = ∂x/∂θ of `response`.

    Its mean is the gradient of the performative risk f(θ; θ) if records react as `response` does. So every rule
    descends towards the performative optimum argmin f(θ; θ), where without it rules end near the stable point (PerfGD:
    Izzo, Ying and Zou, 2021; here with a reaction that is given, or estimated from logs by
    `clipsilon.responses.estimate`). The added term depends on the record and on θ alone and is there before clipping,
    so all certificates stand. `value` is that of the loss.

    For `Quadratic` and a reaction that is linear in θ, optimum and stable point are the same, except where the reaction
    cancels a direction of θ altogether: with x = x̄ − S·θ, the risk is ½E‖(I − aS)θ + a·x̄‖², whose zero and whose
    minimum coincide if I − aS is invertible.

    Examples
    --------
    >>> import clipsilon as cs
    >>> x, y, response = [0.5, 1.0, 1.5], [1.0, 1.5, 2.5], cs.responses.LocationShift(0.2)
    >>> loss = cs.losses.SquaredError()
    >>> anticipating = cs.Problem(x, y, loss=cs.losses.Anticipating(loss, response), response=response)
    >>> plain = cs.Problem(x, y, loss=loss, response=response)
    >>> bool(abs(cs.stable_point(anticipating).theta - cs.optimal_point(plain).theta) < 1e-6)
    True
    """

    loss: Any
    response: Any

    @property
    def labels(self) -> str:
        """The kind of labels of the loss."""
        return label_kind(self.loss)

    def dimension(self, columns: int) -> int:
        """Return the length of θ, as the loss has it."""
        return dimension(self.loss, columns)

    def check(self) -> None:
        """Raise ValueError if the reaction depends on labels that the loss does not have."""
        if getattr(self.response, "needs_labels", False) and label_kind(self.loss) == "none":
            raise ValueError(
                f"response must not depend on labels for {self.loss}, which has none, "
                f"got {type(self.response).__name__}."
            )

    def check_features(self, features: int) -> None:
        """Raise ValueError if the reaction does not take so many columns."""
        if hasattr(self.response, "check_features"):
            self.response.check_features(features)


@implements(value, Anticipating)
def _(loss, theta, features, label):
    return value(loss.loss, theta, features, label)


@implements(gradient, Anticipating)
def _(loss, theta, features, label, out):
    gradient(loss.loss, theta, features, label, out)
    by_features = np.full(features.size, np.nan)  # what a user's loss does not write must not be another record's
    feature_gradient(loss.loss, theta, features, label, by_features)
    pull_back(loss.response, theta, label, by_features, out)
