"""`clipsilon fit`: fit a private model to a file, state its privacy, and evaluate it on held-out rows."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from clipsilon.cli.errors import plain_errors, require_new_file, stoppable
from clipsilon.cli.fit_file import Fit, Tell, fit_file
from clipsilon.cli.fit_request import METHODS, Request
from clipsilon.cli.model_kinds import MODELS
from clipsilon.cli.options import (
    adjacency_option,
    budget_option,
    format_option,
    group_option,
    ignore_option,
    parse_numbers,
    quiet_option,
    report_option,
)
from clipsilon.privacy.statement import format_certified, neighbours

QUALITY_WARNING = (
    "Not private: these numbers are computed from the held-out rows without noise, and the statement below covers only "
    "the rows that trained the model. Share them only with people who may see those rows; the model file omits them."
)


def _parse_labels(context: click.Context, option: click.Parameter, text: str | None) -> list[str] | None:
    """Return the labels of a comma-separated list."""
    return None if text is None else [part.strip() for part in text.split(",")]


@click.command("fit")
@click.argument("path", metavar="FILE", type=click.Path(path_type=Path))
@click.option("--target", required=True, help="Column to predict; without --schema, the others must be numbers.")
@click.option(
    "--schema",
    type=click.Path(path_type=Path),
    help="Public description of the columns, for text, dates and gaps: a file that clipsilon schema proposes.",
)
@click.option("--epsilon", type=float, required=True, help="ε of everything that is learnt, in total.")
@click.option("--delta", type=float, default=1e-5, show_default=True, help="δ of everything that is learnt, in total.")
@click.option(
    "--model",
    type=click.Choice(tuple(MODELS)),
    help="Kind of model; default: linear with --target-range, logistic with --classes or if the target has two values.",
)
@click.option(
    "--classes", callback=_parse_labels, help="All labels of the target, such as no,yes; default: learnt without noise."
)
@click.option(
    "--target-range",
    callback=parse_numbers,
    help="Range of most targets of numbers, such as 0,100; default: learnt without noise.",
)
@click.option("--quantile", type=float, help="Quantile that model quantile predicts; default: 0.5.")
@ignore_option
@group_option
@click.option("--max-rows", type=int, help="Largest number of rows used per person; default: all.")
@click.option("--scale-epsilon", type=float, help="Part of ε for learning the columns' scales; default: a tenth.")
@click.option(
    "--bounds",
    type=click.Path(path_type=Path),
    help="Public bounds for scaling instead: a CSV file with the columns column, low and high.",
)
@click.option("--as-is", is_flag=True, help="Do not scale the columns; for columns that are of unit order already.")
@click.option(
    "--method",
    type=click.Choice(METHODS),
    default="dpsgd",
    show_default=True,
    help="Algorithm that trains the model.",
)
@adjacency_option("zero-out")
@click.option("--l2", type=float, default=0.0, show_default=True, help="Weight of ½‖θ‖² in the loss.")
@click.option(
    "--holdout",
    type=float,
    default=0.2,
    show_default=True,
    help="Fraction of the rows to hold out for evaluation.",
)
@click.option(
    "--evaluate-epsilon",
    type=float,
    help="ε for evaluating the model privately on the held-out rows; default: evaluate without noise.",
)
@click.option("--seed", type=int, help="Seed that makes the fit repeatable; not for release.")
@budget_option
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("model.json"),
    show_default=True,
    help="New model file.",
)
@report_option
@format_option("text", "json")
@quiet_option
def command(output: Path, report: Path | None, form: str, quiet: bool, **about: Any) -> None:
    """Fit a private model to a CSV or Parquet FILE, evaluate it on held-out rows, and write it to a model file.

    Learning the scales of the columns and the model costs (ε, δ) in total. Without --evaluate-epsilon, the printed
    quality is computed from the held-out rows without noise: it is not private.
    """
    with plain_errors(), stoppable():
        require_new_file(output)
        from clipsilon.estimators import model_files

        tell: Tell = (lambda text: None) if quiet else (lambda text: click.echo(text, err=True))
        result = fit_file(Request(**about), tell, progress=False if quiet else None)
        model_files.write_model(output, result.model, result.total)
        if report is not None:
            tell("Writing the report…")
            _write_report(report, result)
    if form == "json":
        click.echo(json.dumps({**result.to_dict(), "output": str(output)}, indent=2, ensure_ascii=False))
    else:
        _print_fit(result, output)
        if report is not None:
            click.echo(f"wrote {report}")


def _write_report(report: Path, result: Fit) -> None:
    from clipsilon.report.model_page import write_report

    model = result.model
    write_report(report, model.pipeline, result.scores, target=model.target, columns=model.columns)


def _print_fit(result: Fit, output: Path) -> None:
    from rich.console import Console
    from rich.table import Table as Grid

    from clipsilon.estimators.total import format_total

    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False, markup=False)
    if result.quality:
        table = Grid("", "the model", result.baseline, title=f"Quality on {result.held_out} held-out {result.counted}")
        for name, *values in result.quality:
            table.add_row(name, *("–" if value != value else f"{value:.4g}" for value in values))
        console.print(table)
        console.print(QUALITY_WARNING, style="bold")
    if result.scores is not None:
        from clipsilon.cli.scores_table import print_scores

        print_scores(result.scores, f"{result.held_out} held-out {result.counted}")
    total = result.total
    click.echo(
        f"Certified: {format_total(total)}, for the {_who(result.trained, result.counted)} trained the model "
        f"({neighbours(total.adjacency, total.unit)})."
    )
    if result.scores is not None:
        who = "row" if total.unit == "record" else "person"
        size = _who(result.held_out, result.counted)
        click.echo(
            f"Certified: {format_certified(result.scores.statement)}, for the {size} evaluated it. Each {who} is in "
            "one of the two."
        )
    for statement in (*result.statements, *(() if result.scores is None else (result.scores.statement,))):
        click.echo(statement)
    for note in (*result.notes, *result.uncovered):
        click.echo(f"Note: {note}")
    click.echo(f"wrote {output}")


def _who(number: int, counted: str) -> str:
    return f"{number} {counted} {'that' if counted == 'rows' else 'who'}"
