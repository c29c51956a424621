"""A small page that stands on its own: text, tables and figures in one HTML file."""

from __future__ import annotations

import html
import io
from collections.abc import Sequence
from string import Template

from matplotlib.figure import Figure

_PAGE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title</title>
<style>
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #ffffff; --line: #d0d7de; --soft: #57606a; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --paper: #0d1117; --line: #30363d; --soft: #9198a1; } }
body { margin: 0 auto; padding: 1.5rem 1rem 3rem; max-width: 60rem; font: 16px/1.55 system-ui, sans-serif;
       color: var(--ink); background: var(--paper); }
h1 { font-size: 1.6rem; line-height: 1.25; } h2 { font-size: 1.15rem; margin-top: 2rem; }
p.soft { color: var(--soft); }
figure { max-width: 40rem; margin: 1rem 0; padding: .5rem; background: #ffffff; border: 1px solid var(--line);
         border-radius: 6px; }
figure svg { display: block; width: 100%; height: auto; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .7rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th { white-space: normal; vertical-align: bottom; }
th:first-child, td:first-child { text-align: left; }
</style>
</head>
<body>
<h1>$title</h1>
$body
</body>
</html>
""")


def page(title: str, body: Sequence[str]) -> str:
    """A whole page from pieces made by the functions below."""
    return _PAGE.substitute(title=html.escape(title), body="\n".join(body))


def heading(text: str) -> str:
    """A heading."""
    return f"<h2>{html.escape(text)}</h2>"


def paragraph(text: str, soft: bool = False) -> str:
    """A paragraph of plain text."""
    return f"<p{' class=soft' if soft else ''}>{html.escape(text)}</p>"


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; the first column is the row's name."""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in columns)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def picture(figure: Figure, description: str) -> str:
    """A figure as SVG, with words for those who cannot see it."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    drawing = buffer.getvalue()
    drawing = drawing[drawing.index("<svg") :]
    return f'<figure role="img" aria-label="{html.escape(description)}">{drawing}</figure>'
