"""The constants μ, L, β, G of the papers' theorems, bounded or estimated from data."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clipsilon._core.parts import all_ours
from clipsilon.problems.losses.base import Loss, MarginBounds, gradient, is_margin_loss, label_kind, penalty
from clipsilon.problems.losses.clipped import Clipped
from clipsilon.problems.losses.quadratic import Quadratic
from clipsilon.problems.responses import Identity, Response, is_random, respond

Array = NDArray[np.float64]

_PROBES = 64  # pairs of models that the estimates try
_RECORDS = 256  # records that the estimates use
_ALL = ("strong_convexity", "smoothness", "data_smoothness", "sensitivity", "gradient_bound")


class Constants(NamedTuple):
    """Constants of a problem over ‖θ‖ ≤ radius (paper 1, Assumptions 3.1–3.3).

    Each one is a bound that holds for the data, unless `estimated` names it. An estimate is the extreme over
    random models, and the true constant may be larger (or, for μ, smaller).

    Parameters
    ----------
    strong_convexity : float
        A lower bound on μ, the strong convexity of f(·; θ̄).
    smoothness, data_smoothness : float
        Upper bounds on the Lipschitz constants of ∇ℓ in θ and in z.
    sensitivity : float
        An upper bound on β, the Lipschitz constant of D(θ) in W₁.
    gradient_bound : float
        An upper bound on G, the largest ‖∇ℓ‖.
    radius : float
        The radius of the ball of models.
    estimated : tuple of str
        The names of the constants that are estimates.
    """

    strong_convexity: float
    smoothness: float
    data_smoothness: float
    sensitivity: float
    gradient_bound: float
    radius: float
    estimated: tuple[str, ...] = ()

    @property
    def lipschitz(self) -> float:
        """The constant L of Assumption 3.1, which covers both θ and z."""
        return max(self.smoothness, self.data_smoothness)

    @property
    def contraction(self) -> float:
        """The ratio β·L_z/μ.

        Below 1 the stable point is unique and retraining converges to it (paper 1: β < μ/L).
        """
        if self.sensitivity == 0.0:
            return 0.0
        return self.sensitivity * self.data_smoothness / self.strong_convexity if self.strong_convexity > 0 else np.inf


class _Inputs(NamedTuple):
    """The arguments of `constants`."""

    features: Array
    labels: Array
    loss: Any
    response: Any
    radius: float
    dimension: int


def constants(
    features: Array, labels: Array, loss: Loss, response: Response, radius: float, dimension: int
) -> Constants:
    """Bound the constants over ‖θ‖ ≤ radius, or estimate them for parts that state no bounds.

    Parameters
    ----------
    features, labels : ndarray
        The records, as a dense table and a vector.
    loss : Loss
        Its method `bounds` is used, if it has one.
    response : Response
        Its methods `sensitivity` and `reach` are used, if it has both.
    radius : float
        The radius of the ball of models, above 0.
    dimension : int
        The length of θ.

    Returns
    -------
    Constants
        The bounds; its field `estimated` names those that are estimates.
    """
    inputs = _Inputs(features, labels, loss, response, radius, dimension)
    estimated: tuple[str, ...] = ()
    if hasattr(response, "sensitivity") and hasattr(response, "reach"):
        beta, reach = response.sensitivity(labels), response.reach(radius, labels)
    else:
        beta, reach = _estimate_response(inputs)
        estimated = _ALL  # all of them depend on how far records can move
    if not all_ours(response):
        estimated = _ALL  # it may also change labels, for which there is no bound
    if isinstance(loss, Quadratic):
        values = _quadratic(inputs, reach)
    elif is_margin_loss(loss) and hasattr(loss, "bounds"):
        values = _margin(inputs, reach)
    elif isinstance(loss, Clipped) and hasattr(loss.loss, "bounds"):
        values = _clipped(inputs._replace(loss=loss.loss), reach, loss.clip)
    else:
        values = _estimate_loss(inputs)
        estimated = tuple(name for name in _ALL if name in estimated or name != "sensitivity")
    mu, smoothness, data_smoothness, bound = values
    return Constants(mu, smoothness, data_smoothness, beta, bound, radius, estimated)


def estimate_sensitivity(response: Response, features: Array, labels: Array, radius: float, dimension: int) -> float:
    """Estimate β of any response: the largest mean move of the records per move of the model.

    Parameters
    ----------
    response : Response
        The response; a random one receives the same draws at both models of a pair.
    features, labels : ndarray
        The records before their reaction.
    radius : float
        The radius of the ball of models.
    dimension : int
        The length of θ.

    Returns
    -------
    float
        The largest ratio over random pairs of models.

    Notes
    -----
    Pairing each record with itself is one coupling, so the ratio bounds W₁(D(θ), D(θ'))/‖θ − θ'‖ from
    above for each pair tried. The largest over random pairs estimates the supremum from below.
    """
    return _estimate_response(_Inputs(features, labels, None, response, radius, dimension))[0]


def _quadratic(inputs: _Inputs, reach: float) -> tuple[float, float, float, float]:
    a = abs(inputs.loss.a)
    farthest = float(np.sqrt((inputs.features**2).sum(axis=1)).max()) + reach
    return 1.0, 1.0, a, inputs.radius + a * farthest


def _margin(inputs: _Inputs, reach: float) -> tuple[float, float, float, float]:
    """Return the constants of φ(⟨x, θ⟩) + (l2/2)‖θ‖² from the ranges of φ' and φ'' on |margin| ≤ radius·‖x‖."""
    norms = np.sqrt((inputs.features**2).sum(axis=1)) + reach
    bounds = inputs.loss.bounds(inputs.radius * norms, inputs.labels)
    l2 = penalty(inputs.loss)
    mu = l2 + _curvature(inputs, bounds.low, reach)
    with np.errstate(invalid="ignore"):  # ∞ times a zero row is NaN, which nanmax ignores
        smoothness = l2 + float(np.nanmax(bounds.high * norms**2))
        in_features = bounds.slope + bounds.high * inputs.radius * norms
    in_label = 0.0 if all_ours(inputs.response) else _label_slopes(inputs, bounds) * norms
    data_smoothness = float(np.nanmax(np.hypot(in_features, in_label)))
    return mu, smoothness, data_smoothness, float(np.max(bounds.slope * norms)) + l2 * inputs.radius


def _clipped(inputs: _Inputs, reach: float, clip: float) -> tuple[float, float, float, float]:
    """Return the constants of a clipped loss.

    Clipping projects onto a ball, so it enlarges no difference of gradients. Where a gradient may be clipped,
    the curvature counts as 0.
    """
    norms = np.sqrt((inputs.features**2).sum(axis=1)) + reach
    bounds = inputs.loss.bounds(inputs.radius * norms, inputs.labels)
    mu = _curvature(inputs, np.where(bounds.slope * norms <= clip, bounds.low, 0.0), reach)
    _, smoothness, data_smoothness, bound = _margin(inputs, reach)
    return mu, smoothness, data_smoothness, min(bound, clip)


def _label_slopes(inputs: _Inputs, bounds: MarginBounds) -> Array:
    """Bound how fast φ' changes with the label; only users' responses may change labels."""
    return 2.0 * bounds.slope if label_kind(inputs.loss) == "binary" else bounds.high


def _curvature(inputs: _Inputs, low: Array, reach: float) -> float:
    """Return a lower bound on the eigenvalues of (1/m) Σ φ''·x·xᵀ for all moves of the records within `reach`.

    If φ'' ≥ w ≥ 0, with W the diagonal of w, the smallest singular value of √W·X/√m falls by at most
    the norm of √W·ΔX/√m, and so by at most reach·√(mean w). A negative w (non-convex loss) is bounded
    by the largest norm instead.
    """
    if np.any(low < 0):
        norms = np.sqrt((inputs.features**2).sum(axis=1)) + reach
        return float(np.mean(np.minimum(low, 0) * norms**2))
    m, d = inputs.features.shape
    if m < d:
        return 0.0
    weighted = inputs.features * np.sqrt(low)[:, np.newaxis]
    smallest = np.sqrt(max(0.0, np.linalg.eigvalsh(weighted.T @ weighted / m)[0]))
    return float(max(0.0, smallest - reach * np.sqrt(np.mean(low))) ** 2)


def _models(rng: np.random.Generator, inputs: _Inputs) -> tuple[Array, Array]:
    """Draw two models in the ball: close to each other with probability ½, otherwise far apart."""
    first, second = rng.standard_normal((2, inputs.dimension))
    first *= inputs.radius * rng.random() / np.linalg.norm(first)
    second *= inputs.radius * rng.random() / np.linalg.norm(second)
    if rng.random() < 0.5:
        second = first + 1e-3 * (second - first)
    return first, second


def _moved(inputs: _Inputs, deployed: Array, rows: NDArray[np.int64], seed: int) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    moved = np.empty((rows.size, inputs.features.shape[1]))
    labels = np.empty(rows.size)
    for k, i in enumerate(rows):
        labels[k] = respond(inputs.response, deployed, inputs.features[i], inputs.labels[i], moved[k], rng)
    return moved, labels


def _rows(inputs: _Inputs, rng: np.random.Generator) -> NDArray[np.int64]:
    m = inputs.features.shape[0]
    return rng.permutation(m)[:_RECORDS]


def _estimate_response(inputs: _Inputs) -> tuple[float, float]:
    """Return the largest mean move per move of the model, and the longest move of any record."""
    rng = np.random.default_rng(0)
    rows = _rows(inputs, rng)
    ratio = reach = 0.0
    for probe in range(_PROBES):
        first, second = _models(rng, inputs)
        x1, y1 = _moved(inputs, first, rows, probe)
        x2, y2 = _moved(inputs, second, rows, probe)
        moves = np.sqrt(((x1 - x2) ** 2).sum(axis=1) + (y1 - y2) ** 2)
        ratio = max(ratio, float(moves.mean() / np.linalg.norm(first - second)))
        reach = max(reach, float(np.sqrt(((x1 - inputs.features[rows]) ** 2).sum(axis=1)).max()))
    return ratio, reach


def _estimate_loss(inputs: _Inputs) -> tuple[float, float, float, float]:
    """Return the extremes of differences of gradients over random models and over neighbouring records."""
    rng = np.random.default_rng(0)
    rows = _rows(inputs, rng)[: _RECORDS // 4]
    still = inputs if is_random(inputs.response) else inputs._replace(response=Identity())
    mu, smooth, data_smooth, bound = np.inf, 0.0, 0.0, 0.0
    for probe in range(_PROBES):
        first, second = _models(rng, inputs)
        x, y = _moved(still, first, rows, probe)
        nudge = 1e-4 * rng.standard_normal(x.shape)
        g1, g2, g3 = (
            _gradients(inputs.loss, *point) for point in ((first, x, y), (second, x, y), (first, x + nudge, y))
        )
        gap = first - second
        mu = min(mu, float((g1 - g2).mean(axis=0) @ gap / (gap @ gap)))
        smooth = max(smooth, float(np.linalg.norm(g1 - g2, axis=1).max() / np.linalg.norm(gap)))
        data_smooth = max(data_smooth, float((np.linalg.norm(g3 - g1, axis=1) / np.linalg.norm(nudge, axis=1)).max()))
        bound = max(bound, float(np.linalg.norm(g1, axis=1).max()))
    return mu, smooth, data_smooth, bound


def _gradients(loss: Loss, theta: Array, features: Array, labels: Array) -> Array:
    out = np.empty((features.shape[0], theta.size))
    for row, x, y in zip(out, features, labels, strict=True):
        gradient(loss, theta, x, y, row)
    return out
