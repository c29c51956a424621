"""A statement: what is certified, what is claimed, whether the claim holds, and why; for people and for machines."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clipsilon._core import checks
from clipsilon.privacy.accounting import gaussian, profiles
from clipsilon.privacy.certificate import ADJACENCIES, Certificate, certify
from clipsilon.privacy.claims import Claim, claim
from clipsilon.privacy.release import Release, release
from clipsilon.privacy.statement_html import statement_html
from clipsilon.privacy.warning import UNITS, large_delta
from clipsilon.rules.outputs import Selected
from clipsilon.rules.rule import Rule
from clipsilon.rules.sampling import InOrder

SEEDED = "Seeded: not for release; whoever knows the seed can undo the noise."
INEXACT = "its noise is drawn in floating point, whose low-order bits may betray what it hides."
_IF_SEEDED = "A seeded run is not for release: whoever knows the seed can undo the noise."


@dataclass(frozen=True, eq=False)
class Statement:
    """The privacy of a rule run for a number of steps on a number of records.

    Attributes
    ----------
    rule : str
        The name of the rule.
    records, steps : int
        Number of records and steps.
    delta : float
        The δ at which ε is stated.
    adjacency : str
        How neighbouring data sets differ.
    certified : float
        ε that is proven; infinite if none is, or if the release has a fault.
    claimed : float or None
        ε of the paper's formula.
    claim_holds : bool or None
        Whether the claim is proven; None without a claim.
    reasons : tuple of str
        How it is proven, on which terms, and what is not covered.
    certificate : Certificate
        The whole curve.
    notes : tuple of str
        Those of the reasons that state what is not covered, such as other fits of the same estimator.
    faults : tuple of str
        Why nothing is certified of a release whose rule could be certified, such as a seed (`fail_closed`).
    mended : Statement or None
        The statement of the same release without its faults; None if it has none.
    unit : {"record", "person"}
        What `records` counts, and in which neighbouring data sets differ: single records, or people with all their
        rows.

    Formal guarantee
    ----------------
    For any two data sets that are neighbours under `adjacency`, the sequence of all iterates of one run, with the one
    that was selected if the rule selects, is (certified, delta)-differentially private, on the terms that `reasons`
    states.
    """

    rule: str
    records: int
    steps: int
    delta: float
    adjacency: str
    certified: float
    claimed: float | None
    claim_holds: bool | None
    reasons: tuple[str, ...]
    certificate: Certificate = field(repr=False)
    notes: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    mended: Statement | None = field(default=None, repr=False)
    unit: str = "record"

    @property
    def size(self) -> str:
        """The number of records or people, with the word for them."""
        return f"{self.records} {UNITS[self.unit]}"

    @property
    def nominal(self) -> float:
        """The ε that would be certified with the faults mended; `certified` if there are none."""
        return self.certified if self.mended is None else self.mended.certified

    def epsilon(self, delta: float) -> float:
        """Return the certified ε at another δ."""
        return self.certificate.epsilon(delta)

    def delta_at(self, epsilon: float) -> float:
        """Return the certified δ at an ε; 1 if nothing is certified."""
        profile = self.certificate.profile
        return 1.0 if profile is None else profile.delta(epsilon)

    @property
    def gaussian_mu(self) -> float:
        """The μ whose Gaussian trade-off has the certified ε at this δ; a guarantee only where the reasons name it."""
        return gaussian.largest_mu(self.certified, self.delta) if np.isfinite(self.certified) else np.inf

    def tradeoff(self, alpha: ArrayLike) -> NDArray[np.float64]:
        """Return the least type II error of any attack on one record at type I error α."""
        profile = self.certificate.profile
        return np.zeros(np.shape(alpha)) if profile is None else profiles.tradeoff(profile, alpha)

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the curves, for JSON: an infinite ε becomes None."""
        return {
            "rule": self.rule,
            "records": self.records,
            "unit": self.unit,
            "steps": self.steps,
            "delta": self.delta,
            "adjacency": self.adjacency,
            "certified_epsilon": finite_or_none(self.certified),
            "nominal_epsilon": finite_or_none(self.nominal),
            "claimed_epsilon": finite_or_none(self.claimed),
            "claim_holds": self.claim_holds,
            "reasons": list(self.reasons),
            "notes": list(self.notes),
            "faults": list(self.faults),
        }

    def to_json(self) -> str:
        """Return the statement as JSON."""
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False)

    def to_markdown(self) -> str:
        """Return the statement as a Markdown table and a list of reasons."""
        table = "\n".join(f"| {name} | {value} |" for name, value in self._rows())
        reasons = "\n".join(f"- {reason}" for reason in self.reasons)
        return f"**{self.rule}**, {self._length()}\n\n| | |\n|---|---|\n{table}\n\n{reasons}\n"

    def _repr_html_(self) -> str:
        """Show the statement as a table in a notebook."""
        return statement_html(self.rule, self._length(), self._rows(), self.reasons)

    def _length(self) -> str:
        return f"{self.steps} steps on {self.size}"

    def _rows(self) -> list[tuple[str, str]]:
        rows = [("certified ε", format_epsilon(self.certified))]
        if np.isfinite(self.nominal) and self.faults:
            rows += [("nominal ε", f"{format_epsilon(self.nominal)} with this mended: {' '.join(self.faults)}")]
        rows += [("δ", f"{self.delta:g}"), ("neighbours", neighbours(self.adjacency, self.unit))]
        if self.claimed is not None:
            rows += [("claimed by a paper", f"ε = {format_epsilon(self.claimed)}, {self._verdict()}")]
        return rows

    def _verdict(self) -> str:
        if self.claim_holds:
            return "which holds"
        if self.claimed is not None and self.certified <= self.claimed:
            return "outside its theorem's conditions; the certified ε is smaller"
        return "not proven: go by the certified ε"

    def __str__(self) -> str:
        lines = [
            f"{self.rule}, {self._length()}",
            f"  certified: {format_certified(self)}",
            f"  neighbours: {neighbours(self.adjacency, self.unit)}",
        ]
        if self.claimed is not None:
            lines.append(f"  claimed by a paper: ε = {format_epsilon(self.claimed)}, {self._verdict()}")
        return "\n".join(lines + [f"  - {reason}" for reason in self.reasons])


