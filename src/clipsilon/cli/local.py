"""`clipsilon local`: what can be done before a service for local privacy is deployed."""

from __future__ import annotations

from pathlib import Path

import click

from clipsilon._core import checks
from clipsilon.cli.errors import plain_errors, stoppable
from clipsilon.cli.options import quiet_option


@click.group("local")
def command() -> None:
    """Plan a collection under local privacy."""


@command.command("simulate")
@click.option("--devices", type=click.IntRange(min=1), default=1_000_000, show_default=True, help="Number of devices.")
@click.option("--dimension", type=click.IntRange(min=1), default=20, show_default=True, help="Number of features.")
@click.option(
    "--budgets",
    default="uniform:0.5,2",
    show_default=True,
    help="Law of the budgets μ: constant:A, uniform:A,B, loguniform:A,B or choice:A,B,….",
)
@click.option(
    "--population", type=click.Choice(["linear", "logistic"]), default="linear", show_default=True, help="The records."
)
@click.option(
    "--batch", "batches", type=click.IntRange(min=1), multiple=True, help="Reports per round; may be repeated."
)
@click.option(
    "--weights", type=click.Choice(["budget", "equal"]), default="budget", show_default=True, help="Weights of reports."
)
@click.option("--variance", type=float, help="V of the weights; default: the largest variance of a gradient.")
@click.option("--trim", type=float, default=0.0, show_default=True, help="Fraction trimmed from each end of a round.")
@click.option("--dropout", type=float, default=0.0, show_default=True, help="Share of devices that never report.")
@click.option("--delay", type=float, default=0.0, show_default=True, help="Mean delay of a report, in rounds.")
@click.option(
    "--staleness", type=click.IntRange(min=0), default=4, show_default=True, help="Rounds by which it may be late."
)
@click.option("--liars", type=float, default=0.0, show_default=True, help="Share of devices that send lies.")
@click.option("--step-size", type=float, help="η of the steps η·r^(−decay); default: 0.1·√batch, at most 2.")
@click.option(
    "--decay", type=float, default=0.5, show_default=True, help="Exponent of the step sizes; 0 keeps them constant."
)
@click.option(
    "--replicates", type=click.IntRange(min=1), default=4, show_default=True, help="Simulations of each kind."
)
@click.option("--seed", type=click.IntRange(min=0), help="Makes the simulation repeatable.")
@click.option("--report", type=click.Path(dir_okay=False, path_type=Path), help="Write a page to this .html file.")
@quiet_option
def simulate(
    devices: int,
    dimension: int,
    budgets: str,
    population: str,
    batches: tuple[int, ...],
    weights: str,
    variance: float | None,
    trim: float,
    dropout: float,
    delay: float,
    staleness: int,
    liars: float,
    step_size: float | None,
    decay: float,
    replicates: int,
    seed: int | None,
    report: Path | None,
    quiet: bool,
) -> None:
    """Simulate devices that report under local privacy, and show the error against devices, rounds and budgets."""
    from clipsilon.local.simulation import Averaging, Crowd, default_step
    from clipsilon.local.study import make_study
    from clipsilon.report import simulation_page, terminal
    from clipsilon.report.ownership import check_page
    from clipsilon.rules.schedules import Power

    with plain_errors(), stoppable("Stopped; nothing was written."):
        if report is not None:
            check_page(report)
        exponent = checks.nonnegative("decay", decay)
        given = None if step_size is None else checks.positive("step_size", step_size)
        study = make_study(
            Crowd(devices, dimension, budgets, population, dropout, delay, liars),
            Averaging(weights=weights, variance=variance, trim=trim, staleness=staleness),
            batches or (1, 10, 100),
            lambda batch: Power(default_step(batch).eta if given is None else given, exponent),
            replicates=replicates,
            seed=seed,
            report=lambda text: None if quiet else click.echo(text, err=True),
        )
        if report is not None:
            simulation_page.write_simulation_page(report, study)
    screen = terminal.console()
    screen.print(terminal.number_table(simulation_page.error_table(study)))
    if report is not None:
        click.echo(f"wrote {report}")
