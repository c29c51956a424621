"""A simulated crowd: how far a model gets with so many devices, their budgets, and their failings.

Records are drawn block by block and forgotten, so memory does not grow with the number of devices. Nothing here is
private, as there is nobody whose records were used.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import dataclass
from threading import Event
from typing import NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from clipsilon._core import checks
from clipsilon.datasets import synthetic
from clipsilon.engine.arrays import problem_arrays
from clipsilon.engine.crowd import FILLED, LIES, REFUSED, VANISHED, Conduct, begin_rounds, take_block
from clipsilon.engine.grid import scaling
from clipsilon.engine.loop import initial_state
from clipsilon.engine.streams import Streams, spawn
from clipsilon.problems.losses import HuberRegression, MallowsLogistic
from clipsilon.problems.losses.base import Loss, sensitivity_of
from clipsilon.problems.problem import Problem
from clipsilon.rules.presets import LDPASGD
from clipsilon.rules.schedules import Power, Schedule

Array = NDArray[np.float64]

POPULATIONS: dict[str, tuple[Callable[..., tuple[Array, Array]], Loss]] = {
    "linear": (synthetic.linear, HuberRegression()),
    "logistic": (synthetic.logistic, MallowsLogistic()),
}
_BLOCKS = 64  # how often the error is recorded
_MOST_BLOCK = 2**17  # devices whose records are in memory at a time
_TAIL = float(np.sqrt(2 * np.log(1e9)))  # an honest report is longer than √d + this, in noise, once in 10⁹ times


class Budgets(NamedTuple):
    """A law of budgets.

    Parameters
    ----------
    kind : {"constant", "uniform", "loguniform", "choice"}
        The law. "uniform" and "loguniform" lie between two numbers, and "choice" is one of several.
    values : tuple of float
        Its numbers, above 0.
    """

    kind: str
    values: tuple[float, ...]

    def draw(self, many: int, rng: Generator) -> Array:
        """Return so many budgets."""
        low, high = self.values[0], self.values[-1]
        if self.kind == "uniform":
            return rng.uniform(low, high, many)
        if self.kind == "loguniform":
            return np.asarray(np.exp(rng.uniform(np.log(low), np.log(high), many)))
        return rng.choice(np.array(self.values), many)

    def times(self, factor: float) -> Budgets:
        """Return the law of budgets that are larger by a factor."""
        return self._replace(values=tuple(factor * value for value in self.values))

    def __str__(self) -> str:
        return f"{self.kind}:{','.join(f'{value:g}' for value in self.values)}"


def parse_budgets(text: str) -> Budgets:
    """Return a law of budgets from a text such as "uniform:0.5,2", "choice:0.1,1,10" or "constant:1"."""
    kind, _, rest = str(text).partition(":")
    sizes = {"constant": (1, 1), "uniform": (2, 2), "loguniform": (2, 2), "choice": (1, 100)}
    try:
        values = tuple(float(part) for part in rest.split(","))
        is_law = sizes[kind][0] <= len(values) <= sizes[kind][1] and all(0 < value < np.inf for value in values)
        is_law &= kind == "choice" or values[0] <= values[-1]
    except (KeyError, ValueError):
        is_law = False
    if not is_law:
        raise ValueError(
            "budgets must be constant:NUMBER, uniform:LOW,HIGH, loguniform:LOW,HIGH or choice:NUMBER,NUMBER,… with "
            f"numbers above 0, got {text!r}."
        )
    return Budgets(kind, values)


@dataclass(frozen=True)
class Crowd:
    """The devices of a simulation.

    Parameters
    ----------
    devices : int
        How many of them come, one after the other.
    dimension : int, default 20
        Number of features besides the intercept.
    budgets : str, default "uniform:0.5,2"
        The law of the budgets μ, as `parse_budgets` reads it.
    population : {"linear", "logistic"}, default "linear"
        Where records come from: paper 4's `datasets.linear` with `HuberRegression`, or `datasets.logistic` with
        `MallowsLogistic`.
    dropout : float, default 0.0
        The probability that a device asks for the model and never reports.
    delay : float, default 0.0
        The mean number of rounds by which a report is late; the law is geometric.
    liars : float, default 0.0
        The probability that a device sends, in place of its report, the longest vector that is plausible for its
        budget, always in the same direction.
    """

    devices: int
    dimension: int = 20
    budgets: str = "uniform:0.5,2"
    population: str = "linear"
    dropout: float = 0.0
    delay: float = 0.0
    liars: float = 0.0

    def __post_init__(self) -> None:
        checks.count("devices", self.devices)
        checks.count("dimension", self.dimension)
        parse_budgets(self.budgets)
        checks.choice("population", self.population, POPULATIONS)
        checks.fraction("dropout", self.dropout)
        checks.nonnegative("delay", self.delay)
        checks.fraction("liars", self.liars)

    @property
    def loss(self) -> Loss:
        """The loss of one record."""
        return POPULATIONS[self.population][1]

    @property
    def truth(self) -> Array:
        """θ*, the minimiser of the population's risk: coefficients of 1 and, for the linear data, the scale 2."""
        ones = np.ones(self.dimension + 1)
        return np.append(ones, 2.0) if self.population == "linear" else ones

    @property
    def start(self) -> Array:
        """θ_0: coefficients of 0 and, for the linear data, the scale 1."""
        return np.append(np.zeros(self.dimension + 1), [1.0] * (self.population == "linear"))

    @property
    def law(self) -> Budgets:
        """The law of the budgets."""
        return parse_budgets(self.budgets)

    def block(self, many: int, rng: Generator) -> tuple[Problem, Array, Conduct]:
        """Return the records, budgets and conduct of the next devices."""
        mus = self.law.draw(many, rng)
        features, labels = POPULATIONS[self.population][0](many, self.dimension, seed=rng)
        delays = rng.geometric(1.0 / (1.0 + self.delay), many) - 1
        delays[rng.random(many) < self.dropout] = -1
        problem = Problem(features, labels, loss=self.loss)
        root = np.sqrt(problem.dimension)
        longest = sensitivity_of(self.loss) * (0.5 + (root + _TAIL) / mus)
        lies = np.where(rng.random(many) < self.liars, longest / root, np.nan)
        return problem, mus, Conduct(delays, lies)