def account(rule: Rule, records: int, steps: int, delta: float, adjacency: str = "replace-one") -> Statement:
    """State the privacy of a rule: certified, claimed, and whether the claim holds.

    Parameters
    ----------
    rule : Rule
        The rule, noise included.
    records, steps : int
        Number of records and length of the run.
    delta : float
        The δ at which ε is stated, between 0 and 1.
    adjacency : {"replace-one", "zero-out", "add-remove"}
        How neighbouring data sets differ: a record is replaced, contributes nothing, or, for Poisson sampling with a
        public rate only, is added or removed.

    Returns
    -------
    Statement

    Examples
    --------
    >>> import clipsilon as cs
    >>> rule = cs.DPSGD(cs.schedules.Constant(0.5), clip=1.0, noise_std=0.004, batch=250)
    >>> round(cs.account(rule, records=60_000, steps=240, delta=1e-5, adjacency="zero-out").certified, 2)
    0.39
    """
    delta = checks.open_fraction("delta", delta)
    released = release(rule, records, steps)
    certificate = certify(released, adjacency)
    certified = certificate.epsilon(delta)
    claimed = claim(released, delta, adjacency)
    holds = None if claimed is None else bool(not claimed.failed and certified <= claimed.epsilon)
    reasons = [*certificate.reasons, *_claim_reasons(claimed, certified), *_terms(rule, released, delta, adjacency)]
    return Statement(
        rule.name,
        released.records,
        released.steps,
        delta,
        adjacency,
        certified,
        None if claimed is None else claimed.epsilon,
        holds,
        tuple(reasons),
        certificate,
    )


