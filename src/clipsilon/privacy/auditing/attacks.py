"""Attacks: how an observer of a run scores it, to tell whether a canary was in the data.

What a rule releases is as good as its noisy updates: steps, preconditioning and averages are computed from them.
So attacks on the whole run watch the rule with a step of one, where θ_t − θ_{t+1} is the t-th noisy update.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from clipsilon.engine import Trace, run
from clipsilon.privacy.auditing.canaries import Pair, canary_pair
from clipsilon.privacy.release import Release
from clipsilon.problems.problem import Problem
from clipsilon.rules.outputs import Last
from clipsilon.rules.preconditioning import Plain
from clipsilon.rules.rule import Rule
from clipsilon.rules.sampling import Epochs, SinglePass
from clipsilon.rules.schedules import Constant

Array = NDArray[np.float64]
Statistic = Callable[[Trace], Array]

_NUMBERS = 10_000_000  # iterates kept in memory at a time


class Effort(NamedTuple):
    """How runs are made: threads, and whether there is a progress bar (as in `clipsilon.run`)."""

    n_jobs: int | None = None
    progress: bool | None = None


DEFAULT = Effort()


@dataclass(frozen=True)
class Attack:
    """A pair of data sets, the rule as it is watched, which iterates are kept, and the score of a run."""

    name: str
    pair: Pair
    rule: Rule
    iterations: NDArray[np.int64]
    statistic: Statistic

    def scores(self, problem: Problem, steps: int, runs: int, seed: int | None, effort: Effort = DEFAULT) -> Array:
        """Scores of that many runs on one of the two problems, a part of them at a time."""
        part = max(1, min(runs, _NUMBERS // self.iterations.size))
        found: list[Array] = []
        for first in range(0, runs, part):
            # A seed of its own for each part: replicates are numbered from zero in all of them.
            own = None if seed is None else int(np.random.SeedSequence([seed, first]).generate_state(1)[0])
            replicates = min(part, runs - first)
            trace = run(problem, self.rule, steps, 0.0, replicates, own, self.iterations, *effort)
            # What is hidden from the world is hidden from its attackers.
            scores = np.asarray(self.statistic(replace(trace, error=None)), dtype=np.float64)
            if scores.shape != (replicates,):
                raise ValueError(
                    f"statistic must give one score a run, got shape {scores.shape} for {replicates} runs."
                )
            found.append(scores)
        return np.concatenate(found)


def watched(rule: Rule) -> Rule:
    """The rule as an observer of its noisy updates sees it."""
    return replace(rule, step=Constant(1.0), preconditioner=Plain(), output=Last())


def attacks(rule: Rule, released: Release, adjacency: str) -> list[Attack]:
    """The attacks worth trying on a rule, each with the canary that suits it."""
    plain, steps = watched(rule), released.steps
    ends = np.array([0, steps // 2, steps])
    at_clip = canary_pair(released.records, released.bound, adjacency)
    if released.feedback is None:
        found = [Attack("whole run", at_clip, plain, ends, _whole_run)]
        if released.participations != steps:
            likelihood = _likelihood(released, adjacency)
            found.append(Attack("likelihood of every step", at_clip, plain, np.arange(steps + 1), likelihood))
        return found
    # A residual that bleeds out for the rest of the run, and not longer.
    size = released.bound + steps * released.feedback.bound * released.batch
    bleeding = canary_pair(released.records, size, adjacency)
    return [
        Attack("whole run", at_clip, plain, ends, _whole_run),
        Attack("bleeding residual, whole run", bleeding, plain, ends, _whole_run),
        Attack("bleeding residual, second half", bleeding, plain, ends, _second_half),
        Attack("bleeding residual, last iterate", bleeding, rule, ends, _whole_run),
    ]


def _whole_run(trace: Trace) -> Array:
    """The sum of all noisy updates along the canary, or how far the last iterate went against it."""
    return trace.theta[:, 0, 0] - trace.theta[:, -1, 0]


def _second_half(trace: Trace) -> Array:
    return trace.theta[:, -2, 0] - trace.theta[:, -1, 0]


def _likelihood(released: Release, adjacency: str) -> Statistic:
    """The log-likelihood ratio of a run with the canary at its clip bound against one without."""
    shift = released.bound / released.batch
    scale = released.noise_std**2
    low = -shift if adjacency == "replace-one" else 0.0

    def statistic(trace: Trace) -> Array:
        updates = -np.diff(trace.theta[:, :, 0], axis=1)
        up, down = ((updates * at - at**2 / 2) / scale for at in (shift, low))
        if isinstance(released.sampling, SinglePass | Epochs):
            return _one_in_each_pass(up, released) - _one_in_each_pass(down, released)
        without = 0.0 if low == 0.0 else _sometimes(released.rate, down)
        return _sometimes(released.rate, up) - without

    return statistic


def _sometimes(q: float, gain: Array) -> Array:
    """The log-likelihood gain of taking part with probability q in every step, summed."""
    return np.asarray(np.log(1 - q + q * np.exp(np.minimum(gain, 700))).sum(axis=1))


def _one_in_each_pass(gain: Array, released: Release) -> Array:
    """The log-likelihood gain of one participation in each pass, at a place that is left to chance."""
    batches = -(-released.records // released.batch)
    firsts = range(0, released.steps, batches)
    return np.asarray(sum(logsumexp(gain[:, first : first + batches], axis=1) for first in firsts))
