"""What the users of a ledger gave away, each and in summary."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clipsilon.privacy.users import UserStatements, account_users

TERMS = (
    "Each user's guarantee is for the replacement of their record, whatever the others do. It covers the reports in "
    "the ledger, at the budgets that the users stated; several of one user compose to √(Σμ²)."
)


@dataclass(frozen=True, eq=False)
class LocalStatement:
    """Who took part, how often, and the μ and ε of each."""

    users: tuple[str, ...]  #: in the order of their first reports
    reports: NDArray[np.int64]  #: how many each of them sent
    each: UserStatements

    def of(self, user: str) -> dict[str, Any]:
        """The statement of one user."""
        if user not in self.users:
            raise ValueError(f"user must be one who took part, got {user!r}.")
        k = self.users.index(user)
        about = {"user": user, "reports": int(self.reports[k]), "delta": self.each.delta}
        return {**about, "mu": float(self.each.budgets[k]), "epsilon": float(self.each.epsilons[k])}

    def summary(self) -> dict[str, float]:
        """How many, and the least, middle and most of what they gave away; no names."""
        repeated = int(np.count_nonzero(self.reports > 1))
        return {**self.each.summary(), "reports": int(self.reports.sum()), "users_with_several_reports": repeated}

    def to_json(self) -> str:
        """The summary, the terms, and each user's statement, as JSON."""
        mus, epsilons = self.each.budgets.tolist(), self.each.epsilons.tolist()
        columns = zip(self.users, self.reports.tolist(), mus, epsilons, strict=True)
        each = {user: {"reports": sent, "mu": mu, "epsilon": epsilon} for user, sent, mu, epsilon in columns}
        return json.dumps({**self.summary(), "terms": TERMS, "each": each}, indent=2, ensure_ascii=False)

    def __str__(self) -> str:
        least, middle, most = (self.summary()[f"{name}_epsilon"] for name in ("least", "median", "most"))
        several = self.summary()["users_with_several_reports"]
        return (
            f"{self.reports.sum()} reports of {len(self.users)} users, {several} of whom sent several; "
            f"at δ = {self.each.delta:g}, ε is {least:.4g} at least, {middle:.4g} in the middle, {most:.4g} at most. "
            f"{TERMS}"
        )


def statement_of(reports: Iterable[tuple[str, float]], delta: float) -> LocalStatement:
    """The statement of a ledger from the user and the μ of each report."""
    budgets: dict[str, list[float]] = {}
    for user, mu in reports:
        budgets.setdefault(user, []).append(mu)
    if not budgets:
        raise ValueError("ledger must hold a report before there is anything to state, got none.")
    sent = np.array([len(mus) for mus in budgets.values()])
    composed = [math.hypot(*mus) for mus in budgets.values()]  # √(Σμ²), and μ itself for one report
    return LocalStatement(tuple(budgets), sent, account_users(composed, delta))
