"""Build one self-contained HTML page: text, interactive figures and tables in a single file."""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from string import Template
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from clipsilon.report.charts import Cell, Chart, Table
from clipsilon.report.ownership import GENERATOR
from clipsilon.report.palette import PALETTE, SHADES, colours
from clipsilon.report.text import csv_cell, readable, to_html

_ADAPTED = {**PALETTE, **SHADES}  # colours with a counterpart for dark screens


def frame(title: str, body: Sequence[str]) -> str:
    """Return a whole page from pieces made by the functions below."""
    parts = {"title": html.escape(title), "generator": GENERATOR, "palette": _palette(), "body": "\n".join(body)}
    return Template(_asset("page.html")).substitute(parts, style=_asset("page.css"), script=_asset("page.js"))


def _asset(name: str) -> str:
    return files("clipsilon.report").joinpath("assets", name).read_text(encoding="utf-8")


def _palette() -> str:
    """Return the colours as CSS variables, for light and for dark screens."""
    light = " ".join(f"{_variable(colour)}: {colour};" for colour in _ADAPTED)
    dark = " ".join(f"{_variable(colour)}: {other};" for colour, other in _ADAPTED.items())
    return f":root {{ {light} }}\n@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}"


def _variable(colour: str) -> str:
    return f"--c{colour.removeprefix('#')}"


def element(tag: str, text: str, **attributes: str) -> str:
    """Return an element with plain text in it.

    Parameters
    ----------
    tag : str
        Name of the element.
    text : str
        Its text, which is escaped and marked up.
    **attributes : str
        As for `wrap`.

    Returns
    -------
    str
        HTML.
    """
    return wrap(tag, to_html(text), **attributes)


def wrap(tag: str, content: str, **attributes: str) -> str:
    """Return an element around HTML.

    Parameters
    ----------
    tag : str
        Name of the element.
    content : str
        HTML.
    **attributes : str
        Attributes, which are escaped; underscores stand for hyphens, `class_` is the class, and empty values are
        left out.

    Returns
    -------
    str
        HTML.
    """
    given = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{html.escape(value)}"' for name, value in attributes.items() if value
    )
    return f"<{tag}{given}>{content}</{tag}>"


def link(address: str, text: str, **attributes: str) -> str:
    """Return a link with plain text in it.

    Parameters
    ----------
    address : str
        Where the link leads.
    text : str
        Its text.
    **attributes : str
        As for `wrap`.

    Returns
    -------
    str
        HTML.
    """
    return element("a", text, href=address, **attributes)


def chart_data(key: str, chart: Chart) -> str:
    """Return the numbers of a chart as a JSON element, which every figure with that key draws."""
    text = json.dumps(_payload(chart), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    harmless = text.replace("<", "\\u003c")  # nothing in it can end the element
    return f'<script type="application/json" id="data-{html.escape(key)}">{harmless}</script>'


def embedded(content: bytes, kind: str) -> str:
    """Return an address that holds a whole file of this media type, for pages without files beside them."""
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def chart_figure(key: str, chart: Chart, caption: str, files: Mapping[str, str] | None = None) -> str:
    """Return an interactive figure; without scripts, its SVG file is shown.

    Parameters
    ----------
    key : str
        Path of the chart's files relative to the page, without suffix.
    chart : Chart
        What is drawn; its numbers are on the page as `chart_data`.
    caption : str
        HTML of the caption.
    files : mapping of str to str, optional
        Addresses of the files by their suffix; by default SVG, PNG and CSV files beside the page.

    Returns
    -------
    str
        HTML of the figure, with links to the files.
    """
    if files is None:
        files = {form: f"{key}.{form}" for form in ("svg", "png", "csv")}
    links = " ".join(
        link(address, form.upper(), download=key.replace("/", "-") + f".{form}", class_=form)
        for form, address in files.items()
    )
    words = html.escape(f"{chart.title or key}: {chart.y} against {chart.x}")
    image = f'<noscript><img alt="{words}" src="{html.escape(files["svg"])}"></noscript>'
    return wrap(
        "figure",
        wrap("figcaption", caption) + image + wrap("span", links, class_="links"),
        data_chart=f"data-{key}",
    )


def table_sheet(key: str, table: Table, address: str | None = None) -> str:
    """Return a table with a link to its CSV file.

    Parameters
    ----------
    key : str
        Path of the file relative to the page, without suffix.
    table : Table
        What is shown.
    address : str, optional
        Another address of the file.

    Returns
    -------
    str
        HTML.
    """
    wordy = [_is_wordy(table, k) for k in range(len(table.columns))]
    head = "".join(
        element("th", name, scope="col", class_="words" if wordy[k] else "") for k, name in enumerate(table.columns)
    )
    rows = "".join(wrap("tr", "".join(_cell(cell, k, wordy[k]) for k, cell in enumerate(row))) for row in table.rows)
    inside = f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody>"
    scroll = wrap(
        "div",
        wrap("table", inside, aria_label=table.title),
        class_="wide",
        role="region",
        tabindex="0",
        aria_label=table.title,
    )
    file = link(address or f"{key}.csv", "CSV", download=key.replace("/", "-") + ".csv", class_="csv")
    return wrap(
        "div", wrap("div", element("span", table.title, class_="name") + file, class_="top") + scroll, class_="sheet"
    )


def _is_wordy(table: Table, column: int) -> bool:
    """Return whether a column holds text rather than numbers, and so is aligned to the left."""
    return any(isinstance(cell := row[column], str) and len(cell) > 14 for row in table.rows)


def _cell(value: Cell, column: int, wordy: bool) -> str:
    text, whole = readable(value), csv_cell(value)
    about = {"data_exact": whole} if to_html(text) != whole else {}
    if column == 0:
        return element("th", text, scope="row", **about)
    return element("td", text, class_="words" if wordy else "", **about)


def _payload(chart: Chart) -> dict[str, Any]:
    """Return what the page's script reads: eight digits, and null where there is no number."""
    series = [
        {
            "name": each.name,
            "kind": each.kind,
            "colour": f"var({_variable(colour)})" if colour in _ADAPTED else colour,
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


def _numbers(values: ArrayLike) -> list[float | None]:
    array = np.asarray(values, dtype=np.float64)
    return [float(f"{value:.8g}") if np.isfinite(value) else None for value in array]
