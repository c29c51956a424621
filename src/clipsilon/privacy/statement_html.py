"""A statement as HTML for notebooks, in the colours and fonts of the page around it."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

# Notebooks align the cells of tables to the right; styles must be inline, as pages are shown without others.
_CELL = 'style="text-align: left; vertical-align: top; padding: 0.2em 1.5em 0.2em 0"'


def statement_html(rule: str, size: str, rows: Iterable[tuple[str, str]], reasons: Iterable[str]) -> str:
    """Return a table with a heading above and a list of reasons below.

    Parameters
    ----------
    rule, size : str
        The name of the rule, and how long it is run on how many records.
    rows : iterable of pairs of str
        The names of the table's values, and the values.
    reasons : iterable of str
        Sentences.

    Returns
    -------
    str
        HTML without styles or scripts for the page around it.
    """
    cells = "".join(
        f'<tr><th scope="row" {_CELL}>{escape(name)}</th><td {_CELL}>{escape(value)}</td></tr>' for name, value in rows
    )
    items = "".join(f"<li>{escape(reason)}</li>" for reason in reasons)
    heading = f"<p><strong>{escape(rule)}</strong>, {escape(size)}</p>"
    table = f'<table style="margin: 0"><tbody>{cells}</tbody></table>'
    return f'<div style="max-width: 50em">{heading}{table}<ul>{items}</ul></div>'