@dataclass(frozen=True)
class Averaging:
    """How the reports of a round become one, as in `clipsilon.local.Server`.

    Parameters
    ----------
    batch : int, default 100
        b, the number of reports after which a round closes.
    weights : {"budget", "equal"}, default "budget"
        As in `clipsilon.LDPASGD`.
    variance : float, optional
        V of the weights, as there.
    trim : float, default 0.0
        The fraction of the largest, and of the smallest, values of each coordinate that a round leaves out.
    staleness : int, default 4
        For how many rounds after its own a report may count; later ones are refused.
    """

    batch: int = 100
    weights: str = "budget"
    variance: float | None = None
    trim: float = 0.0
    staleness: int = 4

    def __post_init__(self) -> None:
        checks.count("batch", self.batch)
        checks.below_half("trim", self.trim)
        checks.integer("staleness", self.staleness, least=0)


@dataclass(frozen=True, eq=False)
class Simulation:
    """The errors of simulated runs, each with a crowd of its own.

    Attributes
    ----------
    crowd : Crowd
        The devices.
    averaging : Averaging
        How reports were averaged.
    devices : array of shape (k,)
        The numbers of devices that had come at each recording.
    rounds : array of shape (replicates, k)
        The rounds that were complete.
    last, average : array of shape (replicates, k)
        The squared distances from θ* of the last model and of the mean of all models.
    counts : dict of str to int
        Over all replicates: "reports" that entered a round, devices that "vanished", reports that were "refused", and
        "lies".
    """

    crowd: Crowd
    averaging: Averaging
    devices: NDArray[np.int64]
    rounds: NDArray[np.int64]
    last: Array
    average: Array
    counts: dict[str, int]


