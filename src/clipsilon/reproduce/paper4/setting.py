"""Paper 4's runs, which its figures share: users who take part once, in random order, each with noise of their own.

Both estimators come out of one run: LDP-SGD is its last iterate, LDP-ASGD the average of all.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from clipsilon.datasets import linear, logistic
from clipsilon.engine import Trace
from clipsilon.engine.sweep import Run
from clipsilon.problems.losses import HuberRegression, MallowsLogistic
from clipsilon.problems.problem import Problem
from clipsilon.report.charts import Array, Chart, Series, Table
from clipsilon.reproduce.base import Lab
from clipsilon.rules.clipping import Unclipped
from clipsilon.rules.outputs import Average
from clipsilon.rules.presets import LDPASGD
from clipsilon.rules.rule import Rule
from clipsilon.rules.sampling import SinglePass
from clipsilon.rules.schedules import Power

Traces = dict[tuple[float, float | None], Trace]  # by decay and budget
Ends = dict[tuple[float, float | None, str], float]  # by decay, budget and estimator

USERS = 300_000
DECAYS = {1 / 3: "1/3", 1 / 2: "1/2", 2 / 3: "2/3", 1.0: "1"}
CONVERGING = (1 / 3, 1 / 2, 2 / 3)
NAMES = {"theta": "LDP-SGD", "average": "LDP-ASGD"}
LATE = USERS / 100  # slopes are those of the last two decades

PARAMETERS = {
    "users": f"{USERS:,}, each once",
    "steps": "0.2·k^(−α) from θ = 0",
    "α": "1/3, 1/2, 2/3, 1",
    "μ": "0.5, 1, 2, 3 and no noise (quick: 1, 2 and no noise)",
}
_SHADES = {
    "theta": ("#9ecae1", "#6baed6", "#4292c6", "#2171b5", "#636363"),
    "average": ("#fdbe85", "#fd8d3c", "#f16913", "#d94801", "#969696"),
}


class Case(NamedTuple):
    """One of the two problems, in some dimension."""

    kind: str  # "linear" or "logistic"
    dimension: int

    @property
    def problem(self) -> Problem:
        """All users, with the paper's loss."""
        return _problem(self.kind, self.dimension)

    @property
    def truth(self) -> Array:
        """The model that the records were drawn from: β = 1 and, for the linear problem, the scale σ = 2."""
        return np.append(np.ones(self.dimension + 1), [2.0] if self.kind == "linear" else [])


@functools.cache
def _problem(kind: str, dimension: int) -> Problem:
    if kind == "linear":
        return Problem(*linear(USERS, dimension), loss=HuberRegression())
    return Problem(*logistic(USERS, dimension), loss=MallowsLogistic())


def budgets(lab: Lab) -> tuple[float | None, ...]:
    """The privacy budgets μ; None is no noise."""
    return (1.0, 2.0, None) if lab.quick else (0.5, 1.0, 2.0, 3.0, None)


def point(case: Case, decay: float, budget: Any, replicates: int) -> Run:
    """One setting: steps 0.2·k^(−α), and one budget for all users, one each, or None for no noise."""
    step = Power(0.2, decay)
    noiseless = Rule("ASGD", step, Unclipped(), SinglePass(1), output=Average())
    rule = noiseless if budget is None else LDPASGD(step, budget)
    recorded = np.unique(np.geomspace(1, USERS, 60).astype(int))
    return Run(case.problem, rule, USERS, replicates=replicates, record=recorded)


def grid(lab: Lab, case: Case) -> Traces:
    """The runs of all decays and budgets: 200 replicates in dimension 5, as in the paper, and 10 in the others."""
    most, least = (16, 4) if lab.quick else (200, 10)
    replicates = most if case.dimension == 5 else least
    settings = [(decay, budget) for decay in DECAYS for budget in budgets(lab)]
    traces = lab.sweep([point(case, decay, budget, replicates) for decay, budget in settings])
    return dict(zip(settings, traces, strict=True))


def ends(traces: Traces, case: Case) -> Ends:
    """The mean squared distance to the truth in the end."""
    return {
        (*setting, of): float(trace.gap(case.truth, of)[:, -1].mean())
        for setting, trace in traces.items()
        for of in NAMES
    }


def power(exponent: float) -> str:
    """A power of n in words."""
    return f"n^({exponent:.2f})".replace("-", "−")


def said(budget: float | None) -> str:
    """A budget in words."""
    return "no noise" if budget is None else f"μ = {budget:g}"


def chart(title: str, y: str, curves: dict[tuple[float | None, str], tuple[Any, Any]]) -> Chart:
    """Curves over users by budget and estimator: blue for the last iterate, orange for the average."""
    order = list(dict.fromkeys(budget for budget, _ in curves))
    series = [
        Series(f"{NAMES[of]}, {said(budget)}", *curve, colour=_SHADES[of][order.index(budget) - len(order)])
        for (budget, of), curve in curves.items()
    ]
    return Chart(title, "users n", y, series, x_log=True, y_log=True)


def distance_charts(traces: Traces, case: Case) -> list[Chart]:
    """One chart for each decay: the mean squared distance to the truth against the number of users."""
    charts = []
    for decay, name in DECAYS.items():
        curves = {
            (budget, of): (trace.iterations, trace.gap(case.truth, of).mean(axis=0))
            for of in NAMES
            for (at, budget), trace in traces.items()
            if at == decay
        }
        charts.append(chart(f"α = {name}", "mean ‖θ − θ*‖²", _from_first(curves)))
    return charts


def ends_table(title: str, found: Ends) -> Table:
    """One row for each decay and budget, both estimators beside each other."""
    settings = list(dict.fromkeys((decay, budget) for decay, budget, _ in found))
    rows = [
        [f"α = {DECAYS[decay]}, {said(budget)}", *(found[decay, budget, of] for of in NAMES)]
        for decay, budget in settings
    ]
    return Table(title, ["setting", *NAMES.values()], rows)


def falls(values: Sequence[float]) -> bool:
    """Whether each value is below the one before it."""
    return all(after < before for before, after in itertools.pairwise(values))


def _from_first(curves: dict[Any, tuple[Any, Any]]) -> dict[Any, tuple[Any, Any]]:
    """Without n = 0, which a logarithmic axis has no room for."""
    return {key: (users[users > 0], values[users > 0]) for key, (users, values) in curves.items()}
