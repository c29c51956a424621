"""A progress bar for long runs, by default only on a terminal."""

from __future__ import annotations

import sys
import time
from typing import Any

from clipsilon._core import checks

_PATIENCE = 1.0  # seconds before a bar appears by default


class Progress:
    """A context manager that shows how many steps are done.

    Parameters
    ----------
    wanted : bool or None
        Whether to show a bar; None shows one on a terminal after a second.
    title : str
        The text before the bar.
    total : int
        The number of steps of the whole run.
    """

    def __init__(self, wanted: bool | None, title: str, total: int):
        self._wanted = sys.stderr.isatty() if wanted is None else checks.flag("progress", wanted)
        self._patience = _PATIENCE if wanted is None else 0.0
        self._title, self._total = title, total
        self._bar: Any = None

    def __enter__(self) -> Progress:
        self._began = time.monotonic()
        return self

    def show(self, done: int) -> None:
        """Show that `done` steps are complete."""
        if not self._wanted or time.monotonic() - self._began < self._patience:
            return
        if self._bar is None:
            self._bar = _bar()
            self._bar.start()
            self._task = self._bar.add_task(self._title, total=self._total)
        self._bar.update(self._task, completed=done)

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()


def _bar() -> Any:
    # rich takes a tenth of a second to import; most runs never show a bar.
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Bar(*columns, console=Console(stderr=True))
