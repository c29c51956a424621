"""What the papers claim about a rule, right or wrong, with the conditions that they state.

Each formula has the form ε = k/s for noise of standard deviation s on the mean update (plus the ε of a selection). A
claim whose condition fails is still computed, and marked. **A claim certifies nothing.**
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from clipsilon.privacy.accounting import gaussian
from clipsilon.privacy.release import HiddenError, Release
from clipsilon.rules.sampling import Full, Poisson, Uniform


@dataclass(frozen=True)
class Condition:
    """A condition of a theorem, in words, and whether it is met."""

    text: str
    met: bool


@dataclass(frozen=True)
class Claim:
    """A paper's ε, where the paper states it, and on which conditions.

    Attributes
    ----------
    epsilon : float
        The ε of the paper's formula.
    source : str
        Paper and theorem.
    conditions : tuple of Condition
        The theorem's own conditions.
    """

    epsilon: float
    source: str
    conditions: tuple[Condition, ...] = ()

    @property
    def failed(self) -> list[str]:
        """The conditions that are not met."""
        return [condition.text for condition in self.conditions if not condition.met]


def claim(released: Release, delta: float, adjacency: str) -> Claim | None:
    """Return the ε that the papers' formula gives at δ, or None if they have none.

    Parameters
    ----------
    released : Release
        What the rule releases.
    delta : float
        The δ of the formula.
    adjacency : str
        A key of `ADJACENCIES`; some theorems hold for replaced records only.

    Returns
    -------
    Claim or None
        What the paper claims. It is not a guarantee.
    """
    if released.tracks:
        return None
    if released.personal is not None:
        return Claim(gaussian.epsilon(released.personal, delta), "paper 4, Theorems 1 and 2")
    if released.counts or released.buffers is not None:  # no paper of the five has such a rule
        return None
    if not (np.isfinite(released.bound) and released.noise_std > 0 and released.has_constant_multiplier):
        return None
    size = _size(released)
    unit = math.sqrt(released.steps * math.log(1 / delta)) / size / released.noise_std
    replaced = Condition("the theorem is about records that are replaced", adjacency == "replace-one")
    if released.feedback is not None:
        return _dice(released, released.feedback, unit)
    epsilon = released.bound * unit
    if type(released.sampling) is Full:
        theorem = "Theorem 4.1" if released.selection > 0 else "Theorem 2.6"
        return Claim(math.sqrt(2) * epsilon + released.selection, f"paper 5, {theorem}", (replaced,))
    if type(released.sampling) is Uniform and released.batch == 1:
        limit = released.steps / size**2
        within = Condition(f"ε ≤ T/m² = {limit:.3g}", epsilon <= limit)
        return Claim(epsilon, "paper 1, Corollary 3.6", (within, replaced))
    if type(released.sampling) in (Uniform, Poisson):
        limit = released.steps * (released.batch / size) ** 2  # the square of a tiny rate is 0, not an overflow
        within = Condition(f"ε < B²T/N² = {limit:.3g}", epsilon < limit)
        return Claim(epsilon, "paper 3, Theorem 2.3 with its constants u = v = 1", (within,))
    return None


def _size(released: Release) -> float:
    """Return N as the formulas mean it, with B/N the rate: also where the rate is public, and does not depend on N."""
    return released.batch / released.rate if released.has_public_rate else released.records


def _dice(released: Release, feedback: HiddenError, unit: float) -> Claim | None:
    """Return Theorem 3.8's ε = √(32·G̃)·unit, G̃ = C1² + 2·min{C², G'²}, with the smallest C = B·C2 and any G'."""
    if not np.isfinite(feedback.bound):
        return None
    small = Condition(f"B/N ≤ 1/5 (it is {released.rate:.3g})", released.rate <= 0.2)
    if not feedback.projects:
        single = Condition("C2 ≤ C/B, from which √96 follows for B = 1 only", released.batch == 1)
        return Claim(math.sqrt(96) * released.bound * unit, "paper 3, App. C.4", (single, small))
    spread = math.hypot(released.bound, math.sqrt(2) * released.batch * feedback.bound)  # √G̃
    ordered = Condition("C1 ≤ C2", released.bound <= feedback.bound)
    return Claim(math.sqrt(32) * spread * unit, "paper 3, Theorem 3.8", (ordered, small))
