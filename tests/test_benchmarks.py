"""The page of peers says what was measured, and nothing else: no speed is measured here."""

import importlib
import math
from pathlib import Path

import numpy as np
import pytest

import clipsilon as cs

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module", autouse=True)
def on_path():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "benchmarks")
        yield


@pytest.fixture
def results(tmp_path, monkeypatch):
    module = importlib.import_module("results")
    monkeypatch.setattr(module, "RESULTS", tmp_path)
    return module


@pytest.fixture
def table(results):
    return importlib.import_module("table")


WITH_OPACUS = {"accounting", "adaptive", "correlated", "ghost"}


def test_every_part_is_there(table):
    """Its imports, too: what a benchmark uses of the package may be renamed."""
    for part in set(table.PARTS) - WITH_OPACUS:
        importlib.import_module(part)


def test_every_part_that_needs_opacus_is_there(table):
    pytest.importorskip("opacus")
    assert set(table.PARTS) > WITH_OPACUS
    for part in WITH_OPACUS:
        importlib.import_module(part)


@pytest.mark.parametrize("name", ["PCSGD", "DiceSGD", "DPSGD"])
def test_the_loops_that_are_timed_are_the_engine(name):
    """`must_agree` raises RuntimeError otherwise; benchmarks call the compiled loop itself, whose arguments may change."""
    engine = importlib.import_module("engine")
    case, how = engine.problem(), engine.rule(name)
    batch = engine.BATCH if name == "DPSGD" else 1
    for loop, _ in engine.numpy_loops(case, name, batch).values():
        found = loop(engine.CHECKED, engine.engine_draws(how), engine.engine_normal())
        engine.must_agree("NumPy", found, case, how)
        with pytest.raises(RuntimeError, match="must end at the engine's model"):
            engine.must_agree("NumPy", found + 1e-5, case, how)


def test_the_noise_of_a_matrix_is_that_of_the_package():
    """The benchmark's formula, for matrices of other libraries, agrees with ours where both apply."""
    pytest.importorskip("opacus")
    correlated, ours = importlib.import_module("correlated"), cs.correlation
    case, buffers = correlated.Participation(60, 3, 20), ours.square_root(60, 3)
    expected = ours.shift_norm(buffers, *case) * ours.output_norm(buffers, np.ones(60))
    assert correlated.error(ours.coefficients(buffers, 60), case) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("coefficients", [[1.0, 0.2, 0.3], [1.0, 0.2, -0.1]])
def test_a_matrix_without_a_formula_for_its_sensitivity_is_refused(coefficients):
    pytest.importorskip("opacus")
    correlated = importlib.import_module("correlated")
    with pytest.raises(ValueError, match="must not be negative nor increase"):
        correlated.sensitivity(np.array(coefficients), correlated.Participation(3, 1, 3))


def test_all_models_of_a_table_learn_from_the_same_rows():
    """Trees get a column of levels for each block of the encoding; the longest row is attained."""
    tables, kinds = importlib.import_module("mixed_tables"), cs.tables
    schema = cs.Schema({"a": kinds.Number(0, 4, gap=4), "b": kinds.Category(["x", "y"]), "c": kinds.YesNo()})
    rows = cs.SchemaEncoder(schema).fit_transform({"a": ["1", ""], "b": ["y", ""], "c": ["yes", "no"]})
    found, nominal = tables.with_levels(schema, rows)
    assert found.tolist() == [[-0.5, 0, 1, 1], [1, 1, 3, -1]]
    assert nominal.tolist() == [False, True, True, True]
    assert tables.longest_row(schema) == pytest.approx(np.linalg.norm(rows, axis=1).max())


def test_only_what_is_between_the_marks_is_replaced(table):
    before, after = "# Peers\n\nWords.\n\n", "\n\nMore words.\n"
    once = table.replaced(f"{before}{table.BEGIN}\nold\n{table.END}{after}", "new")
    assert once == f"{before}{table.BEGIN}\n\nnew\n\n{table.END}{after}"
    assert table.replaced(once, "new") == once


@pytest.mark.parametrize("text", ["", "{BEGIN}", "{END}{BEGIN}", "{BEGIN}{END}{END}", "{BEGIN}{BEGIN}{END}"])
def test_a_page_without_its_marks_is_refused(table, text):
    with pytest.raises(ValueError, match="the page must have one"):
        table.replaced(text.format(BEGIN=table.BEGIN, END=table.END), "new")


def test_the_page_has_its_marks(table):
    text = table.PAGE.read_text("utf-8")
    found = text.split(table.BEGIN)[1].split(table.END)[0].strip()
    assert table.replaced(text, found) == text


