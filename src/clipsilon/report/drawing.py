"""Draw a chart as a picture, with matplotlib's object interface, so that no display is needed."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator
from numpy.typing import ArrayLike

from clipsilon.report.charts import Array, Chart, Series
from clipsilon.report.ownership import GENERATOR
from clipsilon.report.palette import colours
from clipsilon.report.text import readable, to_mathtext

MARKED_POINTS = 15  # lines with at most this many points mark each of them
BAND_DEPTH = 100  # factor by which a band may reach below its line on a logarithmic axis
_KINDS = ("line", "dashed", "points")
_METADATA = {
    ".svg": {"Date": None, "Creator": GENERATOR},
    ".png": {"Software": GENERATOR},
    ".pdf": {"CreationDate": None, "Creator": GENERATOR},
}


class _Drawable(NamedTuple):
    """A series as arrays, with NaN wherever the axes cannot show a number."""

    name: str
    kind: str
    x: Array
    y: Array
    low: Array | None
    high: Array | None


def draw(chart: Chart) -> Figure:
    """Draw the chart on white; what an axis cannot show (NaN, zero on a logarithmic axis) leaves a gap."""
    figure = Figure(figsize=(6.4, 4.3), layout="constrained")
    axes = figure.subplots()
    chart = _with_possible_axes(chart)
    drawn = [_drawable(series, chart) for series in chart.series]
    for series, colour in zip(drawn, colours(chart), strict=True):
        _draw_series(axes, series, colour)
    _scale(axes, drawn, chart)
    axes.set_title(to_mathtext(chart.title), fontsize=11)
    axes.set_xlabel(to_mathtext(chart.x))
    axes.set_ylabel(to_mathtext(chart.y))
    axes.grid(alpha=0.25)
    if chart.series:
        figure.legend(loc="outside lower center", ncols=2 if len(chart.series) > 1 else 1, frameon=False, fontsize=9)
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # the layout is computed once for all formats
    return figure


def _with_possible_axes(chart: Chart) -> Chart:
    """Make an axis linear if no number on it is positive."""
    x = any(np.nanmax(_placeable(series.x, False), initial=0) > 0 for series in chart.series)
    y = any(np.nanmax(_placeable(series.y, False), initial=0) > 0 for series in chart.series)
    return chart._replace(x_log=chart.x_log and x, y_log=chart.y_log and y)


def _drawable(series: Series, chart: Chart) -> _Drawable:
    """Return the series as arrays; raise ValueError if it is malformed."""
    if series.kind not in _KINDS:
        raise ValueError(f"kind must be one of {', '.join(map(repr, _KINDS))}, got {series.kind!r}.")
    x, y = _placeable(series.x, chart.x_log), _placeable(series.y, chart.y_log)
    if x.shape != y.shape or x.ndim != 1:
        raise ValueError(f"{series.name} must have an x for each y, got shapes {x.shape} and {y.shape}.")
    if series.low is None or series.high is None:
        return _Drawable(series.name, series.kind, x, y, None, None)
    low, high = np.array(series.low, dtype=np.float64), _placeable(series.high, chart.y_log)
    if chart.y_log:  # a lower end near zero must not determine the range of the axis
        low = np.fmax(low, np.nanmin(y, initial=np.inf) / BAND_DEPTH)
    return _Drawable(series.name, series.kind, x, y, low, high)


def _placeable(values: ArrayLike, log: bool) -> Array:
    """Return the values, with NaN for those that the axis cannot show."""
    array = np.array(values, dtype=np.float64)
    array[~np.isfinite(array)] = np.nan
    if log:
        array[~(array > 0)] = np.nan
    return array


def _draw_series(axes: Axes, series: _Drawable, colour: str) -> None:
    style: dict[str, Any] = {"color": colour, "label": to_mathtext(series.name), "markersize": 4.5}
    if series.low is not None and series.high is not None:
        axes.fill_between(series.x, series.low, series.high, color=colour, alpha=0.18, linewidth=0)
    if series.kind == "points":
        axes.plot(series.x, series.y, "o", **style)
    elif series.kind == "dashed":
        axes.plot(series.x, series.y, "--", linewidth=1.5, **style)
    else:
        axes.plot(series.x, series.y, linewidth=1.8, marker="o" if series.x.size <= MARKED_POINTS else None, **style)


def _scale(axes: Axes, drawn: list[_Drawable], chart: Chart) -> None:
    """Make the axes logarithmic where the chart asks for it and something can be shown."""
    finite = [np.isfinite(series.x) & np.isfinite(series.y) for series in drawn]
    if not any(each.any() for each in finite):
        axes.text(0.5, 0.5, "nothing to draw", transform=axes.transAxes, ha="center", color="#57606a")
        return
    if chart.x_log:
        axes.set_xscale("log")
        _set_ticks(axes.xaxis, [series.x[own] for series, own in zip(drawn, finite, strict=True)])
    if chart.y_log:
        axes.set_yscale("log")
        _set_ticks(axes.yaxis, [series.y[own] for series, own in zip(drawn, finite, strict=True)])


def _set_ticks(axis: Axis, values: list[Array]) -> None:
    """Label powers of ten, and 2 and 5 in between if there would be too few; plain text renders fast."""
    together = np.concatenate(values)
    subs = (1.0,) if together.max() > 30 * together.min() else (1.0, 2.0, 5.0)
    axis.set_major_locator(LogLocator(subs=subs))
    axis.set_major_formatter(FuncFormatter(lambda value, _: readable(value)))
    axis.set_minor_locator(NullLocator())


def render(figure: Figure, suffix: str) -> bytes:
    """Return the figure as a ".svg", ".png" or ".pdf" file, with the same bytes on every call."""
    buffer = io.BytesIO()
    with mpl.rc_context({"svg.hashsalt": "clipsilon", "svg.fonttype": "none"}):  # text stays text: half the bytes
        figure.savefig(buffer, format=suffix.removeprefix("."), dpi=160, metadata=_METADATA[suffix])
    return buffer.getvalue()


def save(figure: Figure, path: Path) -> None:
    """Write the figure to a .svg, .png or .pdf file that `is_own_file` recognises."""
    path.write_bytes(render(figure, path.suffix))
