"""`clipsilon reproduce`: the papers' figures and tables, on one page."""

from __future__ import annotations

from pathlib import Path

import click

from clipsilon.cli.errors import plain_errors, stoppable
from clipsilon.cli.options import quiet_option


@click.command("reproduce")
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--quick", is_flag=True, help="Take fewer steps and replicates: two minutes.")
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("report"),
    show_default=True,
    help="Folder for the page and its figures.",
)
@click.option("--list", "only_list", is_flag=True, help="Show the names and what they are, and run nothing.")
@quiet_option
def command(names: tuple[str, ...], quick: bool, output: Path, only_list: bool, quiet: bool) -> None:
    """Make the papers' figures and tables again, and ours, each with a verdict, on one page.

    NAME is an experiment, or how the names of several begin; default: all but those with networks, which take a quarter
    of an hour by themselves and need an extra (see --list). Whatever was computed is kept: a command
    that was stopped goes on where it was, and one that is done only draws.
    """
    from clipsilon.report import terminal
    from clipsilon.reproduce import runner
    from clipsilon.reproduce.laboratory import Laboratory

    screen = terminal.console()
    with plain_errors(), stoppable(f"Stopped; {output} has what was done, and the same command goes on from there."):
        if only_list:
            screen.print(terminal.listed(runner.choose(names or ("",))))
            return
        chosen = runner.choose(names)
        lab = Laboratory(quick=quick, progress=False if quiet else None)
        done = runner.reproduce(chosen, lab, output, *([] if quiet else [terminal.teller(len(chosen))]))
    screen.print(terminal.verdicts(done))
    click.echo(f"wrote {output / 'index.html'}")
