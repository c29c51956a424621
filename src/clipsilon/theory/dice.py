"""How close DiceSGD comes to the minimum, and what its paper states (paper 3, section 3 and App. B.1).

x^t is the model, e^t the error, and x̃^t = x^t − η·e^t the *virtual* model, which moves like SGD without clipping.

**Theorem 3.7 as printed fails**: a run that starts far from the minimum violates it (`printed_bound`), because the
proof drops a minus sign (eq. 13). `virtual_gap` and `released_gap` are what can be proven; the proofs are in
`docs/proofs.md`. They tend to zero with the step if C_1 + C_2 ≥ G + σ, so that no gradient exceeds the two clips
together, or if C_2 > C_1 + G, so that more can be fed back than accumulates on average. They hold under strong
convexity and under the PL condition alike, for batches of fixed size that are drawn anew at each step (neither Poisson
batches nor passes over the data), and for records that do not react.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from clipsilon._core import checks
from clipsilon._core.parts import checked
from clipsilon.problems.losses.robust import Huber
from clipsilon.problems.problem import Problem

__all__ = [
    "Comparison",
    "ConstantBias",
    "DiceConstants",
    "Tradeoff",
    "claimed_noise",
    "comparison",
    "constant_bias",
    "error_square",
    "largest_error",
    "printed_bound",
    "printed_step",
    "released_gap",
    "suggested_step",
    "tradeoff",
    "virtual_gap",
]


def _nonnegative_or_infinite(name: str, value: float) -> float:
    """Return `value` if it is infinite or a finite number of at least 0; raise ValueError otherwise."""
    return math.inf if value == math.inf else checks.nonnegative(name, value)


@checked(
    strong_convexity=checks.positive,
    smoothness=checks.positive,
    gradient_bound=checks.positive,
    spread=checks.nonnegative,
    dimension=checks.count,
    clip=checks.positive,
    error_clip=checks.positive,
    noise_std=checks.nonnegative,
    batch=checks.count,
    mean_gradient_bound=_nonnegative_or_infinite,
)
class DiceConstants(NamedTuple):
    """The constants of a problem and of a run of DiceSGD on which the theorems rest.

    The bounds on gradients need to hold only at the models that a run visits. (Under Assumption 3.3 or 3.4 they cannot
    hold everywhere, as Assumption 3.6 requires.) If they hold in a set, the theorems hold for the mean over the runs
    that stay in it, where a run that leaves counts as zero.

    Parameters
    ----------
    strong_convexity : float
        μ, of Assumption 3.3 or of the PL condition 3.4; at most L.
    smoothness : float
        L, of f.
    gradient_bound : float
        A bound on the gradient of any record: the paper's G + σ.
    spread : float
        σ, the root mean square of ‖∇f(x; ξ_i) − ∇f(x)‖.
    dimension : int
        d, the number of coordinates of x.
    clip, error_clip : float
        C_1 and C_2, the thresholds for gradients and for the fed-back error.
    noise_std : float
        σ_1, the standard deviation of the noise on each coordinate of the mean update.
    batch : int, default 1
        B, the number of records per step.
    mean_gradient_bound : float, default inf
        G, a bound on ∇f.
    """

    strong_convexity: float
    smoothness: float
    gradient_bound: float
    spread: float
    dimension: int
    clip: float
    error_clip: float
    noise_std: float
    batch: int = 1
    mean_gradient_bound: float = math.inf

    def check(self) -> None:
        """Raise ValueError if μ exceeds L."""
        if self.strong_convexity > self.smoothness:
            raise ValueError(
                f"strong_convexity must be at most smoothness, got {self.strong_convexity} and {self.smoothness}."
            )

    @property
    def residual(self) -> float:
        """G' = max{0, G + σ − C_1}, the most that clipping removes from a gradient."""
        return max(0.0, self.gradient_bound - self.clip)

    @property
    def variance(self) -> float:
        """d·σ_1² + σ²/B, the variance of a noisy mean gradient."""
        return self.dimension * self.noise_std**2 + self.spread**2 / self.batch


