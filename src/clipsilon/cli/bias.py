"""`clipsilon bias`: the exact bias of clipping, as a table, a figure or comma-separated values."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import numpy as np

from clipsilon.analysis.bias import BiasRow, bias_table, proposed_clips
from clipsilon.cli.errors import plain_errors
from clipsilon.cli.options import ignore_option, parse_numbers, plot_option
from clipsilon.cli.tables import Table, binary_labels, read_table, real_labels
from clipsilon.problems import losses, responses
from clipsilon.problems.losses.base import Loss, label_kind
from clipsilon.problems.problem import Problem
from clipsilon.reproduce.problems import credit_data, credit_problem, quadratic

if TYPE_CHECKING:
    from rich.console import Console

LOSSES: dict[str, Callable[..., Loss]] = {
    "logistic": losses.Logistic,
    "squared-error": losses.SquaredError,
    "huber": losses.Huber,
}
MARKS = "*†‡§¶#¤^~"  # one for each possible remark

WARNING = (
    "Not private: these numbers are computed from the data without noise. They reveal something about the records, "
    "and so does a clip that is chosen by them."
)
GAMING = (
    "Reaction: each record with label 1 changes all its columns to lower its score, "
    "by β·θ/max(1, ‖θ‖); the others do not react (BestResponse)."
)
SHIFTING = "Reaction: every record changes all its columns to lower its prediction, by β·θ (LocationShift)."
MOVING = "Reaction: every record moves by −β·θ (LocationShift)."


class Subject(NamedTuple):
    """What is measured.

    Parameters
    ----------
    title : str
        Name of the problem.
    problem_at : callable
        Returns the problem with a reaction of strength β.
    betas : tuple of float
        The strengths to look at by default.
    notes : tuple of str
        Sentences that describe the problem to readers.
    """

    title: str
    problem_at: Callable[[float], Problem]
    betas: tuple[float, ...]
    notes: tuple[str, ...]


def quadratic_subject() -> Subject:
    """Return paper 1's first setting, whose stable point moves off to infinity as β approaches 0.1."""
    note = "Paper 1's first setting: ½(θ + 10·z)², z = 1 for a tenth of 100,000 records and 0 otherwise, |θ| ≤ 10."
    return Subject(
        "Quadratic",
        quadratic,
        (0.0, 0.01, 0.05, 0.08),
        (note, MOVING),
    )


def credit_subject() -> Subject:
    """Return paper 1's credit setting."""
    problem = credit_problem(beta=0.0)
    note = (
        f"Paper 1's credit setting, {problem.records} records; data: {credit_data().source}. Logistic loss with "
        f"l2 = {problem.loss.l2:.3g} and weight 2 on label 1; columns standardised."
    )
    return Subject("Credit", credit_problem, (0.0, 0.1, 0.3, 1.0), (note, GAMING))


SUBJECTS: dict[str, Callable[[], Subject]] = {"quadratic": quadratic_subject, "credit": credit_subject}


def _parse_sorted(context: click.Context, option: click.Parameter, text: str | None) -> list[float] | None:
    """Return the different numbers of a comma-separated list, from the smallest to the largest."""
    numbers = parse_numbers(context, option, text)
    return None if numbers is None else sorted(set(numbers))


