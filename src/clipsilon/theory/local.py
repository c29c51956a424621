"""How close locally private SGD comes to the minimum (paper 4, Theorems 3 to 6 and Table 1).

Users come one by one, each an independent draw x_k with a budget μ_k of its own:
θ_k = θ_{k−1} − η_k·(∇f(θ_{k−1}, x_k) + (2·C_0/μ_k)·ω_k), with η_k = η·k^(−α) and ω_k ~ N(0, I).

The paper's proofs are not in our copy. Its Condition 2(ii), strong convexity on a set Θ, cannot hold on all of ℝ^d
beside Condition 1, a bounded gradient, and nothing keeps a run in a smaller Θ. The bounds here are proven anew, with
smaller constants (`docs/proofs.md`). C_0, m and C_1 need to hold only at the models that a run visits: if
they hold in a set, the bounds hold for the mean over runs that stay in it, those that leave counted as zero. Theorems 3
and 6 also hold for runs that are projected to a convex set around θ*.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clipsilon._core import checks
from clipsilon._core.parts import checked
from clipsilon.rules.schedules import Power, size

__all__ = [
    "Rate",
    "Setting",
    "average_distance",
    "average_loss",
    "last_distance",
    "last_loss",
    "limit_variance",
    "power_integral",
    "rates",
]

Array = NDArray[np.float64]


def _budgets(name: str, value: Any) -> Array:
    budgets = np.atleast_1d(checks.floats(name, value))
    if budgets.size == 0 or not np.all((budgets > 0) & np.isfinite(budgets)):
        raise ValueError(f"{name} must be a number above 0, or one for each user, got {value!r}.")
    return budgets


@checked(
    gradient_bound=checks.positive,
    budget=_budgets,
    dimension=checks.count,
    start=checks.nonnegative,
    smoothness=checks.positive,
    strong_convexity=checks.nonnegative,
    hessian_smoothness=checks.nonnegative,
)
class Setting(NamedTuple):
    """What the theorems know of a run.

    `budget` is one μ for all, or a vector of them from which each user's is drawn; the noise enters the mean square
    through the mean of 1/μ² (the paper has the largest; pass the smallest budget for that).
    """

    gradient_bound: float  #: C_0, which also sets the noise: no less than half of what `sensitivity()` says
    budget: Any  #: μ
    dimension: int  #: d
    start: float  #: ‖θ_0 − θ*‖²
    smoothness: float  #: M, of each record's loss
    strong_convexity: float = 0.0  #: m, of F
    hessian_smoothness: float = 0.0  #: C_1: ‖∇²F(θ) − ∇²F(θ*)‖ ≤ C_1·‖θ − θ*‖

    @property
    def energy(self) -> float:
        """σ_μ² = C_0²·(1 + 4·d·mean(1/μ²)), a bound on the mean square of a noisy gradient (the paper has 64 for 4)."""
        return float(self.gradient_bound**2 * (1 + 4 * self.dimension * np.mean(1 / self.budget**2)))


def power_integral(power: Any, t: Any) -> Any:
    """ψ_β(t) = ∫₁ᵗ s^(β−1) ds: (t^β − 1)/β, and log t for β = 0 (paper 4, section 4.1).

    >>> power_integral([0.0, 0.5, 2.0], 4.0).round(3)
    array([1.386, 2.   , 7.5  ])
    """
    beta, upper = checks.floats("power", power), checks.floats("t", t)
    if not np.all(upper > 0):
        raise ValueError(f"t must be above 0, got {t!r}.")
    logarithm = np.log(upper)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(beta == 0, logarithm, np.expm1(beta * logarithm) / beta)[()]


def last_distance(setting: Setting, step: Power, users: Any) -> Any:
    """Theorem 3: a bound on E‖θ_n − θ*‖² after n users, F being m-strongly convex and η ≤ 1/(2m).

    exp(−2mη·ψ_{1−α}(n+1))·‖θ_0 − θ*‖² + σ_μ²η²·S, with S the smaller of 1 + ψ_{1−2α}(n) and
    (2/n)^α/(2mη) + (1 + ψ_{1−2α}(n/2))·exp(−mη·n^{1−α})

    As printed, with S = n^(−α)/(mη) + ψ_{1−2α}(n)·exp(−mη·n^{1−α}/2), it fails for large budgets and α near 1, and for
    mη > 1.

    >>> setting = Setting(gradient_bound=1.0, budget=1.0, dimension=1, start=1.0, smoothness=1.0, strong_convexity=1.0)
    >>> bool(last_distance(setting, Power(0.5, 0.5), 10_000) < 0.02)
    True
    """
    _require_strong_convexity(setting, step)
    n = _counts(users)
    return _decay(setting, step, n) * setting.start + setting.energy * _discounted(setting, step, n, 2)


def average_distance(setting: Setting, step: Power, users: Any, limit: float | None = None) -> Any:
    """Theorem 4: a bound on E‖θ̄_n − θ*‖², θ̄_n the mean of θ_1, …, θ_n, on the conditions of Theorem 3 and C_1.

    (√(V/n) + (A_n + R_n)/(m·n))² with V = σ_μ²/m², A_n = √δ_1/η_2 + √δ_{n+1}/η_{n+1} + Σ_{k=2}^{n} √δ_k·(1/η_{k+1} −
    1/η_k), R_n = (C_1/2)·Σ_{k≤n} √q_k; δ_k is the bound of Theorem 3, and q_k one on E‖θ_k − θ*‖⁴. `limit` is the
    variance of √n·(θ̄_n − θ*) for n → ∞ (see `limit_variance`); it takes the place of V, and M·√(Σ_{k≤n} δ_k) is added
    to A_n. The least of these and of the mean of δ_1, …, δ_n is returned. Not for runs that are projected.

    The printed bound has constants that are not defined, leaves the noise out of its leading term, and is of order 1/n
    for α < 1/2, where the truth may be n^(−2α) unless C_1 = 0.
    """
    _require_strong_convexity(setting, step)
    n = _counts(users)
    k = np.arange(1, int(n.max()) + 2)
    squares, inverse = last_distance(setting, step, k), k**step.alpha / step.eta
    gained = np.concatenate(([0.0], np.cumsum(np.sqrt(squares[1:-1]) * np.diff(inverse[1:]))))
    ends = np.sqrt(squares[0]) * inverse[1] + np.sqrt(squares[n]) * inverse[n]
    bent = 0.5 * setting.hessian_smoothness * np.cumsum(np.sqrt(_fourth_moment(setting, step, k)))
    drift, total = (ends + gained[n - 1] + bent[n - 1]) / n, np.cumsum(squares)[n - 1]
    root = (np.sqrt(setting.energy / n) + drift) / setting.strong_convexity
    if limit is not None:
        rough = setting.smoothness * np.sqrt(total) / n
        sharp = np.sqrt(checks.nonnegative("limit", limit) / n) + (drift + rough) / setting.strong_convexity
        root = np.minimum(root, sharp)
    return np.minimum(root**2, total / n)


def limit_variance(setting: Setting, hessian: Any, covariance: Any) -> float:
    """What n·E‖θ̄_n − θ*‖² tends to: tr H⁻¹·(S + 4·C_0²·mean(1/μ²)·I)·H⁻¹.

    H is the Hessian of F and S the covariance of ∇f(θ*, x), both at θ*. The first term of Theorem 4 as printed, plus
    the noise that it leaves out.
    """
    curvature, spread = _matrix("hessian", hessian, setting), _matrix("covariance", covariance, setting)
    least = float(np.linalg.eigvalsh(curvature)[0])
    if least <= 0:
        raise ValueError(f"hessian must be positive definite, got one with the eigenvalue {least:g}.")
    inverse = np.linalg.inv(curvature)
    noise = 4 * setting.gradient_bound**2 * np.mean(1 / setting.budget**2)
    return float(np.trace(inverse @ (spread + noise * np.eye(setting.dimension)) @ inverse))


def last_loss(setting: Setting, step: Power, users: Any) -> Any:
    """Theorem 5: a bound on E F(θ_n) − F(θ*), F being convex and M-smooth. Not for runs that are projected.

    min over w ≤ n of D_n/(2·Σ η_k) + (M·σ_μ²/2)·Σ η_k², with sums over the last w steps, and with D_n = ‖θ_0 − θ*‖² +
    σ_μ²·Σ_{k≤n} η_k². It falls at the rate of Table 1, and not at all for α ≤ 1/3. Takes O(n) work for each n.

    The printed bound fails: its units do not match, and a change of the units of θ makes it as small as one likes.
    """
    n = _counts(users)
    sums, squares = _step_sums(step, int(n.max()))
    distance = setting.start + setting.energy * squares

    def bound(last: int) -> float:
        moved, spread = sums[last] - sums[:last], squares[last] - squares[:last]
        return float(np.min(distance[last] / (2 * moved) + 0.5 * setting.smoothness * setting.energy * spread))

    return np.array([bound(int(last)) for last in n.ravel()]).reshape(n.shape)[()]


def average_loss(setting: Setting, step: Power, users: Any) -> Any:
    """Theorem 6: a bound on E F(θ̄_n) − F(θ*), θ̄_n the mean of θ_1, …, θ_n, F being convex.

    (n+1)^α/(2ηn)·{‖θ_0 − θ*‖² + σ_μ²η²·(1 + ψ_{1−2α}(n))} + σ_μ²η·ψ_{1−α}(n+1)/(2n)

    The terms that our copy shows, without the 1, are zero for n = 1 and a start at the minimum, which the first step
    leaves.
    """
    _check_step(step)
    n, alpha = _counts(users), step.alpha
    distance = setting.start + setting.energy * step.eta**2 * (1 + power_integral(1 - 2 * alpha, n))
    steps = setting.energy * step.eta * power_integral(1 - alpha, n + 1)
    return ((n + 1) ** alpha * distance / step.eta + steps) / (2 * n)


class Rate(NamedTuple):
    """An entry of Table 1: the error is of order n^(−exponent)·(log n)^logarithms."""

    output: str  #: "last" or "average"
    strongly_convex: bool  #: then the error is a squared distance, else a loss
    exponent: float
    logarithms: float
    printed: float  #: the exponent of the table itself


def rates(alpha: float, quadratic: bool = False) -> tuple[Rate, ...]:
    """Table 1 for steps η·k^(−α): the rates of the four bounds, beside the printed ones. An exponent of 0 is no decay.

    They differ for the average under strong convexity: the printed n^(−1) below α = 1/2 needs a quadratic F (C_1 = 0),
    and above 1/2 the rate is n^(−1) and not n^(−2(1−α)). On the borders the printed exponents are the remarks' ones.
    """
    alpha = checks.fraction("alpha", alpha)
    border = float(alpha == 0.5)  # where Σ η_k² is a logarithm
    last = max(0.0, min((3 * alpha - 1) / 2, alpha / 2, 1 - alpha))
    mean = min(alpha, 1 - alpha)
    return (
        Rate("last", True, alpha, 0.0, alpha),
        Rate("average", True, 1.0 if quadratic else min(1.0, 2 * alpha), 0.0, min(1.0, 2 * (1 - alpha))),
        Rate("last", False, last, border / 2, last),
        Rate("average", False, mean, border, mean),
    )


def _matrix(name: str, value: Any, setting: Setting) -> Array:
    matrix, d = checks.floats(name, value), setting.dimension
    if matrix.shape != (d, d) or not np.isfinite(matrix).all():
        raise ValueError(f"{name} must be a finite table of shape {(d, d)}, got one of shape {matrix.shape}.")
    return matrix


def _counts(users: Any) -> NDArray[np.int64]:
    n = checks.integers(users)
    if n is None or n.min() < 1:
        raise ValueError(f"users must be whole numbers of at least 1, got {users!r}.")
    return n.reshape(np.shape(users))


def _check_step(step: Any) -> None:
    checks.instance("step", step, Power)
    if step.alpha >= 1:
        raise ValueError(f"step must have an alpha below 1, got {step}.")


def _require_strong_convexity(setting: Setting, step: Any) -> None:
    _check_step(step)
    if setting.strong_convexity == 0:
        raise ValueError("strong_convexity must be above 0 for the distance to be bounded, got 0.")
    if 2 * setting.strong_convexity * step.eta > 1:
        raise ValueError(
            f"step must have eta ≤ 1/(2m) = {1 / (2 * setting.strong_convexity):.3g} for this bound, got {step.eta:g}."
        )


def _decay(setting: Setting, step: Power, n: NDArray[np.int64]) -> Any:
    """What is left of the start: Π (1 − 2mη_k) ≤ exp(−2m·Σ η_k)."""
    return np.exp(-2 * setting.strong_convexity * step.eta * power_integral(1 - step.alpha, n + 1))


def _discounted(setting: Setting, step: Power, n: NDArray[np.int64], power: int) -> Any:
    """A bound on Σ_{k≤n} η_k^p·Π_{i=k+1}^{n} (1 − 2mη_i): all of Σ η_k^p or, if less, the halves of the sum apart."""
    rate, alpha = setting.strong_convexity * step.eta, step.alpha

    def total(last: Any) -> Any:
        return 1 + power_integral(1 - power * alpha, last)

    late = (2.0 / n) ** (alpha * (power - 1)) / (2 * rate)
    early = total(np.maximum(n / 2, 1.0)) * np.exp(-rate * n ** (1 - alpha))
    return step.eta**power * np.minimum(total(n), late + early)


def _fourth_moment(setting: Setting, step: Power, n: NDArray[np.int64]) -> Any:
    """A bound on E‖θ_n − θ*‖⁴, from q_k ≤ (1 − 2mη_k)·q_{k−1} + 8σ⁴η_k³/m + 3κη_k⁴, κ the noisy gradient's moment.

    It takes the smallest budget: here what the user k adds is multiplied by what the others did before.
    """
    d, largest = setting.dimension, float(np.max(4 / setting.budget**2))
    square = 1 + d * largest
    fourth = 1 + (2 * d + 4) * largest + d * (d + 2) * largest**2
    cubes = 8 * square**2 / setting.strong_convexity * _discounted(setting, step, n, 3)
    added = setting.gradient_bound**4 * (cubes + 3 * fourth * _discounted(setting, step, n, 4))
    return _decay(setting, step, n) * setting.start**2 + added


def _step_sums(step: Any, n: int) -> tuple[Array, Array]:
    """Σ_{k≤j} η_k and Σ_{k≤j} η_k² for j = 0, …, n."""
    _check_step(step)
    sizes = size(step, np.arange(1.0, n + 1))
    return np.concatenate(([0.0], np.cumsum(sizes))), np.concatenate(([0.0], np.cumsum(sizes**2)))
