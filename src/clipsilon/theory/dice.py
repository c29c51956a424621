"""How close DiceSGD comes to the minimum, and what its paper says (paper 3, section 3 and App. B.1).

x^t is the model, e^t the error, x̃^t = x^t − η·e^t the *virtual* model, which moves as SGD without clipping does.

**Theorem 3.7 as printed fails**: a run far from the minimum breaks it (`printed_bound`), since its proof drops a minus
sign (eq. 13). `virtual_gap` and `released_gap` are what can be proven, in `docs/proofs.md`. They tend to
zero with the step if C_1 + C_2 ≥ G + σ, so that a gradient never exceeds the two clips together, or if C_2 > C_1 + G,
so that more can be fed back than piles up on average. They hold under strong convexity and under the PL condition
alike, for batches of fixed size that are drawn anew at every step (neither Poisson nor passes over the data), and for
records that do not react.
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
    "Setting",
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
class Setting(NamedTuple):
    """What the theorems know of a problem and a run of DiceSGD.

    The bounds on gradients need to hold only at the models that a run visits. (Under Assumption 3.3 or 3.4 they cannot
    hold everywhere, as Assumption 3.6 has it.) If they hold in a set, the theorems do for the mean over runs that stay
    in it, those that leave counted as zero.
    """

    strong_convexity: float  #: μ, of Assumption 3.3 or of the PL condition 3.4
    smoothness: float  #: L, of f
    gradient_bound: float  #: of any record: the paper's G + σ
    spread: float  #: σ: the root mean square of ‖∇f(x; ξ_i) − ∇f(x)‖
    dimension: int  #: d
    clip: float  #: C_1
    error_clip: float  #: C_2
    noise_std: float  #: σ_1, on the mean update
    batch: int = 1  #: B
    mean_gradient_bound: float = math.inf  #: G, of ∇f

    def check(self) -> None:
        """Refuse μ above L."""
        if self.strong_convexity > self.smoothness:
            raise ValueError(
                f"strong_convexity must be at most smoothness, got {self.strong_convexity} and {self.smoothness}."
            )

    @property
    def residual(self) -> float:
        """G' = max{0, G + σ − C_1}: the most that clipping takes from a gradient."""
        return max(0.0, self.gradient_bound - self.clip)

    @property
    def variance(self) -> float:
        """d·σ_1² + σ²/B, that of a noisy mean gradient."""
        return self.dimension * self.noise_std**2 + self.spread**2 / self.batch


def largest_error(setting: Setting, steps: int) -> float:
    """The most that ‖e^t‖ can be for t ≤ T: G' + (T − 1)·max{0, G' − C_2} (paper 3, App. A.1, before eq. 18)."""
    return setting.residual + (checks.count("steps", steps) - 1) * max(0.0, setting.residual - setting.error_clip)


def error_square(setting: Setting, steps: int) -> float:
    """A bound on E‖e^t‖² for t ≤ T: E² with E = `largest_error` or, if less, one that does not grow with T.

    If c = C_2 − C_1 − G > 0, e falls by c a step on average while it is large: E cosh(λ‖e^t‖) ≤ b for any λ with
    (1 + φ)·e^(−λc) < 1, where b = (1 + φ)·cosh(λ(C_1 + G))/(1 − (1 + φ)·e^(−λc)), φ = (σ²/B)·(e^(λz) − 1 − λz)/z² and
    z = G' + min{G', C_1 + G}. So E‖e^t‖² ≤ (arcosh(b)/λ)², for the best λ.
    """
    most = largest_error(setting, steps) ** 2
    inflow = setting.clip + setting.mean_gradient_bound
    if setting.residual <= setting.error_clip or inflow >= setting.error_clip:
        return most
    jump = setting.residual + min(setting.residual, inflow)
    scaled = np.geomspace(1e-6, 1e2, 1000)  # λ·z; every λ gives a bound
    rate = scaled / jump
    growth = 1 + setting.spread**2 / setting.batch * (np.expm1(scaled) - scaled) / jump**2
    falls = growth * np.exp(-rate * (setting.error_clip - inflow))
    steady = falls < 1
    if not steady.any():
        return most
    level = growth[steady] * np.cosh(rate[steady] * inflow) / (1 - falls[steady])
    return float(min(most, np.min((np.arccosh(level) / rate[steady]) ** 2)))


