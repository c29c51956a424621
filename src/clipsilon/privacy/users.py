"""Per-user budgets: each user of a local run has a guarantee of their own (paper 4, Theorems 1 and 2).

C0 bounds the length of the gradient of any record, so that a replacement changes it by 2·C0 at most (`sensitivity`).
A user whose report is such a gradient with noise of deviation 2·C0/μ_i takes part once, so that user's
guarantee is μ_i-GDP, whatever the others chose. The papers state the largest μ_i for the whole run; that is the
guarantee of the least protected user.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clipsilon._core import checks
from clipsilon.privacy.accounting import gaussian

Array = NDArray[np.float64]

TERMS = (
    "Each user sends one report, with noise of deviation 2·C0/μ for their own μ, where C0 bounds the length of any "
    "record's gradient; the guarantee is for the replacement of that user's record, whatever the others do."
)


@dataclass(frozen=True, eq=False)
class UserStatements:
    """A statement for each user: μ_i, and the ε_i it means at δ."""

    budgets: Array  #: μ_i
    delta: float
    epsilons: Array  #: ε_i at delta

    @property
    def claimed_mu(self) -> float:
        """Max μ_i: what paper 4's theorems state for everybody."""
        return float(self.budgets.max())

    def summary(self) -> dict[str, float]:
        """What a reviewer wants: how many, and the least, middle and most of what they gave away."""
        low, middle, high = np.quantile(self.epsilons, [0.25, 0.5, 0.75])
        return {
            "users": int(self.budgets.size),
            "delta": self.delta,
            "least_epsilon": float(self.epsilons.min()),
            "quarter_epsilon": float(low),
            "median_epsilon": float(middle),
            "three_quarter_epsilon": float(high),
            "most_epsilon": float(self.epsilons.max()),
            "most_mu": self.claimed_mu,
        }

    def to_json(self) -> str:
        """The summary, the terms, and each user's μ and ε, as JSON."""
        each = {"mu": self.budgets.tolist(), "epsilon": self.epsilons.tolist()}
        return json.dumps({**self.summary(), "terms": TERMS, "each": each}, indent=2, ensure_ascii=False)

    def __str__(self) -> str:
        least, middle, most = (self.summary()[f"{name}_epsilon"] for name in ("least", "median", "most"))
        return (
            f"{self.budgets.size} users, each with a budget of their own; at δ = {self.delta:g}, "
            f"ε is {least:.4g} at least, {middle:.4g} in the middle, {most:.4g} at most. {TERMS}"
        )


def account_users(budgets: ArrayLike, delta: float) -> UserStatements:
    """A statement for each user of a local run from their budgets μ_i: one number for all, or one each."""
    delta = checks.open_fraction("delta", delta)
    mus = checks.budgets("budgets", budgets)
    distinct, where = np.unique(mus, return_inverse=True)
    return UserStatements(mus, delta, np.array([gaussian.epsilon(mu, delta) for mu in distinct])[where])
