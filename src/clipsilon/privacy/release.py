"""What a rule releases, as the accountants need to know it: one description, derived from the rule itself.

The sampler that runs and the sampler that is accounted for are the same object, so they cannot differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from clipsilon._core import checks
from clipsilon._core.parts import is_ours
from clipsilon.rules.clipping import Norm, Normalise, Unclipped
from clipsilon.rules.feedback import ErrorFeedback, NoFeedback
from clipsilon.rules.noise import Gaussian, Local, Radial
from clipsilon.rules.outputs import Selected, considers
from clipsilon.rules.rule import Rule
from clipsilon.rules.sampling import Epochs, Full, Poisson, SinglePass, Uniform, expected_batch


@dataclass(frozen=True)
class Feedback:
    """The hidden error: what it adds to an update, and what one record leaves in it."""

    bound: float  # C2: the most that the clipped error adds
    projects: bool  # whether the error is clipped by projection (and not by normalising)
    residual: float  # r: the most that one participation leaves behind; infinite without a cap


@dataclass(frozen=True)
class Release:
    """Noisy mean updates, all of them: T Gaussian releases about m records."""

    records: int  # m, public
    steps: int  # T
    batch: int  # B, public and expected
    sampling: Any
    bound: float  # C1: the most that one record adds to the sum of a step
    noise_std: float  # s, on the mean
    feedback: Feedback | None
    radial: float | None = None  # scale of noise with the density ∝ exp(−‖z‖/scale) on the mean, in Gaussian's place
    personal: float | None = None  # the largest budget μ_i, if each user adds noise for one of their own
    selection: float = 0.0  # ε, if a record is replaced, of what is released beside the updates: which iterate is best

    @property
    def rate(self) -> float:
        """The chance q = B/m that a record takes part in a step."""
        return self.batch / self.records

    @property
    def participations(self) -> int | None:
        """K, in how many steps one record takes part; None if that is left to chance."""
        match self.sampling:
            case SinglePass():
                return 1
            case Epochs():
                return -(-self.steps // -(-self.records // self.batch))
            case Full():
                return self.steps
        return self.steps if self.batch == self.records else None

    @property
    def is_known(self) -> bool:
        """Whether the sampler is one whose law the accountants know; one derived from it may draw otherwise."""
        return type(self.sampling) in (Uniform, Poisson, SinglePass, Epochs, Full)


def release(rule: Rule, records: int, steps: int) -> Release:
    """Describe what `steps` steps of a rule on `records` records release."""
    checks.instance("rule", rule, Rule)
    records, steps = checks.count("records", records), checks.count("steps", steps)
    rule.check_sampling(records, steps)
    return Release(
        records,
        steps,
        expected_batch(rule.sampling, records),
        rule.sampling,
        _bound(rule.clip),
        rule.noise.std if type(rule.noise) is Gaussian else 0.0,
        None if type(rule.feedback) is NoFeedback else _feedback(rule),
        float(rule.noise.scale) if type(rule.noise) is Radial else None,
        _personal(rule, records),
        _selection(rule.output),
    )


def _personal(rule: Rule, records: int) -> float | None:
    """The largest budget, if a report is all that a record adds: no error is kept of it, and no clip could widen it."""
    if type(rule.noise) is not Local:
        return None
    rule.noise.check_users(records)
    alone = type(rule.feedback) is NoFeedback and type(rule.clip) is Unclipped
    return float(rule.noise.budgets.max()) if alone else None


def _selection(output: Any) -> float:
    """What an output reveals beside the noisy updates: nothing, unless it looks at updates before noise."""
    if type(output) is Selected:
        return float(output.epsilon)
    return np.inf if considers(output) else 0.0


def _bound(clip: Any) -> float:
    """The largest norm that leaves a clip of the package; for others nothing is taken on trust."""
    return float(clip.bound()) if is_ours(type(clip)) and hasattr(clip, "bound") else np.inf


def _feedback(rule: Rule) -> Feedback:
    if type(rule.feedback) is not ErrorFeedback:
        return Feedback(np.inf, False, np.inf)
    error, cap = rule.feedback
    return Feedback(_bound(error), type(error) is Norm, _residual(rule.clip, cap))


def _residual(clip: Any, cap: Any) -> float:
    """r: the largest norm of cap(g) − clip(g)."""
    inner, outer = _bound(clip), _bound(cap)
    if type(clip) is Norm and type(cap) is Norm:
        return abs(outer - inner)  # both shorten the same vector
    if type(clip) is Normalise and type(cap) is Norm:
        return max(inner, outer - inner)  # a short gradient is lengthened to C1
    return inner + outer
