"""Retraining as a dynamical system: reactions with memory, several learners on one population, and when it converges.

Learner k has a model θ_k, a loss and a response. Records are moved by all of them: x = x̄ + Σ_k (respond_k(x̄, φ_k) − x̄),
where φ_k is the model of learner k that records react to: θ_k itself, or a mean of past ones (`Slow`). Around a point
where nobody moves, retraining is a linear map of all (θ_k, φ_k); it converges from nearby if the largest absolute value
of the map's eigenvalues, its spectral radius, is below 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import block_diag

from clipsilon._core import checks
from clipsilon._core.rows import dense
from clipsilon.analysis.fixed_points import check_start, projected
from clipsilon.analysis.zeros import find_zero
from clipsilon.engine.means import mean_gradient, moved_features
from clipsilon.problems.losses.base import label_kind
from clipsilon.problems.problem import Problem
from clipsilon.problems.responses import is_random, lag

Array = NDArray[np.float64]

_NUDGE = 1e-5  # relative, of derivatives by central differences


class JointPoint(NamedTuple):
    """Models of several learners that are optimal for the data that all of them cause.

    Parameters
    ----------
    thetas : tuple of ndarray
        One model per learner.
    residual : float
        The norm of what should be zero.
    converged : bool
        Whether the residual is as small as rounding allows.
    attracts : bool
        Whether gradient flow leads to it from all sides.
    """

    thetas: tuple[Array, ...]
    residual: float
    converged: bool
    attracts: bool


class _Game(NamedTuple):
    """Several learners on one population; vectors hold the models one after the other."""

    problems: tuple[Problem, ...]

    @property
    def dimensions(self) -> list[int]:
        return [problem.dimension for problem in self.problems]

    def split(self, joint: Array) -> list[Array]:
        return np.split(joint, np.cumsum(self.dimensions)[:-1])

    def project(self, joint: Array) -> Array:
        pairs = zip(self.problems, self.split(joint), strict=True)
        return np.concatenate([projected(problem, theta) for problem, theta in pairs])

    def field(self, thetas: Array, deployed: Array) -> Array:
        """Return the mean gradients of all learners at θ, on records that react to what is deployed."""
        if len(self.problems) == 1:
            return mean_gradient(self.problems[0], thetas, deployed, 1)
        original = dense(self.problems[0].features)
        models = list(zip(self.problems, self.split(deployed), strict=True))
        moved = original + sum(moved_features(problem, phi) - original for problem, phi in models)
        pairs = zip(self.problems, self.split(thetas), strict=True)
        return np.concatenate([mean_gradient(_on(problem, moved), theta, theta, 1) for problem, theta in pairs])

    def lags(self) -> Array:
        return np.concatenate([np.full(problem.dimension, lag(problem.response)) for problem in self.problems])


def joint_point(problems: Problem | Sequence[Problem], start: ArrayLike = 0.0) -> JointPoint:
    """Find models of several learners, each of which is optimal for the data that all of them cause together.

    Parameters
    ----------
    problems : Problem or sequence of Problem
        One problem per learner, on the same features in the same order; labels, losses, responses and regions may
        differ. What the learners' models do to a record adds up.
    start : float or array-like, default 0
        Where the search begins: one number for all coordinates, or one per coordinate, learner after learner.

    Returns
    -------
    JointPoint
        The models. For one problem they are those of `stable_point`, which also searches on from points that repel.
    """
    game = _game(problems)
    zero = _zero(game, _start(game, start))
    return JointPoint(tuple(game.split(zero.theta)), zero.residual, zero.converged, zero.attracts)


def joint_retraining(
    problems: Problem | Sequence[Problem], rounds: int, start: ArrayLike = 0.0, *, step: float | None = None
) -> Array:
    """Let all learners retrain at once and deploy, repeatedly.

    Parameters
    ----------
    problems : Problem or sequence of Problem
        One problem per learner, as for `joint_point`.
    rounds : int
        The number of rounds.
    start : float or array-like, default 0
        The first models: one number for all coordinates, or one per coordinate, learner after learner.
    step : float, optional
        The size of one gradient step per round. By default each learner retrains to optimality.

    Returns
    -------
    ndarray of shape (rounds + 1, total length of all models)
        The models of each round, one after the other.
    """
    game, iterates = _game(problems), []
    checks.count("rounds", rounds)
    size = None if step is None else checks.positive("step", step)
    theta = deployed = _start(game, start)
    lags = game.lags()
    iterates.append(theta)
    for _ in range(rounds):
        deployed = lags * deployed + (1.0 - lags) * theta
        if size is None:
            theta = _best_answers(game, theta, deployed)
        else:
            theta = game.project(theta - size * game.field(theta, deployed))
        iterates.append(theta)
    return np.stack(iterates)


def retraining_rate(
    problems: Problem | Sequence[Problem], *, step: float | None = None, start: ArrayLike = 0.0
) -> float:
    """Return the spectral radius of retraining around the stable point: it converges from nearby if below 1.

    It is computed from the derivatives of the mean gradients at the point, in θ and in the deployed models, by central
    differences; regions do not count, so the point should be inside them.

    Parameters
    ----------
    problems : Problem or sequence of Problem
        One problem per learner, as for `joint_point`. Reactions with memory are `clipsilon.responses.Slow`.
    step : float, optional
        The size of one gradient step per round. By default each learner retrains to optimality.
    start : float or array-like, default 0
        Where the search for the point begins.

    Returns
    -------
    float
        The factor by which the distance from the point changes per round, in the long run.

    Raises
    ------
    ValueError
        If no stable point is found.

    Examples
    --------
    >>> import clipsilon as cs
    >>> def problem(speed):
    ...     slow = cs.responses.Slow(cs.responses.LocationShift(-0.15), speed)
    ...     return cs.Problem([0.0, 1.0], loss=cs.losses.Quadratic(10.0), response=slow)
    >>> round(cs.retraining_rate(problem(1.0)), 6), round(cs.retraining_rate(problem(0.5)), 6)
    (1.5, 0.25)
    """
    game = _game(problems)
    size = None if step is None else checks.positive("step", step)
    zero = _zero(game, _start(game, start))
    if not zero.converged:
        raise ValueError(f"problems must have a stable point, got none from this start (residual {zero.residual:.1e}).")
    here = zero.theta
    by_theta = _derivative(lambda theta: game.field(theta, here), here)
    by_theta = block_diag(*(by_theta[rows, rows] for rows in _blocks(game)))  # a learner's own gradient has no others
    by_deployed = _derivative(lambda deployed: game.field(here, deployed), here)
    if size is None:
        moves, answers = np.zeros_like(by_theta), -np.linalg.solve(by_theta, by_deployed)
    else:
        moves, answers = np.eye(here.size) - size * by_theta, -size * by_deployed
    lags = np.diag(game.lags())
    fresh = np.eye(here.size) - lags
    # φ' = lag·φ + (1 − lag)·θ, then θ' = moves·θ + answers·φ'.
    joint = np.block([[moves + answers @ fresh, answers @ lags], [fresh, lags]])
    return float(np.abs(np.linalg.eigvals(joint)).max())


def _game(problems: Problem | Sequence[Problem]) -> _Game:
    listed = (problems,) if isinstance(problems, Problem) else tuple(problems)
    if not listed:
        raise ValueError("problems must hold at least one problem, got none.")
    for problem in listed:
        checks.instance("problems", problem, Problem)
        problem.require_equal_rows()
        if is_random(problem.response):
            kind = type(problem.response).__name__
            raise ValueError(f"problems must have responses that are not random, got {kind}.")
        if problem.features is not listed[0].features and not np.array_equal(
            dense(problem.features), dense(listed[0].features)
        ):
            raise ValueError("problems must be about the same records, got different features.")
    return _Game(listed)


def _start(game: _Game, start: ArrayLike) -> Array:
    check_start(game.problems[0], 0.0, 1)
    return checks.vector("start", start, sum(game.dimensions))


def _zero(game: _Game, start: Array):  # type: ignore[no-untyped-def]
    return find_zero(lambda theta: game.field(theta, theta), game.project, start, np.ones(start.size))


def _best_answers(game: _Game, theta: Array, deployed: Array) -> Array:
    """Return the optimal model of each learner for records that react to what is deployed."""
    return find_zero(lambda own: game.field(own, deployed), game.project, theta, np.ones(theta.size)).theta


def _on(problem: Problem, moved: Array) -> Problem:
    """Return a problem whose records have moved already."""
    labels = None if label_kind(problem.loss) == "none" else problem.labels
    return Problem(moved, labels, loss=problem.loss, region=problem.region)


def _blocks(game: _Game) -> list[slice]:
    ends = np.cumsum(game.dimensions)
    return [slice(end - size, end) for end, size in zip(ends, game.dimensions, strict=True)]


def _derivative(function, point: Array) -> Array:  # type: ignore[no-untyped-def]
    """Return the Jacobian by central differences."""
    size = _NUDGE * max(1.0, float(np.linalg.norm(point)))
    columns = [(function(point + kick) - function(point - kick)) / (2 * size) for kick in size * np.eye(point.size)]
    return np.stack(columns, axis=1)
