"""Figures and tables for pages without files beside them: what can be downloaded is inside the page."""

from __future__ import annotations

from clipsilon.report.charts import Chart, Table
from clipsilon.report.drawing import draw, render
from clipsilon.report.files import chart_rows, table_rows, to_csv
from clipsilon.report.page import chart_data, chart_figure, element, embedded, table_sheet


def embedded_figure(name: str, chart: Chart) -> str:
    """Return a chart with its files inside the page."""
    files = {
        "svg": embedded(render(draw(chart), ".svg"), "image/svg+xml"),
        "csv": embedded(to_csv(chart_rows(chart)).encode(), "text/csv"),
    }
    return chart_data(name, chart) + chart_figure(name, chart, element("span", chart.title), files)


def embedded_sheet(name: str, table: Table) -> str:
    """Return a table with its file inside the page."""
    return table_sheet(name, table, embedded(to_csv(table_rows(table)).encode(), "text/csv"))
