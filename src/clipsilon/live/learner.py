"""The rule of a stream, and how it takes its steps: each by the engine's own loop, on one batch of records.

The steps are those that `clipsilon.run` takes on a table of all records in the order in which they came, to the bit:
the same compiled loop, on the same grid, with the same streams.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clipsilon._core import checks
from clipsilon.engine.arrays import ProblemArrays, problem_arrays, records, visible_models
from clipsilon.engine.grid import Scaling, check_rounding, scaling
from clipsilon.engine.loop import Recording, State, advance, empty_recording, initial_state
from clipsilon.engine.remote import RemoteProblem
from clipsilon.engine.runner import start_of
from clipsilon.engine.streams import Streams
from clipsilon.engine.threads import step_threads
from clipsilon.privacy.calibration import calibrated, longest_run
from clipsilon.problems.losses.base import Loss, label_kind
from clipsilon.problems.regions import Region
from clipsilon.rules.noise import Correlated
from clipsilon.rules.presets import CorrelatedSGD
from clipsilon.rules.rule import Rule
from clipsilon.rules.schedules import Constant, Schedule

Array = NDArray[np.float64]

_STEPS = 400  # about so many in the first horizon, by default
_TIME = 30.0  # sum of all step sizes, for curvatures of at most 1/4
_MOST_STEPS = 10**6  # for which the matrix of the noise is made
_NO_ORDER = np.empty(0, dtype=np.int64)


class Public(NamedTuple):
    """The public numbers of a stream, from which its noise follows before the first record.

    Parameters
    ----------
    columns : int
        Number of features, with the column of ones for an intercept.
    loss : Loss
        The loss of one record.
    region : Region or None
        Where θ may be.
    epsilon, delta : float
        The budget for the first horizon.
    limit : float
        The ε that no extension passes.
    adjacency : str
        How neighbouring streams differ.
    horizon : int
        Number of records that the noise is made for.
    batch : int
        B, the number of records per step.
    clip : float
        The norm to which each record's gradient is clipped.
    step : Schedule
        The step sizes.
    deploy_every : int
        Number of steps between deployments.
    """

    columns: int
    loss: Loss
    region: Region | None
    epsilon: float
    delta: float
    limit: float
    adjacency: str
    horizon: int
    batch: int
    clip: float
    step: Schedule
    deploy_every: int


class Noise(NamedTuple):
    """What is computed when a stream is created, and kept: the noise, and the longest run it is made for.

    Parameters
    ----------
    std : float
        Standard deviation of w.
    longest : int
        The largest number of steps to which the stream can be extended.
    buffers : array of shape (k, 2)
        The matrix C, as for `noise.Correlated`.
    """

    std: float
    longest: int
    buffers: Array

    def settings(self) -> dict[str, str]:
        """Return the numbers as text, to the bit."""
        pairs = [[number.hex() for number in pair] for pair in self.buffers.tolist()]
        return {"noise_std": self.std.hex(), "longest": str(self.longest), "buffers": json.dumps(pairs)}

    @classmethod
    def from_settings(cls, stored: Mapping[str, str]) -> Noise:
        """Invert `settings`; raise KeyError or ValueError if that is impossible."""
        pairs = [[float.fromhex(number) for number in pair] for pair in json.loads(stored["buffers"])]
        return cls(float.fromhex(stored["noise_std"]), int(stored["longest"]), np.array(pairs))


def default_batch(horizon: int) -> int:
    """Return a batch size for which a stream of this length has about 400 steps."""
    return max(1, round(horizon / _STEPS))


def default_clip(loss: Loss, columns: int) -> float:
    """Return the clip for columns of unit order: what the gradients are long at first, as for the estimators."""
    return (1.0 if label_kind(loss) in ("binary", "class") else 0.5) * sqrt(columns)


def default_step(loss: Loss, steps: int) -> Schedule:
    """Return a constant step for columns of unit order.

    All steps together are 30 over the largest curvature of the loss of a margin, relative to that of a logistic one:
    the start is forgotten, and noise is not yet what limits accuracy at ε = 1 and 1,000 records per entry of θ.
    """
    curvature = 1.0 if label_kind(loss) in ("binary", "class") else 4.0
    return Constant(min(1.0, _TIME / steps) / curvature)


def steps_of(public: Public, horizon: int) -> int:
    """Return the number of steps that `horizon` records make; the last one may have fewer records."""
    return -(-horizon // public.batch)


def rule_of(public: Public, noise_std: float, buffers: Array | None = None) -> Rule:
    """Return the rule of a stream, whose output is not yet filled in.

    Parameters
    ----------
    public : Public
        The public numbers.
    noise_std : float
        Standard deviation of w.
    buffers : array of shape (k, 2), optional
        The matrix of the noise; by default that of the preset, computed anew.

    Returns
    -------
    Rule
    """
    about = (public.batch, "in-order", public.deploy_every)
    return CorrelatedSGD(public.step, public.clip, noise_std, *about, buffers=buffers)


def calibrate_noise(public: Public) -> Noise:
    """Return the least noise for the budget, and the number of steps to which the limit allows an extension."""
    steps = steps_of(public, public.horizon)
    budget = (public.epsilon, public.delta, public.horizon, steps, "certified", public.adjacency)
    rule = calibrated(rule_of(public, 1.0), *budget)
    assert isinstance(rule.noise, Correlated)
    noise = Noise(float(rule.noise.std), steps, rule.noise.buffers)
    if public.limit == public.epsilon:
        return noise
    records = _MOST_STEPS * public.batch
    most = longest_run(rule, public.limit, public.delta, records, public.adjacency, _MOST_STEPS)
    return noise._replace(longest=max(steps, most))


@dataclass(frozen=True)
class Progress:
    """Where a stream is: the state of the update and its random streams. Both are secret, but for θ and the average."""

    state: State
    streams: Streams

    @property
    def steps(self) -> int:
        """The number of steps done."""
        return int(self.state.clock[0])

    @property
    def is_finite(self) -> bool:
        """Whether θ is finite."""
        return bool(np.isfinite(self.state.theta).all())

    def copy(self) -> Progress:
        """Return an independent copy."""
        theta = self.state.theta.copy()
        is_greedy = self.state.deployed is self.state.theta
        arrays = {name: value.copy() for name, value in self.state._asdict().items()}
        arrays.update(theta=theta, deployed=theta if is_greedy else arrays["deployed"])
        streams = self.streams.copy()
        streams.restore(self.streams.state())
        return Progress(State(**arrays), streams)

    def to_bytes(self) -> bytes:
        """Return the arrays of the state, one after the other."""
        return b"".join(value.tobytes() for value in self.state)

    def restore(self, content: bytes, streams: list[object]) -> None:
        """Fill in what `to_bytes` and `Streams.state` have returned; raise ValueError if the sizes differ."""
        if len(content) != sum(value.nbytes for value in self.state):
            raise ValueError("the stored state has another size")
        place = 0
        for value in self.state:
            stored = np.frombuffer(content, dtype=value.dtype, count=value.size, offset=place)
            value[...] = stored.reshape(value.shape)
            place += value.nbytes
        self.streams.restore(streams)


class Learner:
    """The rule of a stream on the grid of the longest run that it may become.

    Parameters
    ----------
    public : Public
        The public numbers.
    noise : Noise
        What `calibrate_noise` found when the stream was created.
    horizon : int
        The present number of records at the end.

    Attributes
    ----------
    longest : int
        The largest number of records that the horizon can be extended to.
    """

    def __init__(self, public: Public, noise: Noise, horizon: int):
        self.public, self.noise = public, noise
        extends = noise.longest > steps_of(public, public.horizon)
        self.longest = noise.longest * public.batch if extends else public.horizon
        about = {"loss": public.loss, "response": None, "region": public.region}
        self._problem = RemoteProblem(self.longest, public.columns, **about)  # type: ignore[arg-type]
        rule = self.account_rule()
        rule.check(self._problem, noise.longest)
        check_rounding(self._problem, rule, noise.longest)
        self._scaling: Scaling = scaling(self._problem, rule, noise.longest)
        self.rule = self._fill_in(rule, horizon)
        self._recording: Recording = empty_recording(self._problem, self.rule, _NO_ORDER)

    def _fill_in(self, rule: Rule, horizon: int) -> Rule:
        return rule.on(self._problem, steps_of(self.public, horizon))

    def extend(self, horizon: int) -> Learner:
        """Return the learner for another horizon."""
        return Learner(self.public, self.noise, horizon)

    @property
    def dimension(self) -> int:
        """The length of θ."""
        return self._problem.dimension

    def first_model(self, start: ArrayLike) -> Array:
        """Return θ_0 as a vector."""
        return start_of(start, self._problem)

    def begin(self, start: ArrayLike, streams: Streams) -> Progress:
        """Return the state before the first step, at θ_0 = `start`; compiles or loads the loop."""
        progress = Progress(initial_state(self._problem, self.rule, self.first_model(start)), streams)
        one = np.zeros((1, self.public.columns)), np.zeros(1)
        self._run(progress, *one, until=0)
        return progress

    def step(self, before: Progress, features: Array, labels: Array) -> Progress:
        """Return the state after one more step, on one batch; θ is NaN if it is no longer finite.

        Parameters
        ----------
        before : Progress
            The state before the step, which is left as it is.
        features : array of shape (batch, columns)
            The features of the batch.
        labels : array of shape (batch,)
            Its labels.

        Returns
        -------
        Progress
        """
        after = before.copy()
        if not self._run(after, features, labels, until=before.steps + 1):
            after.state.theta.fill(np.nan)
        return after

    def _run(self, progress: Progress, features: Array, labels: Array, until: int) -> bool:
        state = progress.state
        arrays: ProblemArrays = problem_arrays(self._problem)._replace(
            records=records(checks.frozen(features), checks.frozen(labels), None)
        )
        models = visible_models(self._problem, state.theta, state.deployed)
        shared = step_threads(self._problem, self.rule, 1)
        update = self.rule.update()
        order = _NO_ORDER
        fixed = (arrays, update, self._scaling, shared, models)
        return bool(advance(*fixed, state, order, self._recording, until, *progress.streams))

    def deployed(self, progress: Progress) -> Array:
        """Return the model that people see: θ, as of the last step at which it was deployed."""
        is_due = progress.steps % self.public.deploy_every == 0
        return checks.frozen((progress.state.theta if is_due else progress.state.deployed).copy())

    def average(self, progress: Progress) -> Array:
        """Return the mean of the last half of the iterates; before the second half, the last one."""
        return checks.frozen(progress.state.summary[: self.dimension].copy())

    def account_rule(self) -> Rule:
        """Return the rule for `clipsilon.account` and `clipsilon.run`, which fill in its output themselves."""
        return rule_of(self.public, self.noise.std, self.noise.buffers)
