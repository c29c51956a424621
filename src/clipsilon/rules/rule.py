"""The one update behind all algorithms, as a record of parts.

At step t = 0, 1, …, with θ_t deployed:

1. draw a batch from the m records (`sampling`); each record in it responds to the deployed θ
2. g_i = ∇ℓ(θ_t; z_i)
3. u = (1/B) Σ clip(g_i)                     `clip`; B is the expected batch size
4. v = u + clip(e_t)                         `feedback`
5. e_{t+1} = e_t + (1/B) Σ cap(g_i) − v      `feedback`
6. θ_{t+1} = project(θ_t − γ_{t+1}·precondition(v + noise))    `step`, `preconditioner`, `noise`
7. release the last iterate, an average, or the one whose v was shortest, up to noise    `output`

`clipsilon.engine.loop` is this list, compiled.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from clipsilon._core import checks
from clipsilon._core.parts import require
from clipsilon.problems.problem import Problem
from clipsilon.rules.clipping import add_clipped
from clipsilon.rules.feedback import NoFeedback, keep, recall, settle
from clipsilon.rules.noise import Gaussian, Local, add_noise
from clipsilon.rules.outputs import Last, Selected, summarise
from clipsilon.rules.preconditioning import Plain, precondition
from clipsilon.rules.sampling import Full, SinglePass, draw, expected_batch, longest_run
from clipsilon.rules.schedules import size


class Update(NamedTuple):
    """The parts of a rule as the compiled loop takes them."""

    step: Any
    clip: Any
    feedback: Any
    noise: Any
    sampling: Any
    preconditioner: Any
    output: Any
    deploy_every: int


_NO_NOISE, _NO_FEEDBACK, _PLAIN, _LAST = Gaussian(0.0), NoFeedback(), Plain(), Last()


@dataclass(frozen=True)
class Rule:
    """An algorithm: which part does each step of the update. `clipsilon.rules.presets` names the papers' ones.

    Parameters
    ----------
    name
        What traces and statements call it.
    step, clip, sampling, noise, feedback, preconditioner, output
        Parts of `clipsilon.schedules`, `clipsilon.clipping`, `clipsilon.sampling`, `clipsilon.noise`,
        `clipsilon.feedback`, `clipsilon.preconditioning` and `clipsilon.outputs`.
    deploy_every
        Records react to a model that is replaced every so many steps.
    """

    name: str
    step: Any
    clip: Any
    sampling: Any
    noise: Any = _NO_NOISE
    feedback: Any = _NO_FEEDBACK
    preconditioner: Any = _PLAIN
    output: Any = _LAST
    deploy_every: int = 1

    def __post_init__(self) -> None:
        require("step", self.step, [size])
        require("clip", self.clip, [add_clipped])
        require("sampling", self.sampling, [draw])
        require("noise", self.noise, [add_noise])
        require("feedback", self.feedback, [keep, recall, settle])
        require("preconditioner", self.preconditioner, [precondition])
        require("output", self.output, [summarise])
        checks.count("deploy_every", self.deploy_every)
        # By type: NamedTuples with equal fields are equal, whatever their class.
        alone = type(self.sampling) is SinglePass and self.sampling.batch == 1
        if isinstance(self.noise, Local) and not alone:
            raise ValueError(
                f"sampling must be SinglePass(1) with local noise, which is for one user a step, got {self.sampling}."
            )
        if isinstance(self.output, Selected):
            self._check_selection()

    def _check_selection(self) -> None:
        """Refuse parts with which v is not a mean gradient of all records that one of them changes little."""
        if type(self.sampling) is not Full:
            raise ValueError(f"sampling must be Full() to select an iterate, got {self.sampling}.")
        if type(self.feedback) is not NoFeedback:
            raise ValueError(f"feedback must be NoFeedback() to select an iterate, got {self.feedback}.")
        if not (hasattr(self.clip, "bound") and self.clip.bound() < np.inf):
            raise ValueError(f"clip must have a bound (as Norm has) to select an iterate, got {self.clip}.")

    def update(self) -> Update:
        """The parts alone, for the compiled loop."""
        return Update(
            self.step,
            self.clip,
            self.feedback,
            self.noise,
            self.sampling,
            self.preconditioner,
            self.output,
            int(self.deploy_every),
        )

    def longest_run(self, records: int) -> float:
        """The largest number of steps that the sampler allows."""
        return longest_run(self.sampling, records)

    def check_sampling(self, records: int, steps: int) -> None:
        """Refuse a batch larger than the data, and a pass longer than it."""
        batch = expected_batch(self.sampling, records)
        if batch > records:
            raise ValueError(f"batch must be at most the number of records ({records}), got {batch}.")
        most = self.longest_run(records)
        if steps > most:
            raise ValueError(f"steps must be at most {most} for a single pass in batches of {batch}, got {steps}.")

    def on(self, problem: Problem) -> Rule:
        """The rule with what only the problem can tell: its loss's sensitivity or number of records, for noise."""
        if isinstance(self.noise, Local):
            return replace(self, noise=self.noise.on(problem))
        if isinstance(self.output, Selected):
            return replace(self, output=self.output.on(self.clip.bound(), problem.records))
        return self

    def check(self, problem: Problem, steps: int) -> None:
        """Refuse a rule that cannot run on the problem for that many steps."""
        self.check_sampling(problem.records, steps)
        if hasattr(self.clip, "check_dimension"):
            self.clip.check_dimension(problem.dimension)
