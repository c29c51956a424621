"""`clipsilon audit`: an attack on a preset, and the ε that it demonstrates."""

from __future__ import annotations

from pathlib import Path

import click

from clipsilon.cli.errors import plain_errors, stoppable
from clipsilon.cli.options import confidence_option, plot_option
from clipsilon.cli.rule_options import ABOUT_PRESETS, count_steps, make_rule, rule_options


@click.command("audit", epilog=ABOUT_PRESETS)
@rule_options
@click.option("--runs", type=int, default=10_000, show_default=True, help="Runs on each of the two data sets.")
@confidence_option
@click.option("--seed", type=int, help="Seed that makes the audit repeatable.")
@plot_option
def command(
    records: int,
    steps: int | None,
    epochs: float | None,
    delta: float,
    adjacency: str,
    runs: int,
    confidence: float,
    seed: int | None,
    plot: Path | None,
    preset: str,
    **options: float | str | None,
) -> None:
    """Attack PRESET and state the ε that the attack demonstrates."""
    from clipsilon.privacy.auditing.audit import audit
    from clipsilon.report.drawing import save
    from clipsilon.report.plots import tradeoff_figure

    with plain_errors(), stoppable():
        rule = make_rule(preset, records, **options)
        length = count_steps(rule, records, steps, epochs)
        found = audit(rule, records, length, delta, runs=runs, confidence=confidence, seed=seed, adjacency=adjacency)
    click.echo(found)
    if plot is not None:
        with plain_errors():
            save(tradeoff_figure(found), plot)
