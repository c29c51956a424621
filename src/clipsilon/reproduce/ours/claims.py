"""Ours: every (ε, δ) that the papers' experiments state, beside what is certified and what an attack shows."""

from __future__ import annotations

from clipsilon.privacy.papers import ClaimRow, claims
from clipsilon.report.charts import Chart, Series, Table
from clipsilon.reproduce.base import Finding, Lab, Result, experiment

RUNS = 200  # attacks on each side
COLUMNS = ("experiment", "paper", "adjacency", "δ", "claimed ε", "condition", "certified ε", "audited ε ≥")
GROUPS = (
    (1, "PCSGD", "Paper 1's noise for PCSGD gives the ε that it claims (Corollary 3.6).", "Erratum 2."),
    (1, "DiceSGD", "Paper 1's noise for DiceSGD gives the ε that it claims (from paper 3).", "Erratum 1."),
    (3, "DPSGD-GC", "Paper 3's noise for DPSGD gives the ε that it claims (Theorem 2.3).", ""),
    (3, "DiceSGD", "Paper 3's noise for DiceSGD gives the ε that it claims (Theorem 3.8).", "Erratum 1."),
    (4, "local", "Paper 4's local reports give what is claimed (Theorem 1).", ""),
    (5, "DP-SGD", "Paper 5's noise on Cod-RNA gives ε ≈ 5.", "Erratum 4."),
    (5, "DP-GD", "Paper 5's noise for gradient descent gives the ε that it claims (Theorem 2.6).", "Erratum 3."),
)


@experiment(
    "ours-claims",
    paper=None,
    where="claims table",
    title="What is really private: claimed, certified, audited",
    parameters={"audit": "200 runs a side, 95 % confidence (quick: none)", "experiments": "those of the five papers"},
)
def table(lab: Lab) -> Result:
    """An ε that is certified is proven for the rule as it ran; one that is audited was demonstrated by an attack. Where
    even the audited one is above the claim, the claim is false.
    """
    rows: list[ClaimRow] = lab.keep(claims, None if lab.quick else RUNS)
    findings = [_finding(rows, *group) for group in GROUPS]
    if not lab.quick:
        findings.append(_sound(rows))
    listing = [
        (r.experiment, r.paper, r.adjacency, r.delta, r.claimed, r.condition, r.certified, r.audited) for r in rows
    ]
    return Result(findings, [_chart(rows)], [Table("Claimed, certified and audited ε", COLUMNS, listing)])


def _finding(rows: list[ClaimRow], paper: int, start: str, says: str, remark: str) -> Finding:
    own = [row for row in rows if row.paper == paper and row.experiment.startswith(start)]
    if not own:
        raise LookupError(f"No claim of paper {paper} begins with {start!r}: of none, all would hold.")
    measured = "; ".join(
        f"{row.experiment}: claimed {row.claimed:.3g}, certified {row.certified:.4g}"
        + ("" if row.audited is None else f", attacked {row.audited:.3g}")
        for row in own
    )
    held = all(row.certified <= row.claimed * 1.001 for row in own)  # equal, up to how they were computed
    return Finding(says, f"{measured}.{_broken(own)}", held, " ".join(filter(None, [remark, _conditions(own)])))


def _broken(rows: list[ClaimRow]) -> str:
    """How many claims an attack refutes; a certificate above a claim only says that the claim is not proven."""
    audited = [row for row in rows if row.audited is not None]
    broken = sum(row.audited > row.claimed for row in audited if row.audited is not None)
    return f" An attack refutes {broken} of these {len(audited)} claims." if audited else ""


def _conditions(rows: list[ClaimRow]) -> str:
    failed = list(dict.fromkeys(row.condition for row in rows if row.condition != "met"))
    return f"Conditions of the theorem: {'; '.join(failed)}." if failed else ""


def _sound(rows: list[ClaimRow]) -> Finding:
    audited = [row for row in rows if row.audited is not None]
    shares = [(row.audited or 0.0) / row.certified for row in audited]
    beyond = sum(share > 1 for share in shares)
    return Finding(
        "What is certified withstands every attack (ours).",
        f"Of {len(shares)} audits, {beyond} exceed their certificate; the closest comes to {max(shares):.0%} of it.",
        not beyond,
    )


def _chart(rows: list[ClaimRow]) -> Chart:
    """One number a setting, in the order of the table."""
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
    return Chart("The same three numbers", "row of the table", "ε", series, y_log=True)
