"""Auditing with a single training run and many canaries, each included by its own fair coin.

Steinke, Nasr and Jagielski, Privacy Auditing with One (1) Training Run (2023): an attacker who sees the run guesses
for r of the m canaries whether they were included, and privacy bounds how many guesses can be right.

For δ = 0 the number of right guesses is at most W ~ Bin(r, q), q = e^ε/(1 + e^ε), in distribution. For δ > 0 their
Corollary 5.4 (arXiv:2305.08846v1) adds 2mδ·max_i P[v > W ≥ v − i]/i to P[W ≥ v]. A smaller term suffices,
mδ·P[W ≥ v]·P[W < v]/(v·P[W = v]), which is the best possible: for small m a linear program over all mechanisms
attains it. (The published term is larger where a p-value is of use, below ½. Near 1 it fails: m = r = 3, ε = 0,
v = 1; with probability 7δ give any answer except the one that is all wrong, otherwise guess blindly. One guess is
right with probability 7/8 + 7δ/8, not 7/8 + 6δ/8.)

Proof. Let c ⊂ {1..r} be the set of right guesses and p_k = P[|c| = k]. For an input s and a canary i the
outputs exceed e^ε times those for s with i flipped by at most δ; summed over the m canaries and averaged
over s, mδ. Of this keep the outputs whose guess about i is right. Canaries without a guess average out and
the positive part is convex, so Σ_k b_k ≤ mδ for b_k = (k·p_k − e^ε·(r − k + 1)·p_{k−1})₊: a set of k has k
elements to lose, one of k − 1 has r − k + 1 to gain. For w_k = P[W = k] the same b is zero. So ρ = p/w has
ρ_k ≤ ρ_{k−1} + b_k/(k·w_k), and::

    P[|c| ≥ v] − P[W ≥ v] = Σ_{j < v ≤ k} w_j·w_k·(ρ_k − ρ_j)
                          ≤ Σ_i b_i·P[W < min(i, v)]·P[W ≥ max(i, v)]/(i·w_i).

As W is log-concave, the factor of b_i grows up to i = v and falls from there on. □
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq
from scipy.special import betainc, betaincc, betaln, expit, log_expit

from clipsilon._core import checks

_SIZES = 6  # numbers of guesses tried by default: all canaries, a half, a quarter, …


class OneRunBound(NamedTuple):
    """What one run demonstrated: ε is at least `lower_bound`, unless an event of probability 1 − confidence happened.

    Attributes
    ----------
    lower_bound : float
        The demonstrated ε.
    guesses, correct : int
        The number of guesses behind the bound, and how many of them were right.
    canaries : int
        The number of canaries.
    confidence : float
        The confidence of `lower_bound`.
    """

    lower_bound: float
    guesses: int
    correct: int
    canaries: int
    confidence: float


def one_run_bound(
    scores: ArrayLike,
    included: ArrayLike,
    delta: float,
    confidence: float,
    guesses: int | None = None,
    *,
    seed: int | None = None,
) -> OneRunBound:
    """Return a lower bound on ε from one run with canaries that were each included by a fair coin.

    The canaries with the highest scores are guessed to be included, equally many with the lowest scores to be left out,
    and the rest is not guessed.

    Parameters
    ----------
    scores : array_like of float
        One score per canary, from the output of the run.
    included : array_like of bool
        The coins: whether each canary was in the data.
    delta : float
        The δ at which ε is bounded, in [0, 1).
    confidence : float
        Above 0 and below 1.
    guesses : int, optional
        The number of guesses, which must be fixed before the scores are seen. By default m, m/2, m/4, … (six sizes) are
        tried, each at an equal fraction of the error budget, and the best is kept, so that the choice is accounted for.
    seed : int, optional
        Seed of the order among equal scores, chosen without looking at the coins; by default the operating system's.

    Returns
    -------
    OneRunBound
        The bound, and the guesses behind it.

    Formal guarantee
    ----------------
    If the coins are fair and independent of each other and of everything else, and the scores depend on them only
    through the output of a mechanism that is (ε, δ)-DP when one canary is added or removed, then lower_bound ≤ ε with
    probability at least `confidence`. Equal scores are put in a random order, drawn from the operating system or from a
    `seed` that was chosen without looking at the coins.

    References
    ----------
    Steinke, Nasr and Jagielski, Privacy Auditing with One (1) Training Run (2023).
    """
    delta = checks.fraction("delta", delta)
    error = 1.0 - checks.positive("confidence", checks.fraction("confidence", confidence))
    values = checks.vector("scores", scores, checks.count("the number of scores", np.size(scores)))
    coins = checks.labels("included", included, values.size, classes=2) == 1
    sizes = _sizes(values.size) if guesses is None else [_within(guesses, values.size)]
    # The shuffle breaks ties. A fixed order would not do: if canaries were listed by inclusion, the number of right
    # guesses would be determined and not random.
    if seed is not None:
        checks.integer("seed", seed, least=0)
    shuffle = np.random.default_rng(seed).permutation(values.size)
    ranked = coins[shuffle[np.argsort(values[shuffle], kind="stable")]]
    bounds = [_bound(ranked, size, delta, error / len(sizes)) for size in sizes]
    lower_bound, size, correct = max(bounds)
    return OneRunBound(lower_bound, size, correct, values.size, confidence)


def one_run_p_value(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """Return the largest probability that (ε, δ)-DP allows for at least `correct` right answers among `guesses`.

    Both tails and v·P[W = v] of W ~ Bin(r, q) are those of a Beta(v, r − v + 1) variable at q, in logarithms. The proof
    is in the docstring of this module.

    Parameters
    ----------
    canaries, guesses, correct : int
        m ≥ r ≥ v ≥ 0.
    epsilon, delta : float
        The privacy to be tested.

    Returns
    -------
    float
        The p-value.
    """
    if not 0 <= correct <= guesses <= canaries:
        raise ValueError(f"correct ≤ guesses ≤ canaries must hold, got {correct!r}, {guesses!r}, {canaries!r}.")
    if correct == 0:
        return 1.0
    shape = correct, guesses - correct + 1
    above, below = betainc(*shape, expit(epsilon)), betaincc(*shape, expit(epsilon))
    if below == 0.0:
        return 1.0
    if above < 1e-290:
        # P[W ≥ v] underflows here, but W falls faster than a geometric series of ratio P[W = v+1]/P[W = v].
        slack = 1.0 / (correct * (1.0 - (guesses - correct) * math.exp(epsilon) / (correct + 1)))
    else:
        log_weight = correct * log_expit(epsilon) + (guesses - correct) * log_expit(-epsilon) - betaln(*shape)
        slack = math.exp(math.log(above) + math.log(below) - log_weight)
    return float(min(1.0, above + canaries * delta * slack))


def _within(guesses: int, canaries: int) -> int:
    """Return the number of guesses; raise ValueError if it exceeds the number of canaries."""
    size = checks.count("guesses", guesses)
    if size > canaries:
        raise ValueError(f"guesses must be at most the number of canaries, {canaries}, got {size}.")
    return size


def _sizes(canaries: int) -> list[int]:
    """Return numbers of guesses that depend only on the number of canaries."""
    return sorted({max(1, canaries >> k) for k in range(_SIZES)})


def _bound(ranked: NDArray[np.bool_], guesses: int, delta: float, error: float) -> tuple[float, int, int]:
    """Return the smallest ε whose p-value reaches `error`, for coins in the order of their scores."""
    lowest = guesses // 2
    right_out = lowest - np.count_nonzero(ranked[:lowest])
    correct = int(right_out + np.count_nonzero(ranked[ranked.size - (guesses - lowest) :]))

    def surplus(epsilon: float) -> float:
        return one_run_p_value(ranked.size, guesses, correct, epsilon, delta) - error

    if surplus(0.0) >= 0:
        return 0.0, guesses, correct
    # (ε, δ)-DP holds for every larger ε as well: what excludes one ε excludes all below it.
    end = 1.0
    while surplus(end) < 0:
        end *= 2.0
    return float(brentq(surplus, 0.0, end, xtol=1e-12, rtol=1e-12)), guesses, correct
