"""`clipsilon ledger`: the privacy statement of the users in a ledger."""

from __future__ import annotations

from contextlib import closing

import click

from clipsilon.cli.errors import plain_errors
from clipsilon.cli.options import format_option
from clipsilon.local.ledger import Entry, open_ledger
from clipsilon.local.spending import compose
from clipsilon.local.statement import compose_reports


@click.command("ledger")
@click.argument("path", metavar="LEDGER")
@click.option("--delta", type=float, required=True, help="δ at which ε is stated.")
@format_option("text", "json")
def command(path: str, delta: float, form: str) -> None:
    """State the privacy loss of the users in LEDGER: in summary, and with --format json for each of them.

    LEDGER is a SQLite file or a postgresql:// address. Its chain of digests is checked from the first report on.
    """
    with plain_errors(), closing(open_ledger(path)) as opened:
        events = (event for event in opened.news() if isinstance(event, Entry))
        statement = compose_reports(((one.user, compose(one.mu, one.lost)) for one in events), delta)
    click.echo(statement.to_json() if form == "json" else statement)
