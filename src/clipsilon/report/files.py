"""Write a result to its own folder: pictures, CSV and JSON."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from clipsilon.report.charts import Chart, Table
from clipsilon.report.drawing import draw, render
from clipsilon.report.ownership import GENERATOR
from clipsilon.report.results import Experiment, Result
from clipsilon.report.text import csv_cell


def chart_rows(chart: Chart) -> list[list[str]]:
    """Return a header, then one row per point of each series; NaN is empty."""
    rows = [["series", chart.x, chart.y, "low", "high"]]
    for series in chart.series:
        x = np.asarray(series.x)
        ends = [np.full(x.size, np.nan) if end is None else np.asarray(end) for end in (series.low, series.high)]
        points = zip(x, np.asarray(series.y), *ends, strict=True)
        rows += [[series.name, *map(csv_cell, point)] for point in points]
    return rows


def table_rows(table: Table) -> list[list[str]]:
    """Return a header, then the rows of the table."""
    return [list(table.columns), *([csv_cell(cell) for cell in row] for row in table.rows)]


def to_csv(rows: Iterable[Sequence[str]]) -> str:
    """Return rows as comma-separated values."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def to_json(experiment: Experiment, result: Result, quick: bool) -> str:
    """Return the whole result for programs.

    Parameters
    ----------
    experiment : Experiment
        The experiment that was run.
    result : Result
        What it found.
    quick : bool
        Whether it was run at the smaller scale.

    Returns
    -------
    str
        JSON with numbers at full precision; NaN is null and infinity is the text "inf".
    """
    about = {name: getattr(experiment, name) for name in ("name", "paper", "where", "title", "story")}
    findings = [{**finding._asdict(), "verdict": finding.verdict} for finding in result.findings]
    charts = [{**chart._asdict(), "series": [s._asdict() for s in chart.series]} for chart in result.charts]
    whole = {
        "generator": GENERATOR,
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
    """Convert to dictionaries, lists and the values that JSON knows."""
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
    """Return the files of a result.

    Parameters
    ----------
    experiment : Experiment
        The experiment that was run; its name is the name of the folder.
    result : Result
        What it found.
    quick : bool
        Whether it was run at the smaller scale.

    Returns
    -------
    dict of str to bytes
        Contents by path in the folder of the report. `result.json`, by which the folder is recognised as ours, comes
        first.
    """
    found = {f"{experiment.name}/result.json": to_json(experiment, result, quick).encode()}
    for k, chart in enumerate(result.charts, start=1):
        name, figure = f"{experiment.name}/chart-{k}", draw(chart)
        found |= {f"{name}{suffix}": render(figure, suffix) for suffix in (".svg", ".png")}
        found[f"{name}.csv"] = to_csv(chart_rows(chart)).encode()
    for k, table in enumerate(result.tables, start=1):
        found[f"{experiment.name}/table-{k}.csv"] = to_csv(table_rows(table)).encode()
    return found


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write each file completely or not at all; files that already have the same content are not touched."""
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.is_file() or path.read_bytes() != data:
            part = path.with_name(f".{path.name}.part")
            part.write_bytes(data)
            part.replace(path)
