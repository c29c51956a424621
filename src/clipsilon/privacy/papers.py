"""The papers' own experiments: every (ε, δ) that they state, beside what is certified and what an audit shows."""

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

_STEP = Constant(1.0)  # no step size matters for privacy


class Setting(NamedTuple):
    """One experiment: what was run, and what the paper says it guarantees."""

    paper: int
    experiment: str
    rule: Rule
    records: int
    steps: int
    delta: float
    adjacency: str
    claimed: float
    condition: str | None = None  # known to fail, or "met"; None: that of the claim


@dataclass(frozen=True)
class ClaimRow:
    """One line of the claims table."""

    paper: int
    experiment: str
    delta: float
    adjacency: str
    claimed: float
    condition: str  #: of the theorem that the noise was taken from: "met", or which one fails
    certified: float
    audited: float | None  #: None where no audit was run


def claims(audit_runs: int | None = None, confidence: float = 0.95, seed: int | None = 0) -> list[ClaimRow]:
    """Every setting of the papers' experiments: claimed, whether the theorem's condition is met, certified, audited.

    With `audit_runs` each setting that the engine can run is attacked that many times on each side: a few minutes for
    200 on two processors.
    """
    if audit_runs is not None:
        checks.integer("audit_runs", audit_runs, least=20)
    checks.open_fraction("confidence", confidence)
    rows = [_row(setting, audit_runs, confidence, seed) for setting in settings()]
    return sorted(rows + _without_runs(), key=lambda row: row.paper)


def settings() -> list[Setting]:
    """The settings whose rules the engine runs. Where a paper leaves T open, it is the T of its figures' noise."""
    found = []
    for epsilon in (0.01, 0.1):
        noise = _accountant(1.0, 10**5, 10**5, 1e-5, epsilon)
        name = f"quadratic, ε = {epsilon}"
        found.append(Setting(1, f"PCSGD, {name}", PCSGD(_STEP, 1.0, noise), 10**5, 10**5, 1e-5, "replace-one", epsilon))
        dice = DiceSGD(_STEP, 1.0, 1.0, np.sqrt(96) * noise)
        found.append(Setting(1, f"DiceSGD, {name}", dice, 10**5, 10**5, 1e-5, "replace-one", epsilon))
    m, delta = 11_043, 1 / 11_043  # the training part of the credit data
    noise = _accountant(1.0, m, 10**5, delta, 1.0)
    found.append(Setting(1, "PCSGD, credit, ε = 1", PCSGD(_STEP, 1.0, noise), m, 10**5, delta, "replace-one", 1.0))
    dice = DiceSGD(_STEP, 1.0, 1.0, np.sqrt(96) * noise)
    found.append(Setting(1, "DiceSGD, credit, ε = 1", dice, m, 10**5, delta, "replace-one", 1.0))
    for task, n, t, epsilon, delta in (("images", 50_000, 150, 2.0, 1e-5), ("language", 42_000, 420, 8.0, 8e-6)):
        noise = _accountant(1.0, n, t, delta, epsilon)
        rule = DPSGD(_STEP, 1.0, noise, batch=1000)
        found.append(Setting(3, f"DPSGD-GC, {task}", rule, n, t, delta, "add-remove", epsilon))
        adam = AdamDiceSGD(_STEP, 1.0, 1.0, np.sqrt(96) * noise, batch=1000, sampling="poisson")
        fails = "C2 ≤ C/B fails: √96 follows for B = 1 only"
        found.append(Setting(3, f"DiceSGD (Adam), {task}", adam, n, t, delta, "add-remove", epsilon, fails))
    rule = DPSGD(_STEP, 1.0, 0.63 / 250, batch=250)
    found.append(Setting(5, "DP-SGD with Gaussian noise, Cod-RNA", rule, 59_535, 2381, 1e-5, "add-remove", 5.0, "met"))
    full = calibrate(DPGD(_STEP, 1.0, 1.0), 1.0, 1e-5, 1000, 50, how="paper")
    found.append(Setting(5, "DP-GD, Theorem 2.6 at ε = 1", full, 1000, 50, 1e-5, "replace-one", 1.0))
    return found


def _accountant(clip: float, records: int, steps: int, delta: float, epsilon: float) -> float:
    """c·√(T·log(1/δ))/(m·ε): paper 1's Corollary 3.6, and paper 3's Theorem 2.3 with its constant v = 1."""
    return float(clip * np.sqrt(steps * np.log(1 / delta)) / (records * epsilon))


def _row(setting: Setting, runs: int | None, confidence: float, seed: int | None) -> ClaimRow:
    statement = account(setting.rule, setting.records, setting.steps, setting.delta, setting.adjacency)
    condition = setting.condition
    if condition is None:
        claimed = claim(release(setting.rule, setting.records, setting.steps), setting.delta, setting.adjacency)
        condition = f"{claimed.failed[0]} fails" if claimed is not None and claimed.failed else "met"
    audited = None
    if runs is not None:
        about = (setting.rule, setting.records, setting.steps, setting.delta)
        audited = audit(*about, runs=runs, confidence=confidence, seed=seed, adjacency=setting.adjacency).lower_bound
    return ClaimRow(
        setting.paper,
        setting.experiment,
        setting.delta,
        setting.adjacency,
        setting.claimed,
        condition,
        statement.certified,
        audited,
    )


def _without_runs() -> list[ClaimRow]:
    """Settings that no canary is run against: local reports of paper 4, and Gamma noise of paper 5."""
    delta = 1e-5
    rows = [
        ClaimRow(4, f"local reports, μ = {mu:g}", delta, "each user's own", epsilon, "met", epsilon, None)
        for mu in (0.5, 1.0, 2.0, 3.0)
        for epsilon in [gaussian.epsilon(mu, delta)]
    ]
    gamma = account(GammaDPSGD(_STEP, 1.0, 0.57, batch=250), 59_535, 2381, delta, "add-remove").certified
    rows.append(ClaimRow(5, "DP-SGD with Gamma noise, Cod-RNA", delta, "add-remove", 5.0, "met", gamma, None))
    return rows
