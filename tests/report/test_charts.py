"""Charts as pictures and files: everything that can be drawn is drawn, and reproducibly."""

import csv
import io
import json
import re
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

import made_up
from clipsilon.report.charts import Chart, Series, Table, band
from clipsilon.report.drawing import draw, render
from clipsilon.report.files import chart_rows, result_files, table_rows, to_csv, write_files
from clipsilon.report.palette import COLOURS, PALETTE, SHADES, colours
from clipsilon.report.text import csv_cell, readable, to_html, to_mathtext


@pytest.fixture(scope="module")
def results():
    return {each.name: each.make(made_up.Bench()) for each in made_up.EXPERIMENTS}


def charts(results):
    return [chart for result in results.values() for chart in result.charts]


def test_pictures_are_the_same_every_time(results):
    for chart in charts(results):
        for form, begin in (("svg", b"<?xml"), ("png", b"\x89PNG")):
            first = render(draw(chart), f".{form}")
            assert first.startswith(begin)
            assert first == render(draw(chart), f".{form}")


def test_axes_show_what_they_can(results):
    gap, signs = results["made-up-curves"].charts
    axes = draw(gap).axes[0]
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert len(axes.lines) == 4
    np.testing.assert_array_equal(axes.lines[3].get_ydata(), [1.0, np.nan, np.nan, np.nan])
    assert axes.lines[2].get_linestyle() == "--"
    assert len(axes.collections) == 2  # the bands
    assert draw(signs).axes[0].get_yscale() == "linear"
    zeros, empty = (draw(chart).axes[0] for chart in results["made-up-nothing"].charts[:2])
    assert zeros.get_yscale() == "linear"  # matplotlib fails on a logarithmic axis without a number
    assert zeros.lines[0].get_ydata()[0] == 0
    assert empty.texts[0].get_text() == "nothing to draw"


def test_a_band_that_reaches_zero_does_not_decide_a_logarithmic_axis():
    series = Series("a", [1, 2], [1.0, 2.0], [0.0, -1.0], [3.0, 4.0])
    paths = draw(Chart("", "x", "y", [series], y_log=True)).axes[0].collections[0].get_paths()
    assert paths[0].vertices[:, 1].min() == 0.01  # a hundredth of the minimum of the line
    assert paths[0].vertices[:, 1].max() == 4.0


@pytest.mark.parametrize(
    ("series", "message"),
    [
        (Series("a", [1], [2], kind="bars"), "kind must be one of 'line', 'dashed', 'points', got 'bars'."),
        (Series("a", [1, 2], [2]), "a must have an x for each y, got shapes (2,) and (1,)."),
    ],
)
def test_a_wrong_series_is_refused(series, message):
    with pytest.raises(ValueError, match="must") as refused:
        draw(Chart("", "x", "y", [series]))
    assert str(refused.value) == message


def test_series_of_one_chart_have_different_colours():
    names = ["DiceSGD", "one", "two", "three", "PCSGD"]
    found = colours(Chart("", "x", "y", [Series(name, [], []) for name in names]))
    assert len(set(found)) == 5
    assert (found[0], found[4]) == (COLOURS["DiceSGD"], COLOURS["PCSGD"])
    assert set(COLOURS.values()) <= set(PALETTE)
    assert len(colours(Chart("", "x", "y", [Series(str(k), [], []) for k in range(20)]))) == 20


def luminance(colour):
    """Relative luminance of the Web Content Accessibility Guidelines 2."""
    part = np.array([int(colour[k : k + 2], 16) for k in (1, 3, 5)]) / 255
    return np.where(part <= 0.03928, part / 12.92, ((part + 0.055) / 1.055) ** 2.4) @ [0.2126, 0.7152, 0.0722]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_colours_stand_out_from_the_card(dark):
    style = files("clipsilon.report").joinpath("assets", "page.css").read_text(encoding="utf-8")
    card = luminance(re.findall(r"--card: (#\w+)", style)[dark])
    for colour in [*PALETTE.values(), *SHADES.values()] if dark else PALETTE:
        low, high = sorted((luminance(colour), card))
        assert (high + 0.05) / (low + 0.05) >= 3, colour  # what the guidelines require for graphics


def test_band_is_mean_and_quantiles():
    series = band("a", [0], np.arange(11.0)[:, None], kind="points")
    assert (series.y, series.low, series.high, series.kind) == ([5.0], [1.0], [9.0], "points")


def test_csv_of_charts_comes_back(results):
    for chart in charts(results):
        rows = list(csv.reader(io.StringIO(to_csv(chart_rows(chart)))))
        assert rows[0] == ["series", chart.x, chart.y, "low", "high"]
        for series in chart.series:
            own = np.array([[float(cell or "nan") for cell in row[1:]] for row in rows if row[0] == series.name])
            np.testing.assert_allclose(own[:, 0], series.x, rtol=1e-7)
            np.testing.assert_allclose(own[:, 1], series.y, rtol=1e-7)
            if series.low is not None:
                np.testing.assert_allclose(own[:, 2:].T, [series.low, series.high], rtol=1e-7)
            else:
                assert np.isnan(own[:, 2:]).all()