def simulate(
    crowd: Crowd,
    averaging: Averaging | None = None,
    step: Schedule | None = None,
    *,
    replicates: int = 4,
    seed: int | None = None,
    n_jobs: int | None = None,
) -> Simulation:
    """Simulate LDPASGD on a crowd of devices, with the compiled code of `clipsilon.run`.

    Parameters
    ----------
    crowd : Crowd
        The devices.
    averaging : Averaging, optional
        How the reports of a round become one; by default rounds of 100, weighted by budget.
    step : Schedule, optional
        The step sizes; by default `default_step` of the batch.
    replicates : int, default 4
        How often a crowd is drawn.
    seed : int, optional
        Makes the simulation repeatable.
    n_jobs : int, optional
        Number of threads, each with a replicate of its own; by default one per core.

    Returns
    -------
    Simulation

    Raises
    ------
    FloatingPointError
        If a model is no longer finite, because steps are too large.

    Examples
    --------
    >>> found = simulate(Crowd(20_000, dimension=3, budgets="constant:4"), Averaging(10), replicates=2, seed=0)
    >>> bool(found.average.mean(axis=0)[-1] < 0.1)
    True
    """
    how = Averaging() if averaging is None else averaging
    sizes = default_step(how.batch) if step is None else step
    streams = spawn(seed, checks.count("replicates", replicates))
    most = checks.count("n_jobs", n_jobs) if n_jobs is not None else os.cpu_count() or 1
    stop = Event()
    with ThreadPoolExecutor(min(most, replicates)) as pool:
        try:
            found = list(pool.map(lambda own: _simulate_one(crowd, how, sizes, own, stop), streams))
        finally:
            stop.set()  # after Ctrl-C or an error, the pool waits for the other threads
    rounds, last, average = (np.array([each[k] for each in found]) for k in range(3))
    counts = np.sum([each[3] for each in found], axis=0)
    lost = {"vanished": int(counts[VANISHED]), "refused": int(counts[REFUSED])}
    reports = replicates * crowd.devices - sum(lost.values())
    ends = np.cumsum(_blocks(crowd.devices))
    return Simulation(crowd, how, ends, rounds, last, average, {"reports": reports, **lost, "lies": int(counts[LIES])})


def default_step(batch: int) -> Power:
    """Return steps 0.1·√b·r^(−1/2) in round r, with at most 2 for 0.1·√b: the less noise, the larger the steps."""
    return Power(min(0.1 * float(np.sqrt(checks.count("batch", batch))), 2.0), 0.5)


def _blocks(devices: int) -> list[int]:
    """Return the sizes of the blocks, which follow from the number of devices alone."""
    size = min(-(-devices // _BLOCKS), _MOST_BLOCK)
    return [min(size, devices - first) for first in range(0, devices, size)]


def _simulate_one(
    crowd: Crowd, how: Averaging, step: Schedule, streams: Streams, stop: Event
) -> tuple[list[int], list[float], list[float], NDArray[np.int64]]:
    """Return rounds, errors of the last and of the mean model after each block, and counts, of one replicate."""
    rounds: list[int] = []
    lasts: list[float] = []
    averages: list[float] = []
    state = current = None
    beyond = int(how.trim * how.batch)
    for many in _blocks(crowd.devices):
        if stop.is_set():
            raise CancelledError
        problem, mus, conduct = crowd.block(many, streams.records)
        rule = LDPASGD(step, mus, batch=how.batch, weights=how.weights, variance=how.variance).on(problem, 1)
        if state is None or current is None:
            state = initial_state(problem, rule, crowd.start)
            current = begin_rounds(state.theta, how.batch, how.staleness)
        fixed = problem_arrays(problem), rule.update(), scaling(problem, rule, 1), conduct, beyond
        if not take_block(*fixed, current, state, streams.noise, streams.response):
            raise FloatingPointError(f"θ is no longer finite after {state.clock[0]} rounds: take smaller steps.")
        rounds.append(int(state.clock[0]))
        mean = state.summary[: state.theta.size]
        lasts.append(float(np.sum((state.theta - crowd.truth) ** 2)))
        averages.append(float(np.sum((mean - crowd.truth) ** 2)))
    assert current is not None  # there is at least one block
    current.counts[FILLED] = 0
    return rounds, lasts, averages, current.counts
