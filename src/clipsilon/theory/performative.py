"""Bounds of papers 1 and 2: clipped SGD and DiceSGD while records react to the model.

The constants μ, L, β and G come as a `Constants`, from `problem.constants(radius)` or made by hand; a bound is as good
as they are, over the models that a run visits. μ̃ = μ − Lβ throughout, with L that of ∇ℓ in z, which is the one that
the proofs need. Steps are those of `clipsilon.schedules`; `noise_std` is σ_DP, on the mean update; `start_gap` is
‖θ_0 − θ_PS‖². Bounds along a run take `iterations` as `trace.iterations` has them, and t = 0 gives `start_gap`.

All bounds are for batches of a fixed size that are drawn anew at every step (`Uniform`, `Full`), and for greedy
deployment. Batches from a pass over the data depend on the last ones, and the size of a Poisson batch varies: both can
exceed the bounds. Poisson batches of mean size B need (1 + 1/B) times the mean square that an update's gradient part is
given (min{c, G}² in `sharp_clipped_sgd_bound`).

Where a printed result is loose or does not follow from its proof, the docstring says so.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import xlogy

from clipsilon._core import checks
from clipsilon._core.parts import is_ours, require
from clipsilon.engine.kernel_cache import kernel
from clipsilon.privacy.calibration import calibrate
from clipsilon.problems.constants import Constants
from clipsilon.problems.losses import Quadratic
from clipsilon.problems.problem import Problem
from clipsilon.problems.regions import Box
from clipsilon.problems.responses import LocationShift
from clipsilon.rules.presets import PCSGD
from clipsilon.rules.schedules import Constant, size

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
    """μ̃ = μ − L·β, what the records' reaction leaves of the strong convexity; it must be positive (β < μ/L).

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
    step: Any,
    clip: float,
    noise_std: float,
    start_gap: float,
    dimension: int,
    iterations: Any,
) -> Any:
    """Theorem 3.4: E‖θ_t − θ_PS‖² of PCSGD is at most Π_{i≤t}(1 − μ̃γ_i)·start_gap + 2c_1γ_t/μ̃ + 8C_1/μ̃².

    c_1 = 2(c² + G²) + d·σ_DP² and C_1 = max{G − c, 0}². Conditions: β < μ/L; γ_t ≤ 2/μ̃; and
    γ_{t−1}/γ_t ≤ 1 + (μ̃/2)γ_t for t ≥ 2 (with no γ_0, as eq. 11 has). `InverseTime(a0, a1)` meets the last one if
    a0·μ̃ ≥ 2(a1 + 2)/(a1 + 1), `Power` with α = 1 never. A factor 1 − μ̃γ_i below 0 counts as 0: the proof cannot
    unroll (22) through a negative one. `sharp_clipped_sgd_bound` is smaller and has no condition on the steps.

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
    step: Any,
    clip: float,
    noise_std: float,
    start_gap: float,
    dimension: int,
    iterations: Any,
) -> Any:
    """A bound on E‖θ_t − θ_PS‖² of PCSGD: the recursion behind Theorem 3.4 without its losses, solved exactly.

    With r_t² = E‖θ_t − θ_PS‖², κ = max{G − c, 0} and γ = γ_{t+1}::

        r_{t+1}² ≤ max{1 − 2μ̃γ, 0}·r_t² + 2γκ·r_t + γ²(min{c, G}² + d·σ_DP²).

    For small steps this ends at C_1/μ̃², an eighth of the theorem's bias. It needs β < μ/L, and nothing of the steps.
    What looseness is left is that of κ: on the problem of Theorem 3.5, the mean of max{‖∇ℓ‖ − c, 0} at θ_∞ in place of
    κ would give the exact bias.

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
    return _solve(start, np.zeros_like(gamma), shrink, pull, power * gamma**2)[times] ** 2


def lower_bound_problem(a: float, scale: float, share: float, beta: float, clip: float, records: int = 1000) -> Problem:
    """Theorem 3.5's example of an unavoidable bias: ℓ = ½(θ + a·z)², z = z̄ − βθ, a share p̄ of z̄ is b = `scale`, else 0.

    Its region is eq. 25 with the b that is missing there: |θ| ≤ 2p̄·ab/(1 − aβ), which holds both points. The share is
    exact, so p̄·records must be whole.
    """
    _check_example(a, scale, share, beta, clip)
    ones = share * checks.count("records", records)
    if abs(ones - round(ones)) > 1e-9 * records:
        raise ValueError(f"share must be a whole number of the {records} records, got {share!r}, which is {ones:g}.")
    data = np.zeros(records)
    data[: round(ones)] = scale
    edge = 2 * share * a * scale / (1 - a * beta)
    return Problem(data, loss=Quadratic(a), response=LocationShift(beta), region=Box(-edge, edge))


