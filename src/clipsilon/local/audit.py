"""An attack on single reports: how much of a user's budget shows in what their device sends."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.random import SFC64, Generator
from numpy.typing import ArrayLike, NDArray

from clipsilon._core import checks
from clipsilon.local.report import Record, gradient_of, prepare, release
from clipsilon.privacy.accounting import gaussian
from clipsilon.privacy.auditing.inference import Bound, gaussian_bound
from clipsilon.problems.losses.base import Loss, dimension, label_kind, sensitivity_of

Array = NDArray[np.float64]

_FAR = 1e6  # a θ, and a real label, so distant that the loss is as steep as possible
_TILT = 1e-3  # of the two records towards that θ


@dataclass(frozen=True, eq=False)
class ReportAudit:
    """What an attack on single reports demonstrates, at a stated confidence.

    Parameters
    ----------
    mu : float
        The budget μ of the attacked reports.
    delta : float
        The δ at which ε is stated.
    epsilon : float
        The ε that the budget allows at δ.
    lower_bound : float
        The ε that the attack demonstrates.
    lower_mu : float
        The μ that the attack demonstrates.
    distance : float
        Distance of the two records' gradients, as a fraction of the sensitivity.
    confidence : float
        Probability that the lower bounds hold.
    runs : int
        Number of reports of each of the two records.
    bound : Bound
        How the lower bound was found.
    """

    mu: float
    delta: float
    epsilon: float
    lower_bound: float
    lower_mu: float
    distance: float
    confidence: float
    runs: int
    bound: Bound = field(repr=False)

    def __str__(self) -> str:
        return (
            f"{self.runs} reports of each of two records show ε ≥ {self.lower_bound:.4g} at δ = {self.delta:g} "
            f"(μ ≥ {self.lower_mu:.4g}); the budget μ = {self.mu:g} allows ε = {self.epsilon:.4g}. If the reports keep "
            f"to it, the probability that an audit shows more is at most {1.0 - self.confidence:.2g}."
        )


def audit(
    loss: Loss,
    mu: float,
    delta: float,
    runs: int = 10_000,
    confidence: float = 0.95,
    seed: int | None = None,
    records: tuple[Record, Record] | None = None,
    theta: ArrayLike | None = None,
) -> ReportAudit:
    """Attack the reports of two records that are as far apart as the loss allows, and return the demonstrated ε.

    The score of a report is its likelihood ratio: the component along the difference of the two gradients.

    Parameters
    ----------
    loss : Loss
        A loss that knows its sensitivity.
    mu : float
        The budget μ of the reports.
    delta : float
        The δ at which ε is stated, between 0 and 1.
    runs : int, default 10_000
        Number of reports of each record, at least 20.
    confidence : float, default 0.95
        Probability with which the lower bounds hold.
    seed : int, optional
        Makes the audit repeatable; by default the reports are made as on a device.
    records : pair of records, optional
        The two records (features, label) that the attacker chooses, together with `theta`. By default both are
        `extremes(loss)`, which suits losses with Mallows weights.
    theta : array, optional
        The model that the attacker chooses.

    Returns
    -------
    ReportAudit

    Formal guarantee
    ----------------
    If reports are μ-GDP, `lower_mu` ≤ μ and `lower_bound` ≤ ε with probability at least `confidence`. The Gaussian
    bound is valid here, as both distributions of a report are exactly Gaussian but for the grid.

    Examples
    --------
    >>> from clipsilon.problems.losses import MallowsLogistic
    >>> found = audit(MallowsLogistic(), mu=2.0, delta=1e-5, runs=500, seed=0)
    >>> 0.5 * found.epsilon < found.lower_bound < found.epsilon
    True
    """
    if (records is None) != (theta is None):
        raise ValueError("records and theta must be given together, got one of them.")
    pair, model = extremes(loss) if records is None or theta is None else (records, theta)
    checks.integer("runs", runs, least=20)
    rng = None if seed is None else Generator(SFC64(checks.integer("seed", seed, least=0)))
    sides = [prepare(record, loss) for record in pair]
    first, second = (gradient_of(side, model) for side in sides)
    apart = second - first
    absent, present = (np.array([release(side, model, mu, rng) @ apart for _ in range(runs)]) for side in sides)
    bound = gaussian_bound(absent, present, delta, confidence)
    return ReportAudit(
        mu=float(mu),
        delta=float(delta),
        epsilon=gaussian.epsilon(mu, delta),
        lower_bound=bound.lower_bound,
        lower_mu=gaussian.largest_mu(bound.lower_bound, delta) if bound.lower_bound > 0.0 else 0.0,
        distance=float(np.linalg.norm(apart)) / sensitivity_of(loss),
        confidence=confidence,
        runs=runs,
        bound=bound,
    )


def extremes(loss: Loss) -> tuple[tuple[Record, Record], Array]:
    """Return two records and a θ at which the gradients of a loss with Mallows weights are far apart.

    The features are ±x except for a small tilt, with ‖x‖ = √2, where w(x)·x is longest. The tilt points against a
    distant θ, so that both predictions are as wrong as possible.
    """
    along, tilt = np.sqrt(2.0 * (1.0 - _TILT**2)), np.sqrt(2.0) * _TILT
    label = 1.0 if label_kind(loss) == "binary" else _FAR
    theta = np.zeros(dimension(loss, 2))
    theta[1] = _FAR
    return ((np.array([along, -tilt]), label), (np.array([-along, -tilt]), label)), theta
