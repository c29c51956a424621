"""`clipsilon account`: the privacy statement of a preset."""

from __future__ import annotations

import click

from clipsilon.cli.errors import plain_errors
from clipsilon.cli.opacus import config_option
from clipsilon.cli.options import format_option
from clipsilon.cli.rule_options import ABOUT_PRESETS, count_steps, make_rule, rule_options
from clipsilon.privacy.statement import account


@click.command("account", epilog=ABOUT_PRESETS)
@rule_options
@config_option
@format_option("text", "markdown", "json")
def command(
    records: int,
    steps: int | None,
    epochs: float | None,
    delta: float,
    adjacency: str,
    form: str,
    preset: str,
    **options: float | str | None,
) -> None:
    """State the privacy of PRESET: certified, claimed, and why."""
    with plain_errors():
        rule = make_rule(preset, records, **options)
        statement = account(rule, records, count_steps(rule, records, steps, epochs), delta, adjacency)
    formats = {"text": statement.__str__, "markdown": statement.to_markdown, "json": statement.to_json}
    click.echo(formats[form]())