def point_statement(
    rule: str, records: int, epsilon: float, delta: float, adjacency: str, unit: str = "record"
) -> Statement:
    """State what will be (ε, δ)-private as a whole, before its parts are known.

    Parameters
    ----------
    rule : str
        The name of the release.
    records : int
        Number of records, or of people.
    epsilon, delta : float
        What all parts together will not exceed.
    adjacency : str
        How neighbouring data sets differ.
    unit : {"record", "person"}
        In what they differ.

    Returns
    -------
    Statement
        Without steps, and with one point for a curve.
    """
    reason = f"All parts together are ({epsilon:g}, {delta:g})-private."
    certificate = Certificate(profiles.point(epsilon, delta), (reason,))
    return Statement(rule, records, 0, delta, adjacency, epsilon, None, None, (reason,), certificate, unit=unit)


def neighbours(adjacency: str, unit: str) -> str:
    """Return how neighbouring data sets differ, in words: in one record, or in one person with all rows."""
    text = ADJACENCIES[adjacency]
    return text if unit == "record" else text.replace("one record", "one person, with all rows,")


def about_people(statement: Statement, max_rows: int | None) -> Statement:
    """Return the statement of a run whose records are people with several rows (docs/proofs.md, "People").

    Parameters
    ----------
    statement : Statement
        What is stated of a run on as many records as there are people; of a release without faults.
    max_rows : int or None
        The largest number of rows per person, if there is one.
    """
    some = "" if max_rows is None else f", of which the first {max_rows} are used"
    reason = (
        f"A record is a person with all their rows{some}: people were sampled, and the mean of the gradients of a "
        "person's rows was clipped. Which rows are a person's must not depend on other people. The number of people is "
        "public; that of rows is neither public nor covered."
    )
    return replace(statement, unit="person", reasons=(reason, *statement.reasons))


def fail_closed(statement: Statement, reason: str) -> Statement:
    """Certify nothing of a release that has a fault; `nominal` keeps what would be certified with it mended.

    What cost nothing stays certified at 0: no fault can reveal a record that was not looked at. `account` of a rule
    releases nothing, so its statements need not be closed.

    Parameters
    ----------
    statement : Statement
        The statement of a release: a fit, a training or a stream.
    reason : str
        The fault, in a sentence. The reasons of the returned statement begin with it.

    Returns
    -------
    Statement
        With `certified` infinite and δ = 1 at every ε. If `statement` was closed before, its `nominal` is kept.

    Examples
    --------
    >>> import clipsilon as cs
    >>> rule = cs.DPGD(cs.schedules.Constant(0.5), lipschitz=1.0, noise_std=1.0)
    >>> closed = fail_closed(cs.account(rule, records=100, steps=50, delta=1e-5), "The seed was published.")
    >>> closed.certified, round(closed.nominal, 2), closed.reasons[0]
    (inf, 0.5, 'The seed was published.')
    """
    if _costs_nothing(statement):
        return statement
    others = tuple(one for one in statement.reasons if one != reason)
    return replace(
        statement,
        certified=np.inf,
        claim_holds=None if statement.claimed is None else False,
        reasons=(reason, *others),
        certificate=Certificate(None, (reason, *statement.certificate.reasons)),
        faults=(reason, *(one for one in statement.faults if one != reason)),
        mended=statement if statement.mended is None else statement.mended,
    )


def about_seed(statement: Statement, seeded: bool) -> Statement:
    """Drop the conditional note about seeds from the statement of a release, and close it if there was a seed."""
    certain = replace(statement, reasons=tuple(reason for reason in statement.reasons if reason != _IF_SEEDED))
    return fail_closed(certain, SEEDED) if seeded else certain


def about_noise(statement: Statement, rule: Rule) -> Statement:
    """Close the statement of a release whose noise is not exact in the machine.

    A part of the package states by the class attribute `exact = True` that each number it draws is an exact real one
    on a public grid.
    """
    for part in [type(rule.noise)] + [type(rule.output)] * (type(rule.output) is Selected):
        if not getattr(part, "exact", False):
            statement = fail_closed(statement, f"{part.__name__}: {INEXACT}")
    return statement


