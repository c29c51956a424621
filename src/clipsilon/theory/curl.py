"""Test whether a field of clipped gradients is the gradient of a function (paper 5, Theorems 5.3 and D.5).

A gradient field has a symmetric Jacobian, and does no work around a closed loop. Clipped gradients of a loss of the
margin have both properties (Lemma 5.1). Clipped gradients of the softmax loss, with three classes or more, have
neither.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clipsilon._core import checks
from clipsilon._core.parts import require
from clipsilon.rules.clipping import Clip, add_clipped

__all__ = ["Estimate", "circulation", "curl", "softmax_field", "witness"]

Array = NDArray[np.float64]
Field = Callable[[Array], Array]

_EPSILON = float(np.finfo(float).eps)


class Estimate(NamedTuple):
    """A value, and an estimate of its numerical error."""

    value: float
    error: float


def softmax_field(features: ArrayLike, label: int, classes: int, clip: Clip) -> Field:
    """Return the clipped gradient of one record's cross-entropy as a function of θ = (θ⁽¹⁾, …, θ⁽ᴷ⁾), class by class.

    The block of class k is (p_k − 1{k = label})·x, with p the softmax of ⟨θ⁽ᵏ⁾, x⟩.

    Parameters
    ----------
    features : array_like of shape (d,)
        x, the features of the record.
    label : int
        The record's class, counted from 0.
    classes : int
        K, at least 2.
    clip : Clip
        A part of `clipsilon.clipping`: `Norm` clips all blocks together (Theorem 5.3), `PerClass` each block by itself
        (Theorem D.5).

    Returns
    -------
    callable
        A function that maps θ, of K·d entries, to the clipped gradient.

    Examples
    --------
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


def curl(field: Field, theta: ArrayLike, step: float = 1e-3) -> Estimate:
    """Return the Frobenius norm of J − Jᵀ at θ, J the Jacobian of the field: zero for a gradient field.

    It is computed by fourth-order central differences; the error is their difference to the second-order ones, plus
    rounding.

    Parameters
    ----------
    field : callable
        A function of θ that returns an array of the same size, smooth within 2·step of θ.
    theta : array_like
        The point.
    step : float, default 1e-3
        The step of the differences.

    Returns
    -------
    Estimate
        The norm and its numerical error.
    """
    point = checks.floats("theta", theta).ravel()
    near, far = (_jacobian(field, point, reach * step) for reach in (1.0, 2.0))
    jacobian = (4 * near - far) / 3
    rounding = _EPSILON * point.size * (1 + float(np.abs(field(point)).max())) / step
    return Estimate(float(np.linalg.norm(jacobian - jacobian.T)), 2 * float(np.linalg.norm(jacobian - near)) + rounding)


def circulation(
    field: Field, theta: ArrayLike, radius: float, first: ArrayLike, second: ArrayLike, *, nodes: int = 64
) -> Estimate:
    """Return the work ∮⟨F, dθ⟩ around a circle about θ in the plane of two directions: zero for a gradient field.

    It is computed by the trapezoidal rule, whose error falls exponentially with the number of nodes if the field is
    smooth on the circle; the error is the difference to the rule on every second node, plus rounding.

    Parameters
    ----------
    field : callable
        F, a function of θ that returns an array of the same size.
    theta : array_like
        The centre of the circle.
    radius : float
        The radius of the circle.
    first, second : array_like
        Two directions that span the plane; they are orthonormalised.
    nodes : int, default 64
        The number of nodes, even.

    Returns
    -------
    Estimate
        The work and its numerical error.
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


def witness(field: Field, dimension: int, tries: int = 200, *, scale: float = 1.0, seed: int = 0) -> Array:
    """Return the one of several random models whose curl stands out most from its numerical error.

    Parameters
    ----------
    field : callable
        The field to test.
    dimension : int
        The number of entries of θ.
    tries : int, default 200
        How many models to draw.
    scale : float, default 1.0
        Entries are drawn from N(0, scale²).
    seed : int, default 0
        Seed of the draw.

    Returns
    -------
    array of shape (d,)
        The model.
    """
    rng = np.random.default_rng(seed)
    models = scale * rng.standard_normal((checks.count("tries", tries), checks.count("dimension", dimension)))
    ratios = [estimate.value / estimate.error for estimate in (curl(field, theta) for theta in models)]
    return np.asarray(models[int(np.argmax(ratios))])


def _jacobian(field: Field, theta: Array, step: float) -> Array:
    """Return the Jacobian by second-order central differences, one column per coordinate."""
    moves = step * np.eye(theta.size)
    return np.stack([(field(theta + move) - field(theta - move)) / (2 * step) for move in moves], axis=1)
