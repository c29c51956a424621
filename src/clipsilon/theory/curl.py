"""Whether a field of clipped gradients is the gradient of anything (paper 5, Theorems 5.3 and D.5).

A gradient field has a symmetric Jacobian, and does no work around a closed loop. Clipped gradients of a loss of the
margin have both (Lemma 5.1). Clipped gradients of the softmax loss, with three classes or more, have neither.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clipsilon._core import checks
from clipsilon._core.parts import require
from clipsilon.rules.clipping import add_clipped

__all__ = ["Estimate", "circulation", "curl", "softmax_field", "witness"]

Array = NDArray[np.float64]
Field = Callable[[Array], Array]

_EPSILON = float(np.finfo(float).eps)


class Estimate(NamedTuple):
    """A value, and how far off it may be."""

    value: float
    error: float


def softmax_field(features: Any, label: int, classes: int, clip: Any) -> Field:
    """The clipped gradient of the cross-entropy of one record, as a function of θ = (θ⁽¹⁾, …, θ⁽ᴷ⁾), class by class.

    The block of class k is (p_k − 1{k = label})·x, with p the softmax of ⟨θ⁽ᵏ⁾, x⟩; labels count from 0. `clip` is a
    part of `clipsilon.clipping`: `Norm` clips all blocks together (Theorem 5.3), `PerClass` each by itself (D.5).

    >>> from clipsilon.rules.clipping import Norm
    >>> three, two = (softmax_field([1.0, 2.0], 0, classes, Norm(0.5)) for classes in (3, 2))
    >>> found = curl(three, [0.1, 0.2, -0.3, 0.5, 0.4, -0.6])
    >>> found.value > 1e4 * found.error
    True
    >>> found = curl(two, [0.1, 0.2, -0.3, 0.5])
    >>> found.value > found.error
    False
    """
    x = checks.floats("features", features).ravel()
    classes = checks.integer("classes", classes, least=2)
    if checks.integer("label", label, least=0) >= classes:
        raise ValueError(f"label must be below the number of classes ({classes}), got {label}.")
    require("clip", clip, [add_clipped])

    def field(theta: Array) -> Array:
        margins = theta.reshape(classes, x.size) @ x
        weights = np.exp(margins - margins.max())
        rates = weights / weights.sum()
        rates[label] -= 1.0
        clipped = np.zeros_like(theta)
        add_clipped(clip, np.outer(rates, x).ravel(), 1.0, clipped)
        return clipped

    return field


def curl(field: Field, theta: Any, step: float = 1e-3) -> Estimate:
    """The Frobenius norm of J − Jᵀ at θ, where J is the Jacobian of the field: zero for a gradient field.

    By fourth-order central differences; the error is what the second-order ones differ by, and rounding. Both need a
    field that is smooth within 2·step of θ.
    """
    point = checks.floats("theta", theta).ravel()
    near, far = (_jacobian(field, point, reach * step) for reach in (1.0, 2.0))
    jacobian = (4 * near - far) / 3
    rounding = _EPSILON * point.size * (1 + float(np.abs(field(point)).max())) / step
    return Estimate(float(np.linalg.norm(jacobian - jacobian.T)), 2 * float(np.linalg.norm(jacobian - near)) + rounding)


def circulation(field: Field, theta: Any, radius: float, first: Any, second: Any, nodes: int = 64) -> Estimate:
    """The work ∮⟨F, dθ⟩ around the circle about θ in the plane of two directions: zero for a gradient field.

    The directions are made orthonormal. By the trapezoidal rule, whose error falls exponentially with the number of
    nodes if the field is smooth on the circle; the error is the difference to every second node, and rounding.
    """
    point = checks.floats("theta", theta).ravel()
    plane = np.stack([checks.vector("first", first, point.size), checks.vector("second", second, point.size)])
    one, other = np.linalg.qr(plane.T)[0].T
    angles = 2 * np.pi * np.arange(nodes) / nodes
    work = np.empty(nodes)
    for k, angle in enumerate(angles):
        place = point + radius * (np.cos(angle) * one + np.sin(angle) * other)
        work[k] = 2 * np.pi * radius * (field(place) @ (np.cos(angle) * other - np.sin(angle) * one))
    value, coarse = float(work.mean()), float(work[::2].mean())
    return Estimate(value, abs(value - coarse) + _EPSILON * nodes * float(np.abs(work).max()))


def witness(field: Field, dimension: int, tries: int = 200, scale: float = 1.0, seed: int = 0) -> Array:
    """Of `tries` random models, N(0, scale²) in each entry, the one whose curl stands out most from its error."""
    rng = np.random.default_rng(seed)
    models = scale * rng.standard_normal((checks.count("tries", tries), checks.count("dimension", dimension)))
    ratios = [estimate.value / estimate.error for estimate in (curl(field, theta) for theta in models)]
    return np.asarray(models[int(np.argmax(ratios))])


def _jacobian(field: Field, theta: Array, step: float) -> Array:
    """By second-order central differences, one column a coordinate."""
    moves = step * np.eye(theta.size)
    return np.stack([(field(theta + move) - field(theta - move)) / (2 * step) for move in moves], axis=1)
