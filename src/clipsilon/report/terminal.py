"""Results on a terminal: tables, and a line for each experiment that is done."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from clipsilon.report.charts import Table
from clipsilon.report.results import Experiment
from clipsilon.report.sections import SIGNS, Done, source
from clipsilon.report.text import shown

_FEW = 3  # experiments that are too few to guess from; the first ones compile
_STYLES = {"good": "green", "fair": "yellow", "bad": "red"}


def console() -> Console:
    """Standard output, wide enough for tables where it is a file."""
    return Console(width=None if sys.stdout.isatty() else 120, highlight=False, markup=False)


def table(one: Table) -> Grid:
    """A table with numbers as readers see them."""
    grid = Grid(*one.columns, title=one.title)
    for row in one.rows:
        grid.add_row(*map(shown, row))
    return grid


def listed(experiments: Sequence[Experiment]) -> Grid:
    """The names that can be asked for."""
    grid = Grid("name", "where", "what", "extra")
    for each in experiments:
        grid.add_row(each.name, source(each), each.title, each.extra or "")
    return grid


def verdicts(done: Sequence[Done]) -> Grid:
    """What held and what did not: a line for each statement."""
    grid = Grid("name", "statement", "verdict")
    for each in done:
        for k, finding in enumerate(each.result.findings):
            verdict = Text(finding.verdict, style=_STYLES[SIGNS[finding.verdict][0]])
            last = k == len(each.result.findings) - 1
            grid.add_row("" if k else each.experiment.name, finding.says, verdict, end_section=last)
    return grid


def teller(total: int) -> Callable[[Done], None]:
    """Prints a line when an experiment is done, with a guess at the time left: the others take as long on average."""
    began, count = time.monotonic(), 0

    def tell(done: Done) -> None:
        nonlocal count
        count += 1
        left = (time.monotonic() - began) / count * (total - count)
        guess = f", about {_duration(left)} left" if _FEW <= count < total else ""
        print(f"[{count}/{total}] {done.experiment.name}: {done.result.verdict}{guess}", file=sys.stderr, flush=True)

    return tell


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