def largest_error(constants: DiceConstants, steps: int) -> float:
    """Return the largest possible ‖e^t‖ for t ≤ T, G' + (T − 1)·max{0, G' − C_2} (paper 3, App. A.1, before eq. 18)."""
    return constants.residual + (checks.count("steps", steps) - 1) * max(0.0, constants.residual - constants.error_clip)


def error_square(constants: DiceConstants, steps: int) -> float:
    """Return a bound on E‖e^t‖² for t ≤ T: `largest_error` squared or, if smaller, one that does not grow with T.

    If c = C_2 − C_1 − G > 0, e shrinks by c per step on average while it is large: E cosh(λ‖e^t‖) ≤ b for any λ with
    (1 + φ)·e^(−λc) < 1, where b = (1 + φ)·cosh(λ(C_1 + G))/(1 − (1 + φ)·e^(−λc)), φ = (σ²/B)·(e^(λz) − 1 − λz)/z² and
    z = G' + min{G', C_1 + G}. So E‖e^t‖² ≤ (arcosh(b)/λ)², for the best λ.
    """
    most = largest_error(constants, steps) ** 2
    inflow = constants.clip + constants.mean_gradient_bound
    if constants.residual <= constants.error_clip or inflow >= constants.error_clip:
        return most
    jump = constants.residual + min(constants.residual, inflow)
    scaled = np.geomspace(1e-6, 1e2, 1000)  # λ·z; every λ gives a bound
    rate = scaled / jump
    growth = 1 + constants.spread**2 / constants.batch * (np.expm1(scaled) - scaled) / jump**2
    falls = growth * np.exp(-rate * (constants.error_clip - inflow))
    steady = falls < 1
    if not steady.any():
        return most
    level = growth[steady] * np.cosh(rate[steady] * inflow) / (1 - falls[steady])
    return float(min(most, np.min((np.arccosh(level) / rate[steady]) ** 2)))


def virtual_gap(constants: DiceConstants, step: float, steps: int, gap: float) -> float:
    """Return a bound on E f(x̃^T) − f* at the virtual model: Theorem 3.7, corrected (paper 3).

    The bound is ρ·gap + (1 − ρ)·(ηL/(2μ))·(d·σ_1² + σ²/B + ηL·K) with ρ = (1 − ημ)^T. K is `error_square` or, if η ≤
    3a/(8L) and this is smaller, (2/a)·(2·C_1²/a + σ²/B), where a = C_2/max{C_2, `largest_error`} is the smallest
    fraction of e that is fed back. The proof is in `docs/proofs.md`.

    Parameters
    ----------
    constants : DiceConstants
        The constants of the problem and of the run.
    step : float
        η, the constant step size, at most 1/L.
    steps : int
        T.
    gap : float
        f(x^0) − f*.

    Returns
    -------
    float
        The bound, in units of f.

    Examples
    --------
    >>> constants = DiceConstants(
    ...     1.0, 1.0, gradient_bound=3.0, spread=1.0, dimension=1, clip=1.0, error_clip=2.0, noise_std=0.1
    ... )
    >>> round(virtual_gap(constants, step=0.01, steps=1000, gap=2.0), 4)
    0.0053
    """
    _check_step(step, 1 / constants.smoothness)
    kept = (1 - step * constants.strong_convexity) ** checks.count("steps", steps)
    floor = constants.variance + step * constants.smoothness * _mean_error_square(constants, step, steps)
    return kept * checks.nonnegative("gap", gap) + (1 - kept) * _unit(constants, step) * floor


