"""From the scores of an attack to a lower bound on ε, at a stated confidence.

An attack assigns a score to each run of a mechanism: `absent` holds the scores of runs on data D, `present` those of
runs on D' = D and a canary. A threshold on the score is a test of one against the other, and (ε, δ)-DP bounds how good
a test can be: TPR ≤ e^ε·FPR + δ. So limits on the rates of one test are a limit on ε. There are two ways to account for
the choice of the threshold. It is chosen on some of the runs and its rates are measured on the others: given the first
part, the counts in the second are binomial. Or all runs measure a few thresholds at ranks that were fixed beforehand,
and the error budget is divided among them (`rank_bound`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betainccinv, betaincinv, ndtr, ndtri

from clipsilon._core import checks
from clipsilon.privacy.accounting import gaussian

Array = NDArray[np.float64]

_CANDIDATES = 400  # thresholds tried from each sample; denser ones would differ by less than the noise in their rates
_CURVE = 150  # thresholds plotted from each sample
_CELLS = 512  # splits of the error budget that the Gaussian bound walks through
# The largest error at which candidates are compared: at a larger one the limits would favour tails that are extreme by
# chance. For the Gaussian bound, μ should be the same at every threshold, so the width of the limits counts even more.
_CAUTION, _GAUSSIAN_CAUTION = 1e-3, 1e-6
_SPARE = 0.01  # fraction of the error budget spent on either rate alone being extreme
# Ranks of the thresholds that are fixed beforehand, and how the error budget is divided among them: at a small δ, the
# largest bounds come from few false positives, but for strong attacks not from the very first.
_RANKS = {1: 4, 5: 6, 20: 8, 40: 8, 80: 8, 160: 6, 320: 4, 640: 2, **{1280 * 2**k: 1 for k in range(39)}}
_EVALUATED, _RANK_CELLS = 3, 64  # how many of the most promising tests are evaluated in full, and how finely

# What the attacker guesses when the score is on the named side of the threshold ("above" includes it).
_DIRECTIONS = ("present if above", "present if below", "absent if above", "absent if below")
# How it is divided among the directions: attacks are made so that the canary raises the score.
_FRACTIONS = {"present if above": 0.45, "absent if below": 0.45, "present if below": 0.05, "absent if above": 0.05}


class Bound(NamedTuple):
    """What an audit demonstrated: ε is at least `lower_bound`, unless an event of probability 1 − confidence happened.

    A positive is a run on the guessed side of the threshold; it is false if the guess was wrong.

    Attributes
    ----------
    lower_bound : float
        The demonstrated ε.
    threshold : float
        The threshold on the score.
    direction : str
        What the attacker guesses on which side of the threshold, such as "present if above".
    false_positive_rate, true_positive_rate : float
        The rates among the runs that did not choose the threshold. At a fixed rank k of n, the former is (k − 1)/n,
        also if fewer runs are beyond the threshold because scores are equal.
    false_positive_limit, true_positive_limit : float
        Limits on these rates, from above and from below, each at half the error budget of the test.
    confidence : float
        The confidence of `lower_bound`.
    runs : int
        The number of runs in both arrays together.
    """

    lower_bound: float
    threshold: float
    direction: str
    false_positive_rate: float
    true_positive_rate: float
    false_positive_limit: float
    true_positive_limit: float
    confidence: float
    runs: int


class Counts(NamedTuple):
    """How often a test, or an array of tests, was positive.

    Attributes
    ----------
    hits, alarms : int or array of int
        True and false positives.
    hit_runs, alarm_runs : int or array of int
        The numbers of runs among which these were counted.
    """

    hits: Any
    hit_runs: Any
    alarms: Any
    alarm_runs: Any


class _Test(NamedTuple):
    """A direction, a threshold, and how often this test was positive."""

    direction: str
    threshold: float
    counts: Counts


def clopper_pearson_bound(absent: ArrayLike, present: ArrayLike, delta: float, confidence: float) -> Bound:
    """Bound ε from below by log((TPR − δ)/FPR), with one-sided Clopper–Pearson limits in place of the rates.

    Even-numbered runs choose the threshold and the direction that promise most; odd-numbered runs give the limits, each
    at half the error budget.

    Parameters
    ----------
    absent, present : array_like of float
        The scores of the runs without and with the canary, at least 2 each.
    delta : float
        The δ at which ε is bounded, in [0, 1).
    confidence : float
        Above 0 and below 1.

    Returns
    -------
    Bound
        The bound, and the test behind it.

    Formal guarantee
    ----------------
    If the runs of each array are i.i.d. and the mechanism is (ε, δ)-DP for the pair, then lower_bound ≤ ε with
    probability at least `confidence`. There is no other assumption: the two arrays may share their randomness run by
    run.

    Examples
    --------
    >>> absent, present = np.random.default_rng(0).normal([[0.0], [4.0]], size=(2, 1000))
    >>> clopper_pearson_bound(absent, present, delta=1e-5, confidence=0.95).lower_bound > 4.0
    True
    """
    delta, error = checks.fraction("delta", delta), _error(confidence)
    first, rest = _split(absent, present, every=2)

    def promise(counts: Counts) -> Array:
        return _log_ratio(*_limits(counts, min(error / 2, _CAUTION)), delta)

    threshold, direction = _choose(*first, promise)
    counts = _count(*rest, threshold, direction)
    bound = float(_log_ratio(*_limits(counts, error / 2), delta))
    return _report(bound, direction, threshold, counts, confidence, np.size(absent) + np.size(present))


def gaussian_bound(absent: ArrayLike, present: ArrayLike, delta: float, confidence: float) -> Bound:
    """Bound ε from below by the ε at δ of the smallest μ that the runs leave possible: μ ≥ Φ⁻¹(TPR) − Φ⁻¹(FPR).

    Every eighth run chooses the threshold: near the best one, μ hardly depends on it. On the others, the exact p-values
    of the two rates are combined (`_shift_limit`); two limits that each hold at half the error budget are 1.7 times as
    wide.

    Parameters
    ----------
    absent, present : array_like of float
        The scores of the runs without and with the canary, at least 2 each.
    delta : float
        The δ at which ε is bounded, in [0, 1). With δ = 0 any μ > 0 gives ∞.
    confidence : float
        Above 0 and below 1.

    Returns
    -------
    Bound
        The bound, and the test behind it.

    Formal guarantee
    ----------------
    If all runs are independent, those of each array identically distributed, and the pair is μ-GDP, then lower_bound ≤
    the ε of μ-GDP at δ, with probability at least `confidence`. That is a statement about μ. It bounds the ε of the
    mechanism itself only if its trade-off curve *is* a Gaussian one (an exact Gaussian mechanism, or a composition of
    them): a mechanism that is merely no worse than μ-GDP may have a smaller ε at this δ.

    References
    ----------
    Nasr et al., Tight Auditing of Differentially Private Machine Learning (2023).
    """
    delta, error = checks.fraction("delta", delta), _error(confidence)
    first, rest = _split(absent, present, every=8)

    def promise(counts: Counts) -> Array:
        alarm_limit, hit_limit = _limits(counts, min(error / 2, _GAUSSIAN_CAUTION))
        return np.asarray(ndtri(hit_limit) - ndtri(alarm_limit))

    threshold, direction = _choose(*first, promise)
    counts = _count(*rest, threshold, direction)
    shift = _shift_limit(counts, error, _weights(_count(*first, threshold, direction)))
    bound = _gaussian_epsilon(shift, delta)
    return _report(bound, direction, threshold, counts, confidence, np.size(absent) + np.size(present))


def rank_bound(absent: ArrayLike, present: ArrayLike, delta: float, confidence: float) -> Bound:
    """Bound ε from below by log((TPR − δ)/FPR) at thresholds whose ranks among the false positives are fixed.

    The thresholds are the scores of rank 1, 5, 20, 40, 80, … in the array of false positives, in all directions. No
    run is spent on choosing one: the error budget is divided among them, most of it for ranks from 5 to 160 and for
    those that take high scores for present, and the largest bound counts. The p-values of the two rates are combined as
    in `gaussian_bound`. It shows little if many scores are equal.

    Parameters
    ----------
    absent, present : array_like of float
        The scores of the runs without and with the canary, at least 2 each.
    delta : float
        The δ at which ε is bounded, in [0, 1).
    confidence : float
        Above 0 and below 1.

    Returns
    -------
    Bound
        The bound, and the test behind it; a score equal to the threshold is not a positive.

    Formal guarantee
    ----------------
    If all runs are independent, those of each array identically distributed, and the mechanism is (ε, δ)-DP for the
    pair, then lower_bound ≤ ε with probability at least `confidence` (docs/proofs.md, "Audits at fixed ranks"). Unlike
    `clopper_pearson_bound`, the two arrays must not share their randomness.

    Examples
    --------
    >>> absent, present = np.random.default_rng(0).normal([[0.0], [4.0]], size=(2, 1000))
    >>> rank_bound(absent, present, delta=1e-5, confidence=0.95).lower_bound > 4.0
    True
    """
    delta, error = checks.fraction("delta", delta), _error(confidence)
    low, high = np.sort(_scores("absent", absent)), np.sort(_scores("present", present))
    pairs = {"present": (low, high), "absent": (high, low)}
    tests = [test for direction in _DIRECTIONS for test in _at_ranks(*pairs[direction.split()[0]], direction)]
    shares = np.array([_FRACTIONS[test.direction] * _RANKS[test.counts.alarms + 1] for test in tests])
    shares /= shares.sum()

    def evaluate(k: int) -> float:
        counts = tests[k].counts
        weights = _rank_weights(counts.alarms + 1, counts.alarm_runs, counts.hit_runs)
        return _joint_limit(counts, error * shares[k], weights, partial(_log_ratio, delta=delta), _RANK_CELLS)

    every = Counts(*(np.array(column) for column in zip(*(test.counts for test in tests), strict=True)))
    promises = _log_ratio(*_limits(every, error * shares / 2), delta)
    found = [(evaluate(k), k) for k in np.argsort(promises)[::-1][:_EVALUATED]]
    bound, best = max(found)
    about = (tests[best].direction, tests[best].threshold, tests[best].counts)
    return _report(bound, *about, confidence, low.size + high.size, shares[best])


def tradeoff_points(absent: ArrayLike, present: ArrayLike) -> tuple[Array, Array]:
    """Return the attack's trade-off curve for a plot: (FPR, FNR) of guessing "present" from a threshold up.

    It runs from (0, 1) to (1, 0) in at most 301 points, densest in the tails, where a small ε at a small δ shows.
    """
    low, high = np.sort(_scores("absent", absent)), np.sort(_scores("present", present))
    counts = _count(low, high, _thresholds(low, high, _CURVE)[::-1], "present if above")
    false_positive = np.concatenate([[0.0], counts.alarms / counts.alarm_runs])
    false_negative = np.concatenate([[1.0], 1.0 - counts.hits / counts.hit_runs])
    return false_positive, false_negative


def lower_limit(successes: ArrayLike, trials: ArrayLike, error: ArrayLike) -> Array:
    """Return the Clopper–Pearson limit below which a binomial rate lies with probability at most `error`.

    Parameters
    ----------
    successes, trials : array_like of int
        Counts.
    error : float or array_like of float
        The probability of failure.

    Returns
    -------
    array of float
        The limit; 0 without successes.
    """
    count, failures = np.asarray(successes, dtype=np.float64), np.subtract(trials, successes)
    return np.where(count > 0, betaincinv(np.maximum(count, 1.0), failures + 1.0, error), 0.0)


def upper_limit(successes: ArrayLike, trials: ArrayLike, error: ArrayLike) -> Array:
    """Return the Clopper–Pearson limit above which a binomial rate lies with probability at most `error`.

    Parameters
    ----------
    successes, trials, error
        As in `lower_limit`.

    Returns
    -------
    array of float
        The limit; 1 without failures.
    """
    count, failures = np.asarray(successes, dtype=np.float64), np.subtract(trials, successes)
    # The complementary inverse keeps all digits of an error of 1e-9.
    return np.where(failures > 0, betainccinv(count + 1.0, np.maximum(failures, 1.0), error), 1.0)


def _scores(name: str, value: ArrayLike) -> Array:
    """Return the scores as a vector; raise ValueError for fewer than 2."""
    scores = checks.vector(name, value, np.size(value))
    if scores.size < 2:
        raise ValueError(f"{name} must hold the scores of at least 2 runs, got {scores.size}.")
    return scores


def _error(confidence: float) -> float:
    """Return 1 − confidence."""
    return 1.0 - checks.positive("confidence", checks.fraction("confidence", confidence))


def _split(absent: ArrayLike, present: ArrayLike, every: int) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """Return the sorted scores of the runs 0, every, 2·every, … of either array, and of all the others."""
    low, high = _scores("absent", absent), _scores("present", present)
    taken = np.s_[::every]
    first = np.sort(low[taken]), np.sort(high[taken])
    return first, (np.sort(np.delete(low, taken)), np.sort(np.delete(high, taken)))


def _thresholds(low: Array, high: Array, most: int) -> Array:
    """Return at most `most` scores of each sorted sample, including the extremes."""
    return np.unique(np.concatenate([low[_ranks(low.size, most)], high[_ranks(high.size, most)]]))


def _ranks(size: int, most: int) -> NDArray[np.int64]:
    """Return at most `most` ranks: all, or steps that grow from both ends, because rates matter by their ratio."""
    if size <= most:
        return np.arange(size)
    steps = np.geomspace(1, size, most // 2).astype(np.int64) - 1
    return np.concatenate([steps, size - 1 - steps])


def _count(low: Array, high: Array, threshold: ArrayLike, direction: str) -> Counts:
    """Count positives among the sorted scores `low` (absent) and `high` (present), for each threshold."""
    below = np.searchsorted(low, threshold), np.searchsorted(high, threshold)
    absent, present = below if direction.endswith("below") else (low.size - below[0], high.size - below[1])
    if direction.startswith("present"):
        return Counts(present, high.size, absent, low.size)
    return Counts(absent, low.size, present, high.size)


def _choose(low: Array, high: Array, promise: Callable[[Counts], Array]) -> tuple[float, str]:
    """Return the threshold and the direction whose counts promise the largest bound."""
    thresholds = _thresholds(low, high, _CANDIDATES)
    promises = np.stack([promise(_count(low, high, thresholds, direction)) for direction in _DIRECTIONS])
    row, column = np.unravel_index(np.argmax(promises), promises.shape)
    return float(thresholds[column]), _DIRECTIONS[row]


def _at_ranks(alarms: Array, hits: Array, direction: str) -> list[_Test]:
    """Return the tests with thresholds of fixed ranks among sorted scores of false positives.

    `alarms` holds the scores of the runs in which the guess is wrong, `hits` the others. With the threshold at rank k,
    counted from the guessed side, k − 1 of the false positives count as beyond it; fewer are, if scores are equal.
    """
    found, last = [], alarms.size - 1
    for rank in [rank for rank in _RANKS if rank <= alarms.size]:
        if direction.endswith("above"):
            threshold = alarms[last - (rank - 1)]
            beyond = hits.size - int(np.searchsorted(hits, threshold, side="right"))
        else:
            threshold = alarms[rank - 1]
            beyond = int(np.searchsorted(hits, threshold, side="left"))
        found.append(_Test(direction, float(threshold), Counts(beyond, hits.size, rank - 1, alarms.size)))
    return found


def _rank_weights(rank: int, alarm_runs: int, hit_runs: int) -> tuple[float, float]:
    """Return the standard errors of log FPR and log TPR, scaled to a unit vector, from numbers fixed beforehand.

    TPR, which is not known, is taken to be between FPR and 1, in the middle on the logarithmic scale.
    """
    rate = rank / (alarm_runs + 1.0)
    guess = math.sqrt(rate)
    spreads = [math.sqrt((1.0 - rate) / rank), math.sqrt((1.0 - guess) / (guess * hit_runs))]
    return spreads[0] / math.hypot(*spreads), spreads[1] / math.hypot(*spreads)


def _limits(counts: Counts, error: float | Array) -> tuple[Array, Array]:
    """Return FPR from above and TPR from below, each at `error`."""
    return upper_limit(counts.alarms, counts.alarm_runs, error), lower_limit(counts.hits, counts.hit_runs, error)


def _log_ratio(alarm_limit: Array, hit_limit: Array, delta: float) -> Array:
    """Return log((TPR − δ)/FPR), −∞ where TPR ≤ δ: such a test shows nothing."""
    excess = hit_limit - delta
    return np.log(np.where(excess > 0, excess, 1.0)) - np.log(alarm_limit) - np.where(excess > 0, 0.0, np.inf)


def _weights(counts: Counts) -> tuple[float, float]:
    """Return the standard errors of Φ⁻¹(FPR) and Φ⁻¹(TPR), scaled to a unit vector."""
    spreads = [_spread(counts.alarms, counts.alarm_runs), _spread(counts.hits, counts.hit_runs)]
    return spreads[0] / math.hypot(*spreads), spreads[1] / math.hypot(*spreads)


def _spread(successes: float, trials: int) -> float:
    """Return the standard error of Φ⁻¹ of a rate."""
    rate = (successes + 0.5) / (trials + 1.0)  # half a run of each kind is added, so that no rate is 0 or 1
    density = math.exp(-0.5 * ndtri(rate) ** 2) / math.sqrt(2.0 * math.pi)
    return math.sqrt(rate * (1.0 - rate) / trials) / density


def _shift_limit(counts: Counts, error: float, weights: tuple[float, float]) -> float:
    """Return a lower limit at `error` on Φ⁻¹(TPR) − Φ⁻¹(FPR), if the two counts are independent."""
    return _joint_limit(counts, error, weights, lambda alarm, hit: np.asarray(ndtri(hit) - ndtri(alarm)))


def _joint_limit(
    counts: Counts,
    error: float,
    weights: tuple[float, float],
    measure: Callable[[Array, Array], Array],
    cells: int = _CELLS,
) -> float:
    """Return a lower limit at `error` on measure(FPR, TPR), which falls in FPR and rises in TPR.

    Let x and y be the exact one-sided p-values of "FPR is at least p" and of "TPR is at most t", as upper normal
    quantiles. At the true (p, t) they are independent and, in distribution, no larger than standard normal. (At fixed
    ranks, y is no larger than that given x, which suffices: docs/proofs.md, "Audits at fixed ranks".) So with
    weights a, b on the unit circle, chosen beforehand, a·x + b·y ≥ z(error) has probability at most `error`: such
    (p, t) are excluded (Stouffer's method). By Clopper–Pearson, x ≥ s where p ≥ upper_limit(Φ(−s)), and so the t
    that survive there exceed lower_limit(Φ(−(z − a·s)/b)). The limit is the least measure(p, t) over s. Each cell
    of a grid of s counts with the worse ends of both, so that no s in between is missed. A fraction `_SPARE` of the
    error for each rate excludes x and y beyond the ends of the grid.
    """
    alarm_weight, hit_weight = weights
    total, end = -ndtri(error * (1.0 - 2.0 * _SPARE)), -ndtri(error * _SPARE)
    grid = np.linspace((total - hit_weight * end) / alarm_weight, end, cells + 1)
    rest = (total - alarm_weight * grid) / hit_weight
    # Limits at an error close to 1 are useless, and lost to rounding; those at a smaller error are safe.
    alarm_limits = upper_limit(counts.alarms, counts.alarm_runs, ndtr(-np.maximum(grid[1:], -end)))
    hit_limits = lower_limit(counts.hits, counts.hit_runs, ndtr(-np.maximum(rest[:-1], -end)))
    return float(np.min(measure(alarm_limits, hit_limits)))


def _gaussian_epsilon(shift: float, delta: float) -> float:
    """Return the ε of μ-GDP at δ for μ = `shift`; 0 if it is not positive, ∞ for δ = 0."""
    if shift <= 0.0:
        return 0.0
    return gaussian.epsilon(shift, delta) if delta > 0 else math.inf


def _report(
    bound: float, direction: str, threshold: float, counts: Counts, confidence: float, runs: int, share: float = 1.0
) -> Bound:
    """Return the bound with the rates of its test, which has a share of the error budget, and their limits."""
    alarm_limit, hit_limit = _limits(counts, _error(confidence) * share / 2)
    return Bound(
        lower_bound=max(0.0, bound),
        threshold=threshold,
        direction=direction,
        false_positive_rate=float(counts.alarms / counts.alarm_runs),
        true_positive_rate=float(counts.hits / counts.hit_runs),
        false_positive_limit=float(alarm_limit),
        true_positive_limit=float(hit_limit),
        confidence=confidence,
        runs=runs,
    )
