"""`clipsilon schema`: propose a public description of a table, for a person to edit."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from clipsilon._core.storage import write_atomically
from clipsilon.cli.columns import column_names, finite, read_raw
from clipsilon.cli.errors import plain_errors, require_new_file, stoppable
from clipsilon.cli.options import group_option, ignore_option
from clipsilon.tables.cells import to_texts
from clipsilon.tables.propose import NOT_PRIVATE, Proposal, propose_schema
from clipsilon.tables.ranges import round_outward

_MOST_CLASSES = 20  # different values of a target that are taken for classes


@click.command("schema")
@click.argument("path", metavar="FILE", type=click.Path(path_type=Path))
@click.option("--target", required=True, help="Column to predict.")
@group_option
@ignore_option
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("schema.toml"),
    show_default=True,
    help="New schema file, .toml or .json; comments are written to the first only.",
)
def command(path: Path, target: str, group: str | None, ignore: Sequence[str], output: Path) -> None:
    """Propose a schema for a CSV or Parquet FILE: what each column holds, for a person to check and edit.

    Looking at the data is not private: replace ranges and levels that are not public knowledge.
    """
    with plain_errors(), stoppable():
        require_new_file(output)
        columns = read_raw(path, column_names(path))
        proposal = propose_schema(columns, target, group, ignore)
        if output.suffix.lower() == ".toml":
            text = proposal.to_toml(path.name)
            write_atomically(output, lambda file: file.write(text.encode()))
        else:
            proposal.schema.save(output)
    _print_proposal(proposal)
    for note in _notes(proposal, columns):
        click.echo(f"Note: {note}")
    click.echo(f"wrote {output}; check it, and what is said of the target, delete the entry proposed, then run:")
    words = ["--schema", str(output), "--target", target, *_options(columns[target]), "--epsilon", "1"]
    click.echo(f"  {shlex.join(['clipsilon', 'fit', str(path), *words])}")


def _print_proposal(proposal: Proposal) -> None:
    from rich.console import Console
    from rich.table import Table as Grid

    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False, markup=False)
    table = Grid("column", "kind", "proposed", "remark")
    for name, kind in proposal.schema.columns.items():
        settings = kind.settings()
        if "levels" in settings:
            settings = {"levels": len(settings["levels"])}
        shown = ", ".join(f"{entry} {_show(value)}" for entry, value in settings.items())
        table.add_row(name, kind.name, shown, proposal.remarks.get(name, ""))
    for name in proposal.schema.ignore:
        table.add_row(name, "ignored", "", "")
    console.print(table)


def _show(value: object) -> str:
    return " to ".join(map(str, value)) if isinstance(value, list) else str(value)


def _notes(proposal: Proposal, columns: dict[str, NDArray[Any]]) -> list[str]:
    notes = [NOT_PRIVATE]
    if "ignore" in proposal.remarks:
        notes.append(proposal.remarks["ignore"])
    group = proposal.schema.group
    gaps = 0 if group is None else to_texts(columns[group]).count(None)
    if gaps:
        notes.append(f"Group {group!r} has {gaps} gap(s): clipsilon fit needs the person of every row.")
    if proposal.people:
        notes.append(
            f"Values of {', '.join(map(repr, proposal.people))} repeat and look like ids. If it names the person of a "
            "row, give it as --group: otherwise each row is protected by itself."
        )
    return notes


def _options(target: NDArray[Any]) -> list[str]:
    """Return the options of `clipsilon fit` that state what the target holds."""
    values = sorted({text for text in to_texts(target) if text is not None})
    if len(values) <= _MOST_CLASSES:
        return ["--classes", ",".join(values)]
    numbers = finite(values)
    if numbers is None:
        return ["--model", "logistic"]
    low, high = round_outward(float(np.quantile(numbers, 0.01)), float(np.quantile(numbers, 0.99)))
    return ["--target-range", f"{low:g},{high:g}"]
