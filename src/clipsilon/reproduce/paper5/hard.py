"""Paper 5, Theorem 3.3: data from which no private algorithm learns well."""

from __future__ import annotations

import numpy as np

from clipsilon.analysis.metrics import performative_risk
from clipsilon.engine import run
from clipsilon.report.charts import Array, Chart, Series
from clipsilon.reproduce.base import Finding, Lab, Result, experiment
from clipsilon.rules.presets import DPGD
from clipsilon.rules.schedules import Constant
from clipsilon.theory import glm, instances

_EPSILON, _DELTA, _RANK, _STEPS = 0.01, 1e-7, 10, 20
_SIZES = (1e-3, 1e-2, 1e-1)
_FACTOR = 8.0  # largest excess risk of the best private run, in units of the lower bound


@experiment(
    "paper5-hard",
    paper=5,
    where="Theorem 3.3, App. B",
    title="Data from which no private algorithm learns well",
    parameters={
        "instances": "200 from the distribution of App. B, rank 10, loss |⟨x, θ⟩ − y| (quick: 60)",
        "records": "200 to 2,000 (quick: 200, 1,000)",
        "privacy": f"ε = {_EPSILON:g}, δ = {_DELTA:g}, replacement of one record; the noise is certified",
        "descent": f"{_STEPS} steps of size 0.001, 0.01 or 0.1",
    },
)
def hard(lab: Lab) -> Result:
    """The lower bound applies to every private algorithm, so private descent must stay above it, and does. It comes
    within a small factor, so the bound is informative. Without noise, descent falls below the bound.
    """
    counts = (200, 1000) if lab.quick else (200, 500, 1000, 2000)
    draws = 60 if lab.quick else 200
    bounds = [instances.lower_bound(n, _RANK, _EPSILON, _DELTA) for n in counts]
    found = {size: [lab.keep(_excesses, n, size, True, draws) for n in counts] for size in _SIZES}
    noiseless = [lab.keep(_excesses, n, 1.0, False, 20) for n in counts]
    findings = [_respected(found, bounds), _tight(found, bounds), _easy(noiseless, bounds)]
    series = [
        Series("lower bound", counts, bounds, kind="dashed"),
        *(Series(f"private, step {size:g}", counts, [v.mean() for v in values]) for size, values in found.items()),
        Series("no noise", counts, [v.mean() for v in noiseless]),
    ]
    chart = Chart("Mean excess risk on hard data", "records n", "excess risk", series, x_log=True, y_log=True)
    return Result(findings, [chart])


def _respected(found: dict[float, list[Array]], bounds: list[float]) -> Finding:
    above = [
        (v.mean() - bound) / _error(v) for values in found.values() for v, bound in zip(values, bounds, strict=True)
    ]
    return Finding(
        "No (ε, δ)-private algorithm has a mean excess risk below the bound.",
        f"In {len(above)} cases, private descent is above it by at least {min(above):.0f} standard errors.",
        min(above) > 6,
    )


def _tight(found: dict[float, list[Array]], bounds: list[float]) -> Finding:
    least = [min(values[k].mean() for values in found.values()) / bound for k, bound in enumerate(bounds)]
    return Finding(
        "The bound is of the right order.",
        f"With the best of three steps, the excess risk is {min(least):.1f} to {max(least):.1f} times the bound.",
        max(least) < _FACTOR,
        "The bound has explicit constants here, which the paper leaves open (errata, item 24). With so few records for "
        "this ε, the best that descent can do is hardly move.",
    )


def _easy(noiseless: list[Array], bounds: list[float]) -> Finding:
    fraction = max(values.mean() / bound for values, bound in zip(noiseless, bounds, strict=True))
    return Finding(
        "The excess risk is due to privacy: without noise the data is easy to learn.",
        f"Without noise, the excess risk after 2,000 steps is at most {fraction:.2g} times the bound.",
        fraction < 0.5,
    )


def _error(values: Array) -> float:
    return float(values.std(ddof=1) / np.sqrt(values.size))


def _excesses(records: int, size: float, private: bool, draws: int) -> Array:
    """Return the excess risk of descent on one instance per seed: private, or 2,000 steps without noise."""
    steps = _STEPS if private else 2000
    noise = glm.private_noise(1.0, _EPSILON, _DELTA, records, steps) if private else 0.0
    rule = DPGD(Constant(size), 1.0, noise)
    found = []
    for seed in range(draws):
        drawn = instances.hard_instance(records, _RANK, _EPSILON, seed=seed)
        model = run(drawn.problem, rule, steps, seed=seed, record=[steps], progress=False).output[0]
        found.append(performative_risk(drawn.problem, model) - performative_risk(drawn.problem, drawn.minimiser))
    return np.array(found)
