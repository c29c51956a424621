"""Training scripts of any language: a script reads a CSV file of records, and writes predictions for another one."""

from __future__ import annotations

import csv
import os
import shlex
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clipsilon._core import checks
from clipsilon.cli.columns import column_names, finite, read_cells, read_columns
from clipsilon.privacy.auditing.scores import closeness, log_probability

Array = NDArray[np.float64]

PLACES = ("train", "test", "predictions")  # what stands in braces in a command, for the files of a run
_MOST_CHARACTERS = 500  # of a script's error output, in a message


class Records(NamedTuple):
    """A CSV file as features and labels; features are the cells as they are written.

    Parameters
    ----------
    features : array of str, of shape (rows, columns)
        All cells but the target's.
    labels : array
        Numbers if all cells of the target are, otherwise text.
    texts : dict
        How each label is written.
    header : list of str
        The first row of the file.
    place : int
        The column of the target.
    delimiter : str
        What separates the cells.
    """

    features: NDArray[Any]
    labels: NDArray[Any]
    texts: dict[Any, str]
    header: list[str]
    place: int
    delimiter: str


class Predictions(NamedTuple):
    """What a script predicts for the rows of a file.

    Parameters
    ----------
    classes : list
        The labels that have a column of probabilities; empty for plain predictions.
    values : array
        The probabilities, one column per class, or the predictions.
    """

    classes: list[Any]
    values: NDArray[Any]


def read_records(path: Path, target: str) -> Records:
    """Read a CSV file; cells may hold anything, but the target must have a value in every row."""
    header, rows, delimiter = read_cells(path)
    names = [name.strip() for name in header]
    checks.choice("target", target, dict.fromkeys(names))
    place = names.index(target)
    cells = np.array(rows, dtype=np.str_)
    written = [cell.strip() for cell in cells[:, place].tolist()]
    if "" in written:
        row = written.index("") + 2  # the header is row 1
        raise ValueError(f"column {target!r} must have a value in every row, got none in row {row}.")
    numbers = finite(written)
    labels = np.array(written) if numbers is None else numbers
    texts = dict(zip(labels.tolist(), written, strict=True))
    return Records(np.delete(cells, place, axis=1), labels, texts, header, place, delimiter)


def parse_command(words: Sequence[str]) -> list[str]:
    """Return the words of a command, which may be given as one text; raise ValueError if a file has no place in it."""
    found = shlex.split(words[0]) if len(words) == 1 else list(words)
    missing = [place for place in PLACES if not any(f"{{{place}}}" in word for word in found)]
    if missing:
        named = ", ".join(f"{{{place}}}" for place in missing)
        raise ValueError(f"COMMAND must have a place for each of the three files, got none for {named}.")
    return found


@dataclass(frozen=True)
class Script:
    """A training script as a function of features and labels, whose models are its predictions for given rows.

    Parameters
    ----------
    command : sequence of str
        The words of the command, with {train}, {test} and {predictions} for the files.
    records : Records
        The user's file.
    test : array of str
        The features of the rows to predict.
    timeout : float or None
        Seconds after which a run is ended.
    """

    command: Sequence[str]
    records: Records
    test: NDArray[Any]
    timeout: float | None

    def train(self, features: NDArray[Any], labels: NDArray[Any]) -> Predictions:
        """Run the script on these records and return its predictions for the rows in `test`."""
        with tempfile.TemporaryDirectory(prefix="clipsilon-audit-") as folder:
            files = {place: Path(folder) / f"{place}.csv" for place in PLACES}
            self._write(files["train"], features, [self.records.texts[label] for label in labels.tolist()])
            self._write(files["test"], self.test, None)
            _execute([_fill(word, files) for word in self.command], Path(folder) / "errors.txt", self.timeout)
            return read_predictions(files["predictions"], self.records.texts, len(self.test))

    def score(self, model: Predictions, features: NDArray[Any], labels: NDArray[Any]) -> Array:
        """Score records by how well they were predicted.

        Parameters
        ----------
        model : Predictions
            What `train` returned.
        features : array of str
            The features of the records, which are those in `test`.
        labels : array
            Their labels.

        Returns
        -------
        array of float
        """
        if model.classes:
            return log_probability(model.values, model.classes, labels)
        return closeness(model.values, labels)

    def _write(self, path: Path, features: NDArray[Any], labels: list[str] | None) -> None:
        """Write a file like the user's, without the target if there are no labels."""
        about = self.records
        header, rows = list(about.header), features.tolist()
        if labels is None:
            del header[about.place]
        else:
            for row, label in zip(rows, labels, strict=True):
                row.insert(about.place, label)
        with path.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, delimiter=about.delimiter, lineterminator="\n").writerows([header, *rows])


