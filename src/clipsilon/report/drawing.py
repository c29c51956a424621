"""A chart as a picture, drawn with matplotlib's object interface so that nothing needs a display."""

from __future__ import annotations

import io
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from clipsilon.report.charts import Array, Chart, Series
from clipsilon.report.palette import colours
from clipsilon.report.text import shown, typeset

FEW = 15  # a line of so few points shows them
DEPTH = 100  # how far below its line a band is drawn on a logarithmic axis
_KINDS = ("line", "dashed", "points")


def draw(chart: Chart) -> Figure:
    """The chart on white paper; what an axis cannot show (NaN, zero on a logarithmic one) leaves a gap."""
    figure = Figure(figsize=(6.4, 4.3), layout="constrained")
    axes = figure.subplots()
    chart = _with_possible_axes(chart)
    drawn = [drawable(series, chart) for series in chart.series]
    for series, colour in zip(drawn, colours(chart), strict=True):
        _draw_series(axes, series, colour)
    _scale(axes, drawn, chart)
    axes.set_title(typeset(chart.title), fontsize=11)
    axes.set_xlabel(typeset(chart.x))
    axes.set_ylabel(typeset(chart.y))
    axes.grid(alpha=0.25)
    if chart.series:
        figure.legend(loc="outside lower center", ncols=2 if len(chart.series) > 1 else 1, frameon=False, fontsize=9)
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # laid out once for all forms
    return figure


def _with_possible_axes(chart: Chart) -> Chart:
    """Logarithmic axes only where there is a number above zero."""
    above = {key: any(np.nanmax(_places(getattr(s, key), False), initial=0) > 0 for s in chart.series) for key in "xy"}
    return chart._replace(x_log=chart.x_log and above["x"], y_log=chart.y_log and above["y"])


def drawable(series: Series, chart: Chart) -> Series:
    """The series as arrays, with NaN wherever the chart's axes have no place for a number."""
    if series.kind not in _KINDS:
        raise ValueError(f"kind must be one of {', '.join(map(repr, _KINDS))}, got {series.kind!r}.")
    x, y = _places(series.x, chart.x_log), _places(series.y, chart.y_log)
    if x.shape != y.shape or x.ndim != 1:
        raise ValueError(f"{series.name} must have an x for each y, got shapes {x.shape} and {y.shape}.")
    if series.low is None or series.high is None:
        return series._replace(x=x, y=y, low=None, high=None)
    low, high = np.array(series.low, dtype=np.float64), _places(series.high, chart.y_log)
    if chart.y_log:  # the lower end of a band can be anywhere, or zero: it must not decide what the axis shows
        low = np.fmax(low, np.nanmin(y, initial=np.inf) / DEPTH)
    return series._replace(x=x, y=y, low=low, high=high)


def _places(values: Any, log: bool) -> Array:
    array = np.array(values, dtype=np.float64)
    array[~np.isfinite(array)] = np.nan
    if log:
        array[~(array > 0)] = np.nan
    return array


def _draw_series(axes: Axes, series: Series, colour: str) -> None:
    style: dict[str, Any] = {"color": colour, "label": typeset(series.name), "markersize": 4.5}
    if series.low is not None:
        axes.fill_between(series.x, series.low, series.high, color=colour, alpha=0.18, linewidth=0)
    if series.kind == "points":
        axes.plot(series.x, series.y, "o", **style)
    elif series.kind == "dashed":
        axes.plot(series.x, series.y, "--", linewidth=1.5, **style)
    else:
        axes.plot(series.x, series.y, linewidth=1.8, marker="o" if series.x.size <= FEW else None, **style)


def _scale(axes: Axes, drawn: list[Series], chart: Chart) -> None:
    """Logarithmic axes, where there is anything to show on them."""
    seen = [np.isfinite(series.x) & np.isfinite(series.y) for series in drawn]
    if not any(each.any() for each in seen):
        axes.text(0.5, 0.5, "nothing to draw", transform=axes.transAxes, ha="center", color="#57606a")
        return
    if chart.x_log:
        axes.set_xscale("log")
        _tick(axes.xaxis, [series.x[own] for series, own in zip(drawn, seen, strict=True)])
    if chart.y_log:
        axes.set_yscale("log")
        _tick(axes.yaxis, [series.y[own] for series, own in zip(drawn, seen, strict=True)])


def _tick(axis: Axis, values: list[Array]) -> None:
    """Powers of ten, and more where there would be fewer than two; as plain text, which is quick to set."""
    together = np.concatenate(values)
    subs = (1.0,) if together.max() > 30 * together.min() else (1.0, 2.0, 5.0)
    axis.set_major_locator(LogLocator(subs=subs))
    axis.set_major_formatter(FuncFormatter(lambda value, _: shown(value)))
    axis.set_minor_locator(NullLocator())


def picture(figure: Figure, form: str) -> bytes:
    """The figure as "svg" or "png", the same bytes every time."""
    buffer = io.BytesIO()
    metadata = {"Date": None, "Creator": None} if form == "svg" else {"Software": None}
    with mpl.rc_context({"svg.hashsalt": "clipsilon", "svg.fonttype": "none"}):  # text stays text: half the bytes
        figure.savefig(buffer, format=form, dpi=160, metadata=metadata)
    return buffer.getvalue()
