"""An attack on single reports: how much of a user's budget can be seen in what their device sends."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.random import SFC64, Generator
from numpy.typing import NDArray

from clipsilon._core import checks
from clipsilon.local.report import gradient_of, prepare, release
from clipsilon.privacy.accounting import gaussian
from clipsilon.privacy.auditing.inference import Bound, gaussian_bound
from clipsilon.problems.losses.base import dimension, label_kind

Array = NDArray[np.float64]

_FAR = 1e6  # a θ, and a real label, so far out that the loss is as steep as it gets
_TILT = 1e-3  # of the two records towards that θ


@dataclass(frozen=True, eq=False)
class ReportAudit:
    """What an attack on single reports shows. With the stated confidence the report is no more private than that."""

    mu: float  #: the budget
    delta: float
    epsilon: float  #: the ε of the budget at δ
    lower_bound: float  #: on ε
    lower_mu: float
    distance: float  #: of the two gradients, as a share of the sensitivity
    confidence: float
    runs: int  #: on each of the two records
    bound: Bound = field(repr=False)

    def __str__(self) -> str:
        return (
            f"{self.runs} reports of each of two records show ε ≥ {self.lower_bound:.4g} at δ = {self.delta:g} "
            f"(μ ≥ {self.lower_mu:.4g}); the budget μ = {self.mu:g} allows ε = {self.epsilon:.4g}. If the reports keep "
            f"to it, the chance that an audit shows more is at most {1.0 - self.confidence:.2g}."
        )


def audit(
    loss: Any,
    mu: float,
    delta: float,
    runs: int = 10_000,
    confidence: float = 0.95,
    seed: int | None = None,
    records: Any = None,
    theta: Any = None,
) -> ReportAudit:
    """Make `runs` reports of each of two records that are as far apart as the loss lets them be, and tell them apart.

    Both the records and θ are the attacker's choice. Without `records`, a pair of (features, label), and `theta`, they
    are `extremes(loss)`, which suits losses with Mallows weights. The score of a report is its likelihood ratio: the
    part along the difference of the two gradients. Without a seed the reports are made as on a device.

    Formal guarantee: if reports are μ-GDP, `lower_mu` ≤ μ and `lower_bound` ≤ ε with probability at least
    `confidence`. A Gaussian bound is right here, as the two laws of a report are exactly Gaussian.

    >>> from clipsilon.problems.losses import MallowsLogistic
    >>> found = audit(MallowsLogistic(), mu=2.0, delta=1e-5, runs=500, seed=0)
    >>> 0.5 * found.epsilon < found.lower_bound < found.epsilon
    True
    """
    if (records is None) != (theta is None):
        raise ValueError("records and theta must be given together, got one of them.")
    pair, model = extremes(loss) if records is None else (records, theta)
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
        distance=float(np.linalg.norm(apart)) / loss.sensitivity(),
        confidence=confidence,
        runs=runs,
        bound=bound,
    )


def extremes(loss: Any) -> tuple[tuple[tuple[Array, float], tuple[Array, float]], Array]:
    """Two records and a θ for which the gradients of a loss with Mallows weights are far apart.

    The features are ±x but for a small tilt, with ‖x‖ = √2, where w(x)·x is longest. The tilt goes against a distant
    θ, so that both are predicted as wrongly as can be.
    """
    along, tilt = np.sqrt(2.0 * (1.0 - _TILT**2)), np.sqrt(2.0) * _TILT
    label = 1.0 if label_kind(loss) == "binary" else _FAR
    theta = np.zeros(dimension(loss, 2))
    theta[1] = _FAR
    return ((np.array([along, -tilt]), label), (np.array([-along, -tilt]), label)), theta
