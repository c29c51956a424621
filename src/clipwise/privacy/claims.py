"""What the papers say a rule guarantees, right or wrong, with the conditions they state.

Each formula has the form ε = k/s for noise of deviation s on the mean update. A claim whose condition fails is
still computed, and marked.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from clipwise.privacy.release import Release
from clipwise.sampling import Full, Poisson, Uniform


@dataclass(frozen=True)
class Condition:
    """A condition of a theorem, in words, and whether it is met."""

    text: str
    met: bool


@dataclass(frozen=True)
class Claim:
    """A paper's ε, where it says so, and on which conditions."""

    epsilon: float
    source: str
    conditions: tuple[Condition, ...] = ()

    @property
    def applies(self) -> bool:
        """Whether the theorem's own conditions are met."""
        return all(condition.met for condition in self.conditions)


def claim(released: Release, delta: float) -> Claim | None:
    """The ε that the papers' formula gives at δ, or None where they have none."""
    if not (np.isfinite(released.bound) and released.noise_std > 0):
        return None
    scaled = scaled_claim(released, delta)
    return None if scaled is None else _with_conditions(released, scaled[0] / released.noise_std, scaled[1])


def scaled_claim(released: Release, delta: float) -> tuple[float, str] | None:
    """K of ε = k/s, and its source; None where the papers have no formula."""
    c, m, t = released.bound, released.records, released.steps
    root = np.sqrt(t * np.log(1 / delta)) / m
    if released.feedback is not None:
        return np.sqrt(32 * _spread(released)) * root, "paper 3, Theorem 3.8"
    if isinstance(released.sampling, Full):
        return np.sqrt(2) * c * root, "paper 5, Theorem 2.6"
    if isinstance(released.sampling, Uniform) and released.batch == 1:
        return c * root, "paper 1, Corollary 3.6"
    if isinstance(released.sampling, Uniform | Poisson):
        return c * root, "paper 3, Theorem 2.3 with its constants u = v = 1"
    return None


def _spread(released: Release) -> float:
    """G̃ = C1² + 2·min{C², G'²} with the least admissible C = B·C2, and G' as large as the theorem allows."""
    feedback = released.feedback
    if feedback is None or not feedback.projects:
        return 3 * released.bound**2  # the automatic variant's √96 (paper 3, App. C.4)
    return released.bound**2 + 2 * (released.batch * feedback.bound) ** 2


def _with_conditions(released: Release, epsilon: float, source: str) -> Claim:
    m, t, b = released.records, released.steps, released.batch
    conditions: tuple[Condition, ...] = ()
    if source.startswith("paper 1"):
        conditions = (Condition(f"ε ≤ T/m² = {t / m**2:.3g}", epsilon <= t / m**2),)
    elif source.startswith("paper 3, Theorem 2.3"):
        limit = b**2 * t / m**2
        conditions = (Condition(f"ε < B²T/N² = {limit:.3g}", epsilon < limit),)
    elif released.feedback is not None:
        conditions = (
            Condition("C1 ≤ C2", released.bound <= released.feedback.bound),
            Condition(f"B/N ≤ 1/5 (it is {b / m:.3g})", b / m <= 0.2),
        )
    return Claim(epsilon, source, conditions)
