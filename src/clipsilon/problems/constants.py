"""The constants μ, L, β, G that the papers' theorems are stated in, computed or bounded from data."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clipsilon._core.parts import is_ours
from clipsilon.problems.losses.base import MarginBounds, gradient, is_margin_loss, label_kind, penalty
from clipsilon.problems.losses.clipped import Clipped
from clipsilon.problems.losses.quadratic import Quadratic
from clipsilon.problems.responses import Identity, is_random, respond

Array = NDArray[np.float64]

_PROBES = 64  # pairs of models tried by the estimates
_RECORDS = 256  # records looked at by the estimates
_ALL = ("strong_convexity", "smoothness", "data_smoothness", "sensitivity", "gradient_bound")


class Constants(NamedTuple):
    """Constants of a problem over ‖θ‖ ≤ radius (paper 1, Assumptions 3.1–3.3).

    Each is a bound that holds for the data, unless `estimated` names it: then it was probed at
    random models, and the truth may be larger (or, for μ, smaller).
    """

    strong_convexity: float  #: μ: of f(·; θ̄), at least this
    smoothness: float  #: of ∇ℓ in θ, at most this
    data_smoothness: float  #: of ∇ℓ in z, at most this
    sensitivity: float  #: β of D(θ), at most this
    gradient_bound: float  #: G: ‖∇ℓ‖ at most this
    radius: float
    estimated: tuple[str, ...] = ()

    @property
    def lipschitz(self) -> float:
        """L of Assumption 3.1, which serves for θ and for z."""
        return max(self.smoothness, self.data_smoothness)

    @property
    def contraction(self) -> float:
        """β·L_z/μ: below 1 the stable point is unique and retraining converges to it (paper 1: β < μ/L)."""
        if self.sensitivity == 0.0:
            return 0.0
        return self.sensitivity * self.data_smoothness / self.strong_convexity if self.strong_convexity > 0 else np.inf


class _Setting(NamedTuple):
    """What the constants are computed from."""

    features: Array
    labels: Array
    loss: Any
    response: Any
    radius: float
    dimension: int


def constants(features: Array, labels: Array, loss: Any, response: Any, radius: float, dimension: int) -> Constants:
    """Bound (or, for parts without bounds of their own, estimate) the constants over ‖θ‖ ≤ radius."""
    setting = _Setting(features, labels, loss, response, radius, dimension)
    estimated: tuple[str, ...] = ()
    if hasattr(response, "sensitivity") and hasattr(response, "reach"):
        beta, reach = response.sensitivity(labels), response.reach(radius, labels)
    else:
        beta, reach = _estimate_response(setting)
        estimated = _ALL  # how far records can move enters everything
    if not is_ours(type(response)):
        estimated = _ALL  # it may change labels, too, and nothing bounds these
    if isinstance(loss, Quadratic):
        values = _quadratic(setting, reach)
    elif is_margin_loss(loss) and hasattr(loss, "bounds"):
        values = _margin(setting, reach)
    elif isinstance(loss, Clipped) and hasattr(loss.loss, "bounds"):
        values = _clipped(setting._replace(loss=loss.loss), reach, loss.clip)
    else:
        values = _estimate_loss(setting)
        estimated = tuple(name for name in _ALL if name in estimated or name != "sensitivity")
    mu, smoothness, data_smoothness, bound = values
    return Constants(mu, smoothness, data_smoothness, beta, bound, radius, estimated)


def estimate_sensitivity(response: Any, features: Array, labels: Array, radius: float, dimension: int) -> float:
    """β of any response, probed: the largest mean move of the records per move of the model.

    Moving each record with itself is one coupling, so the ratio bounds W₁(D(θ), D(θ'))/‖θ − θ'‖ from
    above for each pair tried; the largest over random pairs is an estimate of the supremum from below.
    A random response is given the same draws at both models.
    """
    return _estimate_response(_Setting(features, labels, None, response, radius, dimension))[0]


def _quadratic(setting: _Setting, reach: float) -> tuple[float, float, float, float]:
    a = abs(setting.loss.a)
    farthest = float(np.sqrt((setting.features**2).sum(axis=1)).max()) + reach
    return 1.0, 1.0, a, setting.radius + a * farthest


def _margin(setting: _Setting, reach: float) -> tuple[float, float, float, float]:
    """Constants of φ(⟨x, θ⟩) + (l2/2)‖θ‖² from the range of φ' and φ'' on |margin| ≤ radius·‖x‖."""
    norms = np.sqrt((setting.features**2).sum(axis=1)) + reach
    bounds = setting.loss.bounds(setting.radius * norms, setting.labels)
    l2 = penalty(setting.loss)
    mu = l2 + _curvature(setting, bounds.low, reach)
    with np.errstate(invalid="ignore"):  # an infinite bound times a zero row is no bound at all
        smoothness = l2 + float(np.nanmax(bounds.high * norms**2))
        in_features = bounds.slope + bounds.high * setting.radius * norms
    in_label = 0.0 if is_ours(type(setting.response)) else _label_slopes(setting, bounds) * norms
    data_smoothness = float(np.nanmax(np.hypot(in_features, in_label)))
    return mu, smoothness, data_smoothness, float(np.max(bounds.slope * norms)) + l2 * setting.radius


def _clipped(setting: _Setting, reach: float, clip: float) -> tuple[float, float, float, float]:
    """Clipping projects onto a ball: no difference of gradients grows. Curvature is lost where it may bite."""
    norms = np.sqrt((setting.features**2).sum(axis=1)) + reach
    bounds = setting.loss.bounds(setting.radius * norms, setting.labels)
    mu = _curvature(setting, np.where(bounds.slope * norms <= clip, bounds.low, 0.0), reach)
    _, smoothness, data_smoothness, bound = _margin(setting, reach)
    return mu, smoothness, data_smoothness, min(bound, clip)


def _label_slopes(setting: _Setting, bounds: MarginBounds) -> Array:
    """How fast φ' changes with the label; only users' responses may change labels."""
    return 2.0 * bounds.slope if label_kind(setting.loss) == "binary" else bounds.high


def _curvature(setting: _Setting, low: Array, reach: float) -> float:
    """A lower bound on the eigenvalues of (1/m) Σ φ''·x·xᵀ, whatever the records' moves within reach.

    If φ'' ≥ w ≥ 0, with W the diagonal of w, the smallest singular value of √W·X/√m falls by at most
    the norm of √W·ΔX/√m, and so by at most reach·√(mean w). A negative w (non-convex loss) is bounded
    by the largest norm instead.
    """
    if np.any(low < 0):
        norms = np.sqrt((setting.features**2).sum(axis=1)) + reach
        return float(np.mean(np.minimum(low, 0) * norms**2))
    m, d = setting.features.shape
    if m < d:
        return 0.0
    weighted = setting.features * np.sqrt(low)[:, np.newaxis]
    smallest = np.sqrt(max(0.0, np.linalg.eigvalsh(weighted.T @ weighted / m)[0]))
    return float(max(0.0, smallest - reach * np.sqrt(np.mean(low))) ** 2)


def _models(rng: np.random.Generator, setting: _Setting) -> tuple[Array, Array]:
    """Two models in the ball of the setting: far apart half of the time, else close."""
    first, second = rng.standard_normal((2, setting.dimension))
    first *= setting.radius * rng.random() / np.linalg.norm(first)
    second *= setting.radius * rng.random() / np.linalg.norm(second)
    if rng.random() < 0.5:
        second = first + 1e-3 * (second - first)
    return first, second


def _moved(setting: _Setting, deployed: Array, rows: NDArray[np.int64], seed: int) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    moved = np.empty((rows.size, setting.features.shape[1]))
    labels = np.empty(rows.size)
    for k, i in enumerate(rows):
        labels[k] = respond(setting.response, deployed, setting.features[i], setting.labels[i], moved[k], rng)
    return moved, labels


def _rows(setting: _Setting, rng: np.random.Generator) -> NDArray[np.int64]:
    m = setting.features.shape[0]
    return rng.permutation(m)[:_RECORDS]


def _estimate_response(setting: _Setting) -> tuple[float, float]:
    """The largest mean move per move of the model, and the longest move of any record."""
    rng = np.random.default_rng(0)
    rows = _rows(setting, rng)
    ratio = reach = 0.0
    for probe in range(_PROBES):
        first, second = _models(rng, setting)
        x1, y1 = _moved(setting, first, rows, probe)
        x2, y2 = _moved(setting, second, rows, probe)
        moves = np.sqrt(((x1 - x2) ** 2).sum(axis=1) + (y1 - y2) ** 2)
        ratio = max(ratio, float(moves.mean() / np.linalg.norm(first - second)))
        reach = max(reach, float(np.sqrt(((x1 - setting.features[rows]) ** 2).sum(axis=1)).max()))
    return ratio, reach


def _estimate_loss(setting: _Setting) -> tuple[float, float, float, float]:
    """Probe differences of gradients at random models and between neighbouring records."""
    rng = np.random.default_rng(0)
    rows = _rows(setting, rng)[: _RECORDS // 4]
    still = setting if is_random(setting.response) else setting._replace(response=Identity())
    mu, smooth, data_smooth, bound = np.inf, 0.0, 0.0, 0.0
    for probe in range(_PROBES):
        first, second = _models(rng, setting)
        x, y = _moved(still, first, rows, probe)
        nudge = 1e-4 * rng.standard_normal(x.shape)
        g1, g2, g3 = (
            _gradients(setting.loss, *point) for point in ((first, x, y), (second, x, y), (first, x + nudge, y))
        )
        gap = first - second
        mu = min(mu, float((g1 - g2).mean(axis=0) @ gap / (gap @ gap)))
        smooth = max(smooth, float(np.linalg.norm(g1 - g2, axis=1).max() / np.linalg.norm(gap)))
        data_smooth = max(data_smooth, float((np.linalg.norm(g3 - g1, axis=1) / np.linalg.norm(nudge, axis=1)).max()))
        bound = max(bound, float(np.linalg.norm(g1, axis=1).max()))
    return mu, smooth, data_smooth, bound


def _gradients(loss: Any, theta: Array, features: Array, labels: Array) -> Array:
    out = np.empty((features.shape[0], theta.size))
    for row, x, y in zip(out, features, labels, strict=True):
        gradient(loss, theta, x, y, row)
    return out
