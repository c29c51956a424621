"""The papers' experiments: every (ε, δ) that they state, beside what is certified and what an audit demonstrates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from clipsilon._core import checks
from clipsilon.privacy.accounting import gaussian
from clipsilon.privacy.auditing.audit import audit
from clipsilon.privacy.calibration import calibrate
from clipsilon.privacy.claims import claim
from clipsilon.privacy.release import release
from clipsilon.privacy.statement import account
from clipsilon.rules.presets import DPGD, DPSGD, PCSGD, AdamDiceSGD, DiceSGD, GammaDPSGD
from clipsilon.rules.rule import Rule
from clipsilon.rules.schedules import Constant

_STEP = Constant(1.0)  # step sizes do not matter for privacy


class Experiment(NamedTuple):
    """One experiment: what was run, and what the paper claims that it guarantees.

    Attributes
    ----------
    paper : int
        The number of the paper.
    name : str
        What was run, in words.
    rule : Rule
        The rule with the paper's noise.
    records, steps : int
        The size of the data set and the length of the run.
    delta, adjacency
        Where the claim is made.
    claimed : float
        The paper's ε.
    condition : str or None
        "met", or the condition that is known to fail; None takes the condition of the claim.
    """

    paper: int
    name: str
    rule: Rule
    records: int
    steps: int
    delta: float
    adjacency: str
    claimed: float
    condition: str | None = None


@dataclass(frozen=True)
class ClaimRow:
    """One row of the claims table.

    Attributes
    ----------
    paper : int
        The number of the paper.
    experiment : str
        What was run, in words.
    delta : float
        The δ of the claim.
    adjacency : str
        Which data sets are neighbours.
    claimed : float
        The paper's ε.
    condition : str
        "met", or the condition that fails, of the theorem from which the noise was taken.
    certified : float
        The ε that is certified for the same noise; infinite if there is none.
    audited : float or None
        The ε that an attack demonstrates; None where no audit was run.
    """

    paper: int
    experiment: str
    delta: float
    adjacency: str
    claimed: float
    condition: str
    certified: float
    audited: float | None


def claims(audit_runs: int | None = None, *, confidence: float = 0.95, seed: int | None = 0) -> list[ClaimRow]:
    """Compare what the papers claim about their experiments with what is certified and audited.

    Parameters
    ----------
    audit_runs : int, optional
        Attack each experiment that the engine can run with this number of runs on each of the two data sets, at least
        20. 200 take a few minutes on two processors. By default nothing is attacked.
    confidence : float, default 0.95
        The confidence of each audit.
    seed : int or None, default 0
        Seed of the audits.

    Returns
    -------
    list of ClaimRow
        One row per experiment, sorted by paper.
    """
    if audit_runs is not None:
        checks.integer("audit_runs", audit_runs, least=20)
    checks.open_fraction("confidence", confidence)
    rows = [_row(experiment, audit_runs, confidence, seed) for experiment in experiments()]
    return sorted(rows + _without_runs(), key=lambda row: row.paper)


def experiments() -> list[Experiment]:
    """Return the experiments whose rules the engine runs.

    Where a paper leaves T open, it is the T behind the noise of its figures.
    """
    found = []
    for epsilon in (0.01, 0.1):
        noise = _accountant(1.0, 10**5, 10**5, 1e-5, epsilon)
        name = f"quadratic, ε = {epsilon}"
        found.append(
            Experiment(1, f"PCSGD, {name}", PCSGD(_STEP, 1.0, noise), 10**5, 10**5, 1e-5, "replace-one", epsilon)
        )
        dice = DiceSGD(_STEP, 1.0, 1.0, np.sqrt(96) * noise)
        found.append(Experiment(1, f"DiceSGD, {name}", dice, 10**5, 10**5, 1e-5, "replace-one", epsilon))
    m, delta = 11_043, 1 / 11_043  # the training part of the credit data
    noise = _accountant(1.0, m, 10**5, delta, 1.0)
    found.append(Experiment(1, "PCSGD, credit, ε = 1", PCSGD(_STEP, 1.0, noise), m, 10**5, delta, "replace-one", 1.0))
    dice = DiceSGD(_STEP, 1.0, 1.0, np.sqrt(96) * noise)
    found.append(Experiment(1, "DiceSGD, credit, ε = 1", dice, m, 10**5, delta, "replace-one", 1.0))
    for task, n, t, epsilon, delta in (("images", 50_000, 150, 2.0, 1e-5), ("language", 42_000, 420, 8.0, 8e-6)):
        noise = _accountant(1.0, n, t, delta, epsilon)
        rule = DPSGD(_STEP, 1.0, noise, batch=1000, rate=1000 / n)
        found.append(Experiment(3, f"DPSGD-GC, {task}", rule, n, t, delta, "add-remove", epsilon))
        adam = AdamDiceSGD(_STEP, 1.0, 1.0, np.sqrt(96) * noise, batch=1000, sampling="poisson", rate=1000 / n)
        fails = "C2 ≤ C/B fails: √96 follows for B = 1 only"
        found.append(Experiment(3, f"DiceSGD (Adam), {task}", adam, n, t, delta, "add-remove", epsilon, fails))
    rule = DPSGD(_STEP, 1.0, 0.63 / 250, batch=250, rate=250 / 59_535)
    found.append(
        Experiment(5, "DP-SGD with Gaussian noise, Cod-RNA", rule, 59_535, 2381, 1e-5, "add-remove", 5.0, "met")
    )
    full = calibrate(DPGD(_STEP, 1.0, 1.0), 1.0, 1e-5, 1000, 50, how="paper")
    found.append(Experiment(5, "DP-GD, Theorem 2.6 at ε = 1", full, 1000, 50, 1e-5, "replace-one", 1.0))
    return found


def _accountant(clip: float, records: int, steps: int, delta: float, epsilon: float) -> float:
    """Return c·√(T·log(1/δ))/(m·ε): paper 1's Corollary 3.6, and paper 3's Theorem 2.3 with its constant v = 1."""
    return float(clip * np.sqrt(steps * np.log(1 / delta)) / (records * epsilon))


def _row(experiment: Experiment, runs: int | None, confidence: float, seed: int | None) -> ClaimRow:
    """Return the row of an experiment, audited if `runs` is given."""
    statement = account(experiment.rule, experiment.records, experiment.steps, experiment.delta, experiment.adjacency)
    condition = experiment.condition
    if condition is None:
        claimed = claim(
            release(experiment.rule, experiment.records, experiment.steps), experiment.delta, experiment.adjacency
        )
        condition = f"{claimed.failed[0]} fails" if claimed is not None and claimed.failed else "met"
    audited = None
    if runs is not None:
        about = (experiment.rule, experiment.records, experiment.steps, experiment.delta)
        audited = audit(*about, runs=runs, confidence=confidence, seed=seed, adjacency=experiment.adjacency).lower_bound
    return ClaimRow(
        experiment.paper,
        experiment.name,
        experiment.delta,
        experiment.adjacency,
        experiment.claimed,
        condition,
        statement.certified,
        audited,
    )


def _without_runs() -> list[ClaimRow]:
    """Return the rows that no canary is run against: local reports of paper 4, and Gamma noise of paper 5."""
    delta = 1e-5
    rows = [
        ClaimRow(4, f"local reports, μ = {mu:g}", delta, "each user's own", epsilon, "met", epsilon, None)
        for mu in (0.5, 1.0, 2.0, 3.0)
        for epsilon in [gaussian.epsilon(mu, delta)]
    ]
    rule = GammaDPSGD(_STEP, 1.0, 0.57, batch=250, rate=250 / 59_535)
    gamma = account(rule, 59_535, 2381, delta, "add-remove").certified
    rows.append(ClaimRow(5, "DP-SGD with Gamma noise, Cod-RNA", delta, "add-remove", 5.0, "met", gamma, None))
    return rows