def lower_bound_bias(a: float, scale: float, share: float, beta: float, clip: float) -> float:
    """Theorem 3.5: ‖θ_∞ − θ_PS‖² = (p̄/(1 − aβ))²·(ab − c/(1 − p̄))² of that example, exactly; b is `scale`.

    It grows as 1/(μ − Lβ)² = 1/(1 − aβ)²: the reaction amplifies the bias. Printed without b, and with the condition
    ab ≥ 2c; what is needed is ab ≥ c/(1 − p̄), below which clipping costs nothing, and p̄ < 1/2, from which on the
    clipped point is not the only one.

    >>> round(lower_bound_bias(a=10.0, scale=1.0, share=0.1, beta=0.05, clip=1.0), 3)
    3.16
    """
    _check_example(a, scale, share, beta, clip)
    return float((share / (1 - a * beta) * (a * scale - clip / (1 - share))) ** 2)


# Clipped SGD, tuned


def claimed_noise(clip: float, epsilon: float, delta: float, records: int, steps: int) -> float:
    """Corollary 3.6: σ_DP = c·√(T·log(1/δ))/(m·ε), which the paper claims to be (ε, δ)-private. It is not in general.

    The same as `calibrate(rule, …, how="paper")`; `account` says what it certifies.
    """
    rule = PCSGD(Constant(1.0), clip, 1.0)
    return float(calibrate(rule, epsilon, delta, records, steps, how="paper").noise.std)


