"""`clipwise demo`: what clipping costs and what error feedback repairs, on two problems in under a minute."""

from __future__ import annotations

import time
import warnings
from pathlib import Path
from typing import Any, NamedTuple

from clipwise import losses, regions, responses, steps
from clipwise.datasets import bernoulli, credit
from clipwise.datasets.give_me_some_credit import PAPER_ROWS
from clipwise.engine import Trace, run
from clipwise.points import clipping_bias, stable_point
from clipwise.presets import PCSGD, SGD, DiceSGD
from clipwise.privacy.audit import audit
from clipwise.privacy.calibration import calibrate
from clipwise.problem import Problem
from clipwise.report.page import heading, page, paragraph, picture, table
from clipwise.report.plots import Curve, Panel, gap_figure
from clipwise.rule import Rule
from clipwise.steps import InverseTime

COLUMNS = ("rule", "final gap ‖θ − θ_PS‖²", "exact clipping bias", "claimed ε", "certified ε", "audited ε", "time (s)")

STORY = (
    "A model is trained one record at a time, and the records react to the model that is deployed. The goal is "
    "the performatively stable point θ_PS, the model that is best for the data it causes itself.",
    "Clipping each record's gradient limits what one record can reveal, but moves the end of the run away from "
    "θ_PS: PCSGD heads for the dashed line, whose height is computed before any run. DiceSGD remembers what "
    "clipping took away and feeds it back, so it goes on towards θ_PS although it clips just as hard.",
)
CAVEAT = (
    "The noise is what the papers prescribe: c·√(T·log(1/δ))/(m·ε) for PCSGD and √96 times as much for DiceSGD. The ε "
    "that they claim for it is the first of the three columns; the second is what can be proven, for the replacement "
    "of one record at δ = 1/m; the third is what an attack on a small number of runs shows at 95 % confidence. Where "
    "the third exceeds the first, the claim is false, at that confidence."
)


class Case(NamedTuple):
    """One problem of the demo and how it is run."""

    title: str
    problem: Problem
    step: InverseTime
    start: float
    run_steps: int
    replicates: int
    epsilon: float
    audit_runs: int


class Result(NamedTuple):
    """What came out for one problem: a panel of the figure and rows of the table."""

    panel: Panel
    rows: list[tuple[str, ...]]


def quadratic_case() -> Case:
    """Paper 1's first setting: a = 10, b = 1, p = 0.1, c = 1, ε = 0.1, with the stronger reaction β = 0.05."""
    problem = Problem(
        bernoulli(100_000, p=0.1),
        loss=losses.Quadratic(a=10.0),
        response=responses.LocationShift(beta=0.05),
        region=regions.Box(-10, 10),
    )
    return Case("Quadratic, β = 0.05", problem, steps.InverseTime(10, 100), 5.0, 100_000, 20, 0.1, 100)


def credit_case() -> tuple[Case, str]:
    """Paper 1's credit setting with β = 0.1, and where the data came from."""
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        data = credit()  # its warning is the source that the page names
    train, _ = data.first(PAPER_ROWS).standardised().split(0.7)
    problem = Problem(
        train.features,
        train.labels,
        loss=losses.Logistic(l2=100 / PAPER_ROWS, positive_weight=2.0),
        response=responses.BestResponse(beta=0.1),
    )
    case = Case("Credit, β = 0.1", problem, steps.InverseTime(50, 5000), 0.0, 500_000, 8, 1.0, 40)
    source = data.source if data.real else "a generated stand-in, because the real data could not be downloaded"
    return case, source


def compare(case: Case, progress: bool | None = None) -> Result:
    """Run SGD, PCSGD and DiceSGD with clip 1 on one problem."""
    goal = stable_point(case.problem).theta
    bias = clipping_bias(case.problem, 1.0)
    m = case.problem.records
    about: dict[str, Any] = {"epsilon": case.epsilon, "delta": 1 / m, "records": m, "steps": case.run_steps}
    rules = (
        SGD(case.step),
        calibrate(PCSGD(case.step, clip=1.0, noise_std=1.0), **about, how="paper"),
        calibrate(DiceSGD(case.step, clip=1.0, error_clip=1.0, noise_std=1.0), **about, how="paper"),
    )
    curves: list[Curve] = []
    rows: list[tuple[str, ...]] = []
    for rule in rules:
        trace, seconds = _timed(case, rule, progress)
        gaps = trace.gap(goal)
        curves.append(Curve(rule.name, trace.iterations, gaps))
        expected = f"{bias:.4g}" if rule.name == "PCSGD" else "0"
        rows.append(
            (rule.name, f"{gaps[:, -1].mean():.4g}", expected, *_privacy(case, rule, progress), f"{seconds:.1f}")
        )
    return Result(Panel(case.title, curves, bias), rows)


def _privacy(case: Case, rule: Rule, progress: bool | None) -> tuple[str, str, str]:
    """Claimed, certified and audited ε, as the table shows them."""
    m = case.problem.records
    if rule.noise.std == 0:
        return "none", "∞", "no noise"
    found = audit(rule, m, case.run_steps, 1 / m, runs=case.audit_runs, seed=0, progress=progress)
    claimed = "none" if found.statement.claimed is None else f"{found.statement.claimed:.3g}"
    return claimed, f"{found.statement.certified:.4g}", f"≥ {found.lower_bound:.3g}"


def _timed(case: Case, rule: Rule, progress: bool | None) -> tuple[Trace, float]:
    run(case.problem, rule, steps=1, start=case.start, seed=0)  # compiles, if it has to
    began = time.perf_counter()
    trace = run(case.problem, rule, case.run_steps, case.start, case.replicates, seed=0, record=80, progress=progress)
    return trace, time.perf_counter() - began


def write(folder: Path, results: list[Result], source: str) -> list[Path]:
    """Write the figure (PNG and SVG) and the page; return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    figure = gap_figure([result.panel for result in results])
    paths = [folder / "gap.png", folder / "gap.svg", folder / "index.html"]
    for path in paths[:2]:
        figure.savefig(path, dpi=160)
    body = [paragraph(text) for text in STORY]
    for result in results:
        words = f"{result.panel.title}: squared distance to the stable point against the iteration, for each rule"
        body += [heading(result.panel.title), picture(gap_figure([result.panel]), words)]
        body.append(table(COLUMNS, result.rows))
    body += [paragraph(f"Credit data: {source}.", soft=True), paragraph(CAVEAT, soft=True)]
    paths[2].write_text(page("What clipping costs, and what feedback repairs", body), encoding="utf-8")
    return paths