def virtual_gap(setting: Setting, step: float, steps: int, gap: float) -> float:
    """Theorem 3.7, mended: a bound on E f(x̃^T) − f* from `gap` = f(x^0) − f*, for a constant step η ≤ 1/L.

    ρ·gap + (1 − ρ)·(ηL/(2μ))·(d·σ_1² + σ²/B + ηL·K), ρ = (1 − ημ)^T, K the smaller of `error_square` and, if
    η ≤ 3a/(8L), (2/a)·(2·C_1²/a + σ²/B); a = C_2/max{C_2, `largest_error`} is the least share of e that is fed back.

    >>> setting = Setting(1.0, 1.0, gradient_bound=3.0, spread=1.0, dimension=1, clip=1.0, error_clip=2.0,
    ...                   noise_std=0.1)
    >>> round(virtual_gap(setting, step=0.01, steps=1000, gap=2.0), 4)
    0.0053
    """
    _check_step(setting, step, 1 / setting.smoothness)
    kept = (1 - step * setting.strong_convexity) ** checks.count("steps", steps)
    floor = setting.variance + step * setting.smoothness * _mean_error_square(setting, step, steps)
    return kept * checks.nonnegative("gap", gap) + (1 - kept) * _unit(setting, step) * floor


def released_gap(setting: Setting, step: float, steps: int, gap: float) -> float:
    """A bound on E f(x^T) − f*, at the model that is released: (√`virtual_gap` + η·√(L/2·`error_square`))².

    Theorem 3.7 has only the virtual model, which nobody holds.
    """
    lag = step * math.sqrt(setting.smoothness / 2 * error_square(setting, steps))
    return (math.sqrt(virtual_gap(setting, step, steps, gap)) + lag) ** 2


def suggested_step(setting: Setting, steps: int, gap: float) -> float:
    """The step that paper 3 suggests after Theorem 3.7, log(2μ²T·gap/(L·Δ))/(μT), within 1/(μT) and 1/L.

    Δ = d·σ_1² + 5σ²/(4B) + C_1²/2. If C_1 + C_2 ≥ G + σ or C_2 > C_1 + G, the bounds are then of order log(T)/T.
    """
    horizon = setting.strong_convexity * checks.count("steps", steps)
    start = checks.nonnegative("gap", gap) / (_unit(setting, 1.0) * _printed_variance(setting))
    return min(1 / setting.smoothness, math.log(max(math.e, start * horizon)) / horizon)


def printed_step(setting: Setting, steps: int) -> float:
    """The largest step of Theorem 3.7 as printed: min{1/(2μ), 3/(32L), √(C_2/(C_2 + T·max{0, G' − C_2}))/(5L)}."""
    excess = checks.count("steps", steps) * max(0.0, setting.residual - setting.error_clip)
    shrunk = math.sqrt(setting.error_clip / (setting.error_clip + excess)) / (5 * setting.smoothness)
    return min(1 / (2 * setting.strong_convexity), 3 / (32 * setting.smoothness), shrunk)


def printed_bound(setting: Setting, step: float, steps: int, gap: float) -> float:
    """Theorem 3.7 as printed, for T + 1 steps: (1 − μη)^T·𝓛^0 + (ηL/(2μ))·(d·σ_1² + 5σ²/(4B) + C_1²/2).

    It bounds E f(x̃^{T+1}) − f* if C_1 + C_2 ≥ G + σ, where `virtual_gap` is smaller. Else it can fail: one record,
    f = ½x², x^0 = 1000, C_1 = 1, C_2 = 1.1 and no noise ends 10⁴ times above it. 𝓛^0 is taken as gap·(1 + ηL·(1 − ηL)),
    the most that it can be.
    """
    _check_step(setting, step, printed_step(setting, steps))
    slope = step * setting.smoothness
    start = checks.nonnegative("gap", gap) * (1 + slope * (1 - slope))
    kept = (1 - step * setting.strong_convexity) ** checks.count("steps", steps)
    return kept * start + _unit(setting, step) * _printed_variance(setting)


def claimed_noise(setting: Setting, records: int, steps: int, epsilon: float, delta: float) -> float:
    """σ_1 of Theorem 3.8: √(32·T·G̃·log(1/δ))/(N·ε), G̃ = C_1² + 2·min{C², G'²}, with the least C = B·C_2.

    **This noise does not make DiceSGD private**: the theorem fails (`docs/errata.md`, item 1). See `account`.
    """
    steps, delta = checks.count("steps", steps), checks.open_fraction("delta", delta)
    budget = checks.count("records", records) * checks.positive("epsilon", epsilon)
    spread = setting.clip**2 + 2 * min(setting.batch * setting.error_clip, setting.residual) ** 2
    return math.sqrt(32 * steps * spread * math.log(1 / delta)) / budget


