"""`clipsilon demo`: the command alone. What it runs is in `demo_report` and `demo_live`, which import the report."""

from __future__ import annotations

from pathlib import Path

import click

from clipsilon.cli.errors import plain_errors, stoppable
from clipsilon.cli.options import quiet_option


@click.command("demo")
@click.argument("story", type=click.Choice(["papers", "live"]), default="papers")
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for the page and its figures; default: clipsilon-demo, or clipsilon-demo-live.",
)
@quiet_option
def command(story: str, output: Path | None, quiet: bool) -> None:
    """Show what the package does, and write a short page.

    papers (the default): compare four rules, from SGD to CorrelatedSGD, on two problems; under a minute. live: a
    lender's year, with a model that goes on learning behind HTTP from applicants who react to it; two minutes.
    """
    if story == "live":
        _live(output or Path("clipsilon-demo-live"), quiet)
    else:
        _papers(output or Path("clipsilon-demo"), quiet)


def _live(output: Path, quiet: bool) -> None:
    from clipsilon.cli.demo_live import demo_live
    from clipsilon.report import terminal
    from clipsilon.reproduce.laboratory import Laboratory

    screen = terminal.console()
    with plain_errors(), stoppable("Stopped; nothing was written."):
        if not quiet:
            click.echo("Simulating a year of four lenders, two of them behind HTTP…", err=True)
        lab = Laboratory(quick=True, progress=False if quiet else None)
        done = demo_live(lab, output)
    for table in done.result.tables:
        screen.print(terminal.number_table(table))
    screen.print(terminal.verdict_table([done]))
    click.echo(f"wrote {output / 'index.html'}")


def _papers(output: Path, quiet: bool) -> None:
    from clipsilon.cli.demo_report import demo, summary
    from clipsilon.report.terminal import console
    from clipsilon.reproduce.laboratory import Laboratory

    screen = console()
    with plain_errors(), stoppable(f"Stopped; {output} holds the finished results."):
        lab = Laboratory(quick=True, progress=False if quiet else None)
        for piece in summary(demo(lab, output, tell=screen.print)):
            screen.print(piece)
    click.echo(f"wrote {output / 'index.html'}")