def released_gap(constants: DiceConstants, step: float, steps: int, gap: float) -> float:
    """Return a bound on E f(x^T) − f* at the released model, (√`virtual_gap` + η·√(L/2·`error_square`))².

    Theorem 3.7 is about the virtual model only, which is never released.

    Parameters
    ----------
    constants, step, steps, gap
        As in `virtual_gap`.

    Returns
    -------
    float
        The bound, in units of f.
    """
    lag = step * math.sqrt(constants.smoothness / 2 * error_square(constants, steps))
    return (math.sqrt(virtual_gap(constants, step, steps, gap)) + lag) ** 2


def suggested_step(constants: DiceConstants, steps: int, gap: float) -> float:
    """Return the step that paper 3 suggests after Theorem 3.7, log(2μ²T·gap/(L·Δ))/(μT), kept between 1/(μT) and 1/L.

    Δ = d·σ_1² + 5σ²/(4B) + C_1²/2. If C_1 + C_2 ≥ G + σ or C_2 > C_1 + G, this step makes `virtual_gap` and
    `released_gap` of order log(T)/T.

    Parameters
    ----------
    constants : DiceConstants
        The constants of the problem and of the run.
    steps : int
        T.
    gap : float
        f(x^0) − f*.

    Returns
    -------
    float
        η.
    """
    horizon = constants.strong_convexity * checks.count("steps", steps)
    start = checks.nonnegative("gap", gap) / (_unit(constants, 1.0) * _printed_variance(constants))
    return min(1 / constants.smoothness, math.log(max(math.e, start * horizon)) / horizon)


def printed_step(constants: DiceConstants, steps: int) -> float:
    """Return Theorem 3.7's largest step as printed: min{1/(2μ), 3/(32L), √(C_2/(C_2 + T·max{0, G' − C_2}))/(5L)}."""
    excess = checks.count("steps", steps) * max(0.0, constants.residual - constants.error_clip)
    shrunk = math.sqrt(constants.error_clip / (constants.error_clip + excess)) / (5 * constants.smoothness)
    return min(1 / (2 * constants.strong_convexity), 3 / (32 * constants.smoothness), shrunk)


def printed_bound(constants: DiceConstants, step: float, steps: int, gap: float) -> float:
    """Return Theorem 3.7 as printed, for T + 1 steps: (1 − μη)^T·𝓛^0 + (ηL/(2μ))·(d·σ_1² + 5σ²/(4B) + C_1²/2).

    It bounds E f(x̃^{T+1}) − f* if C_1 + C_2 ≥ G + σ, where `virtual_gap` is smaller. **Otherwise it can fail**: a run
    on one record with f = ½x², x^0 = 1000, C_1 = 1, C_2 = 1.1 and no noise ends 10⁴ times above it.

    Parameters
    ----------
    constants : DiceConstants
        The constants of the problem and of the run.
    step : float
        η, at most `printed_step`.
    steps : int
        T.
    gap : float
        f(x^0) − f*. 𝓛^0 is taken as gap·(1 + ηL·(1 − ηL)), its largest possible value.

    Returns
    -------
    float
        The printed bound, in units of f.
    """
    _check_step(step, printed_step(constants, steps))
    slope = step * constants.smoothness
    start = checks.nonnegative("gap", gap) * (1 + slope * (1 - slope))
    kept = (1 - step * constants.strong_convexity) ** checks.count("steps", steps)
    return kept * start + _unit(constants, step) * _printed_variance(constants)


def claimed_noise(constants: DiceConstants, records: int, steps: int, epsilon: float, delta: float) -> float:
    """Return σ_1 of Theorem 3.8: √(32·T·G̃·log(1/δ))/(N·ε) with G̃ = C_1² + 2·min{C², G'²} and the smallest C = B·C_2.

    **This noise does not make DiceSGD private**: the theorem fails (`docs/errata.md`, item 1). `account` states what is
    certified.

    Parameters
    ----------
    constants : DiceConstants
        C_1, C_2, G' and B are used.
    records, steps : int
        N and T.
    epsilon, delta : float
        The privacy that the paper claims.

    Returns
    -------
    float
        σ_1, on the mean update.
    """
    steps, delta = checks.count("steps", steps), checks.open_fraction("delta", delta)
    budget = checks.count("records", records) * checks.positive("epsilon", epsilon)
    spread = constants.clip**2 + 2 * min(constants.batch * constants.error_clip, constants.residual) ** 2
    return math.sqrt(32 * steps * spread * math.log(1 / delta)) / budget


