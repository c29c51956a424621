"""`clipsilon predict`: the predictions of a fitted model for the rows of a file."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from clipsilon._core.storage import write_atomically
from clipsilon.cli.encoded_tables import read_inputs
from clipsilon.cli.errors import plain_errors, require_new_file, stoppable
from clipsilon.cli.model_kinds import predicts_classes


@click.command("predict")
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="New CSV file; default: the terminal.")
def command(model: Path, file: Path, output: Path | None) -> None:
    """Predict each row of a CSV or Parquet FILE with the model in the file MODEL."""
    with plain_errors(), stoppable():
        if output is not None:
            require_new_file(output)
        rows = predictions(model, file)
        if output is None:
            csv.writer(sys.stdout, lineterminator="\n").writerows(rows)
            return
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(rows)
        write_atomically(output, lambda file: file.write(text.getvalue().encode()))


def predictions(path: Path, data: Path) -> Iterator[Sequence[object]]:
    """Yield a header, then the prediction for each row and, from a classifier, the probability of each class."""
    from clipsilon.estimators import model_files

    model = model_files.read_model(path)
    features, notes = read_inputs(data, model)
    for note in notes:
        click.echo(f"Note: {note}", err=True)
    predicted = model.learnt.predict(features).tolist()
    if not predicts_classes(model.kind):
        yield ("prediction",)
        yield from zip(predicted, strict=True)
        return
    yield ("prediction", *(f"P({label})" for label in model.pipeline.classes_))
    for label, probabilities in zip(predicted, model.learnt.predict_proba(features).tolist(), strict=True):
        yield (label, *probabilities)
