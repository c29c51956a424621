"""Paper 4, Fig. 1: budgets of the users' own, and how steady the two estimators are."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from clipsilon.report.charts import Array, Chart, Series
from clipsilon.reproduce.base import Finding, Lab, Result, experiment
from clipsilon.reproduce.paper4.setting import NAMES, USERS, Case, point

_CASE = Case("linear", 5)
_LATE = USERS / 3
_SHADES = {"theta": ("#9ecae1", "#4292c6", "#2171b5"), "average": ("#fdbe85", "#f16913", "#d94801")}


@experiment(
    "paper4-fig1",
    paper=4,
    where="Fig. 1",
    title="Users with privacy budgets of their own",
    parameters={
        "problem": "linear regression, d = 5, Huber's loss with c = 1.345",
        "users": f"{USERS:,}",
        "steps": "0.2·k^(−1/2): the figure does not say which α",
        "μ": "1, 2, and each user's own from Unif(1, 2)",
        "replicates": "200 (quick: 16)",
    },
)
def budgets(lab: Lab) -> Result:
    """Each user sends one noisy gradient and picks how much noise. A crowd of mixed budgets does as well as its mean
    noise says, between the two uniform crowds. The average of all models moves far less than the last one.
    """
    mixed = np.random.default_rng(0).uniform(1.0, 2.0, USERS)
    crowds = {"μ = 1": 1.0, "μ from Unif(1, 2)": mixed, "μ = 2": 2.0}
    traces = lab.sweep([point(_CASE, 1 / 2, budget, 16 if lab.quick else 200) for budget in crowds.values()])
    gaps = {(crowd, of): t.gap(_CASE.truth, of) for crowd, t in zip(crowds, traces, strict=True) for of in NAMES}
    users = traces[0].iterations
    moves = {of: np.sqrt(gaps["μ = 2", of])[:, users >= _LATE].std(axis=1).mean() for of in NAMES}
    between = {of: [float(gaps[crowd, of][:, -1].mean()) for crowd in crowds] for of in NAMES}
    findings = [
        Finding(
            "The distance for budgets drawn from Unif(1, 2) lies between those for μ = 1 and μ = 2.",
            "; ".join(f"{NAMES[of]}: {' > '.join(f'{end:.3g}' for end in between[of])}" for of in NAMES),
            all(one > some > two for one, some, two in between.values()),
        ),
        Finding(
            "The averaged estimator (LDP-ASGD) is steadier than the last iterate (LDP-SGD).",
            f"over the last two thirds of the users a run's distance varies by {moves['theta']:.3g} (last) and "
            f"{moves['average']:.3g} (average)",
            bool(moves["average"] < 0.75 * moves["theta"]),
        ),
    ]
    return Result(findings, _charts(users, gaps))


def _charts(users: NDArray[np.int64], gaps: dict[tuple[str, str], Array]) -> list[Chart]:
    some = users > 0  # a logarithmic axis has no room for 0
    crowds = list(dict.fromkeys(crowd for crowd, _ in gaps))
    left = [
        Series(f"{NAMES[of]}, {crowd}", users[some], gaps[crowd, of][:, some].mean(axis=0), colour=shade)
        for of in NAMES
        for crowd, shade in zip(crowds, _SHADES[of], strict=True)
    ]
    right = [
        Series(f"{NAMES[of]}, run {k + 1}", users[some], gaps["μ = 2", of][k, some], colour=_SHADES[of][-1])
        for of in NAMES
        for k in range(5)
    ]
    titles = ("Mean distance by budget", "The first five runs, μ = 2")
    return [
        Chart(title, "users n", "‖θ − θ*‖²", series, x_log=True, y_log=True)
        for title, series in zip(titles, (left, right), strict=True)
    ]
