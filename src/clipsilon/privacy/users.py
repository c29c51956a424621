"""Per-user budgets: each user of a local run has their own guarantee (paper 4, Theorems 1 and 2).

C0 bounds the length of the gradient of any record, so that a replacement changes it by at most 2·C0 (`sensitivity`). A
user takes part once, by a report that is such a gradient plus noise of standard deviation 2·C0/μ_i, so that user's
guarantee is μ_i-GDP, whatever the others chose. The papers state the largest μ_i for the whole run, which is the
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
    """One statement per user: μ_i, and the ε_i that it implies at δ.

    Attributes
    ----------
    budgets : array of float
        μ_i; one entry if all users have the same budget.
    delta : float
        The δ at which ε is stated.
    epsilons : array of float
        ε_i at `delta`.

    Formal guarantee
    ----------------
    On the terms that `TERMS` states, the report of user i is μ_i-GDP, and so (ε_i, δ)-differentially private, for the
    replacement of that user's record, whatever the others do. This requires that the sensitivity that the loss states
    is right, and that budgets, loss and start were chosen without looking at the records.
    """

    budgets: Array
    delta: float
    epsilons: Array

    @property
    def claimed_mu(self) -> float:
        """Max μ_i: what paper 4's theorems state for all users."""
        return float(self.budgets.max())

    def summary(self) -> dict[str, float]:
        """Return the number of users, δ, the minimum, quartiles and maximum of ε_i, and the largest μ_i."""
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
        """Return the summary, the terms, and each user's μ and ε as JSON."""
        each = {"mu": self.budgets.tolist(), "epsilon": self.epsilons.tolist()}
        return json.dumps({**self.summary(), "terms": TERMS, "each": each}, indent=2, ensure_ascii=False)

    def __str__(self) -> str:
        least, middle, most = (self.summary()[f"{name}_epsilon"] for name in ("least", "median", "most"))
        return (
            f"{self.budgets.size} users, each with a budget of their own; at δ = {self.delta:g}, "
            f"ε is {least:.4g} at least, {middle:.4g} in the middle, {most:.4g} at most. {TERMS}"
        )


def account_users(budgets: ArrayLike, delta: float) -> UserStatements:
    """State the privacy of each user of a local run.

    Parameters
    ----------
    budgets : float or array_like of float
        μ_i: one number for all users, or one per user.
    delta : float
        The δ at which ε is stated, above 0 and below 1.

    Returns
    -------
    UserStatements
        The μ_i and ε_i.
    """
    delta = checks.open_fraction("delta", delta)
    mus = checks.budgets("budgets", budgets)
    distinct, where = np.unique(mus, return_inverse=True)
    return UserStatements(mus, delta, gaussian.epsilons(distinct, delta)[where])
