"""`clipsilon ledger`: the privacy statement of the users in a ledger."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import click

from clipsilon.cli.errors import plain_errors
from clipsilon.cli.options import format_option
from clipsilon.local.ledger import open_ledger
from clipsilon.local.statement import compose_reports


@click.command("ledger")
@click.argument("path", metavar="LEDGER", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--delta", type=float, required=True, help="δ at which ε is stated.")
@format_option("text", "json")
def command(path: Path, delta: float, form: str) -> None:
    """State the privacy loss of the users in LEDGER: in summary, and with --format json for each of them."""
    with plain_errors(), closing(open_ledger(path)) as opened:
        statement = compose_reports(opened.budgets(), delta)
    click.echo(statement.to_json() if form == "json" else statement)
