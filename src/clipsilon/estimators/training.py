"""The execution of a plan: its phases one after another, on records in memory or elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from clipsilon.engine import run
from clipsilon.engine.projection import project
from clipsilon.estimators import rescaling
from clipsilon.estimators.plans import TrainingPlan
from clipsilon.problems.problem import Problem
from clipsilon.problems.regions import Region
from clipsilon.problems.regions import project as project_onto
from clipsilon.rules.rule import Rule

Array = NDArray[np.float64]


class Runner(Protocol):
    """What runs rules on the records, wherever these are."""

    @property
    def problem(self) -> Problem:
        """Loss, response and size of the data."""
        ...

    def run(
        self,
        rule: Rule,
        steps: int,
        seed: int | None,
        start: float | Array,
        *,
        directions: Array | None = None,
        region: Region | None = None,
    ) -> Array:
        """Run a rule on the records and return its output.

        Parameters
        ----------
        rule : Rule
            The rule to run.
        steps : int
            Number of iterations.
        seed : int or None
            None for cryptographic noise.
        start : float or array
            θ_0; a number stands for all entries.
        directions : array, optional
            One direction per column: records are projected on these, and θ has one entry for each.
        region : Region, optional
            The region of θ, without directions.

        Returns
        -------
        array
            θ.
        """
        ...


@dataclass(frozen=True)
class MemoryRunner:
    """Run rules on a problem in memory.

    Parameters
    ----------
    problem : Problem
        The records and their loss.
    threads : int
        Number of threads. The result does not depend on it.
    progress : bool or None
        As in `clipsilon.run`.
    """

    problem: Problem
    threads: int
    progress: bool | None

    def run(
        self,
        rule: Rule,
        steps: int,
        seed: int | None,
        start: float | Array,
        *,
        directions: Array | None = None,
        region: Region | None = None,
    ) -> Array:
        """Run a rule on the problem, in a region, or on its projection.

        Parameters
        ----------
        rule, steps, seed, start, directions, region
            As in `Runner.run`.

        Returns
        -------
        array
            θ.
        """
        problem = self.problem if region is None else self.problem.within(region)
        problem = problem if directions is None else _projected(problem, directions)
        trace = run(problem, rule, steps, start, seed=seed, record=[steps], n_jobs=self.threads, progress=self.progress)
        return np.array(trace.output[0])


def _projected(problem: Problem, directions: Array) -> Problem:
    features = project(problem.features, directions)
    return Problem(features, problem.labels, loss=problem.loss, weights=problem.weights, groups=problem.groups)


def execute(plan: TrainingPlan, runner: Runner, *, seed: int | None, start: float | Array) -> Array:
    """Run all phases of a plan and return θ.

    Parameters
    ----------
    plan : TrainingPlan
        The plan.
    runner : Runner
        Where the records are.
    seed : int or None
        None for cryptographic noise. Later phases use seeds derived from it.
    start : float or array
        θ_0.

    Returns
    -------
    array
        θ, a function of what the phases released.
    """
    first, *others = plan.phases
    theta = runner.run(first.rule, first.steps, seed, start)
    if not rescaling.slopes(theta, plan.has_intercept).any():
        return theta  # has no direction
    before = rescaling.numbers(np.broadcast_to(start, theta.shape), plan.has_intercept)
    if plan.keeps_length and before[0] > 0:
        return rescaling.rescale(theta, before)
    if not others:
        return theta
    found = rescaling.initial_numbers(theta, before, plan.has_intercept)
    trained, done = theta, first.steps
    for phase in others:
        later = derive_seed(seed, done)
        if phase.rescales:
            directions = rescaling.directions(trained, plan.has_intercept)
            found = runner.run(phase.rule, phase.steps, later, found, directions=directions)
        else:
            ball = rescaling.ball(trained, plan.has_intercept)
            project_onto(ball, trained)  # a run starts in its region
            trained = runner.run(phase.rule, phase.steps, later, trained, region=ball)
        done += phase.steps
    return rescaling.rescale(trained, rescaling.cap_intercept(trained, found) if plan.has_intercept else found)


def derive_seed(seed: int | None, number: int) -> int | None:
    """Return a seed for a later part of a fit: the same noise twice would not average out."""
    return None if seed is None else int(np.random.SeedSequence((seed, number)).generate_state(1)[0])
