"""Attacks: how an observer of a run scores it, to tell whether a canary was in the data.

A rule's release is equivalent to its noisy updates: steps, preconditioning and averages are computed from them. So
attacks on the whole run observe the rule with a step size of one, where θ_t − θ_{t+1} is the t-th noisy update.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from clipsilon.engine import Trace, run
from clipsilon.engine.tracking import MOST_BYTES, bytes_per_replicate
from clipsilon.privacy.auditing.canaries import Pair, canary_pair
from clipsilon.privacy.release import Release
from clipsilon.problems.problem import Problem
from clipsilon.rules.clipping import REACH
from clipsilon.rules.correlation import coefficients
from clipsilon.rules.outputs import Last
from clipsilon.rules.preconditioning import Plain
from clipsilon.rules.rule import Rule
from clipsilon.rules.sampling import Epochs, SinglePass
from clipsilon.rules.schedules import Constant

Array = NDArray[np.float64]
Statistic = Callable[[Trace], Array]

_NUMBERS = 10_000_000  # largest number of iterates in memory at a time


class Effort(NamedTuple):
    """How runs are executed: the number of threads, and whether to show a progress bar (as in `clipsilon.run`)."""

    n_jobs: int | None = None
    progress: bool | None = None


DEFAULT = Effort()


@dataclass(frozen=True)
class Attack:
    """An attack on a rule.

    Attributes
    ----------
    name : str
        The attack in words.
    pair : Pair
        The neighbouring data sets.
    rule : Rule
        The rule as it is observed.
    iterations : array of int
        Which iterates are kept.
    statistic : callable
        A function that maps a trace to one score per replicate.
    """

    name: str
    pair: Pair
    rule: Rule
    iterations: NDArray[np.int64]
    statistic: Statistic

    def scores(self, problem: Problem, steps: int, runs: int, seed: int | None, effort: Effort = DEFAULT) -> Array:
        """Return the scores of a number of runs on one of the two problems, computed in chunks that fit in memory.

        Parameters
        ----------
        problem : Problem
            The problem with or without the canary.
        steps : int
            The length of each run.
        runs : int
            The number of runs.
        seed : int or None
            Seed of the runs; None takes one from the operating system.
        effort : Effort
            Threads and progress bar.

        Returns
        -------
        array of shape (runs,)
            One score per run.
        """
        chunk = max(1, min(runs, _NUMBERS // self.iterations.size))
        if memory := bytes_per_replicate(problem, self.rule):
            chunk = max(1, min(chunk, MOST_BYTES // memory))
        found: list[Array] = []
        for first in range(0, runs, chunk):
            # Each chunk needs its own seed: replicates are numbered from zero in all of them.
            own = None if seed is None else int(np.random.SeedSequence([seed, first]).generate_state(1)[0])
            replicates = min(chunk, runs - first)
            trace = run(problem, self.rule, steps, 0.0, replicates, own, self.iterations, *effort)
            # The error is hidden state, so attackers do not see it.
            scores = np.asarray(self.statistic(replace(trace, error=None)), dtype=np.float64)
            if scores.shape != (replicates,):
                raise ValueError(
                    f"statistic must return one score per run, got shape {scores.shape} for {replicates} runs."
                )
            found.append(scores)
        return np.concatenate(found)


def canary_size(released: Release) -> float:
    """Return the size of a canary that adds the clip bound whenever it takes part; T times that with memories."""
    return released.bound * (released.steps if released.tracks else 1)


def watched(rule: Rule) -> Rule:
    """Return the rule as an observer of its noisy updates sees it."""
    return replace(rule, step=Constant(1.0), preconditioner=Plain(), output=Last())


def attacks(rule: Rule, released: Release, adjacency: str) -> list[Attack]:
    """Return the attacks worth trying on a rule, each with the canary that suits it.

    Parameters
    ----------
    rule : Rule
        The rule to attack.
    released : Release
        What it releases.
    adjacency : str
        Which data sets are neighbours.

    Returns
    -------
    list of Attack
        One or more attacks.
    """
    plain, steps = watched(rule), released.steps
    ends = np.array([0, steps // 2, steps])
    if released.counts:
        # The canary is longer than any threshold. The likelihood of a step depends on thresholds, which are not known.
        longest = canary_pair(released.records, released.bound * REACH, adjacency, counted=True)
        return [Attack("whole run", longest, plain, ends, _whole_run)]
    at_clip = canary_pair(released.records, canary_size(released), adjacency)
    if released.buffers is not None:
        whitened = _whitened(released, released.buffers)
        return [Attack("likelihood of the whole run", at_clip, plain, np.arange(steps + 1), whitened)]
    if released.feedback is None:
        found = [Attack("whole run", at_clip, plain, ends, _whole_run)]
        if released.participations != steps:
            likelihood = _likelihood(released, adjacency)
            found.append(Attack("likelihood of every step", at_clip, plain, np.arange(steps + 1), likelihood))
        return found
    # A residual that drains until the end of the run, and no longer.
    size = released.bound + steps * released.feedback.bound * released.batch
    bleeding = canary_pair(released.records, size, adjacency)
    return [
        Attack("whole run", at_clip, plain, ends, _whole_run),
        Attack("bleeding residual, whole run", bleeding, plain, ends, _whole_run),
        Attack("bleeding residual, second half", bleeding, plain, ends, _second_half),
        Attack("bleeding residual, last iterate", bleeding, rule, ends, _whole_run),
    ]


def _whole_run(trace: Trace) -> Array:
    """Return the sum of all noisy updates along the canary, or how far the last iterate moved against it."""
    return trace.theta[:, 0, 0] - trace.theta[:, -1, 0]


def _second_half(trace: Trace) -> Array:
    """Return the sum of the noisy updates of the second half along the canary."""
    return trace.theta[:, -2, 0] - trace.theta[:, -1, 0]


def _likelihood(released: Release, adjacency: str) -> Statistic:
    """Return the log-likelihood ratio of a run with the canary at its clip bound against one without."""
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


def _whitened(released: Release, buffers: Array) -> Statistic:
    """Return the log-likelihood ratio under correlated noise, of C·x, whose noise is independent."""
    from scipy.signal import fftconvolve  # slow to import

    steps, apart = released.steps, released.separation or 1
    c = coefficients(buffers, steps)
    shift = np.zeros(steps)  # of C·x by a record that takes part in the first step, and then every `apart` steps
    for t in range(0, steps, apart):
        shift[t:] += released.bound / released.batch * c[: steps - t]
    places = min(apart, steps)
    energies = np.cumsum(shift**2)[::-1][:places]

    def statistic(trace: Trace) -> Array:
        updates = -np.diff(trace.theta[:, :, 0], axis=1)
        white = fftconvolve(updates, c[np.newaxis], axes=1)[:, :steps]
        products = fftconvolve(white, shift[np.newaxis, ::-1], axes=1)[:, steps - 1 : steps - 1 + places]
        return np.asarray(logsumexp((products - 0.5 * energies) / released.noise_std**2, axis=1))

    return statistic


def _sometimes(q: float, gain: Array) -> Array:
    """Return the log-likelihood gain of taking part with probability q in each step, summed over the steps."""
    return np.asarray(np.log(1 - q + q * np.exp(np.minimum(gain, 700))).sum(axis=1))


def _one_in_each_pass(gain: Array, released: Release) -> Array:
    """Return the log-likelihood gain of one participation per pass, at a random place."""
    batches = -(-released.records // released.batch)
    firsts = range(0, released.steps, batches)
    return np.asarray(sum(logsumexp(gain[:, first : first + batches], axis=1) for first in firsts))