def _costs_nothing(statement: Statement) -> bool:
    """Whether nothing was learnt from the records; an ε of 0 at one δ does not imply this."""
    profile = statement.certificate.profile
    return profile is not None and profile.mu == 0


def _claim_reasons(claimed: Claim | None, certified: float) -> list[str]:
    if claimed is None:
        return ["The papers have no formula for this rule."]
    reasons = [f"Claimed: {claimed.source}."]
    if claimed.failed:
        reasons.append(f"The claim's own condition fails: {'; '.join(claimed.failed)}.")
    if certified > claimed.epsilon:
        reasons.append(
            f"The claim is not certified: {claimed.epsilon:.4g} is claimed, {format_epsilon(certified)} is proven."
        )
    if claimed.source.startswith(("paper 3, Theorem 3.8", "paper 3, App. C.4")):
        reasons.append("The published proof for error feedback is wrong: see docs/errata.md.")
    return reasons


def _terms(rule: Rule, released: Release, delta: float, adjacency: str) -> list[str]:
    """Return the terms on which the guarantee is given."""
    terms = [f"Sampling: {type(rule.sampling).__name__}. The number of records and the expected batch size are public."]
    if released.has_public_rate:
        terms[0] = (
            f"Sampling: {type(rule.sampling).__name__}, with a public rate of {released.rate:.6g} for every number of "
            f"records. Sums are divided by {released.batch}, which is public, too."
        )
    if adjacency == "add-remove":
        terms.append(
            "The number of records is not public: steps, batch size, rate, step sizes and start must not depend on it, "
            "and neither it nor anything computed from it may be released."
        )
    if isinstance(released.sampling, InOrder):
        terms.append("The order of the records must not depend on what they hold, as that of a sorted table does.")
    terms += large_delta(delta, released.records)
    if released.participations is None and 1 - (1 - released.rate) ** released.steps <= delta:
        terms.append("δ is no less than the chance that a record takes part at all: such a δ protects nobody.")
    terms += [
        "All iterates are covered, and so is anything computed from them, such as the last one or an average.",
        "One run is covered: each replicate, and each run made to choose a setting, is a release of its own.",
        "The number of steps must be fixed beforehand: a run that stops because of what it released costs all the "
        "steps that it might have taken.",
        _IF_SEEDED,
    ]
    if released.feedback is not None:
        terms.append("The error e is hidden state: a recorded or checkpointed e is not covered.")
        terms.append("The rounding of e is covered: `run` refuses runs that are too long for it (docs/proofs.md).")
    if released.tracks:
        terms.append("The records' memories are hidden state: checkpoints, which hold them, are not covered.")
    if released.counts:
        terms.append(
            "The thresholds are covered, too. Their start, target quantile and rate must be chosen without the records."
        )
    if released.buffers is not None:
        terms.append("The rounding of noise is covered: `run` refuses runs that are too long for it (docs/proofs.md).")
    if released.selection > 0:
        terms.append("What would have been selected earlier in the run, and any noisy norm, is not covered.")
    return terms


def format_certified(stated: Statement) -> str:
    """Return the certified ε at δ as text, with the nominal ε if faults prevent a certificate."""
    text = f"ε = {format_epsilon(stated.certified)} at δ = {stated.delta:g}"
    if stated.faults and np.isfinite(stated.nominal):
        text += f", nominal: ε = {format_epsilon(stated.nominal)} with this mended"
    return text


def finite_or_none(epsilon: float | None) -> float | None:
    """Return an ε as JSON can hold it: None if it is infinite."""
    return epsilon if epsilon is not None and np.isfinite(epsilon) else None


def format_epsilon(epsilon: float | None) -> str:
    """Return an ε as text for tables and statements."""
    if epsilon is None:
        return "none"
    return f"{epsilon:.4g}" if np.isfinite(epsilon) else "∞"
