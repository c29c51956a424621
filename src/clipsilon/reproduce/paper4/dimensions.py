"""Paper 4's other settings: d = 10 and d = 20."""

from __future__ import annotations

from clipsilon.report.charts import Chart, Series, Table
from clipsilon.reproduce.base import Finding, Lab, Result, experiment
from clipsilon.reproduce.paper4.setting import (
    CONVERGING,
    DECAYS,
    NAMES,
    PARAMETERS,
    Case,
    Ends,
    budgets,
    ends,
    ends_table,
    falls,
    grid,
)

Growth = dict[tuple[str, float, float | None, str], list[float]]  # by problem, decay, budget and estimator


@experiment(
    "paper4-dimensions",
    paper=4,
    where="section 5, d = 10 and 20; Remarks 1 and 2",
    title="Local privacy in more dimensions",
    parameters={
        "d": "5, 10, 20 (quick: 5, 20)",
        **PARAMETERS,
        "replicates": "200 for d = 5; 10 for the others, where the paper has 200 (quick: 16 and 4)",
    },
)
def dimensions(lab: Lab) -> Result:
    """Every coordinate gets noise of its own, so more of them cost more. With d = 20 and strong privacy, 300,000 users
    are not enough: after the last of them the models are farther from the truth than at the start, which is zero.
    """
    sizes = (5, 20) if lab.quick else (5, 10, 20)
    cases = [Case(kind, dimension) for kind in ("linear", "logistic") for dimension in sizes]
    found = {case: ends(grid(lab, case), case) for case in cases}
    growth = {
        (kind, *setting): [found[Case(kind, d)][setting] for d in sizes]
        for kind in ("linear", "logistic")
        for setting in found[cases[0]]
        if setting[0] in CONVERGING and setting[1] is not None
    }
    findings = [_growth(growth), _budgets(found, budgets(lab))]
    charts = [_chart(growth, kind, sizes) for kind in ("linear", "logistic")]
    return Result(findings, charts, [_table(found)])


def _growth(growth: Growth) -> Finding:
    rising = sum(falls(values[::-1]) for values in growth.values())
    factors = [values[-1] / values[0] for values in growth.values()]
    return Finding(
        "The squared distances grow with the dimension, as their bounds do.",
        f"they are in order in {rising} of {len(growth)} private settings; from d = 5 to 20 they grow by factors of "
        f"{min(factors):.2g} to {max(factors):.2g}",
        rising == len(growth),
        "The bounds are linear in d. Some distances grow faster: where noise is strong, the runs have not settled."
        if max(factors) > 20 / 5
        else "",
    )


def _budgets(found: dict[Case, Ends], crowds: tuple[float | None, ...]) -> Finding:
    rows = [
        [values[decay, budget, of] for budget in crowds]
        for case, values in found.items()
        for decay in CONVERGING
        for of in NAMES
        if case.kind == "linear"
    ]
    return Finding(
        "Linear regression: a smaller budget means a larger distance, in every dimension.",
        f"in order in {sum(map(falls, rows))} of {len(rows)} settings",
        all(map(falls, rows)),
    )


def _chart(growth: Growth, kind: str, sizes: tuple[int, ...]) -> Chart:
    series = [
        Series(f"{NAMES[of]}, α = {DECAYS[decay]}", sizes, values)
        for (at, decay, budget, of), values in growth.items()
        if at == kind and budget == 2.0
    ]
    title = f"{kind.capitalize()} regression, μ = 2"
    return Chart(title, "dimension d", "mean ‖θ − θ*‖² in the end", series, x_log=True, y_log=True)


def _table(found: dict[Case, Ends]) -> Table:
    rows = [
        [f"{case.kind}, d = {case.dimension}, {row[0]}", *row[1:]]
        for case, values in found.items()
        for row in ends_table("", values).rows
    ]
    return Table("Mean squared distance after the last user", ["setting", *NAMES.values()], rows)
