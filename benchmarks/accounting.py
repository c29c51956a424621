"""Accounting for DP-SGD compared with Opacus's accountants and dp-accounting: certified ε, calibrated noise, and time.

    python benchmarks/accounting.py [--quick]

Poisson batches, one record added or removed. `cs.account` is timed from the rule to the certified ε, without results
cached by earlier calls; peers are timed from their history to their ε. Opacus's GDP accountant uses a central limit
theorem, so its ε is not an upper bound and a ratio below 1 does not mean that it is tighter.
"""

from __future__ import annotations

import statistics
import sys
import warnings
from collections.abc import Callable
from typing import NamedTuple

import dp_accounting
from dp_accounting.pld import PLDAccountant
from opacus.accountants import create_accountant
from opacus.accountants.utils import get_noise_multiplier

import clipsilon as cs
from results import Row, ahead, main
from timing import ratio, seconds, turns

TOPIC = "Accounting"
BATCH = 1000


class Setting(NamedTuple):
    """One DP-SGD run with batches of `BATCH`.

    Parameters
    ----------
    records : int
        Number of records.
    noise : float
        Standard deviation of the noise on the sum of a batch, in units of the clip.
    steps : int
        Number of steps.
    delta : float
        The δ at which ε is stated.
    """

    records: int
    noise: float
    steps: int
    delta: float

    @property
    def rate(self) -> float:
        """Return the probability that a record takes part in a step."""
        return BATCH / self.records

    def __str__(self) -> str:
        return f"q = {self.rate:g}, σ = {self.noise:g}, T = {self.steps:,}, δ = {self.delta:g}"


SETTINGS = [
    Setting(100_000, 1.0, 1_000, 1e-5),
    Setting(100_000, 0.7, 10_000, 1e-6),
    Setting(10_000, 4.0, 1_000, 1e-5),
    Setting(1_000_000, 0.6, 100_000, 1e-8),
    Setting(2_000, 20.0, 500, 1e-5),
]
SHORT = [case for case in SETTINGS if case.steps <= 1_000]  # for calibration: Opacus's PRV is slow beyond
EPSILON, CLOSE = 1.0, 0.002  # target of the calibration and its relative tolerance, as in `cs.calibrate`


def rule(noise: float) -> cs.Rule:
    """Return DP-SGD with noise of `noise` clips on the sum of a batch."""
    return cs.DPSGD(cs.schedules.Constant(1.0), clip=1.0, noise_std=noise / BATCH, batch=BATCH)


def ours(case: Setting) -> float:
    """Return the certified ε."""
    return cs.account(rule(case.noise), case.records, case.steps, case.delta, "zero-out").certified


def opacus(name: str, case: Setting) -> float:
    """Return the ε of one of Opacus's accountants."""
    accountant = create_accountant(name)
    accountant.history = [(case.noise, case.rate, case.steps)]
    return float(accountant.get_epsilon(delta=case.delta))


def dp_accounting_epsilon(case: Setting) -> float:
    """Return the ε of dp-accounting's privacy loss distributions, with its defaults."""
    accountant = PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
    event = dp_accounting.PoissonSampledDpEvent(case.rate, dp_accounting.GaussianDpEvent(case.noise))
    return float(accountant.compose(event, case.steps).get_epsilon(case.delta))


PEERS: dict[str, Callable[[Setting], float]] = {
    "Opacus, RDP": lambda case: opacus("rdp", case),
    "Opacus, PRV": lambda case: opacus("prv", case),
    "Opacus, GDP (not a bound)": lambda case: opacus("gdp", case),
    "dp-accounting, PLD": dp_accounting_epsilon,
}


def compare(rows: list[Row], cases: list[Setting], repeats: int) -> None:
    """Add rows for ε and time, each over all settings."""
    tightness, speed = {name: [] for name in PEERS}, {name: [] for name in PEERS}
    for case in cases:
        certified = ours(case)
        contenders = {name: lambda peer=peer, case=case: seconds(lambda: peer(case)) for name, peer in PEERS.items()}
        taken = turns({"ours": lambda case=case: seconds(lambda: ours(case)), **contenders}, repeats)
        for name, peer in PEERS.items():
            tightness[name].append(peer(case) / certified)
            speed[name].append(ratio(taken, name, "ours"))
    rows += [summary("certified ε", name, tightness[name]) for name in PEERS]
    rows += [summary("time of `cs.account`", name, speed[name]) for name in PEERS]


def summary(what: str, other: str, ratios: list[float]) -> Row:
    """Return one row for all settings: the median ratio, with the range in words."""
    about = f"{min(ratios):#.4g} to {max(ratios):#.4g}"
    return ahead(TOPIC, what, other, statistics.median(ratios), about)


def calibrated(case: Setting) -> float:
    """Return the noise multiplier that `cs.calibrate` finds."""
    found = cs.calibrate(rule(1.0), EPSILON, case.delta, case.records, case.steps, adjacency="zero-out")
    return found.noise.std * BATCH


def opacus_noise(name: str, case: Setting) -> float:
    """Return the noise multiplier that Opacus finds with the same tolerance on ε."""
    order = {"target_epsilon": EPSILON, "target_delta": case.delta, "sample_rate": case.rate, "steps": case.steps}
    close = {"epsilon_tolerance": CLOSE * EPSILON} | ({"eps_error": CLOSE * EPSILON} if name == "prv" else {})
    return float(get_noise_multiplier(**order, accountant=name, **close))


def calibration(rows: list[Row], cases: list[Setting], repeats: int) -> None:
    """Add rows for the noise calibrated for ε = 1, and for the time of the calibration."""
    for peer, name in {"Opacus, RDP": "rdp", "Opacus, PRV": "prv"}.items():
        noises, times = [], []
        for case in cases:
            jobs = {"ours": lambda case=case: calibrated(case), "peer": lambda c=case, n=name: opacus_noise(n, c)}
            taken = turns({key: lambda job=job: seconds(job) for key, job in jobs.items()}, repeats)
            noises.append(jobs["peer"]() / jobs["ours"]())
            times.append(ratio(taken, "peer", "ours"))
        rows.append(summary("noise for ε = 1", peer, noises))
        rows.append(summary("time of `cs.calibrate`", peer, times))


def measure(rows: list[Row], quick: bool) -> None:
    """Measure all settings, or the first ones if `quick`."""
    warnings.simplefilter("ignore")  # Opacus warns about RDP orders and the GDP accountant
    repeats = 1 if quick else 5
    compare(rows, SETTINGS[:2] if quick else SETTINGS, repeats)
    calibration(rows, SETTINGS[:1] if quick else SHORT, 1 if quick else 2)


if __name__ == "__main__":
    sys.exit(main("accounting", measure, __doc__))
