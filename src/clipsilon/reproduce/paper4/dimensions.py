"""Paper 4's other dimensions: d = 10 and d = 20."""

from __future__ import annotations

from clipsilon.report.charts import Chart, Series, Table
from clipsilon.reproduce.base import Finding, Lab, Result, experiment
from clipsilon.reproduce.paper4.runs import (
    CONVERGING,
    DECAYS,
    NAMES,
    PARAMETERS,
    Ends,
    Regression,
    budgets,
    ends,
    ends_table,
    grid,
    is_decreasing,
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
        "replicates": "200 for d = 5, and 10 for the others, where the paper has 200 (quick: 16 and 4)",
    },
)
def dimensions(lab: Lab) -> Result:
    """Noise is added to each coordinate, so more coordinates cost more. With d = 20 and strong privacy, 300,000 users
    are not enough: after the last of them the models are farther from the truth than the initial model, which is zero.
    """
    sizes = (5, 20) if lab.quick else (5, 10, 20)
    cases = [Regression(kind, dimension) for kind in ("linear", "logistic") for dimension in sizes]
    found = {case: ends(grid(lab, case), case) for case in cases}
    growth = {
        (kind, *cell): [found[Regression(kind, d)][cell] for d in sizes]
        for kind in ("linear", "logistic")
        for cell in found[cases[0]]
        if cell[0] in CONVERGING and cell[1] is not None
    }
    findings = [_growth(growth), _budgets(found, budgets(lab))]
    charts = [_chart(growth, kind, sizes) for kind in ("linear", "logistic")]
    return Result(findings, charts, [_table(found)])


def _growth(growth: Growth) -> Finding:
    rising = sum(is_decreasing(values[::-1]) for values in growth.values())
    factors = [values[-1] / values[0] for values in growth.values()]
    return Finding(
        "The squared distances grow with the dimension, as their bounds do.",
        f"They increase with d in {rising} of {len(growth)} private cases; from d = 5 to 20 they grow by factors of "
        f"{min(factors):.2g} to {max(factors):.2g}.",
        rising == len(growth),
        "The bounds are linear in d. Some distances grow faster: with strong noise, the runs have not converged."
        if max(factors) > 20 / 5
        else "",
    )


def _budgets(found: dict[Regression, Ends], budgets_tried: tuple[float | None, ...]) -> Finding:
    rows = [
        [values[decay, budget, of] for budget in budgets_tried]
        for case, values in found.items()
        for decay in CONVERGING
        for of in NAMES
        if case.kind == "linear"
    ]
    return Finding(
        "Linear regression: a smaller budget means a larger distance, in every dimension.",
        f"The distances fall as the budget grows in {sum(map(is_decreasing, rows))} of {len(rows)} cases.",
        all(map(is_decreasing, rows)),
    )


def _chart(growth: Growth, kind: str, sizes: tuple[int, ...]) -> Chart:
    series = [
        Series(f"{NAMES[of]}, α = {DECAYS[decay]}", sizes, values)
        for (at, decay, budget, of), values in growth.items()
        if at == kind and budget == 2.0
    ]
    title = f"{kind.capitalize()} regression, μ = 2"
    return Chart(title, "dimension d", "mean ‖θ − θ*‖² after the last user", series, x_log=True, y_log=True)


def _table(found: dict[Regression, Ends]) -> Table:
    rows = [
        [f"{case.kind}, d = {case.dimension}, {row[0]}", *row[1:]]
        for case, values in found.items()
        for row in ends_table("", values).rows
    ]
    return Table("Mean squared distance after the last user", ["case", *NAMES.values()], rows)
