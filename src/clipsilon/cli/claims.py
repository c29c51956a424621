"""`clipsilon claims`: the privacy that the papers claim, beside what holds."""

from __future__ import annotations

import csv
import sys

import click

from clipsilon.cli.errors import plain_errors, stoppable
from clipsilon.privacy.papers import ClaimRow, claims

COLUMNS = ("paper", "experiment", "δ", "neighbours", "claimed ε", "condition", "certified ε", "audited ε")


@click.command("claims")
@click.option(
    "--audit-runs", type=int, help="Attack each setting with this many runs per data set; 200 take a few minutes."
)
@click.option("--csv", "as_csv", is_flag=True, help="Print comma-separated values.")
def command(audit_runs: int | None, as_csv: bool) -> None:
    """Compare the papers' privacy claims, in their own settings, with the certified and the audited ε."""
    with plain_errors(), stoppable("Stopped: the table was not complete."):
        rows = [_cells(row) for row in claims(audit_runs)]
    if as_csv:
        csv.writer(sys.stdout).writerows([COLUMNS, *rows])
    else:
        _print_table(rows)


def _cells(row: ClaimRow) -> list[str]:
    audited = "not run" if row.audited is None else f"≥ {row.audited:.3g}"
    about = [str(row.paper), row.experiment, f"{row.delta:.1e}", row.adjacency]
    return [*about, f"{row.claimed:.3g}", row.condition, f"{row.certified:.4g}", audited]


def _print_table(rows: list[list[str]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(*COLUMNS, title="What the papers' experiments claim, and what holds")
    for row in rows:
        table.add_row(*row)
    Console(width=None if sys.stdout.isatty() else 160).print(table)
