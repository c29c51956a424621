"""The device: what one user sends. No other file of the package touches a record that is to stay private."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from clipsilon._core import checks
from clipsilon.engine.streams import spawn
from clipsilon.problems.losses.base import gradient, label_kind, sensitivity_of
from clipsilon.problems.problem import Problem
from clipsilon.problems.responses import respond

Array = NDArray[np.float64]

# Beyond these, products could overflow, and whether a gradient can be computed would depend on the record.
_LARGEST = 1e100
_LEAST_BUDGET, _MOST_BUDGET = 1e-6, 1e6


def report(theta: Any, record: Any, loss: Any, mu: float, response: Any = None, rng: Generator | None = None) -> Array:
    """∇ℓ(θ; z) + N(0, (Δ/μ)²·I) for one record z = (features, label): all that leaves the device (paper 4, eq. 2).

    Δ is the loss's `sensitivity`, 2·C0. With a `response` the record first reacts to θ. The noise is AES in counter
    mode, keyed by the operating system; `rng` is for tests and audits, as whoever knows its state can subtract the
    noise.

    Formal guarantee: the report is μ-GDP for the replacement of the record, whatever θ is (paper 4, Proposition 1),
    for real numbers and exact Gaussian noise. Reports of one record add up: k of them are (√k·μ)-GDP.

    >>> from clipsilon.problems.losses import MallowsLogistic
    >>> report([0.5, -0.5], ([1.0, 2.0], 1), MallowsLogistic(), mu=1.0).shape
    (2,)
    """
    return release(prepare(record, loss, response), theta, mu, rng)


def release(problem: Problem, theta: Any, mu: float, rng: Generator | None = None) -> Array:
    """`report` of a record that was prepared: audits make many of one."""
    noise, reaction = _generators() if rng is None else (rng, rng)
    found = gradient_of(problem, theta, reaction)
    sent: Array = found + problem.loss.sensitivity() / budget("mu", mu) * noise.standard_normal(found.size)
    if not np.isfinite(sent).all():
        raise ValueError(f"loss must have finite gradients, got {problem.loss} without; nothing has left the device.")
    return sent


def gradient_of(problem: Problem, theta: Any, rng: Generator | None = None) -> Array:
    """∇ℓ(θ; z) of the one record of a problem, after its reaction to θ. Not private: it stays on the device."""
    model = _moderate("theta", checks.vector("theta", theta, problem.dimension))
    moved, out = np.empty(problem.features.shape[1]), np.empty(problem.dimension)
    with np.errstate(all="ignore"):  # far out, exp() vanishes
        label = respond(problem.response, model, problem.features[0], float(problem.labels[0]), moved, rng)
        gradient(problem.loss, model, moved, label, out)
    return out


def prepare(record: Any, loss: Any, response: Any = None) -> Problem:
    """A problem of one record: everything about a report that can be wrong before there is a θ is refused here."""
    sensitivity_of(loss)
    try:
        features, label = record
    except (TypeError, ValueError):
        features = label = None
    if features is None or np.isscalar(features):  # as of two bare numbers, which are features without a label
        raise ValueError("record must be a pair (features, label), as in ([1.0, 2.0], 1).")  # not shown: it is private
    labels = None if label_kind(loss) == "none" and label is None else [label]
    problem = Problem([features], labels, loss=loss, response=response)
    _moderate("features", problem.features)
    _moderate("label", problem.labels)
    return problem


def budget(name: str, value: Any) -> float:
    """A budget μ that means something: noise a millionth, or a million times, of what could be told from it."""
    result = checks.number(name, value)
    if not _LEAST_BUDGET <= result <= _MOST_BUDGET:
        raise ValueError(f"{name} must be a number from {_LEAST_BUDGET:g} to {_MOST_BUDGET:g}, got {value!r}.")
    return result


def _generators() -> tuple[Generator, Generator]:
    own = spawn(None, 1)[0]
    return own.noise, own.response


def _moderate(name: str, value: Array) -> Array:
    if np.abs(value).max() > _LARGEST:
        raise ValueError(f"{name} must not hold numbers beyond {_LARGEST:g}.")
    return value
