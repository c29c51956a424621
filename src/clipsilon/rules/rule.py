"""The one update behind all algorithms, as a record of parts.

At step t = 0, 1, …, with θ_t deployed:

1. draw a batch from the m records (`sampling`); each record in it reacts to the deployed θ
2. g_i = ∇ℓ(θ_t; z_i)
3. u = (1/B) Σ clip_{t+1}(g_i)               `clip`, which may change; B is the expected batch size
4. v = u + clip(e_t)                         `feedback`
5. e_{t+1} = e_t + (1/B) Σ cap(g_i) − v      `feedback`; with `Tracked`, 3. clips g_i − h_i and adds it to h_i
6. θ_{t+1} = project(θ_t − γ_{t+1}·precondition(v + noise))    `step`, `preconditioner`, `noise`
7. release the last iterate, an average, or the one whose v was shortest, up to noise    `output`

Clip, noise and preconditioner may keep a state from step to step. `clipsilon.engine.loop` is this list, compiled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from clipsilon._core import checks
from clipsilon._core.parts import fingerprint, implemented, require
from clipsilon.problems.problem import Problem
from clipsilon.rules.clipping import (
    Adaptive,
    Clip,
    Norm,
    Scheduled,
    Unclipped,
    add_clipped,
    at_step,
    bound_of,
    count_width,
    counts_records,
    initial_state,
    largest_norm,
)
from clipsilon.rules.feedback import Feedback, NoFeedback, keep, recall, settle, tracks
from clipsilon.rules.noise import (
    Gaussian,
    Local,
    Noise,
    Proportional,
    ScheduledGaussian,
    add_noise,
    deviation,
    make_report,
)
from clipsilon.rules.outputs import Last, Output, Selected, TailAverage, summarise
from clipsilon.rules.preconditioning import Accumulated, Plain, Preconditioner, precondition
from clipsilon.rules.sampling import (
    Full,
    InOrder,
    Poisson,
    Sampling,
    SinglePass,
    Uniform,
    draw,
    expected_batch,
    longest_run,
    public_rate,
    sampling_rate,
)
from clipsilon.rules.schedules import Constant, Piecewise, Schedule, size


class Update(NamedTuple):
    """The parts of a rule as the compiled loop takes them.

    Parameters
    ----------
    step, clip, feedback, noise, sampling, preconditioner, output
        The parts, as in `Rule`.
    deploy_every : int
        Number of steps between deployments.
    """

    step: Schedule
    clip: Clip
    feedback: Feedback
    noise: Noise
    sampling: Sampling
    preconditioner: Preconditioner
    output: Output
    deploy_every: int


_NO_NOISE, _NO_FEEDBACK, _PLAIN, _LAST = Gaussian(0.0), NoFeedback(), Plain(), Last()


@dataclass(frozen=True)
class Rule:
    """An algorithm: one part for each place in the update. The presets name those of the papers.

    Parameters
    ----------
    name : str
        The name in traces and statements.
    step : Schedule
        Step sizes γ_t, a part of `clipsilon.schedules`.
    clip : Clip
        The bound on one record's gradient, a part of `clipsilon.clipping`.
    sampling : Sampling
        Which records take part in a step, a part of `clipsilon.sampling`.
    noise : Noise, default Gaussian(0)
        The noise on the mean update, a part of `clipsilon.noise`.
    feedback : Feedback, default NoFeedback()
        What becomes of the clipped-off part, a part of `clipsilon.feedback`.
    preconditioner : Preconditioner, default Plain()
        The direction made from the noisy update, a part of `clipsilon.preconditioning`.
    output : Output, default Last()
        What is released, a part of `clipsilon.outputs`.
    deploy_every : int, default 1
        Number of steps between deployments; records react to the model deployed last.
    """

    name: str
    step: Schedule
    clip: Clip
    sampling: Sampling
    noise: Noise = _NO_NOISE
    feedback: Feedback = _NO_FEEDBACK
    preconditioner: Preconditioner = _PLAIN
    output: Output = _LAST
    deploy_every: int = 1

    def __post_init__(self) -> None:
        require("step", self.step, [size])
        require("clip", self.clip, [at_step if type(self.clip) in implemented(at_step) else add_clipped])
        if counts_records(self.clip) and count_width(self.clip) == 0:
            raise TypeError(f"clip {type(self.clip).__name__} implements tally; its class must state `counts`.")
        require("sampling", self.sampling, [draw])
        own = [each for each in (deviation, make_report) if type(self.noise) in implemented(each)]
        require("noise", self.noise, own or [add_noise])
        require("feedback", self.feedback, [keep, recall, settle])
        require("preconditioner", self.preconditioner, [precondition])
        require("output", self.output, [summarise])
        checks.count("deploy_every", self.deploy_every)
        if make_report in own:
            self._check_reports()
        if isinstance(self.noise, Proportional) and not largest_norm(self._first_clip()) < np.inf:
            raise ValueError(f"clip must have a bound (as Norm has) with noise in proportion to it, got {self.clip}.")
        if isinstance(self.output, Selected):
            self._check_selection()
        if tracks(self.feedback):
            self._check_tracking()

    def _first_clip(self) -> Clip:
        """Return the clip in force in the first step."""
        clip: Clip = at_step(self.clip, 1, initial_state(self.clip))
        return clip

    def _check_reports(self) -> None:
        """Raise ValueError unless each user sends one report, and the engine sees nothing of them but the report."""
        # By type: NamedTuples with equal fields are equal, whatever their class.
        if type(self.sampling) not in (SinglePass, InOrder):
            raise ValueError(
                f"sampling must be SinglePass or InOrder with local noise, where each user reports once, got "
                f"{self.sampling}."
            )
        if type(self.clip) is not Unclipped or type(self.feedback) is not NoFeedback:
            raise ValueError(
                f"clip and feedback must be Unclipped() and NoFeedback() with local noise, where only reports leave "
                f"the devices, got {self.clip} and {self.feedback}."
            )

    def _check_selection(self) -> None:
        """Raise ValueError unless v is a mean over all records that one record changes by a bounded amount."""
        if type(self.sampling) is not Full:
            raise ValueError(f"sampling must be Full() to select an iterate, got {self.sampling}.")
        if type(self.feedback) is not NoFeedback:
            raise ValueError(f"feedback must be NoFeedback() to select an iterate, got {self.feedback}.")
        if not bound_of(self.clip) < np.inf:
            raise ValueError(f"clip must have a bound (as Norm has) to select an iterate, got {self.clip}.")

    def _check_tracking(self) -> None:
        """Raise ValueError unless all steps have one clip and one noise, in whose units memories are kept."""
        if type(self.clip) in implemented(at_step):
            raise ValueError(f"clip must be the same in all steps with tracked gradients, got {self.clip}.")
        if isinstance(self.noise, ScheduledGaussian):
            raise ValueError(f"noise must be the same in all steps with tracked gradients, got {self.noise}.")

    def update(self) -> Update:
        """Return the parts alone, for the compiled loop."""
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
        """Return the largest number of steps that the sampler allows."""
        return longest_run(self.sampling, records)

    def check_sampling(self, records: int, steps: int) -> None:
        """Raise ValueError for a batch larger than the data, or more steps than a single pass has.

        With a public rate the batch size is a mere constant, and an error here would tell the number of records.
        """
        batch = expected_batch(self.sampling, records)
        if batch > records and public_rate(self.sampling) is None:
            raise ValueError(f"batch must be at most the number of records ({records}), got {batch}.")
        most = self.longest_run(records)
        if steps > most:
            raise ValueError(f"steps must be at most {most} for a single pass in batches of {batch}, got {steps}.")

    def on(self, problem: Problem, steps: int) -> Rule:
        """Return the rule with the numbers that its parts take from a problem and from the length of a run."""
        filled: dict[str, Any] = {}
        if isinstance(self.clip, Adaptive):
            filled["clip"] = self.clip.on(expected_batch(self.sampling, problem.records))
        if isinstance(self.noise, Local):
            filled["noise"] = self.noise.on(problem)
        if isinstance(self.preconditioner, Accumulated):
            # Not B/m: with a public rate m is hidden, and a run must not divide by it.
            filled["preconditioner"] = self.preconditioner.on(sampling_rate(self.sampling, problem.records))
        if isinstance(self.output, Selected):
            filled["output"] = self.output.on(bound_of(self.clip), problem.records, problem.dimension)
        if isinstance(self.output, TailAverage):
            filled["output"] = self.output.on(steps)
        return replace(self, **filled) if filled else self

    def check(self, problem: Problem, steps: int) -> None:
        """Raise ValueError if the rule cannot run on the problem for that many steps."""
        self.check_sampling(problem.records, steps)
        if hasattr(self.clip, "check_dimension"):
            self.clip.check_dimension(problem.dimension)


def join_phases(phases: Sequence[tuple[Rule, int]]) -> Rule:
    """Return one rule that runs several rules one after the other, so that all steps are accounted for as one run.

    Parameters
    ----------
    phases : sequence of (Rule, int)
        Rules that differ in step size, clip threshold and Gaussian noise only, each constant, and their numbers of
        steps. The last one has no end.

    Returns
    -------
    Rule
        The first rule with piecewise constant parts; the first rule itself if there is one phase.
    """
    first = phases[0][0]
    if len(phases) == 1:
        return first
    if type(first.sampling) not in (Full, Poisson, Uniform):
        # A pass that is shuffled anew for each phase would let a record take part more often.
        raise ValueError(f"phases must sample anew at every step, got {first.sampling}.")
    for rule, _ in phases:
        constant = (type(rule.step), type(rule.clip), type(rule.noise)) == (Constant, Norm, Gaussian)
        same = replace(rule, step=first.step, clip=first.clip, noise=first.noise)
        # By digest: NamedTuples with equal fields are equal, whatever their class.
        if not constant or fingerprint(same.update()) != fingerprint(first.update()):
            raise ValueError(f"phases must differ in constant step, clip and noise only, got {rule.name}: {rule}.")
    starts = np.cumsum([1, *(steps for _, steps in phases[:-1])])
    step, clip, noise = (
        Piecewise(starts, np.array([float(getattr(rule, part)[0]) for rule, _ in phases]))
        for part in ("step", "clip", "noise")
    )
    return replace(first, step=step, clip=Scheduled(clip), noise=ScheduledGaussian(noise))