class Tradeoff(NamedTuple):
    """Corollary 3.9: how long to run for a claimed (ε, δ), and how close that comes."""

    steps: int  #: T
    noise_std: float  #: σ_1
    step: float  #: η
    gap: float  #: `released_gap` there
    order: float  #: what stands in the 𝒪 of the corollary


def tradeoff(setting: Setting, records: int, epsilon: float, delta: float, gap: float) -> Tradeoff:
    """Corollary 3.9: T = N²ε²/(G̃·log(1/δ)) steps, for an error of order G̃·log(Nε)·log(1/δ)/(N²ε²) = log(Nε)/T.

    The constants in the 𝒪s are taken as one. At this T, Theorem 3.8 asks for σ_1 = √32 whatever the clips. The step is
    `suggested_step`: with the printed one, T^(−(1−ν)), the rate is T^(−(1−ν)). The 𝒪 hides d, σ, L and μ, and the
    privacy is only claimed (`claimed_noise`).
    """
    unit = claimed_noise(setting, records, 1, epsilon, delta)
    if unit > math.sqrt(32):
        raise ValueError(
            f"records must be more for epsilon={epsilon}: T = N²ε²/(G̃·log(1/δ)) is below 1, got {records}."
        )
    steps = int(32 / unit**2)
    noisy = setting._replace(noise_std=claimed_noise(setting, records, steps, epsilon, delta))
    step = suggested_step(noisy, steps, gap)
    order = math.log(max(math.e, records * epsilon)) / steps
    return Tradeoff(steps, noisy.noise_std, step, released_gap(noisy, step, steps, gap), order)


class Comparison(NamedTuple):
    """A row of Table 1, in words and in numbers; the constants of the 𝒪s are taken as one."""

    algorithm: str
    rate: float
    noise_variance: float
    rate_formula: str
    noise_formula: str
    assumptions: str
    clipping: str
    remark: str


def comparison(
    setting: Setting, records: int, steps: int, epsilon: float, delta: float, bias: float
) -> tuple[Comparison, ...]:
    """Table 1: DPSGD, DPSGD-GC and DiceSGD. `bias` is DPSGD-GC's 𝒪(1), for instance f(θ_∞) − f* at `clipped_point`.

    G is `gradient_bound`; C is `clip` for DPSGD-GC.
    """
    unit = (
        math.log(1 / checks.open_fraction("delta", delta))
        / (checks.count("records", records) * checks.positive("epsilon", epsilon)) ** 2
    )
    plain, clipped = setting.gradient_bound**2 * unit, setting.clip**2 * unit
    fed_back = claimed_noise(setting, records, 1, epsilon, delta) ** 2 / 32  # G̃·unit
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
    """A problem, and where SGD and clipped SGD stop on it."""

    problem: Problem
    stable: float
    clipped: float


def constant_bias(clip: float) -> ConstantBias:
    """App. B.1: Huber's loss with C' = ⌈C⌉ + 1, on C' records at −1 and one at C'.

    SGD stops at 0, clipped SGD at −(C' − C)/C' (printed: C'/(C' + C)). There C' records have the gradient C/C', and the
    last one's is clipped to −C. The bias is at least ½ for C ≤ 1, and falls with 1/C. Unlike the paper says, this f
    satisfies neither Assumption 3.3 nor 3.4: its gradient is bounded.

    >>> constant_bias(0.5).clipped
    -0.75
    """
    outer = math.ceil(checks.positive("clip", clip)) + 1
    records = np.append(np.full(outer, -1.0), float(outer))
    problem = Problem(np.ones((outer + 1, 1)), records, loss=Huber(c=float(outer)))
    return ConstantBias(problem, 0.0, -(outer - clip) / outer)


def _check_step(setting: Setting, step: float, largest: float) -> None:
    if checks.positive("step", step) > largest:
        raise ValueError(f"step must be at most {largest:.4g} for this bound to hold, got {step!r}.")


def _unit(setting: Setting, step: float) -> float:
    """ηL/(2μ), what a variance of one leaves in the end."""
    return step * setting.smoothness / (2 * setting.strong_convexity)


def _printed_variance(setting: Setting) -> float:
    """The variance in eq. 4, d·σ_1² + 5σ²/(4B) + C_1²/2."""
    return setting.variance + setting.spread**2 / (4 * setting.batch) + setting.clip**2 / 2


def _mean_error_square(setting: Setting, step: float, steps: int) -> float:
    """K: what stands for the mean of ‖e^t‖² over the run."""
    bound = error_square(setting, steps)
    share = setting.error_clip / max(setting.error_clip, largest_error(setting, steps))
    if step > 3 * share / (8 * setting.smoothness):
        return bound
    return min(bound, 2 / share * (2 * setting.clip**2 / share + setting.spread**2 / setting.batch))