@click.command("bias")
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option("--target", help="Column of FILE to predict; the others are features and must be numbers.")
@ignore_option
@click.option("--problem", type=click.Choice(list(SUBJECTS)), help="A built-in problem instead of FILE.")
@click.option(
    "--loss",
    type=click.Choice(list(LOSSES)),
    help="Loss of a record; default: logistic for a target of two values, otherwise squared-error.",
)
@click.option("--l2", type=float, help="Weight of ½‖θ‖² in the loss; default: 0.01.")
@click.option(
    "--clip",
    "clips",
    callback=_parse_sorted,
    help="Clip thresholds, such as 0.1,0.3,1; default: eight over the range of the gradients' norms.",
)
@click.option(
    "--beta",
    "betas",
    callback=_parse_sorted,
    help="Strengths of the reaction, such as 0,0.1; default: 0,0.1,0.3,1, or 0,0.01,0.05,0.08 for the quadratic.",
)
@click.option(
    "--standardise/--as-is",
    default=None,
    help="Scale the columns (and a target of numbers) to mean 0 and standard deviation 1, or leave them as they are.  "
    "[default: standardise]",
)
@plot_option
@click.option("--csv", "as_csv", is_flag=True, help="Print comma-separated values, one line per clip and β.")
def command(
    file: Path | None,
    problem: str | None,
    clips: list[float] | None,
    betas: list[float] | None,
    plot: Path | None,
    as_csv: bool,
    **about: Any,
) -> None:
    """Compute the exact bias ‖θ_∞ − θ_PS‖² that clipping alone will cause, for each clip c and reaction β.

    Reads a CSV or Parquet FILE, or takes a built-in problem. Records react as follows. With the logistic loss, those
    with label 1 (the later of the target's two values in sorted order) change all their columns along the model to
    lower their score, by β·θ/max(1, ‖θ‖), and the others do not react; with the other losses, every record changes
    all its columns by β·θ to lower its prediction. There is no intercept.

    The output is computed from the data without noise: it is not private.
    """
    from rich.console import Console

    from clipsilon.report.drawing import save
    from clipsilon.report.plots import bias_figure

    aside = Console(stderr=True)
    with plain_errors(), aside.status("Solving for the stable and the clipped points…"):
        subject = _subject(file, problem, **about)
        strengths = betas or subject.betas
        rows = bias_table(subject.problem_at, clips or proposed_clips(subject.problem_at(strengths[0])), strengths)
    if as_csv:
        csv.writer(sys.stdout).writerows([BiasRow._fields, *rows])
        aside.print(WARNING, style="bold")
    else:
        _print_table(Console(width=None if sys.stdout.isatty() else 120), subject, rows)
    if plot is not None:
        with plain_errors():
            save(bias_figure(rows, subject.title), plot)


def _subject(file: Path | None, problem: str | None, **about: Any) -> Subject:
    """Return the requested table or built-in problem."""
    if (file is None) == (problem is None):
        raise click.UsageError("Give either a FILE or --problem.")
    if file is None:
        if any(value not in (None, ()) for value in about.values()):
            raise click.UsageError("--target, --ignore, --loss, --l2, --standardise and --as-is require a FILE.")
        return SUBJECTS[str(problem)]()
    if about["target"] is None:
        raise click.UsageError("FILE requires --target, the column to predict.")
    return file_subject(file, **{name: value for name, value in about.items() if value is not None})


def _print_table(console: Console, subject: Subject, rows: Sequence[BiasRow]) -> None:
    from rich.table import Table as Grid

    header, lines, remarks = format_cells(rows)
    table = Grid(header[0], title="‖θ_∞ − θ_PS‖², and the fraction of records that is clipped at θ_∞")
    for name in header[1:]:
        table.add_column(name, justify="right")
    for k, line in enumerate(lines):
        table.add_row(*line, end_section=k == len(lines) - 2)
    for text in (*subject.notes, table, *remarks, describe_example(rows)):
        console.print(text, highlight=False, markup=False)
    console.print(WARNING, style="bold", highlight=False)


# -- the problem ----------------------------------------------------------------------------------------------------


def file_subject(
    path: Path,
    target: str,
    loss: str | None = None,
    l2: float = 0.01,
    standardise: bool = True,
    ignore: Sequence[str] = (),
) -> Subject:
    """Return the problem of a user's table.

    Parameters
    ----------
    path : Path
        A CSV or Parquet file.
    target : str
        The column to predict.
    loss : str, optional
        A key of `LOSSES`; by default logistic for a target of two values, otherwise squared-error.
    l2 : float, default 0.01
        Weight of ½‖θ‖² in the loss.
    standardise : bool, default True
        Scale the columns, and a target of numbers, to mean 0 and standard deviation 1; drop constant columns.
    ignore : sequence of str, optional
        Columns to leave out.

    Returns
    -------
    Subject
    """
    table = read_table(path, target, ignore)
    loss = loss or ("logistic" if np.unique(table.target).size == 2 else "squared-error")
    part = LOSSES[loss](l2=l2)
    binary = label_kind(part) == "binary"
    labels, one = binary_labels(table) if binary else (real_labels(table), "")
    used = _standardise(table) if standardise else table
    if standardise and not binary:  # without an intercept, the mean has to be removed
        labels = (labels - labels.mean()) / labels.std()
    response = responses.BestResponse(0.0) if binary else responses.LocationShift(0.0)
    problem = Problem(used.features, labels, loss=part, response=response)
    scale = "as they are" if not standardise else "standardised" if binary else "standardised like the target"
    left_out = [name for name in table.columns if name not in used.columns]
    notes = [
        f"{path.name}: {problem.records} records, {problem.dimension} columns, {scale}; no intercept.",
        f"Loss: {loss} of {target!r} with l2 = {l2:g}" + (f"; label 1 is {one!r}." if binary else "."),
        GAMING if binary else SHIFTING,
        *([f"Left out because they are constant: {', '.join(left_out)}."] if left_out else []),
    ]
    return Subject(path.name, _with_strength(problem), (0.0, 0.1, 0.3, 1.0), tuple(notes))


