"""What a rule releases, as the accountants need to know it: one description, derived from the rule itself.

The sampler that runs and the sampler that is accounted for are the same object, so they cannot differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from clipwise import checks
from clipwise.clipping import Norm, Normalise
from clipwise.feedback import remembers
from clipwise.noise import Gaussian
from clipwise.rule import Rule
from clipwise.sampling import Epochs, Full, Poisson, SinglePass, Uniform, expected_batch


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

    @property
    def rate(self) -> float:
        """Q = B/m."""
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
        """Whether the sampler is one whose law the accountants know."""
        return isinstance(self.sampling, Uniform | Poisson | SinglePass | Epochs | Full)


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
        rule.noise.std if isinstance(rule.noise, Gaussian) else 0.0,
        _feedback(rule) if remembers(rule.feedback) else None,
    )


def _bound(clip: Any) -> float:
    """The largest norm that leaves a clip; infinite for one that does not say."""
    return float(clip.bound()) if hasattr(clip, "bound") else np.inf


def _feedback(rule: Rule) -> Feedback:
    error, cap = getattr(rule.feedback, "clip", None), getattr(rule.feedback, "cap", None)
    return Feedback(_bound(error), isinstance(error, Norm), _residual(rule.clip, cap))


def _residual(clip: Any, cap: Any) -> float:
    """r: the largest norm of cap(g) − clip(g)."""
    inner, outer = _bound(clip), _bound(cap)
    if isinstance(clip, Norm) and isinstance(cap, Norm):
        return abs(outer - inner)  # both shorten the same vector
    if isinstance(clip, Normalise) and isinstance(cap, Norm):
        return max(inner, outer - inner)  # a short gradient is lengthened to C1
    return inner + outer
