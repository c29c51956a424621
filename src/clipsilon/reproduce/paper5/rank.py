"""Paper 5, Theorem 3.1: the excess risk of private descent depends on the rank of the features, not their number."""

from __future__ import annotations

import numpy as np
from scipy.special import expit

from clipsilon.analysis.fixed_points import stable_point
from clipsilon.analysis.metrics import performative_risk
from clipsilon.engine.sweep import Run
from clipsilon.problems.losses import Absolute, Logistic
from clipsilon.problems.problem import Problem
from clipsilon.report.charts import Array, Chart, Series
from clipsilon.reproduce.base import Finding, Lab, Result, experiment
from clipsilon.reproduce.numbers import slope
from clipsilon.rules.presets import DPGD
from clipsilon.rules.schedules import Constant
from clipsilon.theory import glm

_RECORDS, _RANK, _STEPS, _NOISE = 150, 5, 50, 0.3
_COLUMNS = (10, 100, 1000, 10_000)
_RANKS = (2, 4, 8, 16, 32)


@experiment(
    "paper5-rank",
    paper=5,
    where="Theorem 3.1",
    title="Rank matters, not dimension",
    parameters={
        "columns": f"10 to 10,000: logistic, {_RECORDS} records of rank {_RANK}, {_STEPS} steps, σ = {_NOISE:g}",
        "ranks": "2 to 32: |θ_j − 1/√r|, one record per direction, σ = 1, 40,000 steps (quick: 10,000)",
        "step": "the one that minimises the bound",
        "replicates": "200 and 40 (quick: 60 and 10)",
    },
)
def rank(lab: Lab) -> Result:
    """Noise orthogonal to all records changes no prediction. So columns of zeros cost nothing, although noise is added
    to each of them; what costs is the number of directions that the records span, by its square root.
    """
    columns, by_rank, ambient = _over_columns(lab)
    ranks, bounds = _over_ranks(lab)
    all_bounds = [by_rank] * len(columns) + bounds
    findings = [_flat(columns, ambient), _root(ranks), _bounded(columns + ranks, all_bounds)]
    wide = [
        _series("private descent", _COLUMNS, columns),
        Series("Theorem 3.1: rank", _COLUMNS, [by_rank] * len(_COLUMNS), kind="dashed"),
        Series("Theorem 2.7: all columns", _COLUMNS, ambient, kind="dashed"),
    ]
    deep = [_series("private descent", _RANKS, ranks), Series("Theorem 3.1", _RANKS, bounds, kind="dashed")]
    charts = [
        Chart("Columns of zeros", "columns", "excess risk", wide, x_log=True, y_log=True),
        Chart("Directions that records span", "rank", "excess risk", deep, x_log=True, y_log=True),
    ]
    return Result(findings, charts)


def _flat(columns: list[Array], ambient: list[float]) -> Finding:
    means = [float(values.mean()) for values in columns]
    return Finding(
        "The excess risk does not depend on the number of columns.",
        f"It is {min(means):.4f} to {max(means):.4f} for {_COLUMNS[0]} to {_COLUMNS[-1]:,} columns, while the bound "
        f"that counts all columns grows {ambient[-1] / ambient[0]:.0f}-fold.",
        max(means) < 1.25 * min(means),
    )


def _root(ranks: list[Array]) -> Finding:
    power = slope(_RANKS, [values.mean() for values in ranks])
    return Finding(
        "The excess risk grows as the square root of the rank.",
        f"It grows as rank^{power:.3f} from rank {_RANKS[0]} to {_RANKS[-1]}.",
        abs(power - 0.5) < 0.08,
    )


def _bounded(found: list[Array], bounds: list[float]) -> Finding:
    inside = [_below(values, bound) for values, bound in zip(found, bounds, strict=True)]
    tightest = min(bound / values.mean() for values, bound in zip(found, bounds, strict=True))
    return Finding(
        "The excess risk is at most ‖θ*‖_M·√((L² + rank·σ²)/T) at the best step.",
        f"The mean is below the bound in {sum(inside)} of {len(inside)} cases, by a factor of at least {tightest:.2f}.",
        all(inside),
        "The bound includes a factor √(1 + 1/T) that the paper omits (errata, item 23). The noise of Theorem 2.6, "
        "which the paper uses for (ε, δ), is too small for the replacement of one record (item 3).",
    )


def _series(name: str, x: tuple[int, ...], values: list[Array]) -> Series:
    spreads = [np.quantile(one, [0.1, 0.9]) for one in values]
    return Series(name, x, [one.mean() for one in values], [s[0] for s in spreads], [s[1] for s in spreads])


def _below(values: Array, bound: float) -> bool:
    """Return whether the mean is below the bound, up to six standard errors."""
    return bool(values.mean() < bound + 6 * values.std(ddof=1) / np.sqrt(values.size))


def _over_columns(lab: Lab) -> tuple[list[Array], float, list[float]]:
    """Return excess risks by number of columns, the bound by rank, and the bounds that count all columns."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((_RECORDS, _RANK))
    x /= np.maximum(1.0, np.linalg.norm(x, axis=1))[:, np.newaxis]
    y = (rng.random(_RECORDS) < expit(x @ np.linspace(-2, 2, _RANK))).astype(float)
    small = Problem(x, y, loss=Logistic())
    best = stable_point(small).theta
    place = glm.row_space(small, minimiser=best)
    rule = DPGD(Constant(glm.best_step(place, _NOISE, _STEPS)), place.lipschitz, _NOISE)
    wide = [Problem(np.pad(x, ((0, 0), (0, n - _RANK))), y, loss=Logistic()) for n in _COLUMNS]
    replicates = 60 if lab.quick else 200
    runs = [Run(problem, rule, _STEPS, replicates=replicates, record=[_STEPS]) for problem in wide]
    found = [_excess(small, trace.output[:, :_RANK], best) for trace in lab.sweep(runs)]
    bounds = [glm.excess_risk(place._replace(dimension=n), _NOISE, _STEPS) for n in _COLUMNS]
    return found, glm.excess_risk(place, _NOISE, _STEPS), bounds


def _over_ranks(lab: Lab) -> tuple[list[Array], list[float]]:
    """Return excess risks and bounds by rank, on data for which the bound is nearly tight; ‖θ*‖ = 1 and L = 1."""
    steps, replicates = (10_000, 10) if lab.quick else (40_000, 40)
    runs, bests, bounds = [], [], []
    for r in _RANKS:
        best = np.full(r, 1 / np.sqrt(r))
        problem = Problem(np.eye(r), best, loss=Absolute())
        place = glm.row_space(problem, minimiser=best)
        rule = DPGD(Constant(glm.best_step(place, 1.0, steps)), place.lipschitz, 1.0)
        runs.append(Run(problem, rule, steps, replicates=replicates, record=[steps]))
        bests.append(best)
        bounds.append(glm.excess_risk(place, 1.0, steps))
    traces = lab.sweep(runs)
    found = [_excess(run.problem, trace.output, best) for run, trace, best in zip(runs, traces, bests, strict=True)]
    return found, bounds


def _excess(problem: Problem, models: Array, best: Array) -> Array:
    return np.asarray(performative_risk(problem, models) - performative_risk(problem, best))
