"""Bounds of papers 1 and 2: clipped SGD and DiceSGD while records react to the model.

The constants μ, L, β and G are passed as a `Constants`, which `problem.constants(radius)` computes or the caller
builds; a bound is as good as its constants are over the models that a run visits. μ̃ = μ − Lβ throughout, where L is
the Lipschitz constant of ∇ℓ in z, the one that the proofs need. Steps are the parts of `clipsilon.schedules`;
`noise_std` is σ_DP, on the mean update; `start_gap` is ‖θ_0 − θ_PS‖². Bounds along a run take `iterations` in the form
of `trace.iterations`, and t = 0 gives `start_gap`.

All bounds hold for batches of a fixed size that are drawn anew at each step (`Uniform`, `Full`), and for greedy
deployment. The batches of a pass over the data depend on the preceding ones, and the size of a Poisson batch varies:
runs with either can exceed the bounds. For Poisson batches of mean size B, the bound on the mean square of an update's
gradient part (min{c, G}² in `sharp_clipped_sgd_bound`) must be multiplied by 1 + 1/B.

Where a printed result is loose or does not follow from its proof, the docstring says so.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import minimize_scalar
from scipy.special import xlogy

from clipsilon._core import checks
from clipsilon._core.kernel_cache import kernel
from clipsilon._core.parts import is_ours, require
from clipsilon.privacy.calibration import calibrate
from clipsilon.problems.constants import Constants
from clipsilon.problems.losses import Quadratic
from clipsilon.problems.problem import Problem
from clipsilon.problems.regions import Box
from clipsilon.problems.responses import LocationShift
from clipsilon.rules.noise import std_of
from clipsilon.rules.presets import PCSGD
from clipsilon.rules.schedules import Constant, Schedule, size

__all__ = [
    "claimed_noise",
    "clipped_sgd_bound",
    "clipped_sgd_stationarity",
    "dice_sgd_bound",
    "dice_sgd_stationarity",
    "effective_convexity",
    "limiting_bound",
    "limiting_clip",
    "lower_bound_bias",
    "lower_bound_problem",
    "optimal_clip",
    "optimal_step",
    "printed_clip",
    "printed_dice_sgd_bound",
    "sharp_clipped_sgd_bound",
]

Array = NDArray[np.float64]


def effective_convexity(constants: Constants) -> float:
    """Return μ̃ = μ − L·β, the strong convexity that the records' reaction leaves; it must be positive (β < μ/L).

    >>> effective_convexity(Constants(1.0, 1.0, 10.0, sensitivity=0.05, gradient_bound=25.0, radius=10.0))
    0.5
    """
    checks.instance("constants", constants, Constants)
    mu, smooth, beta = constants.strong_convexity, constants.data_smoothness, constants.sensitivity
    rate = float(mu - (smooth * beta if beta else 0.0))
    if not rate > 0:
        raise ValueError(f"constants must have β < μ/L, got μ = {mu:.4g}, L = {smooth:.4g} and β = {beta:.4g}.")
    return rate


# Clipped SGD, strongly convex


def clipped_sgd_bound(
    constants: Constants,
    step: Schedule,
    clip: float,
    noise_std: float,
    start_gap: float,
    dimension: int,
    iterations: ArrayLike,
) -> Array:
    """Return Theorem 3.4's bound on E‖θ_t − θ_PS‖² of PCSGD (paper 1).

    The bound is Π_{i≤t}(1 − μ̃γ_i)·start_gap + 2c_1γ_t/μ̃ + 8C_1/μ̃² with c_1 = 2(c² + G²) + d·σ_DP² and
    C_1 = max{G − c, 0}². `sharp_clipped_sgd_bound` is smaller and has no condition on the steps.

    Parameters
    ----------
    constants : Constants
        μ, L, β and G over the models that the run visits.
    step : Schedule
        The step sizes γ_t.
    clip : float
        The clipping threshold c, above 0.
    noise_std : float
        σ_DP, the standard deviation of the noise on each coordinate of the mean update.
    start_gap : float
        ‖θ_0 − θ_PS‖².
    dimension : int
        d, the number of coordinates of θ.
    iterations : array_like of int
        The iterations t ≥ 0 at which to evaluate the bound.

    Returns
    -------
    array of float
        The bound at each of `iterations`, in their shape; `start_gap` at t = 0.

    Raises
    ------
    ValueError
        If a condition fails: β < μ/L; γ_t ≤ 2/μ̃; γ_{t−1}/γ_t ≤ 1 + (μ̃/2)γ_t for t ≥ 2.

    Notes
    -----
    The last condition starts at t = 2 because γ_0, which appears in eq. 11, does not exist. `InverseTime(a0, a1)` meets
    it if a0·μ̃ ≥ 2(a1 + 2)/(a1 + 1); `Power` with α = 1 never does. A factor 1 − μ̃γ_i below 0 counts as 0, because the
    proof cannot unroll (22) through a negative factor.

    Examples
    --------
    >>> from clipsilon.rules.schedules import InverseTime
    >>> constants = Constants(1.0, 1.0, 10.0, sensitivity=0.05, gradient_bound=15.0, radius=10.0)
    >>> clipped_sgd_bound(constants, InverseTime(10, 100), 1.0, 0.3, 49.0, 1, [0, 10**6]).round(2)
    array([  49.  , 6272.02])
    """
    rate, gap = effective_convexity(constants), checks.nonnegative("start_gap", start_gap)
    power = _printed_power(constants, clip, noise_std, dimension)
    times, gamma = _times(iterations), _sizes(step, iterations)
    _check_slow(gamma, rate)
    kept = np.cumprod(np.maximum(1 - rate * gamma, 0.0))
    bounds = kept * gap + 2 * power / rate * gamma + 8 * _excess(constants, clip) ** 2 / rate**2
    return np.append(gap, bounds)[times]


def sharp_clipped_sgd_bound(
    constants: Constants,
    step: Schedule,
    clip: float,
    noise_std: float,
    start_gap: float,
    dimension: int,
    iterations: ArrayLike,
) -> Array:
    """Return a bound on E‖θ_t − θ_PS‖² of PCSGD: the recursion behind Theorem 3.4, without its losses, solved exactly.

    With r_t² = E‖θ_t − θ_PS‖², κ = max{G − c, 0} and γ = γ_{t+1}::

        r_{t+1}² ≤ max{1 − 2μ̃γ, 0}·r_t² + 2γκ·r_t + γ²(min{c, G}² + d·σ_DP²).

    Parameters
    ----------
    constants, step, clip, noise_std, start_gap, dimension, iterations
        As in `clipped_sgd_bound`. The only condition is β < μ/L; there is none on the steps.

    Returns
    -------
    array of float
        The bound at each of `iterations`, in their shape; `start_gap` at t = 0.

    Notes
    -----
    For small steps the bound tends to C_1/μ̃², an eighth of the theorem's bias. The remaining looseness is due to κ: on
    the problem of Theorem 3.5, replacing κ by the mean of max{‖∇ℓ‖ − c, 0} at θ_∞ would give the exact bias.

    Proof. θ_PS lies in the region, so projecting brings θ_t − γ(g + ζ), g the clipped gradient, no farther from it.
    Square the distance and take the mean: what remains is r_t² − 2γE⟨θ_t − θ_PS, g⟩ and, at most, the last term.
    ‖E g − ∇f(θ_t; θ_t)‖ ≤ κ (Appendix D). And ⟨θ_t − θ_PS, ∇f(θ_t; θ_t)⟩ ≥ μ̃‖θ_t − θ_PS‖², by strong convexity,
    Lemma A.2, and ⟨θ_t − θ_PS, ∇f(θ_PS; θ_PS)⟩ ≥ 0 in the region. E‖θ_t − θ_PS‖ ≤ r_t, and the right side grows
    with r_t.
    """
    rate, start = effective_convexity(constants), np.sqrt(checks.nonnegative("start_gap", start_gap))
    checks.positive("clip", clip)
    times, gamma = _times(iterations), _sizes(step, iterations)
    power = min(clip, constants.gradient_bound) ** 2 + _noise_power(noise_std, dimension)
    shrink, pull = np.maximum(1 - 2 * rate * gamma, 0.0), 2 * _excess(constants, clip) * gamma
    roots: Array = _solve(start, np.zeros_like(gamma), shrink, pull, power * gamma**2)[times]
    return roots**2


def lower_bound_problem(
    a: float, scale: float, fraction: float, beta: float, clip: float, records: int = 1000
) -> Problem:
    """Build Theorem 3.5's example of an unavoidable clipping bias (paper 1).

    ℓ = ½(θ + a·z)² and z = z̄ − βθ; a fraction p̄ of the z̄ equals b, the others are 0. The region is eq. 25 with the
    factor b that is missing there: |θ| ≤ 2p̄·ab/(1 − aβ), which contains both the stable and the clipped point.

    Parameters
    ----------
    a : float
        The factor of z in the loss, above 0.
    scale : float
        b, the value of the records that are not 0, above 0.
    fraction : float
        p̄, above 0 and below 1/2. It is met exactly, so `fraction * records` must be a whole number.
    beta : float
        β, the strength of the reaction, at least 0 and below 1/a.
    clip : float
        c, at most ab(1 − p̄). It is checked only: the problem does not depend on it.
    records : int, default 1000
        The number of records.

    Returns
    -------
    Problem
        The problem, in one dimension.
    """
    _check_example(a, scale, fraction, beta, clip)
    ones = fraction * checks.count("records", records)
    if abs(ones - round(ones)) > 1e-9 * records:
        raise ValueError(
            f"fraction must be a whole number of the {records} records, got {fraction!r}, which is {ones:g}."
        )
    data = np.zeros(records)
    data[: round(ones)] = scale
    edge = 2 * fraction * a * scale / (1 - a * beta)
    return Problem(data, loss=Quadratic(a), response=LocationShift(beta), region=Box(-edge, edge))


def lower_bound_bias(a: float, scale: float, fraction: float, beta: float, clip: float) -> float:
    """Return Theorem 3.5's exact bias (p̄/(1 − aβ))²·(ab − c/(1 − p̄))² = ‖θ_∞ − θ_PS‖² (paper 1).

    It grows as 1/(μ − Lβ)² = 1/(1 − aβ)²: the reaction amplifies the bias.

    Parameters
    ----------
    a, scale, fraction, beta, clip : float
        As in `lower_bound_problem`: a, b, p̄, β and c.

    Returns
    -------
    float
        The squared distance between the clipped point θ_∞ and the stable point θ_PS.

    Notes
    -----
    The theorem is printed without b, and with the condition ab ≥ 2c. What is needed is ab ≥ c/(1 − p̄), below which
    clipping costs nothing, and p̄ < 1/2; from p̄ = 1/2 on, the clipped point is not unique.

    Examples
    --------
    >>> round(lower_bound_bias(a=10.0, scale=1.0, fraction=0.1, beta=0.05, clip=1.0), 3)
    3.16
    """
    _check_example(a, scale, fraction, beta, clip)
    return float((fraction / (1 - a * beta) * (a * scale - clip / (1 - fraction))) ** 2)


# Clipped SGD, tuned


def claimed_noise(clip: float, epsilon: float, delta: float, records: int, steps: int) -> float:
    """Return the noise of Corollary 3.6, σ_DP = c·√(T·log(1/δ))/(m·ε) (paper 1).

    **The paper claims that this noise is (ε, δ)-private. In general it is not**; `account` states what it certifies.

    Parameters
    ----------
    clip : float
        The clipping threshold c.
    epsilon, delta : float
        The privacy that the paper claims.
    records, steps : int
        m and T.

    Returns
    -------
    float
        σ_DP, on the mean update; the same as that of `calibrate(rule, …, how="paper")`.
    """
    rule = PCSGD(Constant(1.0), clip, 1.0)
    return std_of(calibrate(rule, epsilon, delta, records, steps, how="paper").noise)


def optimal_step(
    constants: Constants, clip: float, noise_std: float, start_gap: float, dimension: int, steps: int
) -> float:
    """Return Corollary 3.7's best constant step γ* = log(1/Δ)/(μ̃T), Δ = 2c_1/(T·μ̃²·start_gap) (paper 1).

    It minimises e^(−μ̃γT)·start_gap + 2c_1γ/μ̃, which is Theorem 3.4's bound with (1 − μ̃γ)^T rounded up to e^(−μ̃γT);
    Δ is that exponential at γ*.

    Parameters
    ----------
    constants, clip, noise_std, start_gap, dimension
        As in `clipped_sgd_bound`. For a learner that does not know about the reaction (section 6), pass
        `constants._replace(sensitivity=0.0)`.
    steps : int
        T, the length of the run.

    Returns
    -------
    float
        γ*, at most 2/μ̃.

    Raises
    ------
    ValueError
        If Δ ≥ 1, where the bound promises nothing better than the start, or if γ* would exceed 2/μ̃.
    """
    rate, count = effective_convexity(constants), checks.count("steps", steps)
    power = _printed_power(constants, clip, noise_std, dimension)
    left = 2 * power / (count * rate**2 * checks.positive("start_gap", start_gap))
    if left >= 1:
        raise ValueError(f"steps must be above 2c_1/(μ̃²·start_gap) = {left * count:.4g}, so that Δ < 1, got {steps!r}.")
    if -np.log(left) > 2 * count:
        raise ValueError(f"steps must be at least log(1/Δ)/2 = {-np.log(left) / 2:.4g}: γ* ≤ 2/μ̃, got {steps!r}.")
    return float(-np.log(left) / (rate * count))


def limiting_bound(
    constants: Constants, clip: float, epsilon: float, delta: float, records: int, start_gap: float, dimension: int
) -> float:
    """Return Theorem 3.4's bound for T → ∞ under a fixed privacy claim (paper 1, Corollaries 3.6 and 3.7).

    The noise of Corollary 3.6 grows as √T while the step of Corollary 3.7 falls as 1/T, so the noise remains: with
    φ = d·log(1/δ)/(mε)² and Δ = min{2φc²/(μ̃²·start_gap), 1}, the bound is start_gap·Δ·(1 + log(1/Δ)) + 8C_1/μ̃².
    Δ = 1 means that not training at all is best.

    Parameters
    ----------
    constants, clip, start_gap, dimension
        As in `clipped_sgd_bound`; `start_gap` must be above 0.
    epsilon, delta : float
        The privacy that Corollary 3.6 claims; it is not certified (see `claimed_noise`).
    records : int
        m.

    Returns
    -------
    float
        The bound on E‖θ_T − θ_PS‖² for T → ∞.
    """
    rate, gap = effective_convexity(constants), checks.positive("start_gap", start_gap)
    power = _noise_power(claimed_noise(clip, epsilon, delta, records, steps=1), dimension)  # φc²
    left = min(2 * power / (rate**2 * gap), 1.0)
    return float(gap * (left - xlogy(left, left)) + 8 * _excess(constants, clip) ** 2 / rate**2)


def limiting_clip(
    constants: Constants, epsilon: float, delta: float, records: int, start_gap: float, dimension: int
) -> float:
    """Return the threshold that minimises `limiting_bound`, found numerically: the subject of Corollary 3.8 (paper 1).

    Parameters
    ----------
    constants, epsilon, delta, records, start_gap, dimension
        As in `limiting_bound`.

    Returns
    -------
    float
        The threshold, in (0, G]. It is G, where the bound is `start_gap`, if no threshold promises anything better than
        not training.
    """
    return _least(
        lambda clip: limiting_bound(constants, clip, epsilon, delta, records, start_gap, dimension),
        constants.gradient_bound,
    )


def printed_clip(
    constants: Constants, epsilon: float, delta: float, records: int, dimension: int, *, version: str = "poster"
) -> float:
    """Return the optimal threshold c* = G/(1 + k·φ) as printed, with φ = d·log(1/δ)/(mε)².

    It is Corollary 3.8 of paper 1 (k = μ̃) or Corollary 3 of paper 2 (k = 1/2).

    Parameters
    ----------
    constants, epsilon, delta, records, dimension
        As in `limiting_bound`.
    version : {"poster", "paper"}, default "poster"
        Which of the two formulas: paper 2 is the poster of paper 1.

    Returns
    -------
    float
        c*, in (0, G].

    Notes
    -----
    Both formulas minimise 8C_1/μ̃² + 2γT·φc²/μ̃, the bound for T → ∞: the first for the step 4/T, the second for
    2/(μ̃T). Neither is Corollary 3.7's step, which depends on c; `limiting_clip` uses that one.
    """
    weight = checks.choice("version", version, {"paper": effective_convexity(constants), "poster": 0.5})
    ratio = _noise_power(claimed_noise(1.0, epsilon, delta, records, steps=1), dimension)
    return float(constants.gradient_bound / (1 + weight * ratio))


def optimal_clip(
    constants: Constants, step: Schedule, noise_multiplier: float, start_gap: float, dimension: int, steps: int
) -> float:
    """Return the threshold that minimises `sharp_clipped_sgd_bound` after `steps` steps if σ_DP = noise_multiplier·c.

    Every accountant gives noise in proportion to c, so a privacy target is a noise multiplier.

    Parameters
    ----------
    constants, step, start_gap, dimension
        As in `clipped_sgd_bound`.
    noise_multiplier : float
        σ_DP/c, at least 0; σ_DP is the noise on the mean update.
    steps : int
        T, the length of the run.

    Returns
    -------
    float
        The threshold in (0, G], found numerically.
    """
    ratio, last = checks.nonnegative("noise_multiplier", noise_multiplier), checks.count("steps", steps)

    def bound(clip: float) -> float:
        return float(sharp_clipped_sgd_bound(constants, step, clip, ratio * clip, start_gap, dimension, last))

    return _least(bound, constants.gradient_bound)


# DiceSGD, strongly convex


def dice_sgd_bound(
    constants: Constants,
    step: Schedule,
    noise_std: float,
    error_bound: float,
    start_gap: float,
    dimension: int,
    iterations: ArrayLike,
    growth: float = 0.0,
) -> Array:
    """Return a bound on E‖θ_t − θ_PS‖² of DiceSGD without region or cap: Theorem 4.3 (paper 1), with a corrected proof.

    With v_t² = E‖θ_t − γ_t·e_t − θ_PS‖², K = L + Lβ (where the first L is the Lipschitz constant of ∇ℓ in θ) and γ =
    γ_{t+1}::

        E‖θ_t − θ_PS‖² ≤ (v_t + γ_t·M)²,
        v_{t+1}² ≤ max{1 − 2μ̃γ + γ²B², 0}·u_t² + 2γ²M(K + γB²)·u_t + γ²(G² + d·σ_DP² + γ²B²M²),
        u_t = v_t + |γ_t − γ|·M, u_0² = start_gap.

    Parameters
    ----------
    constants, step, noise_std, start_gap, dimension, iterations
        As in `clipped_sgd_bound`, with the G of Assumption 4.2 (see `growth`). The other constants must hold at the
        models θ_t − γ_{t+1}e_t as well. The only condition is β < μ/L; there is none on the steps.
    error_bound : float
        M of Assumption 4.1: E‖e_t‖² ≤ M².
    growth : float, default 0.0
        B of Assumption 4.2: E_{Z ~ D(θ)}‖∇ℓ(θ; Z)‖² ≤ G² + B²‖θ − θ_PS‖². With 0, G bounds all gradients of the run.

    Returns
    -------
    array of float
        The bound at each of `iterations`, in their shape. It is of order γ_t for γ_t = a0/(a1 + t) with a0 > 1/(2μ̃).

    Notes
    -----
    The paper states Assumption 4.2 at Z ~ D(θ') for all θ', where it fails for the paper's own example.

    Proof. Let y_t = θ_t − γe_t − θ_PS; E‖y_t‖² ≤ u_t², as e_0 = 0. By (33), θ_{t+1} − γe_{t+1} − θ_PS is
    y_t − γ(∇ℓ + ζ), so v_{t+1}² = E‖y_t‖² − 2γE⟨y_t, ∇f(θ_t; θ_t)⟩ + γ²(E‖∇ℓ‖² + d·σ_DP²). At the model y_t + θ_PS,
    which is γe_t away from θ_t, the inner product is at least μ̃‖y_t‖²; so at θ_t it is at least
    μ̃‖y_t‖² − Kγ‖y_t‖‖e_t‖ (Lemma A.2). Finally E‖y_t‖‖e_t‖ ≤ u_t·M, E‖∇ℓ‖² ≤ G² + B²(u_t + γM)², and the right side
    grows with u_t.
    """
    rate, bound = effective_convexity(constants), checks.nonnegative("error_bound", error_bound)
    start, square = np.sqrt(checks.nonnegative("start_gap", start_gap)), checks.nonnegative("growth", growth) ** 2
    times, gamma = _times(iterations), _sizes(step, iterations)
    power = constants.gradient_bound**2 + _noise_power(noise_std, dimension)
    shift = constants.smoothness + (constants.strong_convexity - rate)  # L + Lβ
    slip = bound * np.abs(np.diff(gamma, prepend=gamma[:1]))
    shrink = np.maximum(1 - 2 * rate * gamma + square * gamma**2, 0.0)
    pull = 2 * gamma**2 * bound * (shift + gamma * square)
    shifted: Array = _solve(start, slip, shrink, pull, gamma**2 * (power + gamma**2 * square * bound**2))
    return (shifted + bound * np.append(0.0, gamma))[times] ** 2


def printed_dice_sgd_bound(
    constants: Constants,
    step: Schedule,
    noise_std: float,
    error_bound: float,
    start_gap: float,
    dimension: int,
    iterations: ArrayLike,
    growth: float = 0.0,
) -> Array:
    """Return Theorem 4.3 as printed (paper 1), 2·(eq. 18) + 2γ_t²M², for comparison.

    **Runs can exceed it.** Use `dice_sgd_bound`.

    Parameters
    ----------
    constants, step, noise_std, error_bound, start_gap, dimension, iterations, growth
        As in `dice_sgd_bound`.

    Returns
    -------
    array of float
        The printed bound at each of `iterations`, in their shape.

    Raises
    ------
    ValueError
        If a step size exceeds the theorem's own limit.

    Notes
    -----
    b and b̄ are the smallest that serve up to the last iteration; for γ_t = a0/(a1 + t) no b̄ serves all t. The errors:
    B_1 is bounded by 4(γ_t − γ_{t+1})²(…), but it is of first order in γ_t − γ_{t+1}; (36) has θ_t − γ_t·e_t where
    Assumption 4.2 gives θ_t; and Lemma A.1 needs (γ_t/γ_{t+1})^p ≤ 1 + (μ̃/8)γ_{t+1}, so about a0 ≥ 8p/μ̃, which is not
    among the conditions. Without it, for a start at θ_PS, the O(γ_t) of the noise is wrong.
    """
    rate, bound = effective_convexity(constants), checks.nonnegative("error_bound", error_bound)
    gap, growth = checks.nonnegative("start_gap", start_gap), checks.nonnegative("growth", growth)
    times, gamma = _times(iterations), _sizes(step, iterations)
    ratios = gamma[:-1] / gamma[1:]
    b = np.max((ratios - 1) / gamma[1:], initial=0.0)
    b_bar = np.max((ratios**2 - 1) / gamma[1:] ** 2, initial=0.0)
    with np.errstate(divide="ignore"):
        limit = min(np.cbrt(rate / (16 * np.float64(b) ** 2)), 8 / rate, rate / (4 * np.float64(growth) ** 2))
    if np.max(gamma, initial=0.0) > limit:
        raise ValueError(f"step must have sizes of at most {limit:.4g} for Theorem 4.3, got {gamma.max():.4g}.")
    power = constants.gradient_bound**2 + _noise_power(noise_std, dimension)
    shift = (constants.lipschitz * bound * (1 + constants.sensitivity)) ** 2
    bounds = np.cumprod(1 - rate / 4 * gamma) * gap + 8 * power / rate * gamma
    bounds += 16 * shift / rate**2 * (gamma**2 + b_bar * gamma**4) + 24 * (b * bound) ** 2 / rate * gamma**3
    return np.append(gap, 2 * bounds + 2 * (bound * gamma) ** 2)[times]


# Losses that need not be convex


def clipped_sgd_stationarity(
    constants: Constants,
    step_size: float,
    clip: float,
    noise_std: float,
    loss_range: float,
    variation: float,
    dimension: int,
    steps: int,
) -> float:
    """Return a bound on the mean over t < T of E‖∇f(θ_t; θ_t)‖² for PCSGD: paper 2, Theorem 3, with constants.

    The bound is 2R/(γT) + κ² + Lγs² + 2Rβs with κ = max{G − c, 0} and s² = min{c, G}² + d·σ_DP². The loss need not be
    convex; the step is constant and there is no region.

    Parameters
    ----------
    constants : Constants
        L, the Lipschitz constant of ∇ℓ in θ, and G. Their β is a Wasserstein sensitivity and is not used.
    step_size : float
        γ, above 0.
    clip : float
        The clipping threshold c.
    noise_std : float
        σ_DP, on each coordinate of the mean update.
    loss_range : float
        R = sup ℓ − inf ℓ, at most 2ℓ_max of assumption C2.
    variation : float
        β of assumption C1: the total variation between D(θ) and D(θ') is at most β‖θ − θ'‖.
    dimension, steps : int
        d and T.

    Returns
    -------
    float
        The bound.

    Notes
    -----
    Proof. By smoothness, E f(θ_{t+1}; θ_t) ≤ f(θ_t; θ_t) − γ⟨∇f, ∇f + h⟩ + Lγ²s²/2, where ∇f is taken at (θ_t; θ_t)
    and h is what clipping changes, ‖h‖ ≤ κ; and −⟨∇f, ∇f + h⟩ ≤ (κ² − ‖∇f‖²)/2. Deploying θ_{t+1} changes f by at most
    Rβ‖θ_{t+1} − θ_t‖, Rβγs on average. Sum over t < T; f(θ; θ) stays within R.
    """
    checks.instance("constants", constants, Constants)
    length = np.hypot(min(checks.positive("clip", clip), constants.gradient_bound), _noise_norm(noise_std, dimension))
    descent = _descent(constants, step_size, loss_range, variation, steps, length**2, length)
    return float(descent + _excess(constants, clip) ** 2)


def dice_sgd_stationarity(
    constants: Constants,
    step_size: float,
    clip: float,
    error_clip: float,
    noise_std: float,
    error_bound: float,
    loss_range: float,
    variation: float,
    dimension: int,
    steps: int,
) -> float:
    """Return a bound on the mean over t < T of E‖∇f(θ_t; θ_t)‖² for DiceSGD: paper 2, Theorem 5, with constants.

    The bound is 2R/(γT) + Lγ(G² + d·σ_DP²) + L²γ²M² + 2Rβs with s² = (C1 + C2)² + d·σ_DP². The loss need not be convex;
    the step is constant, and there is neither a region nor a cap. The smallest E‖∇f(θ_t; θ_t)‖², which the theorem is
    about, is no larger than the mean.

    Parameters
    ----------
    constants, step_size, noise_std, loss_range, variation, dimension, steps
        As in `clipped_sgd_stationarity`.
    clip, error_clip : float
        C1 and C2, the thresholds for gradients and for the fed-back error.
    error_bound : float
        M: E‖e_t‖² ≤ M². If G − C1 ≤ C2, then ‖e_t‖ ≤ max{G − C1, 0} always.

    Returns
    -------
    float
        The bound.

    Notes
    -----
    Proof. y_t = θ_t − γe_t obeys y_{t+1} = y_t − γ(∇ℓ + ζ) (paper 1, (33)). By smoothness, E f(y_{t+1}; θ_t) is at most
    f(y_t; θ_t) − γ⟨p, q⟩ + Lγ²(G² + d·σ_DP²)/2, p = ∇f(y_t; θ_t), q = ∇f(θ_t; θ_t). And −⟨p, q⟩ ≤ (‖p − q‖² − ‖q‖²)/2
    with ‖p − q‖ ≤ Lγ‖e_t‖. Deploying θ_{t+1} changes f by at most Rβ‖θ_{t+1} − θ_t‖, Rβγs on average. Sum over t < T.
    """
    checks.instance("constants", constants, Constants)
    noise, drift = _noise_norm(noise_std, dimension), checks.nonnegative("error_bound", error_bound)
    length = np.hypot(checks.positive("clip", clip) + checks.positive("error_clip", error_clip), noise)
    power = constants.gradient_bound**2 + noise**2
    descent = _descent(constants, step_size, loss_range, variation, steps, power, length)
    return float(descent + (constants.smoothness * step_size * drift) ** 2)


def _descent(
    constants: Constants, step_size: float, loss_range: float, variation: float, steps: int, power: float, length: float
) -> float:
    """Return 2R/(γT) + Lγ·power + 2Rβ·length, the terms common to both theorems."""
    gamma, total = checks.positive("step_size", step_size), checks.nonnegative("loss_range", loss_range)
    moved = checks.nonnegative("variation", variation) * length
    return 2 * total / (gamma * checks.count("steps", steps)) + constants.smoothness * gamma * power + 2 * total * moved


# Shared by all


@kernel
def _solve(start: float, slip: Array, shrink: Array, pull: Array, push: Array) -> Array:
    """Return r with r_0 = start and r_{i+1}² = shrink_i·u² + pull_i·u + push_i, where u = r_i + slip_i."""
    roots = np.empty(slip.size + 1)
    roots[0] = start
    for i in range(slip.size):
        u = roots[i] + slip[i]
        roots[i + 1] = np.sqrt(shrink[i] * u * u + pull[i] * u + push[i])
    return roots


def _times(iterations: ArrayLike) -> NDArray[np.int64]:
    """Return the iterations as an integer array of their own shape; raise ValueError if one is negative."""
    times = checks.integers(iterations)
    if times is None or times.min() < 0:
        raise ValueError(f"iterations must be whole numbers from 0 up, got {iterations!r}.")
    return times.reshape(np.shape(iterations))


def _sizes(step: Schedule, iterations: ArrayLike) -> Array:
    """Return γ_1, …, γ_T up to the last iteration, one t at a time for a user's schedule, which may branch on t."""
    require("step", step, [size])
    times = np.arange(1.0, 1.0 + np.max(iterations))
    if is_ours(type(step)):
        return np.array(np.broadcast_to(size(step, times), times.shape))
    return np.array([size(step, int(t)) for t in times])


def _check_slow(gamma: Array, rate: float) -> None:
    """Raise ValueError if the steps violate a condition of Theorem 3.4."""
    most = np.max(gamma, initial=0.0)
    if most > 2 / rate:
        raise ValueError(f"step must have sizes of at most 2/μ̃ = {2 / rate:.4g} for Theorem 3.4, got {most:.4g}.")
    fast = np.flatnonzero(gamma[:-1] > gamma[1:] * (1 + rate / 2 * gamma[1:]))
    if fast.size:
        first, ratio = fast[0] + 2, gamma[fast[0]] / gamma[fast[0] + 1]
        allowed = 1 + rate / 2 * gamma[fast[0] + 1]
        raise ValueError(
            f"step must shrink slowly for Theorem 3.4, γ_(t−1)/γ_t ≤ 1 + (μ̃/2)γ_t, "
            f"got {ratio:.6g} > {allowed:.6g} at t = {first}."
        )


def _noise_norm(noise_std: float, dimension: int) -> float:
    """Return √d·σ_DP."""
    return float(np.sqrt(checks.count("dimension", dimension)) * checks.nonnegative("noise_std", noise_std))


def _noise_power(noise_std: float, dimension: int) -> float:
    """Return d·σ_DP², the mean square of the noise."""
    return _noise_norm(noise_std, dimension) ** 2


def _printed_power(constants: Constants, clip: float, noise_std: float, dimension: int) -> float:
    """Return c_1 = 2(c² + G²) + d·σ_DP² of Theorem 3.4."""
    return 2 * (checks.positive("clip", clip) ** 2 + constants.gradient_bound**2) + _noise_power(noise_std, dimension)


def _excess(constants: Constants, clip: float) -> float:
    """Return max{G − c, 0}, the most that clipping removes from a gradient."""
    return max(constants.gradient_bound - clip, 0.0)


def _check_example(a: float, scale: float, fraction: float, beta: float, clip: float) -> None:
    """Raise ValueError if a parameter lies outside the range of Theorem 3.5."""
    reach = checks.positive("a", a) * checks.positive("scale", scale)
    if not 0 < checks.number("fraction", fraction) < 0.5:
        raise ValueError(f"fraction must be above 0 and below 1/2, got {fraction!r}.")
    if checks.nonnegative("beta", beta) * a >= 1:
        raise ValueError(f"beta must be below μ/L = 1/a = {1 / a:.4g}, got {beta!r}.")
    most = reach * (1 - fraction)
    if checks.positive("clip", clip) > most * (1 + 1e-12):
        raise ValueError(
            f"clip must be at most a·scale·(1 − fraction) = {most:.4g}, above which it causes no bias, got {clip!r}."
        )


def _least(bound: Callable[[float], float], most: float) -> float:
    """Return the minimiser of a function on (0, most]: the best point of a grid, refined between its neighbours."""
    grid = most * np.arange(1, 65) / 64
    best = int(np.argmin([bound(clip) for clip in grid]))
    around = (max(grid[best] - grid[0], 1e-9 * most), min(grid[best] + grid[0], most))
    found = minimize_scalar(bound, bounds=around, method="bounded", options={"xatol": 1e-10 * most})
    return float(min(found.x, grid[best], key=bound))