@pytest.mark.parametrize("ratio", [math.nan, math.inf, -math.inf, 0.0, -1.0])
def test_a_ratio_that_says_nothing_is_refused(results, ratio):
    with pytest.raises(ValueError, match="ratio must be finite and positive"):
        results.ahead("Engine", "a step", "NumPy", ratio, "3 turns")
    with pytest.raises(ValueError, match="ratio must be finite and positive"):
        results.cost("Engine", "a step", "its draws", ratio, "3 turns")


@pytest.mark.parametrize(
    ("ratio", "shown"), [(1234.5, "1,234"), (12.34, "12.3"), (0.5264, "0.526"), (0.99978, "0.9998")]
)
def test_ratios_never_hide_who_is_ahead(results, ratio, shown):
    assert results.ahead("Engine", "a step", "NumPy", ratio, "").shown == shown


def test_rows_of_all_parts_are_joined(results, table):
    results.keep("engine", lambda rows: rows.append(results.ahead("Engine", "a step", "NumPy", 120.0, "3 turns", 100)))
    results.keep("audit", lambda rows: rows.append(results.cost("Audits", "an audit", "its runs", 1.4, "", most=1.3)))
    found = {part: table.kept(part) for part in table.PARTS}
    page = table.page(found)
    peers, costs = page.split("What clipsilon's own parts cost")
    assert "| **Engine**: a step | NumPy | 120 (≥ 100) | 3 turns |" in peers.splitlines()
    assert "| **Audits**: an audit | its runs | 1.40 (≤ 1.3: missed) |  |" in costs.splitlines()
    assert "Dask: not run" in peers
    assert table.problems_of("engine", found["engine"]) == []
    assert table.problems_of("audit", found["audit"]) == ["audit: an audit / its runs: 1.40, wanted ≤ 1.3"]


def test_cells_that_repeat_the_row_above_are_empty(results, table):
    def measure(rows):
        rows.append(results.ahead("Engine", "a step", "NumPy", 120.0, "3 turns"))
        rows.append(results.ahead("Engine", "a run", "NumPy", 2.0, "3 turns"))
        rows.append(results.ahead("Engine", "a run", "JAX", 3.0, "5 turns"))
        rows.append(results.cost("Engine", "a run", "JAX", 4.0, "5 turns"))

    results.keep("engine", measure)
    lines = table.page({"engine": table.kept("engine")}).splitlines()
    assert [line for line in lines if "turns" in line or ".00" in line] == [
        "| **Engine**: a step | NumPy | 120 | 3 turns |",
        "| a run |  | 2.00 |  |",
        "|  | JAX | 3.00 | 5 turns |",
        "| **Engine**: a run | JAX | 4.00 | 5 turns |",
    ]


def test_rows_of_another_machine_are_left_out(results, table, monkeypatch):
    results.keep("engine", lambda rows: rows.append(results.ahead("Engine", "a step", "NumPy", 120.0, "")))
    monkeypatch.setattr(table, "machine", lambda: "another one")
    assert "on another machine" in table.kept("engine")


def test_a_missing_peer_is_a_row_and_the_rest_goes_on(results, table, capsys):
    def measure(rows):
        with results.unless_missing(rows, "Engine", "a step", "JAX"):
            raise results.PeerError("could not be installed")
        rows.append(results.ahead("Engine", "a step", "NumPy", 120.0, ""))

    assert results.keep("engine", measure) == 1
    found = table.kept("engine")
    assert [row.shown for row in found["rows"]] == ["–", "120"]
    assert table.problems_of("engine", found) == ["engine: JAX: not run: could not be installed"]
    assert "JAX: could not be installed" in capsys.readouterr().err


def test_what_was_measured_before_ctrl_c_is_kept(results, table, capsys):
    def measure(rows):
        rows.append(results.ahead("Engine", "a step", "NumPy", 120.0, ""))
        raise KeyboardInterrupt

    assert results.keep("engine", measure) == 1
    found = table.kept("engine")
    assert (len(found["rows"]), found["finished"]) == (1, False)
    assert "interrupted" in capsys.readouterr().err


def test_quick_rows_are_not_for_the_page(results, table):
    results.keep("engine", lambda rows: rows.append(results.ahead("Engine", "a step", "NumPy", 120.0, "")), quick=True)
    assert table.kept("engine") == "not run"


def test_turns_are_fair_and_the_first_does_not_count():
    timing = importlib.import_module("timing")
    order, clock = [], iter([100.0, 1.0, 6.0, 2.0, 8.0, 4.0, 40.0, 5.0])

    def contender(name):
        def take():
            order.append(name)
            return next(clock)

        return take

    found = timing.turns({"peer": contender("peer"), "ours": contender("ours")}, 3)
    assert order == ["peer", "ours"] * 4
    assert found == {"peer": [6.0, 8.0, 40.0], "ours": [2.0, 4.0, 5.0]}
    assert timing.ratio(found, "peer", "ours") == 3.0
