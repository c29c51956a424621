"""What a result leaves on disk: pictures, CSV and JSON, in a folder of its own."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from clipsilon.report.charts import Chart, Table
from clipsilon.report.drawing import draw, picture
from clipsilon.report.results import Experiment, Result
from clipsilon.report.text import exact


def chart_rows(chart: Chart) -> list[list[str]]:
    """A header, then a row for each point of each series; NaN is empty."""
    rows = [["series", chart.x, chart.y, "low", "high"]]
    for series in chart.series:
        nothing = np.full(len(series.x), np.nan)
        ends = [nothing if end is None else end for end in (series.low, series.high)]
        points = zip(series.x, series.y, *ends, strict=True)
        rows += [[series.name, *map(exact, point)] for point in points]
    return rows


def table_rows(table: Table) -> list[list[str]]:
    """A header, then the rows."""
    return [list(table.columns), *([exact(cell) for cell in row] for row in table.rows)]


def as_csv(rows: Iterable[Sequence[str]]) -> str:
    """Rows as comma-separated values."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def as_json(experiment: Experiment, result: Result, quick: bool) -> str:
    """The whole result for programs: numbers at full precision, those that JSON lacks as null or text."""
    about = {name: getattr(experiment, name) for name in ("name", "paper", "where", "title", "story")}
    findings = [{**finding._asdict(), "verdict": finding.verdict} for finding in result.findings]
    charts = [{**chart._asdict(), "series": [s._asdict() for s in chart.series]} for chart in result.charts]
    whole = {
        **about,
        "quick": quick,
        "parameters": dict(experiment.parameters),
        "verdict": result.verdict,
        "findings": findings,
        "charts": charts,
        "tables": [table._asdict() for table in result.tables],
    }
    return json.dumps(_plain(whole), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _plain(value: Any) -> Any:
    """The same of lists, dictionaries and what JSON has."""
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, float) and not np.isfinite(value):
        return None if np.isnan(value) else f"{value}"
    return value


def result_files(experiment: Experiment, result: Result, quick: bool) -> dict[str, bytes]:
    """The files of a result, by their paths in the report's folder."""
    found = {f"{experiment.name}/result.json": as_json(experiment, result, quick).encode()}
    for k, chart in enumerate(result.charts, start=1):
        name, figure = f"{experiment.name}/chart-{k}", draw(chart)
        found |= {f"{name}.{form}": picture(figure, form) for form in ("svg", "png")}
        found[f"{name}.csv"] = as_csv(chart_rows(chart)).encode()
    for k, table in enumerate(result.tables, start=1):
        found[f"{experiment.name}/table-{k}.csv"] = as_csv(table_rows(table)).encode()
    return found


def write_files(folder: Path, files: dict[str, bytes]) -> None:
    """Write each file whole or not at all; one that is the same already is left alone."""
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.is_file() or path.read_bytes() != data:
            part = path.with_name(f".{path.name}.part")
            part.write_bytes(data)
            part.replace(path)
