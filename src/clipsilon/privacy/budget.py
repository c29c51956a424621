"""`Budget`: a limit on what all releases about the same people may spend together, kept in a file."""

from __future__ import annotations

import getpass
import math
import secrets
import socket
from collections.abc import Callable
from datetime import UTC, datetime
from os import PathLike
from typing import Any

from clipsilon._core import checks
from clipsilon.privacy.budget_file import BudgetError, Charge, Settings, create_file, open_file
from clipsilon.privacy.certificate import ADJACENCIES
from clipsilon.privacy.filters import Amount, Cost, count_release, count_spent
from clipsilon.privacy.statement import Statement, finite_or_none, format_epsilon
from clipsilon.privacy.warning import UNITS


class Budget:
    """A budget file, to which fits, searches, scalers and trainings are charged before they use the data.

    All charges of a file add up, whatever the table: rows that were scaled or selected are still about the same
    people. People who are in no other table may have a file of their own. A release that fails after it was charged
    stays charged, because it may have been seen.

    Parameters
    ----------
    path : path-like
        The file. It is created if it does not exist and a limit is given. Keep it as private as the data: it holds
        salted digests of the tables.
    epsilon, delta : float, optional
        The limit. For a file that exists, it must be the one that the file has, or left out.
    adjacency : str, optional
        How neighbouring data sets differ; charges under another adjacency are refused. "zero-out" for a new file
        unless given. The first charge fixes what they differ in, a record or a person with all rows; charges about the
        other are refused.

    Attributes
    ----------
    path : Path
        The file.
    epsilon, delta : float
        The limit.
    adjacency : str
        How neighbouring data sets differ.

    Formal guarantee
    ----------------
    All releases that were charged to the file are (epsilon, delta)-differentially private together under `adjacency`,
    also if their settings were chosen by what earlier ones returned, provided that each is as private as its statement
    says (docs/proofs.md).

    Examples
    --------
    >>> import tempfile
    >>> import clipsilon as cs
    >>> folder = tempfile.TemporaryDirectory()
    >>> budget = cs.Budget(f"{folder.name}/people.budget", epsilon=1.0, delta=1e-5, adjacency="replace-one")
    >>> rule = cs.DPGD(cs.schedules.Constant(0.5), lipschitz=1.0, noise_std=1.0)
    >>> _ = budget.charge(cs.account(rule, records=100, steps=50, delta=1e-6))
    >>> 0.5 < budget.spent().epsilon < 0.7, len(budget.charges())
    (True, 1)
    >>> folder.cleanup()
    """

    def __init__(
        self,
        path: str | PathLike[str],
        epsilon: float | None = None,
        delta: float | None = None,
        adjacency: str | None = None,
    ) -> None:
        self.path = checks.path("path", path)
        is_new = epsilon is not None or delta is not None
        if is_new:
            wanted = checks.positive("epsilon", epsilon), checks.open_fraction("delta", delta)
        checks.choice("adjacency", adjacency or "zero-out", ADJACENCIES)
        if is_new:
            create_file(self.path, Settings(*wanted, adjacency or "zero-out", secrets.randbits(128)))
        with open_file(self.path) as file:
            self.epsilon, self.delta, self.adjacency, self._salt = file.settings()
        if is_new and wanted != (self.epsilon, self.delta):
            raise BudgetError(
                f"{self.path} has a limit of ε = {self.epsilon:g} at δ = {self.delta:g}, which stays as it is, got "
                f"ε = {wanted[0]:g} at δ = {wanted[1]:g}."
            )
        if adjacency is not None and adjacency != self.adjacency:
            raise BudgetError(f"{self.path} is for adjacency {self.adjacency!r}, got {adjacency!r}.")

    def charge(self, statement: Statement, *, data: str | None = None, key: str | None = None) -> Charge | None:
        """Charge a release, before it uses the data.

        Parameters
        ----------
        statement : Statement
            What the release will spend. It must be certified.
        data : str, optional
            A digest of the rows, such as `clipsilon.estimators` computes with `salt`.
        key : str, optional
            What identifies the release, for a program that may be interrupted and run again: a second charge with the
            same key is the same charge, and not counted twice. This is right only as long as nothing of the release
            was seen: a release that is repeated with new noise is a second one, and needs another key. By default each
            charge is a new one.

        Returns
        -------
        Charge or None
            The charge as it is stored; None if the release costs nothing.

        Raises
        ------
        BudgetError
            If the limit would be passed, nothing is certified, the adjacency or the unit is another one, or the file is
            damaged. Nothing is charged then, and the release must not be made.
        """
        cost = self._cost(statement)
        if cost.mu == 0:
            return None
        asked = secrets.token_hex(16) if key is None else str(key)
        with open_file(self.path) as file:
            if file.settings() != (self.epsilon, self.delta, self.adjacency, self._salt):
                raise BudgetError(f"{self.path} was replaced by another budget file; nothing was charged.")
            past = file.charges()
            self._require_unit(statement, past)
            for same in past:
                if same.key == asked:
                    return _require_same(same, statement, cost, data)
            counted = count_release(cost, [one.counted for one in past], self._limit)
            if counted is None:
                raise self._refused(statement, cost, past)
            now = datetime.now(UTC).isoformat(timespec="seconds")
            about = asked, now, _user(), statement.rule, statement.records, statement.unit
            charge = Charge(*about, cost.epsilon, cost.delta, data, counted)
            file.append(charge)
        return charge

    @property
    def _limit(self) -> Amount:
        return Amount(self.epsilon, self.delta)

    @property
    def salt(self) -> int:
        """The key with which rows are digested."""
        return self._salt

    def charges(self) -> list[Charge]:
        """Return all charges, in order."""
        with open_file(self.path) as file:
            return file.charges()

    def spent(self) -> Amount:
        """Return the ε and δ that are spent, with what is reserved for Gaussian mechanisms."""
        return count_spent([charge.counted for charge in self.charges()])

    def left(self) -> Amount:
        """Return the ε and δ that are left for releases that are not Gaussian."""
        spent = self.spent()
        return Amount(self.epsilon - spent.epsilon, self.delta - spent.delta)

    def _cost(self, statement: Statement) -> Cost:
        """Return what a statement costs; raise BudgetError unless it is certified under the file's adjacency."""
        checks.instance("statement", statement, Statement)
        if statement.adjacency != self.adjacency:
            raise BudgetError(
                f"{self.path} is for adjacency {self.adjacency!r}, got a release of {statement.adjacency!r}."
            )
        profile = statement.certificate.profile
        if profile is None or not math.isfinite(statement.certified):
            raise BudgetError(
                f"{statement.rule} must be certified to be charged to {self.path}, got ε = ∞: {statement.reasons[0]}"
            )
        covered = profile.epsilon(statement.delta)
        mu = profile.mu if statement.certified <= covered else None  # more is certified than the curve shows
        return Cost(max(statement.certified, covered), statement.delta, mu)

    def _require_unit(self, statement: Statement, past: list[Charge]) -> None:
        """Raise BudgetError if a release protects records and the charges before it people, or the reverse.

        Of a person with several rows, a release that protects single records may reveal more than it states.
        """
        if past and past[0].unit != statement.unit:
            raise BudgetError(
                f"{self.path} adds up releases that protect {UNITS[past[0].unit]}, got one that protects "
                f"{UNITS[statement.unit]}; nothing was charged."
            )

    def _refused(self, statement: Statement, cost: Cost, past: list[Charge]) -> BudgetError:
        spent = count_spent([one.counted for one in past])
        return BudgetError(
            f"{statement.rule} would pass the limit of {self.path}: it costs ε = {format_epsilon(cost.epsilon)} at "
            f"δ = {cost.delta:g}, and ε = {format_epsilon(self.epsilon - spent.epsilon)}, δ = "
            f"{self.delta - spent.delta:.4g} are left of ε = {self.epsilon:g}, δ = {self.delta:g}; nothing was charged."
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the limit, what is spent and left, and all charges, for JSON; data sets are numbered."""
        charges = self.charges()
        spent = count_spent([charge.counted for charge in charges])
        return {
            "limit": {"epsilon": self.epsilon, "delta": self.delta},
            "adjacency": self.adjacency,
            "unit": charges[0].unit if charges else None,
            "spent": spent._asdict(),
            "left": {"epsilon": self.epsilon - spent.epsilon, "delta": self.delta - spent.delta},
            "charges": [_describe(charge, number) for charge, number in zip(charges, _numbers(charges), strict=True)],
        }

    def __repr__(self) -> str:
        return f"Budget({str(self.path)!r})"


def charge_to(
    budget: Budget | str | PathLike[str] | None, statement: Statement, identify: Callable[[int], str | None]
) -> None:
    """Charge a release to a budget file, if one was given.

    Parameters
    ----------
    budget : Budget, path or None
        The file, which must exist.
    statement : Statement
        What the release will spend.
    identify : callable
        From the file's salt to a digest of the rows.
    """
    if budget is not None:
        file = Budget(budget) if isinstance(budget, str | PathLike) else budget
        file.charge(statement, data=identify(file.salt))


def _require_same(earlier: Charge, statement: Statement, cost: Cost, data: str | None) -> Charge:
    """Return an earlier charge with the same key; raise BudgetError if it was for another release.

    Parameters
    ----------
    earlier : Charge
        The charge.
    statement, cost, data : Statement, Cost, str or None
        What is charged now.
    """
    now = statement.rule, statement.records, statement.unit, cost.epsilon, cost.delta, data
    if now != (earlier.what, earlier.records, earlier.unit, earlier.epsilon, earlier.delta, earlier.data):
        raise BudgetError(f"key must be that of one release, got {earlier.key!r}, with which another was charged.")
    return earlier


def _describe(charge: Charge, number: int | None) -> dict[str, Any]:
    return {
        "when": charge.when,
        "who": charge.who,
        "what": charge.what,
        "records": charge.records,
        "unit": charge.unit,
        "data": number,
        "epsilon": finite_or_none(charge.epsilon),
        "delta": charge.delta,
        "mu": charge.counted.mu,
        "counted_epsilon": charge.counted.epsilon,
        "counted_delta": charge.counted.delta,
    }


def _numbers(charges: list[Charge]) -> list[int | None]:
    """Return the data set of each charge as a number, in the order in which they were first used."""
    order = list(dict.fromkeys(charge.data for charge in charges if charge.data is not None))
    return [None if charge.data is None else 1 + order.index(charge.data) for charge in charges]


def _user() -> str:
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (OSError, KeyError):  # there is no such user, as in some containers
        return "unknown"
