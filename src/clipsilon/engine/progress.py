"""A progress bar for long runs: on a terminal only, unless asked for or forbidden."""

from __future__ import annotations

import sys
import time
from typing import Any

from clipsilon._core import checks

_PATIENCE = 1.0  # seconds before a bar appears by itself


class Progress:
    """Shows how many of `total` steps are done; `wanted` None means: on a terminal, if the run is long."""

    def __init__(self, wanted: bool | None, title: str, total: int):
        self._wanted = sys.stderr.isatty() if wanted is None else checks.flag("progress", wanted)
        self._patience = _PATIENCE if wanted is None else 0.0
        self._title, self._total = title, total
        self._bar: Any = None

    def __enter__(self) -> Progress:
        self._began = time.monotonic()
        return self

    def show(self, done: int) -> None:
        """Bring the bar up to date."""
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
