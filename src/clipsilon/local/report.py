"""The device: what one user sends. No other file of the package reads a record that is to stay private."""

from __future__ import annotations

import numpy as np
from numpy.random import Generator
from numpy.typing import ArrayLike, NDArray

from clipsilon._core import checks
from clipsilon.engine import exact_noise
from clipsilon.engine.streams import spawn
from clipsilon.problems.losses.base import Loss, gradient, gradient_center_of, label_kind, sensitivity_of
from clipsilon.problems.problem import Problem
from clipsilon.problems.responses import Response, respond

Array = NDArray[np.float64]
Record = tuple[ArrayLike, float | None]  #: features and label; None for a loss without labels

# Beyond these, products could overflow, and whether a gradient can be computed would depend on the record.
_LARGEST = 1e100
_LEAST_BUDGET, _MOST_BUDGET = 1e-6, 1e6


def report(
    theta: ArrayLike,
    record: Record,
    loss: Loss,
    mu: float,
    response: Response | None = None,
    rng: Generator | None = None,
) -> Array:
    """Return ∇ℓ(θ; z) + N(0, (Δ/μ)²·I) for one record z: all that leaves the device (paper 4, eq. 2).

    The computed gradient is clipped to the distance Δ/2 from the loss's public centre, truncated to a public grid of
    spacing 2⁻³²·Δ/μ, and gets exact noise there. A gradient that is not finite is replaced by the centre: whether a
    report is made must not depend on the record.

    Parameters
    ----------
    theta : array
        The published model θ, with entries up to 10¹⁰⁰ in size.
    record : pair (features, label)
        The user's record z; label None for a loss without labels.
    loss : Loss
        A loss that knows its `sensitivity` Δ = 2·C0, such as `MallowsLogistic` or `HuberRegression`.
    mu : float
        The user's budget μ, from 10⁻⁶ to 10⁶.
    response : Response, optional
        How the record reacts to θ first; by default it does not.
    rng : Generator, optional
        For tests and audits only: whoever knows its state can subtract the noise. By default the noise is AES in
        counter mode, keyed by the operating system.

    Returns
    -------
    array
        The noisy gradient, of θ's length.

    Formal guarantee
    ----------------
    The report is μ-GDP for the replacement of the record, whatever θ is (paper 4, Proposition 1), and so are its bits:
    clipped gradients are at most Δ apart whatever rounding did before, and the noise is exact (docs/proofs.md). Time is
    not covered. Reports of one record compose: k of them are (√k·μ)-GDP.

    Examples
    --------
    >>> from clipsilon.problems.losses import MallowsLogistic
    >>> report([0.5, -0.5], ([1.0, 2.0], 1), MallowsLogistic(), mu=1.0).shape
    (2,)
    """
    return release(prepare(record, loss, response), theta, mu, rng)


def release(problem: Problem, theta: ArrayLike, mu: float, rng: Generator | None = None) -> Array:
    """Return the `report` of a prepared record; audits make many reports of one.

    Parameters
    ----------
    problem : Problem
        The problem of one record that `prepare` returned.
    theta, mu, rng
        As of `report`.

    Returns
    -------
    array
        The noisy gradient.
    """
    noise, reaction = _generators() if rng is None else (rng, rng)
    found = gradient_of(problem, theta, reaction)
    sensitivity, center = sensitivity_of(problem.loss), gradient_center_of(problem.loss, found.size)
    scale = float(np.nextafter(sensitivity / check_budget("mu", mu), np.inf))  # not below Δ/μ
    with np.errstate(all="ignore"):
        moved = found - center
    if not np.isfinite(moved).all():
        moved = np.zeros_like(center)  # to refuse would tell something of the record, without noise
    kept = exact_noise.clip_to_grid(moved, sensitivity / 2, scale)
    return np.asarray(center + exact_noise.release(kept, scale, noise))


def gradient_of(problem: Problem, theta: ArrayLike, rng: Generator | None = None) -> Array:
    """Return ∇ℓ(θ; z) of a prepared record after its reaction to θ. Not private: it stays on the device.

    Parameters
    ----------
    problem : Problem
        The problem of one record that `prepare` returned.
    theta : array
        The published model.
    rng : Generator, optional
        For responses that draw at random.

    Returns
    -------
    array
        The gradient without noise; NaN where arithmetic fails.
    """
    columns = problem.features.shape[1]
    if np.ndim(theta) == 1 and np.size(theta) != problem.dimension:
        raise ValueError(
            f"theta must be a number or {problem.dimension} number(s) for a record of {columns} feature(s), got "
            f"{np.size(theta)} numbers: the record has the wrong length, or the model."
        )
    model = _check_magnitude("theta", checks.vector("theta", theta, problem.dimension))
    moved, out = np.empty(columns), np.empty(problem.dimension)
    try:
        with np.errstate(all="ignore"):  # exp() underflows at distant records
            label = respond(problem.response, model, problem.features[0], float(problem.labels[0]), moved, rng)
            gradient(problem.loss, model, moved, label, out)
    except (ArithmeticError, LookupError, ValueError):  # such as OverflowError by math.exp
        out[:] = np.nan
    return out


def prepare(record: Record, loss: Loss, response: Response | None = None) -> Problem:
    """Return a problem of one record, after every check that needs no θ.

    Parameters
    ----------
    record, loss, response
        As of `report`.

    Returns
    -------
    Problem

    Raises
    ------
    ValueError
        If the loss does not know its sensitivity, or the record is not a pair of finite features and a label that the
        loss takes, with numbers up to 10¹⁰⁰.
    """
    sensitivity_of(loss)
    try:
        features, label = record
    except (TypeError, ValueError):
        features, label = 0.0, None
    if features is None or np.isscalar(features):  # as with two bare numbers: features without a label
        # The message does not show the record, which is private.
        raise ValueError("record must be a pair (features, label), as in ([1.0, 2.0], 1).")
    labels = None if label_kind(loss) == "none" and label is None else [np.nan if label is None else label]
    problem = Problem([features], labels, loss=loss, response=response)
    _check_magnitude("features", problem.features)
    _check_magnitude("label", problem.labels)
    return problem


def check_budget(name: str, value: object) -> float:
    """Return the budget μ as a number; raise ValueError unless it is between 10⁻⁶ and 10⁶."""
    result = checks.number(name, value)
    if not _LEAST_BUDGET <= result <= _MOST_BUDGET:
        raise ValueError(f"{name} must be a number from {_LEAST_BUDGET:g} to {_MOST_BUDGET:g}, got {value!r}.")
    return result


def _generators() -> tuple[Generator, Generator]:
    own = spawn(None, 1)[0]
    return own.noise, own.response


def _check_magnitude(name: str, value: Array) -> Array:
    if np.abs(value).max() > _LARGEST:
        raise ValueError(f"{name} must not hold numbers beyond {_LARGEST:g}.")
    return value
