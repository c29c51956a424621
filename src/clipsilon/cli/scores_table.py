"""The table of a private evaluation in the terminal."""

from __future__ import annotations

import sys
from math import isnan

from rich.console import Console
from rich.table import Table as Grid

from clipsilon.estimators.evaluation import PrivateScores
from clipsilon.estimators.evaluation.result import INTERVALS, NAMES


def print_scores(scores: PrivateScores, whose: str) -> None:
    """Print each figure with its interval; `whose` names the people in the title."""
    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False, markup=False)
    table = Grid("", "the model", "95 % interval", title=f"Private quality on {whose}")
    for name, (value, low, high) in scores.figures.items():
        shown = f"share of {scores.positive}" if name == "positive_rate" else NAMES[name]
        table.add_row(shown, "–" if isnan(value) else f"{value:.4g}", f"{low:.4g} to {high:.4g}")
    console.print(table)
    console.print(INTERVALS)
