"""Ours: every (ε, δ) of the papers' experiments, beside what is certified and what an attack demonstrates."""

from __future__ import annotations

from clipsilon.privacy.papers import ClaimRow, claims
from clipsilon.report.charts import Chart, Series, Table
from clipsilon.reproduce.base import Finding, Lab, Result, experiment

RUNS = 200  # runs of the attack per side
COLUMNS = ("experiment", "paper", "adjacency", "δ", "claimed ε", "condition", "certified ε", "audited ε ≥")
NO_NOISE = "No noise is added to the accumulated error (errata, item 1)."
GROUPS = (
    (1, "PCSGD", "With paper 1's noise, PCSGD has the ε that is claimed (Corollary 3.6).", "See the errata, item 2."),
    (1, "DiceSGD", "With paper 1's noise, DiceSGD has the ε that is claimed (from paper 3).", NO_NOISE),
    (3, "DPSGD-GC", "With paper 3's noise, DPSGD has the ε that is claimed (Theorem 2.3).", ""),
    (3, "DiceSGD", "With paper 3's noise, DiceSGD has the ε that is claimed (Theorem 3.8).", NO_NOISE),
    (4, "local", "Paper 4's local reports have the privacy that is claimed (Theorem 1).", ""),
    (5, "DP-SGD", "With paper 5's noise on Cod-RNA, DP-SGD has ε ≈ 5.", "The claim is not tight (errata, item 4)."),
    (
        5,
        "DP-GD",
        "With paper 5's noise, gradient descent has the ε that is claimed (Theorem 2.6).",
        "The noise is too small for the replacement of one record (errata, item 3).",
    ),
)


@experiment(
    "ours-claims",
    paper=None,
    where="claims table",
    title="What is really private: claimed, certified, audited",
    parameters={"audit": "200 runs per side, 95 % confidence (quick: none)", "experiments": "of the five papers"},
)
def table(lab: Lab) -> Result:
    """A certified ε is proven for the rule exactly as it runs; an audited ε was demonstrated by an attack. If the
    audited ε exceeds the claim, the claim is false.
    """
    rows: list[ClaimRow] = lab.keep(claims, None if lab.quick else RUNS)
    findings = [_finding(rows, *group) for group in GROUPS]
    if not lab.quick:
        findings.append(_sound(rows))
    listing = [
        (r.experiment, r.paper, r.adjacency, r.delta, r.claimed, r.condition, r.certified, r.audited) for r in rows
    ]
    return Result(findings, [_chart(rows)], [Table("Claimed, certified and audited ε", COLUMNS, listing)])


def _finding(rows: list[ClaimRow], paper: int, start: str, statement: str, remark: str) -> Finding:
    own = [row for row in rows if row.paper == paper and row.experiment.startswith(start)]
    if not own:
        raise LookupError(f"No claim of paper {paper} begins with {start!r}: a statement about no claim would hold.")
    measured = "; ".join(
        f"{row.experiment}: claimed {row.claimed:.3g}, certified {row.certified:.4g}"
        + ("" if row.audited is None else f", audited at least {row.audited:.3g}")
        for row in own
    )
    held = all(row.certified <= row.claimed * 1.001 for row in own)  # equal up to numerical error
    return Finding(statement, f"{measured}.{_broken(own)}", held, " ".join(filter(None, [remark, _conditions(own)])))


def _broken(rows: list[ClaimRow]) -> str:
    """Say how many claims an attack refutes; a certificate above a claim only means that the claim is not proven."""
    audited = [row for row in rows if row.audited is not None]
    broken = sum(row.audited > row.claimed for row in audited if row.audited is not None)
    return f" An attack refutes {broken} of these {len(audited)} claims." if audited else ""


def _conditions(rows: list[ClaimRow]) -> str:
    failed = list(dict.fromkeys(row.condition for row in rows if row.condition != "met"))
    return f"Conditions of the theorem: {'; '.join(failed)}." if failed else ""


def _sound(rows: list[ClaimRow]) -> Finding:
    audited = [row for row in rows if row.audited is not None]
    ratios = [(row.audited or 0.0) / row.certified for row in audited]
    beyond = sum(ratio > 1 for ratio in ratios)
    return Finding(
        "No attack exceeds a certified ε (ours).",
        f"Of {len(ratios)} audits, {beyond} exceed their certificate; the largest reaches {max(ratios):.0%} of it.",
        not beyond,
    )


def _chart(rows: list[ClaimRow]) -> Chart:
    """Return the three numbers of each row, in the order of the table."""
    places = list(range(1, len(rows) + 1))
    nothing = float("nan")
    columns = {
        "claimed": [row.claimed for row in rows],
        "certified": [row.certified for row in rows],
        "audited (at least)": [row.audited or nothing for row in rows],
    }
    if all(row.audited is None for row in rows):
        del columns["audited (at least)"]
    series = [Series(name, places, values, kind="points") for name, values in columns.items()]
    return Chart("Claimed, certified and audited ε", "row of the table", "ε", series, y_log=True)
