"""`clipsilon demo`: the command alone. What it runs is in `demo_report`, which imports the report and its figures."""

from __future__ import annotations

from pathlib import Path

import click

from clipsilon.cli.errors import plain_errors, stoppable
from clipsilon.cli.options import quiet_option


@click.command("demo")
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("clipsilon-demo"),
    show_default=True,
    help="Folder for the page and its figures.",
)
@quiet_option
def command(output: Path, quiet: bool) -> None:
    """Compare four rules, from SGD to CorrelatedSGD, on two problems: print tables, and write a short page."""
    from clipsilon.cli.demo_report import demo, summary
    from clipsilon.report.terminal import console
    from clipsilon.reproduce.laboratory import Laboratory

    screen = console()
    with plain_errors(), stoppable(f"Stopped; {output} holds the finished results."):
        lab = Laboratory(quick=True, progress=False if quiet else None)
        for piece in summary(demo(lab, output, tell=screen.print)):
            screen.print(piece)
    click.echo(f"wrote {output / 'index.html'}")
