"""Print results to a terminal: tables, bars, statements beside their verdicts, and progress."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence

from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from clipsilon.report.charts import Table
from clipsilon.report.results import Experiment, Finding
from clipsilon.report.sections import SIGNS, Done, citation
from clipsilon.report.text import readable

_MIN_SAMPLE = 3  # experiments needed before the remaining time is estimated; the first ones compile
_STYLES = {"good": "green", "fair": "yellow", "bad": "red"}
_BAR_WIDTH = 40  # characters


def console() -> Console:
    """Return standard output, wide enough for tables if it is not a terminal."""
    return Console(width=None if sys.stdout.isatty() else 120, highlight=False, markup=False)


def number_table(one: Table) -> Grid:
    """Return a table with numbers rounded for readers."""
    grid = Grid(*one.columns, title=one.title)
    for row in one.rows:
        grid.add_row(*map(readable, row))
    return grid


def bars(values: Mapping[str, float]) -> str:
    """Return positive numbers as horizontal bars on a logarithmic scale, one line per number."""
    names = max(map(len, values))
    low, high = (math.log10(end(values.values())) for end in (min, max))
    unit = (_BAR_WIDTH - 1) / (high - low) if high > low else 0.0
    lengths = {name: 1 + round(unit * (math.log10(value) - low)) for name, value in values.items()}
    return "\n".join(f"  {name:{names}}  {'█' * lengths[name]} {value:.2g}" for name, value in values.items())


def experiment_table(experiments: Sequence[Experiment]) -> Grid:
    """Return the names that can be passed to `clipsilon reproduce`."""
    grid = Grid("name", "where", "what", "extra")
    for each in experiments:
        grid.add_row(each.name, citation(each), each.title, each.extra or "")
    return grid


def verdict_table(done: Sequence[Done]) -> Grid:
    """Return one line per statement, with its verdict beside it and its remark below it."""
    grid = Grid("name", "verdict", "statement")
    for each in done:
        for k, finding in enumerate(each.result.findings):
            last = k == len(each.result.findings) - 1
            grid.add_row("" if k else each.experiment.name, *_judged(finding), end_section=last)
    return grid


def _judged(finding: Finding) -> tuple[Text, str]:
    """Return the verdict, and the statement with its remark."""
    remark = f"\nRemark: {finding.remark}" if finding.remark else ""
    return Text(finding.verdict, style=_STYLES[SIGNS[finding.verdict][0]]), finding.statement + remark


def progress_printer(total: int) -> Callable[[Done], None]:
    """Return a function that prints a line per completed experiment, with an estimate of the remaining time.

    The estimate assumes that the remaining experiments take as long on average as those that are complete.
    """
    began, count = time.monotonic(), 0

    def report(done: Done) -> None:
        nonlocal count
        count += 1
        left = (time.monotonic() - began) / count * (total - count)
        estimate = f", about {_duration(left)} left" if _MIN_SAMPLE <= count < total else ""
        print(f"[{count}/{total}] {done.experiment.name}: {_held(done)}{estimate}", file=sys.stderr, flush=True)

    return report


def _held(done: Done) -> str:
    """Return how many statements hold, with or without a remark."""
    findings = done.result.findings
    return f"{sum(finding.holds for finding in findings)} of {len(findings)} statements hold"


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
