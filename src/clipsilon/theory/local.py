"""How close locally private SGD comes to the minimum (paper 4, Theorems 3 to 6 and Table 1).

Users arrive one by one, each an independent draw x_k with their own budget μ_k:
θ_k = θ_{k−1} − η_k·(∇f(θ_{k−1}, x_k) + (2·C_0/μ_k)·ω_k), with η_k = η·k^(−α) and ω_k ~ N(0, I).
With `batch=b`, k counts rounds, whose reports are averaged (`local_rounds`); n users are ⌊n/b⌋ rounds. For b > 1 there
are two versions of each bound but for fourth moments, and the smaller one is returned: one takes C_0² for what
averaging leaves of a gradient's mean square, the other uses that F is M-smooth (`docs/proofs.md`).

Our copy of the paper lacks the proofs. Its Condition 2(ii), strong convexity on a set Θ, cannot hold on all of ℝ^d
together with Condition 1, a bounded gradient, and nothing keeps a run in a smaller Θ. The bounds here are proven anew,
with smaller constants (`docs/proofs.md`). C_0, m and C_1 need to hold only at the models that a run visits: if they
hold in a set, the bounds hold for the mean over the runs that stay in it, where a run that leaves counts as zero.
Theorems 3 and 6 also hold for runs that are projected onto a convex set around θ*.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clipsilon._core import checks
from clipsilon._core.parts import checked
from clipsilon.rules.schedules import Power, size
from clipsilon.theory.local_rounds import RoundMoments, round_moments

__all__ = [
    "LocalConstants",
    "Rate",
    "average_distance",
    "average_loss",
    "last_distance",
    "last_loss",
    "limit_variance",
    "power_integral",
    "rates",
]

Array = NDArray[np.float64]


def _budgets(name: str, value: ArrayLike) -> Array:
    """Return one or more finite budgets above 0 as a vector."""
    budgets = np.atleast_1d(checks.floats(name, value))
    if budgets.size == 0 or not np.all((budgets > 0) & np.isfinite(budgets)):
        raise ValueError(f"{name} must be a number above 0, or one per user, got {value!r}.")
    return budgets


@checked(
    gradient_bound=checks.positive,
    budget=_budgets,
    dimension=checks.count,
    start=checks.nonnegative,
    smoothness=checks.positive,
    strong_convexity=checks.nonnegative,
    hessian_smoothness=checks.nonnegative,
    batch=checks.count,
    variance=checks.public_variance,
)
class LocalConstants(NamedTuple):
    """The constants of a problem and of a local run on which the theorems rest.

    Parameters
    ----------
    gradient_bound : float
        C_0, a bound on every gradient, which also sets the noise: at least half of what `sensitivity()` states.
    budget : float or array_like of float
        μ: one budget for all users, or a vector from which each user's budget is drawn. The noise enters the mean
        square through the mean of 1/μ². (The paper takes the largest 1/μ²; pass the smallest budget for that.)
    dimension : int
        d, the number of coordinates of θ.
    start : float
        ‖θ_0 − θ*‖².
    smoothness : float
        M, of each record's loss.
    strong_convexity : float, default 0.0
        m, of F.
    hessian_smoothness : float, default 0.0
        C_1: ‖∇²F(θ) − ∇²F(θ*)‖ ≤ C_1·‖θ − θ*‖.
    batch : int, default 1
        b, the number of reports per round.
    variance : float, default NaN
        V of the weights within a round, 1/(V + d·(2·C_0/μ_i)²). NaN stands for C_0², infinity for equal weights.
    """

    gradient_bound: float
    budget: Any
    dimension: int
    start: float
    smoothness: float
    strong_convexity: float = 0.0
    hessian_smoothness: float = 0.0
    batch: int = 1
    variance: float = np.nan

    @property
    def moments(self) -> RoundMoments:
        """The moments of the weights of a round."""
        return round_moments(self.budget, self.batch, self.dimension, 2 * self.gradient_bound, self.variance)

    @property
    def energy(self) -> float:
        """σ_μ² = C_0²·(1 + 4·d·E[Σ w_i²/μ_i²]), a bound on the mean square of the mean report (the paper: 64 for 4)."""
        return float(self.gradient_bound**2 * (1 + 4 * self.dimension * self.moments.noise))

    @property
    def spread(self) -> float:
        """C_0²·E[Σ w_i²·(1 + 4·d/μ_i²)], a bound on the variance of the mean report; σ_μ² for b = 1."""
        share, noise = self.moments
        return float(self.gradient_bound**2 * (share + 4 * self.dimension * noise))


def power_integral(power: ArrayLike, t: ArrayLike) -> Array:
    """Return ψ_β(t) = ∫₁ᵗ s^(β−1) ds: (t^β − 1)/β, and log t for β = 0 (paper 4, section 4.1).

    >>> power_integral([0.0, 0.5, 2.0], 4.0).round(3)
    array([1.386, 2.   , 7.5  ])
    """
    beta, upper = checks.floats("power", power), checks.floats("t", t)
    if not np.all(upper > 0):
        raise ValueError(f"t must be above 0, got {t!r}.")
    logarithm = np.log(upper)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(beta == 0, logarithm, np.expm1(beta * logarithm) / beta)[()]


def last_distance(constants: LocalConstants, step: Power, users: ArrayLike) -> Array:
    """Return a bound on E‖θ_n − θ*‖² after n users: Theorem 3, corrected (paper 4).

    The bound is exp(−2mη·ψ_{1−α}(n+1))·‖θ_0 − θ*‖² + σ_μ²η²·S, with S the smaller of 1 + ψ_{1−2α}(n) and
    (2/n)^α/(2mη) + (1 + ψ_{1−2α}(n/2))·exp(−mη·n^{1−α}). F must be m-strongly convex, and η ≤ 1/(2m).

    Parameters
    ----------
    constants : LocalConstants
        The constants, with m > 0.
    step : Power
        η_k = η·k^(−α) with α < 1 and η ≤ 1/(2m).
    users : int or array_like of int
        n ≥ 1, the numbers of users at which to evaluate the bound.

    Returns
    -------
    float or array of float
        The bound at each of `users`, in their shape.

    Notes
    -----
    As printed, with S = n^(−α)/(mη) + ψ_{1−2α}(n)·exp(−mη·n^{1−α}/2), the bound fails for large budgets and α near 1,
    and for mη > 1.

    Examples
    --------
    >>> constants = LocalConstants(1.0, budget=1.0, dimension=1, start=1.0, smoothness=1.0, strong_convexity=1.0)
    >>> bool(last_distance(constants, Power(0.5, 0.5), 10_000) < 0.02)
    True
    """
    _require_strong_convexity(constants, step)
    n = _rounds(constants, users)

    def bound(energy: float, kept: float) -> Array:
        slower = constants._replace(strong_convexity=kept * constants.strong_convexity)
        return _decay(slower, step, n) * constants.start + energy * _discounted(slower, step, n, 2)

    return _smallest(constants, step, bound)


def average_distance(constants: LocalConstants, step: Power, users: ArrayLike, limit: float | None = None) -> Array:
    """Return a bound on E‖θ̄_n − θ*‖², θ̄_n the mean of θ_1, …, θ_n: Theorem 4, replaced (paper 4).

    The bound is (√(V/n) + (A_n + R_n)/(m·n))² with V = σ_μ²/m², A_n = √δ_1/η_2 + √δ_{n+1}/η_{n+1} + Σ_{k=2}^{n}
    √δ_k·(1/η_{k+1} − 1/η_k) and R_n = (C_1/2)·Σ_{k≤n} √q_k; δ_k is the bound of Theorem 3, and q_k one on E‖θ_k − θ*‖⁴.
    The mean of δ_1, …, δ_n is returned where it is smaller. The bound does not hold for runs that are projected.

    Parameters
    ----------
    constants, step, users
        As in `last_distance`, on the conditions of Theorem 3 and with C_1.
    limit : float, optional
        The variance of √n·(θ̄_n − θ*) for n → ∞ (see `limit_variance`). It takes the place of V, while M·√(Σ_{k≤n} δ_k)
        is added to A_n; the smaller of the bounds with and without it is returned.

    Returns
    -------
    float or array of float
        The bound at each of `users`, in their shape.

    Notes
    -----
    The printed bound has constants that are not defined, omits the noise from its leading term, and is of order 1/n for
    α < 1/2, where the truth may be n^(−2α) unless C_1 = 0.
    """
    _require_strong_convexity(constants, step)
    n = _rounds(constants, users)
    k = np.arange(1, int(n.max()) + 2)
    squares, inverse = last_distance(constants, step, constants.batch * k), k**step.alpha / step.eta
    gained = np.concatenate(([0.0], np.cumsum(np.sqrt(squares[1:-1]) * np.diff(inverse[1:]))))
    ends = np.sqrt(squares[0]) * inverse[1] + np.sqrt(squares[n]) * inverse[n]
    bent = 0.5 * constants.hessian_smoothness * np.cumsum(np.sqrt(_fourth_moment(constants, step, k)))
    drift, total = (ends + gained[n - 1] + bent[n - 1]) / n, np.cumsum(squares)[n - 1]
    root = (np.sqrt(constants.spread / n) + drift) / constants.strong_convexity
    if limit is not None:
        rough = constants.smoothness * np.sqrt(constants.moments.share * total) / n
        each = checks.nonnegative("limit", limit) / constants.batch
        sharp = np.sqrt(each / n) + (drift + rough) / constants.strong_convexity
        root = np.minimum(root, sharp)
    smaller: Array = np.minimum(root**2, total / n)
    return smaller


def limit_variance(constants: LocalConstants, hessian: ArrayLike, covariance: ArrayLike) -> float:
    """Return the limit of n·E‖θ̄_n − θ*‖² after n users, tr H⁻¹·(S + 4·C_0²·mean(1/μ²)·I)·H⁻¹ (paper 4).

    This is the first term of Theorem 4 as printed, plus the noise that it omits. It is the same for rounds with equal
    weights, whatever b. With weights by budget, b·E[Σ w_i²] is the factor of S, and b·E[Σ w_i²/μ_i²] replaces the mean.

    Parameters
    ----------
    constants : LocalConstants
        C_0, μ and d are used.
    hessian : array_like of shape (d, d)
        H, the Hessian of F at θ*; positive definite.
    covariance : array_like of shape (d, d)
        S, the covariance of ∇f(θ*, x).

    Returns
    -------
    float
        The limit.
    """
    curvature, spread = _matrix("hessian", hessian, constants), _matrix("covariance", covariance, constants)
    least = float(np.linalg.eigvalsh(curvature)[0])
    if least <= 0:
        raise ValueError(f"hessian must be positive definite, got one with the eigenvalue {least:g}.")
    inverse = np.linalg.inv(curvature)
    share, each = constants.moments
    noise = 4 * constants.gradient_bound**2 * each * np.eye(constants.dimension)
    return float(constants.batch * np.trace(inverse @ (share * spread + noise) @ inverse))


def last_loss(constants: LocalConstants, step: Power, users: ArrayLike) -> Array:
    """Return a bound on E F(θ_n) − F(θ*), F being convex and M-smooth: Theorem 5, replaced (paper 4).

    The bound is the minimum over w ≤ n of D_n/(2·Σ η_k) + (M·σ_μ²/2)·Σ η_k², with sums over the last w steps, and with
    D_n = ‖θ_0 − θ*‖² + σ_μ²·Σ_{k≤n} η_k². It falls at the rate of Table 1, and not at all for α ≤ 1/3. It does not hold
    for runs that are projected.

    Parameters
    ----------
    constants : LocalConstants
        The constants; m may be 0.
    step : Power
        η_k = η·k^(−α) with α < 1.
    users : int or array_like of int
        n ≥ 1, the numbers of users at which to evaluate the bound. Each takes O(n) work.

    Returns
    -------
    float or array of float
        The bound at each of `users`, in their shape.

    Notes
    -----
    The printed bound fails: its units do not match, so a change of the units of θ makes it arbitrarily small.
    """
    n = _rounds(constants, users)
    sums, squares = _step_sums(step, int(n.max()))

    def window(last: int, energy: float, kept: float) -> float:
        moved, spread = sums[last] - sums[:last], squares[last] - squares[:last]
        distance = constants.start + energy * squares[last]
        return float(np.min(distance / (2 * kept * moved) + 0.5 * constants.smoothness * energy * spread))

    def bound(energy: float, kept: float) -> Array:
        return np.array([window(int(last), energy, kept) for last in n.ravel()]).reshape(n.shape)[()]

    return _smallest(constants, step, bound)


def average_loss(constants: LocalConstants, step: Power, users: ArrayLike) -> Array:
    """Return a bound on E F(θ̄_n) − F(θ*), θ̄_n the mean of θ_1, …, θ_n, F convex: Theorem 6, corrected (paper 4).

    The bound is (n+1)^α/(2ηn)·{‖θ_0 − θ*‖² + σ_μ²η²·(1 + ψ_{1−2α}(n))} + σ_μ²η·ψ_{1−α}(n+1)/(2n).

    Parameters
    ----------
    constants, step, users
        As in `last_loss`.

    Returns
    -------
    float or array of float
        The bound at each of `users`, in their shape.

    Notes
    -----
    The terms that our copy shows, without the 1, are zero for n = 1 and a start at the minimum; but the first step
    leaves the minimum.
    """
    _check_step(step)
    n, alpha = _rounds(constants, users), step.alpha

    def bound(energy: float, kept: float) -> Array:
        distance = constants.start + energy * step.eta**2 * (1 + power_integral(1 - 2 * alpha, n))
        steps = energy * step.eta * power_integral(1 - alpha, n + 1)
        return np.asarray(((n + 1) ** alpha * distance / step.eta + steps) / (2 * kept * n))[()]

    return _smallest(constants, step, bound)


class Rate(NamedTuple):
    """An entry of Table 1: the error is of order n^(−exponent)·(log n)^logarithms·b^batch.

    Attributes
    ----------
    output : str
        "last" or "average".
    strongly_convex : bool
        If true, the error is a squared distance; otherwise it is a loss.
    exponent, logarithms : float
        The order of our bound.
    printed : float
        The exponent in the table itself.
    batch : float
        The exponent of b, the number of reports per round, as n grows and η stays the same; below 0, larger rounds pay.
        NaN for losses above α = 1/2, where start and noise both remain in the bound.
    """

    output: str
    strongly_convex: bool
    exponent: float
    logarithms: float
    printed: float
    batch: float


def rates(alpha: float, quadratic: bool = False) -> tuple[Rate, ...]:
    """Return Table 1 (paper 4) for steps η·k^(−α): the rates of the four bounds, beside the printed ones.

    An exponent of 0 means no decay. `quadratic` states that F is quadratic (C_1 = 0). The rates differ from the printed
    ones for the average under strong convexity: the printed n^(−1) below α = 1/2 needs a quadratic F, and above 1/2 the
    rate is n^(−1) and not n^(−2(1−α)). At the borders, the printed exponents are those of the paper's remarks.

    Rounds of b reports do not change the exponents of n. The distance of the last iterate falls like b^(α−1), and that
    of the average does not depend on b once n is large, except for the bias below α = 1/2. Losses gain by rounds where
    noise decides, and lose by them where the start does, since there are fewer steps.
    """
    alpha = checks.fraction("alpha", alpha)
    border = float(alpha == 0.5)  # where Σ η_k² is a logarithm
    last = max(0.0, min((3 * alpha - 1) / 2, alpha / 2, 1 - alpha))
    mean = min(alpha, 1 - alpha)
    averaged = 1.0 if quadratic else min(1.0, 2 * alpha)
    noisy = 1.0 if alpha <= 0.5 else np.nan  # whether noise outgrows the start
    return (
        Rate("last", True, alpha, 0.0, alpha, alpha - 1),
        Rate("average", True, averaged, 0.0, min(1.0, 2 * (1 - alpha)), 0.0 if averaged == 1 else 2 * (alpha - 1)),
        Rate("last", False, last, border / 2, last, 1.5 * noisy * (alpha - 1)),
        Rate("average", False, mean, border, mean, noisy * (alpha - 1)),
    )


def _matrix(name: str, value: ArrayLike, constants: LocalConstants) -> Array:
    """Return a finite (d, d) matrix; raise ValueError for other shapes."""
    matrix, d = checks.floats(name, value), constants.dimension
    if matrix.shape != (d, d) or not np.isfinite(matrix).all():
        raise ValueError(f"{name} must be a finite table of shape {(d, d)}, got one of shape {matrix.shape}.")
    return matrix


def _counts(users: ArrayLike) -> NDArray[np.int64]:
    """Return the numbers of users as an integer array of their own shape; raise ValueError if one is below 1."""
    n = checks.integers(users)
    if n is None or n.min() < 1:
        raise ValueError(f"users must be whole numbers of at least 1, got {users!r}.")
    return n.reshape(np.shape(users))


def _rounds(constants: LocalConstants, users: ArrayLike) -> NDArray[np.int64]:
    """Return the numbers of complete rounds; raise ValueError if there is none."""
    rounds = _counts(users) // constants.batch
    if rounds.min() < 1:
        raise ValueError(f"users must be at least the batch ({constants.batch}), got {users!r}.")
    return rounds


def _smallest(constants: LocalConstants, step: Power, bound: Callable[[float, float], Array]) -> Array:
    """Return the smaller of two versions of a bound, given a mean square and what is left of the descent.

    One takes σ_μ² and all of the descent. The other takes the variance alone, and gives up (1 − E[Σ w_i²])·M·η/2 of the
    descent for ‖∇F‖², which is at most M·⟨∇F, θ − θ*⟩. For b = 1 they are the same.
    """
    plain = bound(constants.energy, 1.0)
    kept = 1 - (1 - constants.moments.share) * constants.smoothness * step.eta / 2
    return plain if kept <= 0 or constants.batch == 1 else np.minimum(plain, bound(constants.spread, kept))


def _check_step(step: Power) -> None:
    """Raise an error unless the step is a `Power` with α < 1."""
    checks.instance("step", step, Power)
    if step.alpha >= 1:
        raise ValueError(f"step must have an alpha below 1, got {step}.")


def _require_strong_convexity(constants: LocalConstants, step: Power) -> None:
    """Raise ValueError unless m > 0 and η ≤ 1/(2m)."""
    _check_step(step)
    if constants.strong_convexity == 0:
        raise ValueError("strong_convexity must be above 0 for the distance to be bounded, got 0.")
    if 2 * constants.strong_convexity * step.eta > 1:
        raise ValueError(
            f"step must have eta ≤ 1/(2m) = {0.5 / constants.strong_convexity:.3g} for this bound, got {step.eta:g}."
        )


def _decay(constants: LocalConstants, step: Power, n: NDArray[np.int64]) -> Array:
    """Return what remains of the start: Π (1 − 2mη_k) ≤ exp(−2m·Σ η_k)."""
    kept: Array = np.exp(-2 * constants.strong_convexity * step.eta * power_integral(1 - step.alpha, n + 1))
    return kept


def _discounted(constants: LocalConstants, step: Power, n: NDArray[np.int64], power: int) -> Array:
    """Return a bound on Σ_{k≤n} η_k^p·Π_{i=k+1}^{n} (1 − 2mη_i).

    It is Σ η_k^p or, if smaller, the sum of bounds on the two halves of the sum.
    """
    rate, alpha = constants.strong_convexity * step.eta, step.alpha

    def total(last: ArrayLike) -> Array:
        return 1 + power_integral(1 - power * alpha, last)

    late = (2.0 / n) ** (alpha * (power - 1)) / (2 * rate)
    early = total(np.maximum(n / 2, 1.0)) * np.exp(-rate * n ** (1 - alpha))
    discounted: Array = step.eta**power * np.minimum(total(n), late + early)
    return discounted


def _fourth_moment(constants: LocalConstants, step: Power, n: NDArray[np.int64]) -> Array:
    """Return a bound on E‖θ_n − θ*‖⁴.

    It follows from q_k ≤ (1 − 2mη_k)·q_{k−1} + 8σ⁴η_k³/m + 3κη_k⁴, κ the fourth moment of the noisy gradient. It takes
    the smallest budget, because here what user k adds is multiplied by what earlier users did.
    """
    # With either kind of weights, the noise in the mean of a round is at most that of the smallest budget, over b.
    d, largest = constants.dimension, float(np.max(4 / constants.budget**2)) / constants.batch
    square = 1 + d * largest
    fourth = 1 + (2 * d + 4) * largest + d * (d + 2) * largest**2
    cubes = 8 * square**2 / constants.strong_convexity * _discounted(constants, step, n, 3)
    added = constants.gradient_bound**4 * (cubes + 3 * fourth * _discounted(constants, step, n, 4))
    return _decay(constants, step, n) * constants.start**2 + added


def _step_sums(step: Power, n: int) -> tuple[Array, Array]:
    """Return Σ_{k≤j} η_k and Σ_{k≤j} η_k² for j = 0, …, n."""
    _check_step(step)
    sizes = size(step, np.arange(1.0, n + 1))
    return np.concatenate(([0.0], np.cumsum(sizes))), np.concatenate(([0.0], np.cumsum(sizes**2)))