class Tradeoff(NamedTuple):
    """Corollary 3.9: how long to run for a claimed (ε, δ), and how close such a run comes.

    Attributes
    ----------
    steps : int
        T.
    noise_std : float
        σ_1, which is claimed, not certified.
    step : float
        η.
    gap : float
        `released_gap` for these values.
    order : float
        The expression inside the 𝒪 of the corollary.
    """

    steps: int
    noise_std: float
    step: float
    gap: float
    order: float


def tradeoff(constants: DiceConstants, records: int, epsilon: float, delta: float, gap: float) -> Tradeoff:
    """Return Corollary 3.9: T = N²ε²/(G̃·log(1/δ)) steps, for an error of order log(Nε)/T (paper 3).

    That order is G̃·log(Nε)·log(1/δ)/(N²ε²). The constants in the 𝒪s are taken as one. At this T, Theorem 3.8 asks for
    σ_1 = √32 whatever the clips are.

    Parameters
    ----------
    constants : DiceConstants
        The constants of the problem and of the run; `noise_std` is ignored.
    records : int
        N.
    epsilon, delta : float
        The privacy that the paper claims; **it does not hold** (see `claimed_noise`).
    gap : float
        f(x^0) − f*.

    Returns
    -------
    Tradeoff
        T, the noise, the step and the resulting gap.

    Notes
    -----
    The step is `suggested_step`: with the printed one, T^(−(1−ν)), the rate is T^(−(1−ν)). The 𝒪 hides d, σ, L and μ.
    """
    unit = claimed_noise(constants, records, 1, epsilon, delta)
    if unit > math.sqrt(32):
        raise ValueError(
            f"records must be more for epsilon={epsilon}: T = N²ε²/(G̃·log(1/δ)) is below 1, got {records}."
        )
    steps = int(32 / unit**2)
    noisy = constants._replace(noise_std=claimed_noise(constants, records, steps, epsilon, delta))
    step = suggested_step(noisy, steps, gap)
    order = math.log(max(math.e, records * epsilon)) / steps
    return Tradeoff(steps, noisy.noise_std, step, released_gap(noisy, step, steps, gap), order)


class Comparison(NamedTuple):
    """A row of Table 1, in words and in numbers; the constants in the 𝒪s are taken as one.

    Attributes
    ----------
    algorithm : str
        "DPSGD", "DPSGD-GC" or "DiceSGD".
    rate, noise_variance : float
        The order of the error and of the noise variance.
    rate_formula, noise_formula : str
        The same as formulas.
    assumptions, clipping : str
        The assumptions by their number in the paper, and the condition on the clips.
    remark : str
        What the row means, and what is not proven.
    """

    algorithm: str
    rate: float
    noise_variance: float
    rate_formula: str
    noise_formula: str
    assumptions: str
    clipping: str
    remark: str


