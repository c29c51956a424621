"""How commands fail: wrong input and Ctrl-C end in one line on the terminal, not in a traceback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from clipsilon._core.storage import require_writable


@contextmanager
def plain_errors() -> Iterator[None]:
    """Report wrong input as one sentence, with exit code 1."""
    try:
        yield
    except BrokenPipeError:  # the reader has closed the pipe, as in `… | head`
        raise
    except (ValueError, TypeError, OSError) as problem:
        raise click.ClickException(str(problem)) from None


@contextmanager
def stoppable(farewell: str = "Stopped: nothing was written.") -> Iterator[None]:
    """On Ctrl-C, print `farewell` and exit with code 130, as shells expect."""
    try:
        yield
    except KeyboardInterrupt:
        click.echo(farewell, err=True)
        click.get_current_context().exit(130)


def require_new_file(output: Path) -> None:
    """Raise ValueError if `output` exists or cannot be created, before any budget is spent."""
    if output.exists():
        raise ValueError(f"output must be a new file, got {output}, which exists.")
    if not output.parent.is_dir():
        raise ValueError(f"output must be in an existing folder, got {output}.")
    require_writable(output, "output")