def _with_strength(problem: Problem) -> Callable[[float], Problem]:
    """Return a function that gives the same problem with a reaction of strength β."""
    labels = None if label_kind(problem.loss) == "none" else problem.labels

    def at(beta: float) -> Problem:
        response = problem.response._replace(beta=beta)
        return Problem(problem.features, labels, loss=problem.loss, response=response, region=problem.region)

    return at


def _standardise(table: Table) -> Table:
    """Scale the columns to mean 0 and standard deviation 1, and drop those that are constant."""
    varies = np.ptp(table.features, axis=0) > 0
    if not varies.any():
        raise ValueError("features must have a column that is not constant, got none.")
    kept = table.features[:, varies]
    names = tuple(name for name, keep in zip(table.columns, varies, strict=True) if keep)
    return table._replace(features=(kept - kept.mean(axis=0)) / kept.std(axis=0), columns=names)


# -- the numbers in words --------------------------------------------------------------------------------------------


def describe_example(rows: Sequence[BiasRow]) -> str:
    """Describe one example in words: the middle clip, at the strongest reaction whose points are steady."""
    found = [row for row in rows if row.steady]
    if not found:
        return "No bias here is reliable: see the remarks."
    clips = sorted({row.clip for row in found})
    clip = clips[(len(clips) - 1) // 2]
    here = sorted((row for row in found if row.clip == clip), key=lambda row: row.beta)
    weak, strong = here[0], here[-1]
    text = (
        f"At c = {clip:g} and β = {strong.beta:g} clipping alone moves the model by {np.sqrt(strong.bias):.3g} "
        f"(squared: {strong.bias:.4g}), however long it is trained; the stable model has norm "
        f"{strong.stable_norm:.3g}, and {strong.fraction_clipped:.1%} of the records are clipped."
    )
    return text if weak is strong else f"{text} At β = {weak.beta:g} this is {np.sqrt(weak.bias):.3g}."


def format_cells(rows: Sequence[BiasRow]) -> tuple[list[str], list[list[str]], list[str]]:
    """Return the header, one row per clip with one column per β, and the remarks that the marks refer to."""
    remarks = {remark: None for row in rows for remark in row.remark.split("; ") if remark}
    marks = dict(zip(remarks, MARKS, strict=False))
    betas = list(dict.fromkeys(row.beta for row in rows))
    found = {(row.clip, row.beta): row for row in rows}
    lines = [
        [f"{clip:g}", *(_cell(found[clip, beta], marks) for beta in betas)]
        for clip in dict.fromkeys(row.clip for row in rows)
    ]
    first = {row.beta: row for row in reversed(rows)}
    lines.append(["‖θ_PS‖²", *(_number(first[beta].stable_norm ** 2) for beta in betas)])
    return ["clip c", *(f"β = {beta:g}" for beta in betas)], lines, [f"{marks[one]} {one}" for one in remarks]


def _cell(row: BiasRow, marks: dict[str, str]) -> str:
    share = "" if np.isnan(row.fraction_clipped) else f" ({row.fraction_clipped:.1%})"
    return _number(row.bias) + share + "".join(mark for remark, mark in marks.items() if remark in row.remark)


def _number(value: float) -> str:
    return "–" if np.isnan(value) else f"{value:.4g}"