def comparison(
    constants: DiceConstants, records: int, steps: int, epsilon: float, delta: float, bias: float
) -> tuple[Comparison, ...]:
    """Return Table 1 of paper 3: DPSGD, DPSGD-GC and DiceSGD.

    Parameters
    ----------
    constants : DiceConstants
        G is `gradient_bound`; C is `clip` for DPSGD-GC.
    records, steps : int
        N and T.
    epsilon, delta : float
        The privacy that the paper claims.
    bias : float
        The 𝒪(1) of DPSGD-GC, for instance f(θ_∞) − f* at `clipped_point`.

    Returns
    -------
    tuple of Comparison
        One row per algorithm.
    """
    unit = (
        math.log(1 / checks.open_fraction("delta", delta))
        / (checks.count("records", records) * checks.positive("epsilon", epsilon)) ** 2
    )
    plain, clipped = constants.gradient_bound**2 * unit, constants.clip**2 * unit
    fed_back = claimed_noise(constants, records, 1, epsilon, delta) ** 2 / 32  # G̃·unit
    length, lost = checks.count("steps", steps), checks.nonnegative("bias", bias)
    logarithm = math.log(max(math.e, records * epsilon))
    return (
        Comparison(
            "DPSGD", plain, plain * length, "G²·log(1/δ)/(N²ε²)", "G²·T·log(1/δ)/(N²ε²)",
            "3.3, 3.5, 3.6", "C ≥ G + σ", "Nothing is clipped.",
        ),
        Comparison(
            "DPSGD-GC", clipped + lost, clipped * length, "C²·log(1/δ)/(N²ε²) + 1", "C²·T·log(1/δ)/(N²ε²)",
            "3.3, 3.5, 3.6", "C < G + σ", "Clipping leaves a bias.",
        ),
        Comparison(
            "DiceSGD", fed_back * logarithm, fed_back * length,
            "G̃·log(Nε)·log(1/δ)/(N²ε²)", "G̃·T·log(1/δ)/(N²ε²)", "3.3 or 3.4, 3.5, 3.6", "any",
            "The rate is proven for C_1 + C_2 ≥ G + σ, or C_2 > C_1 + G. The noise does not make it private.",
        ),
    )  # fmt: skip


class ConstantBias(NamedTuple):
    """A problem, and the points at which SGD and clipped SGD stop on it.

    Attributes
    ----------
    problem : Problem
        Huber's loss on one column.
    stable, clipped : float
        Where SGD and clipped SGD stop.
    """

    problem: Problem
    stable: float
    clipped: float


def constant_bias(clip: float) -> ConstantBias:
    """Build the example of App. B.1 (paper 3): Huber's loss with C' = ⌈C⌉ + 1, on C' records at −1 and one at C'.

    SGD stops at 0, clipped SGD at −(C' − C)/C' (printed: C'/(C' + C)). There, C' records have the gradient C/C', and
    the gradient of the last one is clipped to −C. The bias is at least ½ for C ≤ 1, and falls as 1/C. Contrary to the
    paper, this f satisfies neither Assumption 3.3 nor 3.4: its gradient is bounded.

    >>> constant_bias(0.5).clipped
    -0.75
    """
    outer = math.ceil(checks.positive("clip", clip)) + 1
    records = np.append(np.full(outer, -1.0), float(outer))
    problem = Problem(np.ones((outer + 1, 1)), records, loss=Huber(c=float(outer)))
    return ConstantBias(problem, 0.0, -(outer - clip) / outer)


def _check_step(step: float, largest: float) -> None:
    """Raise ValueError if the step exceeds `largest`."""
    if checks.positive("step", step) > largest:
        raise ValueError(f"step must be at most {largest:.4g} for this bound to hold, got {step!r}.")


def _unit(constants: DiceConstants, step: float) -> float:
    """Return ηL/(2μ), the final gap per unit of variance."""
    return step * constants.smoothness / (2 * constants.strong_convexity)


def _printed_variance(constants: DiceConstants) -> float:
    """Return the variance in eq. 4, d·σ_1² + 5σ²/(4B) + C_1²/2."""
    return constants.variance + constants.spread**2 / (4 * constants.batch) + constants.clip**2 / 2


def _mean_error_square(constants: DiceConstants, step: float, steps: int) -> float:
    """Return K, the bound that stands for the mean of ‖e^t‖² over the run."""
    bound = error_square(constants, steps)
    fraction = constants.error_clip / max(constants.error_clip, largest_error(constants, steps))
    if step > 3 * fraction / (8 * constants.smoothness):
        return bound
    return min(bound, 2 / fraction * (2 * constants.clip**2 / fraction + constants.spread**2 / constants.batch))
