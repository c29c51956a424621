"""The privacy statement of the users in a ledger: each of them, and in summary."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clipsilon._core import checks
from clipsilon.local.spending import compose
from clipsilon.privacy.users import UserStatements, account_users
from clipsilon.privacy.warning import warn_about_delta

TERMS = (
    "Each user's guarantee is for the replacement of their record, whatever the others do. It covers the reports in "
    "the ledger, at the budgets that the users stated; several reports of one user compose to √(Σμ²)."
)


@dataclass(frozen=True, eq=False)
class LocalStatement:
    """Who reported, how often, and the μ and ε of each.

    Parameters
    ----------
    users : tuple of str
        In the order of their first reports.
    reports : array of int
        The number of reports of each user.
    each : UserStatements
        μ and ε of each user, in the same order.
    """

    users: tuple[str, ...]
    reports: NDArray[np.int64]
    each: UserStatements

    def of(self, user: str) -> dict[str, Any]:
        """Return the statement of one user: number of reports, δ, μ and ε."""
        name = checks.person("user", user)
        if name not in self.users:
            raise ValueError(f"user must be one who reported, got {user!r}.")
        k = self.users.index(name)
        about = {"user": name, "reports": int(self.reports[k]), "delta": self.each.delta}
        return {**about, "mu": float(self.each.budgets[k]), "epsilon": float(self.each.epsilons[k])}

    def summary(self) -> dict[str, float]:
        """Return the number of users and reports, and the range of their ε, without names."""
        repeated = int(np.count_nonzero(self.reports > 1))
        return {**self.each.summary(), "reports": int(self.reports.sum()), "users_with_several_reports": repeated}

    def to_json(self) -> str:
        """Return the summary, the terms, and each user's statement as JSON."""
        mus, epsilons = self.each.budgets.tolist(), self.each.epsilons.tolist()
        columns = zip(self.users, self.reports.tolist(), mus, epsilons, strict=True)
        each = {user: {"reports": sent, "mu": mu, "epsilon": epsilon} for user, sent, mu, epsilon in columns}
        content = {**self.summary(), "terms": TERMS, "each": each}
        return json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False)

    def __str__(self) -> str:
        least, middle, most = (self.summary()[f"{name}_epsilon"] for name in ("least", "median", "most"))
        several = self.summary()["users_with_several_reports"]
        return (
            f"{self.reports.sum()} reports from {len(self.users)} users, {several} of whom sent several; "
            f"at δ = {self.each.delta:g}, ε ranges from {least:.4g} to {most:.4g} with median {middle:.4g}. {TERMS}"
        )


def compose_reports(reports: Iterable[tuple[str, float]], delta: float) -> LocalStatement:
    """Return the statement at δ of a ledger, from the user and the μ of each report."""
    budgets: dict[str, list[float]] = {}
    for user, mu in reports:
        budgets.setdefault(user, []).append(mu)
    if not budgets:
        raise ValueError("ledger must hold at least one report, got none.")
    sent = np.array([len(mus) for mus in budgets.values()])
    composed = [compose(*mus) for mus in budgets.values()]
    warn_about_delta(checks.open_fraction("delta", delta), len(budgets))
    return LocalStatement(tuple(budgets), sent, account_users(composed, delta))
