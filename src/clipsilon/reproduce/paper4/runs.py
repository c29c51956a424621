"""The runs that paper 4's figures share: each user takes part once, in random order, and adds their own noise.

One run yields both estimators: LDP-SGD is its last iterate, LDP-ASGD the average of all iterates.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clipsilon.datasets import linear, logistic
from clipsilon.engine import Trace
from clipsilon.engine.sweep import Run
from clipsilon.problems.losses import HuberRegression, MallowsLogistic
from clipsilon.problems.problem import Problem
from clipsilon.report.charts import Array, Cell, Chart, Series, Table
from clipsilon.report.palette import BLUES, GREYS, ORANGES
from clipsilon.reproduce.base import Lab
from clipsilon.rules.clipping import Unclipped
from clipsilon.rules.outputs import Average
from clipsilon.rules.presets import LDPASGD
from clipsilon.rules.rule import Rule
from clipsilon.rules.sampling import SinglePass
from clipsilon.rules.schedules import Power

Traces = dict[tuple[float, float | None], Trace]  # by decay and budget
Ends = dict[tuple[float, float | None, str], float]  # by decay, budget and estimator
Curves = dict[tuple[float | None, str], tuple[NDArray[np.int64], Array]]  # users and values, by budget and estimator

USERS = 300_000
DECAYS = {1 / 3: "1/3", 1 / 2: "1/2", 2 / 3: "2/3", 1.0: "1"}
CONVERGING = (1 / 3, 1 / 2, 2 / 3)
NAMES = {"theta": "LDP-SGD", "average": "LDP-ASGD"}
LATE = USERS / 100  # slopes are fitted over the last two decades

PARAMETERS = {
    "users": f"{USERS:,}, each once",
    "steps": "0.2·k^(−α) from θ = 0",
    "α": "1/3, 1/2, 2/3, 1",
    "μ": "0.5, 1, 2, 3, and no noise (quick: 1, 2, and no noise)",
}
_SHADES = {"theta": (*BLUES, GREYS[1]), "average": (*ORANGES, GREYS[0])}


class Regression(NamedTuple):
    """One of paper 4's two problems.

    Parameters
    ----------
    kind : {"linear", "logistic"}
        The kind of regression.
    dimension : int
        Number of features.
    """

    kind: str
    dimension: int

    @property
    def problem(self) -> Problem:
        """Return the problem with all users and the paper's loss."""
        return _problem(self.kind, self.dimension)

    @property
    def truth(self) -> Array:
        """Return the model that generated the records: β = 1 and, for the linear problem, the scale σ = 2."""
        return np.append(np.ones(self.dimension + 1), [2.0] if self.kind == "linear" else [])


@functools.cache
def _problem(kind: str, dimension: int) -> Problem:
    if kind == "linear":
        return Problem(*linear(USERS, dimension), loss=HuberRegression())
    return Problem(*logistic(USERS, dimension), loss=MallowsLogistic())


def budgets(lab: Lab) -> tuple[float | None, ...]:
    """Return the privacy budgets μ; None means no noise."""
    return (1.0, 2.0, None) if lab.quick else (0.5, 1.0, 2.0, 3.0, None)


def local_run(case: Regression, decay: float, budget: float | Array | None, replicates: int) -> Run:
    """Return a run of all users with steps 0.2·k^(−α).

    Parameters
    ----------
    case : Regression
        The problem.
    decay : float
        α, how fast the steps shrink.
    budget : float, ndarray of shape (users,) or None
        μ of all users, of each user, or None for no noise.
    replicates : int
        Number of replicates.

    Returns
    -------
    Run
        Recorded at 60 times in equal ratios.
    """
    step = Power(0.2, decay)
    noiseless = Rule("ASGD", step, Unclipped(), SinglePass(1), output=Average())
    rule = noiseless if budget is None else LDPASGD(step, budget)
    recorded = np.unique(np.geomspace(1, USERS, 60).astype(int))
    return Run(case.problem, rule, USERS, replicates=replicates, record=recorded)


def grid(lab: Lab, case: Regression) -> Traces:
    """Run all decays and budgets: with 200 replicates for d = 5, as in the paper, and 10 for other dimensions."""
    most, least = (16, 4) if lab.quick else (200, 10)
    replicates = most if case.dimension == 5 else least
    cells = [(decay, budget) for decay in DECAYS for budget in budgets(lab)]
    traces = lab.sweep([local_run(case, decay, budget, replicates) for decay, budget in cells])
    return dict(zip(cells, traces, strict=True))


def ends(traces: Traces, case: Regression) -> Ends:
    """Return the mean squared distance to the truth after the last user."""
    return {
        (*cell, of): float(trace.gap(case.truth, of)[:, -1].mean()) for cell, trace in traces.items() for of in NAMES
    }


def format_power(exponent: float) -> str:
    """Return a power of n as text."""
    return f"n^({exponent:.2f})".replace("-", "−")


def format_budget(budget: float | None) -> str:
    """Return a budget as text."""
    return "no noise" if budget is None else f"μ = {budget:g}"


def chart_by_users(title: str, y: str, curves: Curves) -> Chart:
    """Return a chart of curves over users: blue for the last iterate, orange for the average.

    Parameters
    ----------
    title, y : str
        Title and label of the vertical axis.
    curves : dict
        Numbers of users and values, by budget and estimator.

    Returns
    -------
    Chart
        With logarithmic axes.
    """
    order = list(dict.fromkeys(budget for budget, _ in curves))
    series = [
        Series(f"{NAMES[of]}, {format_budget(budget)}", *curve, colour=_SHADES[of][order.index(budget) - len(order)])
        for (budget, of), curve in curves.items()
    ]
    return Chart(title, "users n", y, series, x_log=True, y_log=True)


def distance_charts(traces: Traces, case: Regression) -> list[Chart]:
    """Return one chart per decay: the mean squared distance to the truth against the number of users."""
    charts = []
    for decay, name in DECAYS.items():
        curves = {
            (budget, of): (trace.iterations, trace.gap(case.truth, of).mean(axis=0))
            for of in NAMES
            for (at, budget), trace in traces.items()
            if at == decay
        }
        charts.append(chart_by_users(f"α = {name}", "mean ‖θ − θ*‖²", _from_first(curves)))
    return charts


def ends_table(title: str, found: Ends) -> Table:
    """Return one row per decay and budget, with both estimators side by side."""
    cells = list(dict.fromkeys((decay, budget) for decay, budget, _ in found))
    rows: list[list[Cell]] = [
        [f"α = {DECAYS[decay]}, {format_budget(budget)}", *(found[decay, budget, of] for of in NAMES)]
        for decay, budget in cells
    ]
    return Table(title, ["case", *NAMES.values()], rows)


def is_decreasing(values: Sequence[float]) -> bool:
    """Return whether each value is below the previous one."""
    return all(after < before for before, after in itertools.pairwise(values))


def _from_first(curves: Curves) -> Curves:
    """Remove n = 0, which a logarithmic axis cannot show."""
    return {key: (users[users > 0], values[users > 0]) for key, (users, values) in curves.items()}
