"""Paper 4, Fig. 1: individual budgets, and the stability of the two estimators."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from clipsilon.report.charts import Array, Chart, Series
from clipsilon.report.palette import BLUES, ORANGES
from clipsilon.reproduce.base import Finding, Lab, Result, experiment
from clipsilon.reproduce.paper4.runs import NAMES, USERS, Regression, local_run

_CASE = Regression("linear", 5)
_LATE = USERS / 3
_SHADES = {"theta": (BLUES[0], *BLUES[2:]), "average": (ORANGES[0], *ORANGES[2:])}


@experiment(
    "paper4-fig1",
    paper=4,
    where="Fig. 1",
    title="Users with individual privacy budgets",
    parameters={
        "problem": "linear regression, d = 5, Huber's loss with c = 1.345",
        "users": f"{USERS:,}",
        "steps": "0.2·k^(−1/2); the paper does not state α",
        "μ": "1, 2, and drawn from Unif(1, 2) for each user",
        "replicates": "200 (quick: 16)",
    },
)
def budgets(lab: Lab) -> Result:
    """Each user sends one noisy gradient and chooses how much noise to add. The distance for mixed budgets is
    between the distances for the two uniform groups. The average of all models moves far less than the last model.
    """
    mixed = np.random.default_rng(0).uniform(1.0, 2.0, USERS)
    groups: dict[str, float | Array] = {"μ = 1": 1.0, "μ from Unif(1, 2)": mixed, "μ = 2": 2.0}
    traces = lab.sweep([local_run(_CASE, 1 / 2, budget, 16 if lab.quick else 200) for budget in groups.values()])
    gaps = {(group, of): t.gap(_CASE.truth, of) for group, t in zip(groups, traces, strict=True) for of in NAMES}
    users = traces[0].iterations
    moves = {of: np.sqrt(gaps["μ = 2", of])[:, users >= _LATE].std(axis=1).mean() for of in NAMES}
    between = {of: [float(gaps[group, of][:, -1].mean()) for group in groups] for of in NAMES}
    findings = [
        Finding(
            "The distance for budgets drawn from Unif(1, 2) lies between those for μ = 1 and μ = 2.",
            "; ".join(f"{NAMES[of]}: {' > '.join(f'{end:.3g}' for end in between[of])}" for of in NAMES) + ".",
            all(one > some > two for one, some, two in between.values()),
        ),
        Finding(
            "The averaged estimator (LDP-ASGD) is more stable than the last iterate (LDP-SGD).",
            f"Over the last two thirds of the users, the distance in a run has a standard deviation of "
            f"{moves['theta']:.3g} (last) and {moves['average']:.3g} (average).",
            bool(moves["average"] < 0.75 * moves["theta"]),
        ),
    ]
    return Result(findings, _charts(users, gaps))


def _charts(users: NDArray[np.int64], gaps: dict[tuple[str, str], Array]) -> list[Chart]:
    some = users > 0  # a logarithmic axis cannot show 0
    groups = list(dict.fromkeys(group for group, _ in gaps))
    left = [
        Series(f"{NAMES[of]}, {group}", users[some], gaps[group, of][:, some].mean(axis=0), colour=shade)
        for of in NAMES
        for group, shade in zip(groups, _SHADES[of], strict=True)
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