def test_csv_of_tables_comes_back():
    table = Table("t", ["a, b", "c"], [['"x"', 1 / 3], ["y\nz", np.inf], ["w", None], ["v", True]])
    rows = list(csv.reader(io.StringIO(to_csv(table_rows(table)))))
    assert rows == [["a, b", "c"], ['"x"', "0.33333333"], ["y\nz", "inf"], ["w", ""], ["v", "True"]]


def test_json_has_everything(results):
    experiment = made_up.EXPERIMENTS[0]
    result = results[experiment.name]
    written = result_files(experiment, result, quick=True)
    whole = json.loads(written["made-up-curves/result.json"])
    assert whole["verdict"] == "holds with a remark"
    assert whole["quick"] is True
    assert [finding["verdict"] for finding in whole["findings"]] == ["holds", "holds with a remark"]
    assert whole["story"].startswith("Look at θ_PS")
    points = whole["charts"][0]["series"]
    np.testing.assert_array_equal(points[0]["y"], result.charts[0].series[0].y)  # to the last digit
    assert points[3]["y"] == [1.0, 0.0, None, "inf"]
    kinds = {name.rsplit("/")[1] for name in written}
    assert kinds == {f"chart-{k}.{form}" for k in (1, 2) for form in ("svg", "png", "csv")} | {
        "table-1.csv",
        "result.json",
    }


def test_files_that_are_the_same_are_left_alone(tmp_path):
    write_files(tmp_path, {"a/b.txt": b"1"})
    before = (tmp_path / "a/b.txt").stat()
    write_files(tmp_path, {"a/b.txt": b"1"})
    after = (tmp_path / "a/b.txt").stat()  # the time of the last access may differ: reading may change it
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    write_files(tmp_path, {"a/b.txt": b"2"})
    assert [path.read_bytes() for path in (tmp_path / "a").iterdir()] == [b"2"]


@pytest.mark.parametrize(
    ("value", "read", "kept"),
    [
        (0.0, "0", "0"),
        (-0.25, "−0.25", "-0.25"),
        (185_432.1, "185\u202f400", "185432.1"),
        (12_345_678.0, "1.235 × 10⁷", "12345678"),
        (1e-5, "10⁻⁵", "1e-05"),
        (2.5e-7, "2.5 × 10⁻⁷", "2.5e-07"),
        (np.float32(0.5), "0.5", "0.5"),
        (100_000, "100\u202f000", "100000"),
        (np.nan, "–", ""),
        (None, "–", ""),
        (-np.inf, "−∞", "-inf"),
        (True, "yes", "True"),
        ("≥ 1.26", "≥ 1.26", "≥ 1.26"),
    ],
)
def test_cells(value, read, kept):
    assert (readable(value), csv_cell(value)) == (read, kept)


@pytest.mark.parametrize(
    ("text", "page", "paper"),
    [
        ("‖θ_t − θ_PS‖²", "‖θ<sub>t</sub> − θ<sub>PS</sub>‖²", "‖θ$_{\\mathrm{t}}$ − θ$_{\\mathrm{PS}}$‖²"),
        ("θ_{t+1} and θ_∞", "θ<sub>t+1</sub> and θ<sub>∞</sub>", "θ$_{\\mathrm{t+1}}$ and θ$_{\\mathrm{∞}}$"),
        ("`residual_cap` of n_jobs", "<code>residual_cap</code> of n_jobs", "`residual_cap` of n_jobs"),
        ("n^(−2(1−α)), t^−0.9.", "n<sup>−2(1−α)</sup>, t<sup>−0.9</sup>.", "n^(−2(1−α)), t^−0.9."),
        ("‖θ*‖_M", "‖θ*‖<sub>M</sub>", "‖θ*‖$_{\\mathrm{M}}$"),
        (
            "1e-05, -1.8e+05, 2-3, `-1`",
            "10⁻⁵, −1.8\u00a0×\u00a010⁵, 2-3, <code>-1</code>",
            "1e-05, -1.8e+05, 2-3, `-1`",
        ),
        ("5 $ <b>", "5 $ &lt;b&gt;", "5 \\$ <b>"),
    ],
)
def test_indices(text, page, paper):
    assert to_html(text) == page
    assert to_mathtext(text) == paper
    render(draw(Chart(text, text, text, [Series(text, [1], [1])])), ".svg")  # matplotlib can read it


def test_experiments_use_colours_that_suit_dark_screens():
    package = files("clipsilon")
    sources = [path.read_text(encoding="utf-8") for path in Path(str(package)).glob("reproduce/**/*.py")]
    sources.append(package.joinpath("cli", "demo.py").read_text(encoding="utf-8"))
    used = {colour for source in sources for colour in re.findall(r"#[0-9a-f]{6}", source)}
    assert used
    assert used <= {*PALETTE, *SHADES}
