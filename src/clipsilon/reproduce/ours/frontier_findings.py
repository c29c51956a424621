"""What the frontier shows: which rule is best where, and whether it is as good as was expected."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from clipsilon.report.charts import Array, Series
from clipsilon.reproduce.base import Finding
from clipsilon.reproduce.numbers import join
from clipsilon.reproduce.ours.frontier_search import Setting

ONE_PASS = ("PCSGD, in order", "PCSGD", "CorrelatedSGD")
"""The rules that are compared in one pass."""

PLAIN = ONE_PASS[:2]
"""Plain clipping: in a fixed order, and with Poisson batches."""

SEVERAL = ("PCSGD", "DiceSGD", "CorrelatedSGD", "TrackedSGD", "AdaptiveDPSGD")
"""The rules that are compared with any number of epochs."""


class Found(NamedTuple):
    """A rule with its best setting, and its runs.

    Attributes
    ----------
    name : str
        The rule.
    epsilon : float
        The certified ε; infinite without noise.
    setting : Setting
        What the search found.
    gap : array of shape (replicates,)
        ‖θ − θ_PS‖² of the released models.
    """

    name: str
    epsilon: float
    setting: Setting
    gap: Array

    @property
    def mean(self) -> float:
        """The mean gap."""
        return float(self.gap.mean())

    @property
    def error(self) -> float:
        """The standard error of the mean gap."""
        return float(self.gap.std(ddof=1) / np.sqrt(self.gap.size))


class Goal(NamedTuple):
    """What a rule was expected to achieve, before anything was measured.

    Attributes
    ----------
    rule : str
        The rule; TrackedSGD with any number of epochs, others in one pass.
    epsilon : float
        The certified ε.
    others : tuple of str
        Rules of which the best is compared with.
    most : float
        The largest gap, in units of theirs.
    without_noise : bool, default False
        Whether theirs are without noise.
    """

    rule: str
    epsilon: float
    others: tuple[str, ...]
    most: float
    without_noise: bool = False


GOALS = {
    "quadratic": (
        Goal("CorrelatedSGD", 1.0, PLAIN, 0.6),
        Goal("CorrelatedSGD", 8.0, ONE_PASS[:1], 1.15, without_noise=True),
    ),
    "credit": (
        Goal("CorrelatedSGD", 2.0, PLAIN, 0.75),
        Goal("CorrelatedSGD", 8.0, PLAIN, 0.75),
        Goal("TrackedSGD", 0.5, ("DiceSGD",), 0.6),
        Goal("TrackedSGD", 2.0, ("DiceSGD",), 0.6),
        Goal("TrackedSGD", 8.0, ("DiceSGD",), 0.7),
    ),
    "imbalanced": (Goal("CorrelatedSGD", 8.0, PLAIN, 0.3),),
}


def _pairs(found: list[Found], first: str, second: str) -> list[tuple[Found, Found]]:
    """Return two rules side by side, from small ε to large."""
    at = {(one.name, one.epsilon): one for one in found}
    return [(at[first, epsilon], at[second, epsilon]) for epsilon in sorted({one.epsilon for one in found})]


def _ratios(pairs: list[tuple[Found, Found]]) -> str:
    return join([one.mean / other.mean for one, other in pairs])


def _clearly_less(first: Found, second: Found) -> bool:
    return bool(first.mean + 2 * np.hypot(first.error, second.error) < second.mean)


def in_one_pass(once: list[Found], quiet: Found) -> Finding:
    """Compare correlated noise with independent noise."""
    independent, sampled = (_pairs(once, "CorrelatedSGD", name) for name in ("PCSGD, in order", "PCSGD"))
    epsilons = join([one.epsilon for one, _ in sampled])
    return Finding(
        "In one pass, correlated noise is better than independent noise (ours).",
        f"The gap of CorrelatedSGD is {_ratios(independent)} times that of PCSGD in the same order and "
        f"{_ratios(sampled)} times that of PCSGD with Poisson batches, at ε = {epsilons}; at the largest, "
        f"{sampled[-1][0].mean / quiet.mean:.3g} times that without noise.",
        all(_clearly_less(*pair) for pair in [*independent, *sampled]),
    )


def feedback(several: list[Found]) -> Finding:
    """Compare DiceSGD with PCSGD."""
    pairs = _pairs(several, "DiceSGD", "PCSGD")
    return Finding(
        "Error feedback is the better choice at the same privacy (papers 1 and 3).",
        f"The gap of DiceSGD is {_ratios(pairs)} times the gap of PCSGD at certified "
        f"ε = {join([one.epsilon for one, _ in pairs])}.",
        all(_clearly_less(*pair) for pair in pairs),
        "The papers compare at a claimed ε that does not hold (erratum 1).",
    )


def memories(several: list[Found]) -> Finding:
    """Compare TrackedSGD with DiceSGD."""
    pairs = _pairs(several, "TrackedSGD", "DiceSGD")
    return Finding(
        "Feedback that stays with its record costs less than feedback in one common error (ours).",
        f"The gap of TrackedSGD is {_ratios(pairs)} times the gap of DiceSGD at certified "
        f"ε = {join([one.epsilon for one, _ in pairs])}.",
        all(_clearly_less(*pair) for pair in pairs),
    )


class Choice(NamedTuple):
    """Ways to spend a budget, each with its best number of epochs.

    Attributes
    ----------
    epsilon : float
        The certified ε.
    plain : Found
        The best of plain clipping.
    rivals : tuple of Found
        The best of correlated noise and of tracking, as far as they were measured.
    """

    epsilon: float
    plain: Found
    rivals: tuple[Found, ...]


def choices(found: list[Found]) -> list[Choice]:
    """Return the best of plain clipping, of correlated noise and of tracking, from small ε to large."""
    names = [name for name in ("CorrelatedSGD", "TrackedSGD") if any(one.name == name for one in found)]

    def best(rules: tuple[str, ...], epsilon: float) -> Found:
        return least([one for one in found if one.name in rules and one.epsilon == epsilon])

    return [
        Choice(epsilon, best(PLAIN, epsilon), tuple(best((name,), epsilon) for name in names))
        for epsilon in sorted({one.epsilon for one in found})
    ]


def over_epochs(chosen: list[Choice]) -> Finding:
    """Compare correlated noise and tracking with plain clipping, each with its best number of epochs."""
    pairs = [[(one, choice.plain) for one in choice.rivals] for choice in chosen]
    ratios = [f"the gap of {rule[0][0].name} is {_ratios(list(rule))}" for rule in zip(*pairs, strict=True)]
    better = [
        f"{one.name} at ε = {choice.epsilon:g}"
        for choice in chosen
        for one in choice.rivals
        if _clearly_less(one, choice.plain)
    ]
    return Finding(
        "With its best number of epochs, correlated noise or tracking is better than plain clipping (ours).",
        f"In units of the gap of PCSGD, {' and '.join(ratios)}, at ε = {join([one.epsilon for one in chosen])}. "
        f"Better by more than two standard errors: {', '.join(better) or 'none'}.",
        all(any(_clearly_less(one, choice.plain) for one in choice.rivals) for choice in chosen),
    )


def goals_reached(goals: tuple[Goal, ...], once: list[Found], several: list[Found]) -> Finding:
    """Say which goals are reached.

    Parameters
    ----------
    goals : tuple of Goal
        The goals.
    once, several : list of Found
        What was measured in one pass, also without noise, and with any number of epochs.

    Returns
    -------
    Finding
        It holds if all are reached.
    """
    words, reached = [], []
    for goal in goals:
        found = several if goal.rule == "TrackedSGD" else once
        first = next(one for one in found if (one.name, one.epsilon) == (goal.rule, goal.epsilon))
        epsilon = np.inf if goal.without_noise else goal.epsilon
        second = least([one for one in found if one.name in goal.others and one.epsilon == epsilon])
        ratio = first.mean / second.mean
        error = ratio * np.hypot(first.error / first.mean, second.error / second.mean)
        reached.append(bool(ratio <= goal.most))
        words.append(
            f"at ε = {goal.epsilon:g}, {goal.rule} has {ratio:.2f} ± {error:.2f} times the gap of {second.name}"
            f"{' without noise' if goal.without_noise else ''}; the goal, {goal.most:g}, is "
            f"{'reached' if reached[-1] else 'missed'}"
        )
    said = ". ".join(word[0].upper() + word[1:] for word in words) + "."
    return Finding("The goals that were set before the measurements are reached (ours).", said, all(reached))


def best_rules(once: list[Found], several: list[Found], start: Series, floor: Series) -> Finding:
    """Say which rule is best where, and whether it is better than not training.

    Parameters
    ----------
    once, several : list of Found
        What was measured in one pass and with any number of epochs; the latter may be empty.
    start, floor : Series
        The gap without training, and the limit of unbiased rules at each ε.

    Returns
    -------
    Finding
        It holds if the best rule is better than not training at each ε.
    """
    untrained, bounds = float(np.asarray(start.y)[0]), dict(zip(np.asarray(floor.x), np.asarray(floor.y), strict=True))
    words, gaps_found = [], []
    for epsilon in sorted(bounds):
        best = [least([one for one in found if one.epsilon == epsilon]) for found in (once, several) if found]
        gaps_found.append(least(best).mean)
        passes = ["one pass", *(str(one.setting.epochs) for one in best[1:])]
        named = [f"{one.name} in {count} ({one.mean:.2g})" for one, count in zip(best, passes, strict=True)]
        passed = "below" if gaps_found[-1] < bounds[epsilon] else "above"
        words.append(
            f"ε = {epsilon:g}: {', '.join(named)}, {passed} the limit of unbiased rules ({bounds[epsilon]:.2g})"
        )
    return Finding(
        "At a certified ε the best rule is better than not training (ours).",
        "; ".join(words) + f". Not training leaves {untrained:.2g}.",
        max(gaps_found) < untrained,
    )


def least(found: list[Found]) -> Found:
    """Return what has the smallest mean gap."""
    return min(found, key=lambda one: one.mean)
