"""`clipsilon budget`: create a budget file, or show who spent what, when and on which data, and what is left."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from clipsilon.cli.errors import plain_errors
from clipsilon.cli.options import adjacency_option, format_option
from clipsilon.privacy.budget import Budget
from clipsilon.privacy.statement import format_epsilon, neighbours
from clipsilon.privacy.warning import UNITS


@click.command("budget")
@click.argument("path", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--create", is_flag=True, help="Create FILE, with the limit that the next three options give.")
@click.option("--epsilon", type=float, help="ε of all that is charged to a new file.")
@click.option("--delta", type=float, help="δ of all that is charged to a new file.")
@adjacency_option("zero-out")
@format_option("text", "json")
def command(path: Path, create: bool, epsilon: float | None, delta: float | None, adjacency: str, form: str) -> None:
    """Show what was charged to a budget FILE and what is left of its limit, or create one.

    Data sets are numbered: charges with the same number were made for the same rows.
    """
    with plain_errors():
        if create and path.exists():
            raise ValueError(f"FILE must be a new file for --create, got {path}, which exists.")
        if not create and (epsilon is not None or delta is not None):
            raise ValueError("epsilon and delta must be omitted without --create: the limit of a file stays as it is.")
        if create and (epsilon is None or delta is None):
            raise ValueError("epsilon and delta must be given with --create.")
        budget = Budget(path, epsilon, delta, adjacency) if create else Budget(path)
        content = budget.to_dict()
    if form == "json":
        click.echo(json.dumps(content, indent=2, ensure_ascii=False))
    else:
        _print(content)


def _print(content: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    counted = UNITS[content["unit"] or "record"]
    table = Table("when (UTC)", "who", "what", counted, "data set", "ε", "δ", "counted ε", "counted δ")
    for one in content["charges"]:
        about = one["when"][:16].replace("T", " "), one["who"], one["what"], f"{one['records']:,}"
        costs = format_epsilon(one["epsilon"]), f"{one['delta']:g}"
        counts = format_epsilon(one["counted_epsilon"]), f"{one['counted_delta']:g}"
        table.add_row(*about, "–" if one["data"] is None else str(one["data"]), *costs, *counts)
    if content["charges"]:
        Console(width=None if sys.stdout.isatty() else 140, highlight=False, markup=False).print(table)
    for name in ("limit", "spent", "left"):
        click.echo(f"{name}: ε = {format_epsilon(content[name]['epsilon'])}, δ = {content[name]['delta']:.4g}")
    click.echo(f"neighbours: {neighbours(content['adjacency'], content['unit'] or 'record')}")