def optimal_step(
    constants: Constants, clip: float, noise_std: float, start_gap: float, dimension: int, steps: int
) -> float:
    """Corollary 3.7: γ* = log(1/Δ)/(μ̃T), Δ = 2c_1/(T·μ̃²·start_gap): the best constant step by Theorem 3.4.

    It minimises e^(−μ̃γT)·start_gap + 2c_1γ/μ̃, which is the theorem's bound with (1 − μ̃γ)^T rounded up to e^(−μ̃γT);
    Δ is that exponential at γ*. From Δ = 1 on, the start is as good as all that the bound can promise, and there is no
    such step. For a learner that does not know of the reaction (section 6), pass `constants._replace(sensitivity=0.0)`.
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
    """Theorem 3.4's bound for T → ∞ under a fixed privacy claim: noise of Corollary 3.6, step of Corollary 3.7.

    Noise grows as √T while the step falls as 1/T, so the noise stays: with φ = d·log(1/δ)/(mε)² and
    Δ = 2φc²/(μ̃²·start_gap), it is start_gap·Δ·(1 + log(1/Δ)) + 8C_1/μ̃², with Δ at most 1 (no steps at all).
    """
    rate, gap = effective_convexity(constants), checks.positive("start_gap", start_gap)
    power = _noise_power(claimed_noise(clip, epsilon, delta, records, steps=1), dimension)  # φc²
    left = min(2 * power / (rate**2 * gap), 1.0)
    return float(gap * (left - xlogy(left, left)) + 8 * _excess(constants, clip) ** 2 / rate**2)


def limiting_clip(
    constants: Constants, epsilon: float, delta: float, records: int, start_gap: float, dimension: int
) -> float:
    """The threshold that minimises `limiting_bound`, found numerically: what Corollary 3.8 is about.

    It is G, and the bound there `start_gap`, where no threshold promises anything better than not to train.
    """
    return _least(
        lambda clip: limiting_bound(constants, clip, epsilon, delta, records, start_gap, dimension),
        constants.gradient_bound,
    )


def printed_clip(
    constants: Constants, epsilon: float, delta: float, records: int, dimension: int, version: str = "poster"
) -> float:
    """Corollary 3.8 of paper 1 ("paper"), or Corollary 3 of paper 2 ("poster"): c* = G/(1 + k·φ), φ = d·log(1/δ)/(mε)².

    k is μ̃ in the paper and 1/2 on the poster. Both minimise 8C_1/μ̃² + 2γT·φc²/μ̃, the bound for T → ∞: the first for
    the step 4/T, the second for 2/(μ̃T). Neither is Corollary 3.7's step, which depends on c; `limiting_clip` uses it.
    """
    weight = checks.choice("version", version, {"paper": effective_convexity(constants), "poster": 0.5})
    ratio = _noise_power(claimed_noise(1.0, epsilon, delta, records, steps=1), dimension)
    return float(constants.gradient_bound / (1 + weight * ratio))


def optimal_clip(
    constants: Constants, step: Any, noise_multiplier: float, start_gap: float, dimension: int, steps: int
) -> float:
    """The threshold that minimises `sharp_clipped_sgd_bound` after `steps` steps if σ_DP = noise_multiplier·c.

    Every accountant gives noise in proportion to c, so a privacy target is a multiplier. Found numerically, in (0, G].
    """
    ratio, last = checks.nonnegative("noise_multiplier", noise_multiplier), checks.count("steps", steps)

    def bound(clip: float) -> float:
        return float(sharp_clipped_sgd_bound(constants, step, clip, ratio * clip, start_gap, dimension, last))

    return _least(bound, constants.gradient_bound)


# DiceSGD, strongly convex


def dice_sgd_bound(
    constants: Constants,
    step: Any,
    noise_std: float,
    error_bound: float,
    start_gap: float,
    dimension: int,
    iterations: Any,
    growth: float = 0.0,
) -> Any:
    """A bound on E‖θ_t − θ_PS‖² of DiceSGD without region or cap: Theorem 4.3, with a proof that goes through.

    Assumption 4.1: E‖e_t‖² ≤ M², M = `error_bound`. Assumption 4.2: E_{Z ~ D(θ)}‖∇ℓ(θ; Z)‖² ≤ G² + B²‖θ − θ_PS‖²,
    B = `growth`. (The paper asks for it at Z ~ D(θ') for all θ', where it fails for its own example. With B = 0, G
    bounds all gradients that the run meets.) The other constants must hold at the models θ_t − γ_{t+1}e_t, too.
    With v_t² = E‖θ_t − γ_t·e_t − θ_PS‖², K = L + Lβ (the first L that of ∇ℓ in θ) and γ = γ_{t+1}::

        E‖θ_t − θ_PS‖² ≤ (v_t + γ_t·M)²,
        v_{t+1}² ≤ max{1 − 2μ̃γ + γ²B², 0}·u_t² + 2γ²M(K + γB²)·u_t + γ²(G² + d·σ_DP² + γ²B²M²),
        u_t = v_t + |γ_t − γ|·M, u_0² = start_gap.

    It is of order γ_t for γ_t = a0/(a1 + t) with a0 > 1/(2μ̃). It needs β < μ/L, and nothing of the steps.

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
    shifted = _solve(start, slip, shrink, pull, gamma**2 * (power + gamma**2 * square * bound**2))
    return (shifted + bound * np.append(0.0, gamma))[times] ** 2


def printed_dice_sgd_bound(
    constants: Constants,
    step: Any,
    noise_std: float,
    error_bound: float,
    start_gap: float,
    dimension: int,
    iterations: Any,
    growth: float = 0.0,
) -> Any:
    """Theorem 4.3 as printed: 2·(eq. 18) + 2γ_t²M², for comparison. It can be exceeded; use `dice_sgd_bound`.

    The b and b̄ are the least ones up to the last iteration; for γ_t = a0/(a1 + t) no b̄ serves all t. What is wrong: B_1
    is bounded by 4(γ_t − γ_{t+1})²(…), where it is of first order in γ_t − γ_{t+1}; (36) has θ_t − γ_t·e_t where
    Assumption 4.2 gives θ_t; and Lemma A.1 needs (γ_t/γ_{t+1})^p ≤ 1 + (μ̃/8)γ_{t+1}, so about a0 ≥ 8p/μ̃, which is not
    among the conditions. Without it, and from θ_PS, the O(γ_t) of the noise is wrong.
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
    """Paper 2, Theorem 3, with constants: a bound on the mean over t < T of E‖∇f(θ_t; θ_t)‖² for PCSGD.

    2R/(γT) + κ² + Lγs² + 2Rβs, for a constant step and no region: κ = max{G − c, 0}, s² = min{c, G}² + d·σ_DP², L that
    of ∇ℓ in θ. R = sup ℓ − inf ℓ (`loss_range`) is at most 2ℓ_max of C2. β (`variation`) is that of C1: the total
    variation between D(θ) and D(θ') is at most β‖θ − θ'‖. (The β of `constants` is Wasserstein's, and is not used.)

    Proof. By smoothness, E f(θ_{t+1}; θ_t) ≤ f(θ_t; θ_t) − γ⟨∇f, ∇f + h⟩ + Lγ²s²/2, where ∇f is taken at (θ_t; θ_t)
    and h is what clipping does, ‖h‖ ≤ κ; and −⟨∇f, ∇f + h⟩ ≤ (κ² − ‖∇f‖²)/2. Deploying θ_{t+1} changes f by at most
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
    """Paper 2, Theorem 5, with constants: a bound on the mean over t < T of E‖∇f(θ_t; θ_t)‖² for DiceSGD.

    2R/(γT) + Lγ(G² + d·σ_DP²) + L²γ²M² + 2Rβs, for a constant step, no region and no cap: s² = (C1 + C2)² + d·σ_DP²,
    E‖e_t‖² ≤ M² (`error_bound`), the rest as in `clipped_sgd_stationarity`. The least of the E‖∇f(θ_t; θ_t)‖², which
    the theorem is about, is no larger. If G − C1 ≤ C2, then ‖e_t‖ ≤ max{G − C1, 0} always.

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
    """2R/(γT) + Lγ·power + 2Rβ·length, what both theorems share."""
    gamma, total = checks.positive("step_size", step_size), checks.nonnegative("loss_range", loss_range)
    moved = checks.nonnegative("variation", variation) * length
    return 2 * total / (gamma * checks.count("steps", steps)) + constants.smoothness * gamma * power + 2 * total * moved


# What they share


@kernel
def _solve(start: float, slip: Array, shrink: Array, pull: Array, push: Array) -> Array:
    """r_0 = start, r_{i+1}² = shrink_i·u² + pull_i·u + push_i with u = r_i + slip_i."""
    roots = np.empty(slip.size + 1)
    roots[0] = start
    for i in range(slip.size):
        u = roots[i] + slip[i]
        roots[i + 1] = np.sqrt(shrink[i] * u * u + pull[i] * u + push[i])
    return roots


def _times(iterations: Any) -> NDArray[np.int64]:
    """The iterations as whole numbers from 0 up, in their own shape."""
    times = checks.integers(iterations)
    if times is None or times.min() < 0:
        raise ValueError(f"iterations must be whole numbers from 0 up, got {iterations!r}.")
    return times.reshape(np.shape(iterations))


def _sizes(step: Any, iterations: Any) -> Array:
    """γ_1, …, γ_T up to the last iteration. A user's step may branch on t, so it is asked one t at a time."""
    require("step", step, [size])
    times = np.arange(1.0, 1.0 + np.max(iterations))
    if is_ours(type(step)):
        return np.array(np.broadcast_to(size(step, times), times.shape))
    return np.array([size(step, int(t)) for t in times])


def _check_slow(gamma: Array, rate: float) -> None:
    """The conditions of Theorem 3.4 on the steps."""
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
    """√d·σ_DP."""
    return float(np.sqrt(checks.count("dimension", dimension)) * checks.nonnegative("noise_std", noise_std))


def _noise_power(noise_std: float, dimension: int) -> float:
    """d·σ_DP²: the mean square of the noise."""
    return _noise_norm(noise_std, dimension) ** 2


def _printed_power(constants: Constants, clip: float, noise_std: float, dimension: int) -> float:
    """c_1 = 2(c² + G²) + d·σ_DP² of Theorem 3.4."""
    return 2 * (checks.positive("clip", clip) ** 2 + constants.gradient_bound**2) + _noise_power(noise_std, dimension)


def _excess(constants: Constants, clip: float) -> float:
    """max{G − c, 0}: the most that clipping takes from a gradient."""
    return max(constants.gradient_bound - clip, 0.0)


def _check_example(a: float, scale: float, share: float, beta: float, clip: float) -> None:
    reach = checks.positive("a", a) * checks.positive("scale", scale)
    if not 0 < checks.number("share", share) < 0.5:
        raise ValueError(f"share must be above 0 and below 1/2, got {share!r}.")
    if checks.nonnegative("beta", beta) * a >= 1:
        raise ValueError(f"beta must be below μ/L = 1/a = {1 / a:.4g}, got {beta!r}.")
    most = reach * (1 - share)
    if checks.positive("clip", clip) > most * (1 + 1e-12):
        raise ValueError(
            f"clip must be at most a·scale·(1 − share) = {most:.4g}, from where on it is free, got {clip!r}."
        )


def _least(bound: Any, most: float) -> float:
    """Where a function on (0, most] is least: the best of a grid, refined between its neighbours."""
    grid = most * np.arange(1, 65) / 64
    best = int(np.argmin([bound(clip) for clip in grid]))
    around = (max(grid[best] - grid[0], 1e-9 * most), min(grid[best] + grid[0], most))
    found = minimize_scalar(bound, bounds=around, method="bounded", options={"xatol": 1e-10 * most})
    return float(min(found.x, grid[best], key=bound))
