"""One page that stands on its own: words, figures that can be touched, tables, in one HTML file."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from importlib.resources import files
from string import Template
from typing import Any

import numpy as np

from clipsilon.report.charts import Chart, Table
from clipsilon.report.palette import PALETTE, colours
from clipsilon.report.text import exact, marked_up, shown


def frame(title: str, body: Sequence[str]) -> str:
    """A whole page from pieces made by the functions below."""
    parts = {"title": html.escape(title), "palette": _palette(), "body": "\n".join(body)}
    return Template(_asset("page.html")).substitute(parts, style=_asset("page.css"), script=_asset("page.js"))


def _asset(name: str) -> str:
    return files("clipsilon.report").joinpath("assets", name).read_text(encoding="utf-8")


def _palette() -> str:
    """The palette as CSS, for light screens and for dark ones."""
    light = " ".join(f"{_variable(colour)}: {colour};" for colour in PALETTE)
    dark = " ".join(f"{_variable(colour)}: {other};" for colour, other in PALETTE.items())
    return f":root {{ {light} }}\n@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}"


def _variable(colour: str) -> str:
    return f"--c{colour.removeprefix('#')}"


def element(tag: str, text: str, **attributes: str) -> str:
    """An element with plain text in it."""
    return wrapped(tag, marked_up(text), **attributes)


def wrapped(tag: str, content: str, **attributes: str) -> str:
    """An element around HTML; `class_` is its class."""
    given = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{html.escape(value)}"' for name, value in attributes.items() if value
    )
    return f"<{tag}{given}>{content}</{tag}>"


def link(address: str, text: str, **attributes: str) -> str:
    """A link."""
    return element("a", text, href=address, **attributes)


def chart_data(key: str, chart: Chart) -> str:
    """The numbers of a chart, for any figure of that key to draw."""
    text = json.dumps(_payload(chart), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    harmless = text.replace("<", "\\u003c")  # nothing in it can end the element
    return f'<script type="application/json" id="data-{html.escape(key)}">{harmless}</script>'


def chart_figure(key: str, chart: Chart, caption: str) -> str:
    """A chart to touch; without scripts, the picture beside the page. `key` is the path of its files, up to the dot."""
    links = " ".join(
        link(f"{key}.{form}", form.upper(), download=key.replace("/", "-") + f".{form}", class_=form)
        for form in ("svg", "png", "csv")
    )
    words = html.escape(f"{chart.title or key}: {chart.y} against {chart.x}")
    image = f'<noscript><img alt="{words}" src="{html.escape(key)}.svg"></noscript>'
    return wrapped(
        "figure",
        wrapped("figcaption", caption) + image + wrapped("span", links, class_="links"),
        data_chart=f"data-{key}",
    )


def table_sheet(key: str, table: Table) -> str:
    """A table, and a link to its CSV file; `key` is the file's path, up to the dot."""
    wordy = [_wordy(table, k) for k in range(len(table.columns))]
    head = "".join(
        element("th", name, scope="col", class_="words" if wordy[k] else "") for k, name in enumerate(table.columns)
    )
    rows = "".join(wrapped("tr", "".join(_cell(cell, k, wordy[k]) for k, cell in enumerate(row))) for row in table.rows)
    inside = f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody>"
    scroll = wrapped(
        "div",
        wrapped("table", inside, aria_label=table.title),
        class_="wide",
        role="region",
        tabindex="0",
        aria_label=table.title,
    )
    file = link(f"{key}.csv", "CSV", download=key.replace("/", "-") + ".csv", class_="csv")
    return wrapped(
        "div", wrapped("div", element("span", table.title, class_="name") + file, class_="top") + scroll, class_="sheet"
    )


def _wordy(table: Table, column: int) -> bool:
    """Whether a column holds words rather than numbers: those are set to the left."""
    return any(isinstance(row[column], str) and len(row[column]) > 14 for row in table.rows)


def _cell(value: Any, column: int, wordy: bool) -> str:
    text, whole = shown(value), exact(value)
    about = {"data_exact": whole} if marked_up(text) != whole else {}
    if column == 0:
        return element("th", text, scope="row", **about)
    return element("td", text, class_="words" if wordy else "", **about)


def _payload(chart: Chart) -> dict[str, Any]:
    """What the page's script reads: eight digits, and null where there is no number."""
    series = [
        {
            "name": each.name,
            "kind": each.kind,
            "colour": f"var({_variable(colour)})" if colour in PALETTE else colour,
            "x": _numbers(each.x),
            "y": _numbers(each.y),
            "low": None if each.low is None else _numbers(each.low),
            "high": None if each.high is None else _numbers(each.high),
        }
        for each, colour in zip(chart.series, colours(chart), strict=True)
    ]
    return {
        "title": chart.title,
        "x": chart.x,
        "y": chart.y,
        "xLog": bool(chart.x_log),
        "yLog": bool(chart.y_log),
        "series": series,
    }


def _numbers(values: Any) -> list[float | None]:
    array = np.asarray(values, dtype=np.float64)
    return [float(f"{value:.8g}") if np.isfinite(value) else None for value in array]
