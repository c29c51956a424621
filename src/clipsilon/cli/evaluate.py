"""`clipsilon evaluate`: the quality of a fitted model on the rows of a file, within a privacy budget."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import numpy as np
from numpy.typing import NDArray

from clipsilon._core import checks
from clipsilon.cli.columns import column_names, read_columns
from clipsilon.cli.encoded_tables import read_inputs
from clipsilon.cli.errors import plain_errors
from clipsilon.cli.model_kinds import predicts_classes
from clipsilon.cli.options import budget_option, format_option, group_option, report_option
from clipsilon.cli.tables import read_people
from clipsilon.cli.target_column import whole_labels

if TYPE_CHECKING:  # scikit-learn is slow to import, and the help does not need it
    from clipsilon.estimators import TotalPrivacy
    from clipsilon.estimators.evaluation import PrivateScores
    from clipsilon.estimators.model_files import Model


@click.command("evaluate")
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--target", help="Column with the truth; default: the model's target.")
@click.option("--epsilon", type=float, required=True, help="ε of this evaluation.")
@click.option("--delta", type=float, default=1e-5, show_default=True, help="δ of this evaluation.")
@click.option(
    "--figures",
    type=click.Choice(["all", "auc"]),
    default="all",
    show_default=True,
    help="What to release; the AUC alone has a narrower interval if one of two classes is rare.",
)
@group_option
@click.option("--held-out", is_flag=True, help="State that nobody in FILE is among those who trained the model.")
@click.option("--seed", type=int, help="Seed that makes the evaluation repeatable; not for release.")
@budget_option
@report_option
@format_option("text", "json")
def command(model: Path, file: Path, report: Path | None, form: str, **about: Any) -> None:
    """Evaluate the model in the file MODEL on a CSV or Parquet FILE, within a privacy budget.

    Each figure has a 95 % confidence interval, which accounts for the noise and for sampling people.
    """
    with plain_errors():
        done = evaluate_file(model, file, **about)
        if report is not None:
            from clipsilon.report.model_page import write_report

            loaded = done.model
            write_report(report, loaded.pipeline, done.scores, target=loaded.target, columns=loaded.columns)
    if form == "json":
        notes = {"notes": list(done.notes), "notes_not_private": list(done.uncovered)}
        together = {"privacy_with_training": done.total.to_dict(), **notes}
        click.echo(json.dumps({**done.scores.to_dict(), **together}, indent=2, ensure_ascii=False))
        return
    _print_evaluation(done)
    if report is not None:
        click.echo(f"wrote {report}")


class Evaluation(NamedTuple):
    """A private evaluation.

    Parameters
    ----------
    model : Model
        The model that was evaluated.
    scores : PrivateScores
        Its quality.
    total : TotalPrivacy
        What training and evaluation spend together, for each person.
    notes : tuple of str
        What the user should know: a seed, for instance.
    uncovered : tuple of str
        How many rows the model's schema does not cover, counted without noise.
    """

    model: Model
    scores: PrivateScores
    total: TotalPrivacy
    notes: tuple[str, ...]
    uncovered: tuple[str, ...]


def evaluate_file(
    path: Path,
    data: Path,
    target: str | None,
    epsilon: float,
    delta: float,
    figures: str,
    group: str | None,
    held_out: bool,
    seed: int | None,
    budget: Path | None = None,
) -> Evaluation:
    """Evaluate a model file on a table.

    Parameters
    ----------
    path, data : Path
        The model file, and a CSV or Parquet file.
    target, group : str or None
        Columns with the truth (None for the model's target) and with the person of each row.
    epsilon, delta : float
        The budget.
    figures : {"all", "auc"}
        What the budget is spent on.
    held_out : bool
        Whether nobody in the table is among those who trained the model.
    seed : int or None
        Makes the evaluation repeatable, and unfit for release.
    budget : Path or None
        Budget file that the evaluation is charged to before it begins.

    Returns
    -------
    Evaluation
    """
    from clipsilon.estimators.evaluation import private_scores
    from clipsilon.estimators.model_files import read_model

    checks.positive("epsilon", epsilon)
    checks.open_fraction("delta", delta)
    model = read_model(path)
    group = _resolve_group(model, group)
    features, uncovered = read_inputs(data, model)
    labels = _read_labels(data, target or model.target, model.kind)
    people = None if group is None else read_people(data, group, target or model.target)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        scores = private_scores(
            model.learnt,
            features,
            labels,
            epsilon,
            delta,
            figures=figures,
            groups=people,
            held_out=held_out,
            random_state=seed,
            budget=budget,
        )
        total = scores.total(model.pipeline)
    said = dict.fromkeys(str(warning.message) for warning in caught)
    return Evaluation(model, scores, total, tuple(said), tuple(uncovered))


def _resolve_group(model: Model, group: str | None) -> str | None:
    """Return the column that names people: by default that of the model's schema.

    Raises ValueError if model and evaluation would not protect the same: what both spend could not be added up.
    """
    unit = model.pipeline[-1].statement_.unit
    if unit == "record":
        if group is None:
            return None
        raise ValueError(
            f"group must be omitted for a model that protects single rows, got {group!r}: fit the model with --group."
        )
    stated = None if model.schema is None else model.schema.group
    if stated is not None and group not in (None, stated):
        raise ValueError(f"group must be {stated!r}, as in the model's schema, got {group!r}.")
    found = stated if group is None else group
    if found is None:
        raise ValueError("group must be given for a model that protects people, got none.")
    if found in model.columns:
        raise ValueError(f"group must be a column that the model does not predict from, got {found!r}.")
    return found


def _read_labels(data: Path, target: str, kind: str) -> NDArray[Any]:
    """Return the target in the form that a kind of model takes."""
    labels = _read_cells(data, target)
    if predicts_classes(kind):
        return whole_labels(labels)
    if labels.dtype.kind != "f":
        raise ValueError(f"target {target!r} must hold numbers for model {kind!r}, got text such as {labels[0]!s}.")
    return labels


def _read_cells(data: Path, name: str) -> NDArray[Any]:
    """Return the cells of the target: numbers if all of them are, otherwise text."""
    checks.choice("target", name, dict.fromkeys(column_names(data)))
    column = read_columns(data, [name], as_text=name)[name]
    if column.missing is not None:
        _, cell, row = column.missing
        raise ValueError(f"target {name!r} must have a value in every row, got {cell!r} in row {row}.")
    cells = column.text if column.numbers is None else column.numbers
    assert cells is not None
    return np.asarray(cells)


def _print_evaluation(done: Evaluation) -> None:
    from clipsilon.cli.scores_table import print_scores
    from clipsilon.estimators.total import format_total

    print_scores(done.scores, done.scores.statement.size)
    click.echo(done.scores.statement)
    unit = done.total.unit
    how = f"each {unit} is in one of the two"
    if not done.scores.held_out:
        how = f"without --held-out, a {unit} may be in both"
    click.echo(f"Training and evaluation together: {format_total(done.total)} ({how}).")
    for note in (*done.notes, *done.uncovered):
        click.echo(f"Note: {note}")
