"""`clipsilon reproduce`: the papers' figures and tables, on one page."""

from __future__ import annotations

from pathlib import Path

import click

from clipsilon.cli.errors import plain_errors, stoppable
from clipsilon.cli.options import quiet_option


@click.command("reproduce")
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--quick", is_flag=True, help="Run fewer steps and replicates; takes a few minutes.")
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("report"),
    show_default=True,
    help="Folder for the page and its figures.",
)
@click.option("--list", "only_list", is_flag=True, help="List the experiments without running them.")
@quiet_option
def command(names: tuple[str, ...], quick: bool, output: Path, only_list: bool, quiet: bool) -> None:
    """Reproduce the papers' figures and tables, and ours, each with a verdict, on one page.

    NAME is an experiment, or the beginning of the names of several. By default all run except those with neural
    networks, which take a quarter of an hour and need an extra (see --list). Results are stored: a stopped command
    resumes where it was, and a finished one only draws the page again.
    """
    from clipsilon.report import terminal
    from clipsilon.reproduce import runner
    from clipsilon.reproduce.laboratory import Laboratory

    screen = terminal.console()
    with (
        plain_errors(),
        stoppable(f"Stopped; {output} holds the finished results; the same command resumes from there."),
    ):
        if only_list:
            screen.print(terminal.experiment_table(runner.choose(names or ("",))))
            return
        chosen = runner.choose(names)
        lab = Laboratory(quick=quick, progress=False if quiet else None)
        done = runner.reproduce(chosen, lab, output, *([] if quiet else [terminal.progress_printer(len(chosen))]))
    screen.print(terminal.verdict_table(done))
    click.echo(f"wrote {output / 'index.html'}")