def read_predictions(path: Path, texts: dict[Any, str], rows: int) -> Predictions:
    """Read what a script wrote.

    Parameters
    ----------
    path : Path
        A CSV file with a column of probabilities for each label, named `P(label)` or `label`; otherwise a column
        `prediction`, or a single column.
    texts : dict
        How each label is written.
    rows : int
        The number of rows that were to be predicted.

    Returns
    -------
    Predictions
    """
    if not path.is_file():
        raise ValueError("the script must write its predictions to {predictions}, got no such file.")
    names = column_names(path)
    classes = _probability_columns(names, texts)
    wanted = list(classes.values()) or ["prediction" if "prediction" in names else names[0]]
    if not classes and "prediction" not in names and len(names) > 1:
        raise ValueError(f"predictions must have a column 'prediction', or one per label, got {', '.join(names)}.")
    found = read_columns(path, wanted, as_text=None if classes else wanted[0])
    values = [_values(found[name], name, bool(classes) or _are_numbers(texts)) for name in wanted]
    if len(values[0]) != rows:
        raise ValueError(f"predictions must have a row for each of {rows} in {{test}}, got {len(values[0])}.")
    return Predictions(list(classes), np.stack(values, axis=1) if classes else values[0])


def _probability_columns(names: Sequence[str], texts: dict[Any, str]) -> dict[Any, str]:
    """Return the column of each label, none if a label has none."""
    found = {label: {f"P({text})", text}.intersection(names) for label, text in texts.items()}
    return {label: min(columns) for label, columns in found.items()} if all(found.values()) else {}


def _are_numbers(texts: dict[Any, str]) -> bool:
    return isinstance(next(iter(texts)), float)


def _values(column: Any, name: str, as_numbers: bool) -> NDArray[Any]:
    """Return the cells of a column as numbers, or as text."""
    if as_numbers and column.numbers is None:
        raise ValueError(f"column {name!r} of the predictions must hold finite numbers, got {column.odd!r}.")
    if not as_numbers and column.numbers is not None:
        raise ValueError(
            f"column {name!r} of the predictions must hold labels, like the target, got numbers: write probabilities "
            "to a column P(label) for each label."
        )
    return np.asarray(column.numbers if as_numbers else column.text)


def _fill(word: str, files: dict[str, Path]) -> str:
    for place, path in files.items():
        word = word.replace(f"{{{place}}}", str(path))
    return word


def _execute(command: Sequence[str], errors: Path, timeout: float | None) -> None:
    """Run a command in a process group of its own, and end the whole group if it must stop."""
    with errors.open("wb") as file:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=file, start_new_session=True
        )
        try:
            code = process.wait(timeout)
        except BaseException as problem:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if isinstance(problem, subprocess.TimeoutExpired):
                raise TimeoutError(f"the script did not finish within {timeout:g} seconds.") from None
            raise
    if code != 0:
        said = errors.read_text(encoding="utf-8", errors="replace").strip()[-_MOST_CHARACTERS:]
        raise ChildProcessError(f"the script ended with exit code {code}: {said or 'it wrote no error message'}")
