"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click

from clipsilon.cli.errors import plain_errors
from clipsilon.privacy.certificate import ADJACENCIES

Decorator = Callable[[Callable[..., None]], Callable[..., None]]

_ADJACENCY_HELP = "How neighbouring data sets differ."
_PICTURES = {".png", ".svg", ".pdf"}


def _check_picture(context: click.Context, option: click.Parameter, path: Path | None) -> Path | None:
    """Refuse a figure that could not be written, before anything is computed for it."""
    if path is not None and (path.suffix not in _PICTURES or not path.parent.is_dir()):
        raise click.BadParameter(f"must be a .png, .svg or .pdf file in an existing folder, got {str(path)!r}.")
    if path is not None:
        from clipsilon.report.ownership import check_replaceable

        with plain_errors():
            check_replaceable(path, "plot")
    return path


def _check_page(context: click.Context, option: click.Parameter, path: Path | None) -> Path | None:
    """Refuse a page that could not be written, before any budget is spent."""
    if path is not None:
        from clipsilon.report.ownership import check_page

        with plain_errors():
            check_page(path)
    return path


def _check_budget(context: click.Context, option: click.Parameter, path: Path | None) -> Path | None:
    """Refuse a budget file that cannot be opened, before any data is read."""
    if path is not None:
        from clipsilon.privacy.budget import Budget

        with plain_errors():
            Budget(path)
    return path


report_option = click.option(
    "--report",
    type=click.Path(dir_okay=False, path_type=Path),
    callback=_check_page,
    help="Write a page about the model to this .html file.",
)
plot_option = click.option(
    "--plot",
    type=click.Path(dir_okay=False, path_type=Path),
    callback=_check_picture,
    help="Write a figure to this .png, .svg or .pdf file.",
)
group_option = click.option(
    "--group",
    metavar="COLUMN",
    help="Column that names the person of a row, who is protected with all rows.",
)
budget_option = click.option(
    "--budget",
    type=click.Path(dir_okay=False, path_type=Path),
    callback=_check_budget,
    help="Budget file that all of it is charged to before it begins; see clipsilon budget.",
)
ignore_option = click.option("--ignore", multiple=True, metavar="COLUMN", help="Column to leave out; may be repeated.")
confidence_option = click.option(
    "--confidence", type=float, default=0.95, show_default=True, help="Confidence of the demonstrated ε."
)
quiet_option = click.option("--quiet", is_flag=True, help="Show no progress.")


def format_option(*formats: str) -> Decorator:
    """Return the option `--format` with these choices; "text" is the default."""
    kinds = click.Choice(formats)
    return click.option("--format", "form", type=kinds, default="text", show_default=True, help="Format of the output.")


def adjacency_option(default: str) -> Decorator:
    """Return the option `--adjacency` with this default."""
    kinds = click.Choice(list(ADJACENCIES))
    return click.option("--adjacency", type=kinds, default=default, show_default=True, help=_ADJACENCY_HELP)


def neighbours_option(*kinds: str) -> Decorator:
    """Return the option `--adjacency` with these choices, none of which is a default."""
    return click.option("--adjacency", type=click.Choice(kinds), required=True, help=_ADJACENCY_HELP)


def parse_numbers(context: click.Context, option: click.Parameter, text: str | None) -> list[float] | None:
    """Return the numbers of a comma-separated list: the callback of an option.

    Parameters
    ----------
    context, option : click.Context, click.Parameter
        Passed by click; unused.
    text : str or None
        The value of the option, None if it was not given.

    Returns
    -------
    list of float, or None
    """
    try:
        return None if text is None else [float(part) for part in text.split(",")]
    except ValueError:
        raise click.BadParameter(f"must be comma-separated numbers, got {text!r}.") from None
