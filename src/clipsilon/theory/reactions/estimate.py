"""Estimate how people react from logs, with a confidence region and, within a budget, privately."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from os import PathLike
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clipsilon._core import checks
from clipsilon.engine.row_digests import hash_rows
from clipsilon.engine.streams import spawn
from clipsilon.privacy.accounting import gaussian, profiles
from clipsilon.privacy.budget import Budget, charge_to
from clipsilon.privacy.certificate import Certificate, require_public_size
from clipsilon.privacy.statement import SEEDED, Statement, about_seed
from clipsilon.privacy.warning import PrivacyWarning, warn_about_delta
from clipsilon.problems.responses import MatrixShift
from clipsilon.theory.reactions.logs import Deployment, Logs, check_logs
from clipsilon.theory.reactions.means import Means, Question, deviations, exact_means, noisy_means
from clipsilon.theory.reactions.regression import Fit, fit_class, half_widths
from clipsilon.theory.reactions.shrinkage import clipping_margins, widen_strengths

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Array = NDArray[np.float64]

_STRUCTURES = {name: name for name in ("matrix", "columns", "strength")}
_UNKNOWN = {"refuse": True, "still": False}
_CHANGES = {"zero-out": 1.0, "replace-one": 2.0}


@dataclass(frozen=True, eq=False)
class EstimatedResponse:
    """A reaction that was estimated from logs: a response, with what is known about it.

    It can be used wherever a response can: in `Problem`, and so in points, tuning and runs, and in the estimators.

    Attributes
    ----------
    strengths : ndarray of shape (classes, d, d)
        S_y of `MatrixShift`, one matrix per class: what people send moves by −S_y·θ. Zero in unknown directions.
    low, high : ndarray of shape (classes, d, d)
        The confidence interval of each entry, by itself, widened for what was clipped. Infinite where a direction that
        was never tried has a part.
    strength : ndarray of shape (classes,)
        One number per class: the s for which −s·θ describes the moves best in the columns that may move.
    strength_low, strength_high : ndarray of shape (classes,)
        A confidence region of all classes' strengths together (Bonferroni), widened for what was clipped. It assumes
        that people of a class do move by −s·θ in these columns.
    confidence : float
        The confidence of the intervals and of the region.
    saturation : float
        The length of θ beyond which moves do not grow.
    columns : ndarray of int
        The columns that may move.
    unknown : tuple of ndarray
        Per class, the directions of θ that were never tried, one per row; what people do there is not known.
    singular_values : tuple of ndarray
        Per class, how far the centred models were spread, per direction.
    models : ndarray of shape (J, d)
        The deployed models.
    means : Means
        The means and counts that were used, by deployment and class.
    statement : Statement
        What the estimate reveals about the people in the logs.
    refuses : bool
        Whether an unknown direction makes this no response.
    """

    strengths: Array
    low: Array
    high: Array
    strength: Array
    strength_low: Array
    strength_high: Array
    confidence: float
    saturation: float
    columns: NDArray[np.int64]
    unknown: tuple[Array, ...]
    singular_values: tuple[Array, ...]
    models: Array
    means: Means
    statement: Statement = field(repr=False)
    refuses: bool = True

    @property
    def part(self) -> MatrixShift:
        """The response as a part.

        Raises
        ------
        ValueError
            If a direction was never tried, unless the estimate was made with unknown="still".
        """
        missing = [len(one) for one in self.unknown]
        if self.refuses and any(missing):
            raise ValueError(
                f"response must be known in all {self.models.shape[1]} directions of θ, got one with {max(missing)} "
                "that were never tried: deploy models that differ there (clipsilon.responses.explore), or assume by "
                "unknown='still' that nobody reacts there."
            )
        return MatrixShift(self.strengths, self.saturation)

    def __str__(self) -> str:
        """Return what was found, in words."""
        deployments, classes = self.means.counts.shape
        lines = [f"Reaction estimated from {deployments} deployments and {self.statement.records} people:"]
        for k in range(classes):
            who = "everybody moves" if classes == 1 else f"class {k} moves"
            lines.append(
                f"  {who} against θ with strength {self.strength[k]:.3g} in {self.columns.size} column(s), between "
                f"{self.strength_low[k]:.3g} and {self.strength_high[k]:.3g} (confidence {self.confidence:.0%}"
                f"{', all classes together' if classes > 1 else ''})."
            )
            lines += [f"  {sentence}" for sentence in self._directions(k)]
        lines += [f"  {sentence}" for sentence in self._clipping()]
        lines.append(f"  certified: ε = {self.statement.certified:.4g} at δ = {self.statement.delta:g}")
        return "\n".join(lines)

    def _directions(self, k: int) -> list[str]:
        """Return what was not tried, and what was tried too little to say whether anybody moves."""
        missing, values = len(self.unknown[k]), self.singular_values[k]
        if missing:
            total = self.models.shape[1]
            return [f"{missing} of {total} directions of θ were never tried: what people do there is unknown."]
        return [f"All directions were tried; the centred models spread from {values.min():.2g} to {values.max():.2g}."]

    def _clipping(self) -> list[str]:
        if not self.means.clipped_error.any():
            return ["Nothing was clipped."]
        shares = zip(self.means.clipped, self.means.clipped_error, strict=True)
        listed = ", ".join(f"{share:.1%} ± {2 * error:.1%}" for share, error in shares)
        return [
            f"Rows that were clipped, by class: {listed}. They move less than people did, so strengths may be too "
            "small, by about twice this fraction at most, which the intervals allow for."
        ]

    def plot(self) -> Figure:
        """Draw how far each column moves per unit of its own θ, per class, with confidence intervals."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(6.4, 4.3), layout="constrained")
        axes = figure.subplots()
        places = np.arange(self.columns.size)
        for k in range(len(self.strengths)):
            own, low, high = (table[k][self.columns, self.columns] for table in (self.strengths, self.low, self.high))
            known = np.isfinite(low) & np.isfinite(high)
            errors = np.where(known, [own - low, high - own], 0.0)
            where = places + 0.15 * (k - (len(self.strengths) - 1) / 2)
            name = "everybody" if len(self.strengths) == 1 else f"class {k}"
            axes.errorbar(where[known], -own[known], errors[:, known][::-1], fmt="o", capsize=3, label=name)
        axes.axhline(0.0, color="grey", linewidth=0.8)
        axes.set_xticks(places, [str(column) for column in self.columns])
        axes.set_xlabel("column")
        axes.set_ylabel("move per unit of θ in this column")
        axes.legend()
        return figure


def estimate(
    logs: Sequence[Deployment | tuple[ArrayLike, ...]],
    *,
    classes: int = 2,
    columns: ArrayLike | None = None,
    structure: str = "matrix",
    saturation: float = np.inf,
    confidence: float = 0.95,
    unknown: str = "refuse",
    epsilon: float | None = None,
    delta: float = 1e-6,
    clip: float | None = None,
    center: ArrayLike = 0.0,
    adjacency: str = "zero-out",
    seed: int | None = None,
    budget: Budget | str | PathLike[str] | None = None,
) -> EstimatedResponse:
    """Estimate how people react to the deployed model from what they sent under several models.

    The mean of what people of a class sent is regressed on the deployed θ_j. This assumes that people under different
    models are alike but for the model, and that they move by −S_y·θ up to a length of θ, `saturation`. θ_j is known
    exactly, so noise does not bias the estimate; clipping makes it smaller.

    Parameters
    ----------
    logs : sequence of Deployment or tuple
        One entry (theta, features, labels) per deployed model. Each person must be in one of them, once. Models are
        taken as public: what training them revealed is not part of this.
    classes : int, default 2
        The number of classes, with labels 0, 1, …; with 1, everybody reacts alike and labels are ignored.
    columns : array-like of int, optional
        The columns that people can change, if this is known; all by default.
    structure : {"matrix", "columns", "strength"}, default "matrix"
        What is estimated: every column may depend on all of θ, on its own entry, or on it by one number for all.
    saturation : float, default ∞
        The length of θ beyond which moves do not grow: ∞ for linear reactions, 1 for paper 1's best response.
    confidence : float, default 0.95
        The confidence of intervals and region, between 0 and 1.
    unknown : {"refuse", "still"}, default "refuse"
        What follows if directions of θ were never tried: the result is no response, or one that assumes that nobody
        reacts in them.
    epsilon : float, optional
        The ε of the estimate. By default there is no noise, and nothing is certified: the result must stay in the
        circle of those who may see the logs.
    delta : float, default 10⁻⁶
        The δ at which ε is stated, between 0 and 1.
    clip : float, optional
        The largest distance of a row from `center` in the columns that may move, fixed without a look at the logs. The
        default, 2·√columns, suits columns of deviation 1. Without ε nothing is clipped.
    center : float or array-like, default 0
        A public point from which rows are measured: one number, or one per column that may move.
    adjacency : {"zero-out", "replace-one"}
        How neighbouring data sets differ.
    seed : int, optional
        The seed of the noise, for experiments: nothing is certified then.
    budget : Budget or path, optional
        The budget file that the estimate is charged to.

    Returns
    -------
    EstimatedResponse
        The reaction, to be used as a response.

    Formal guarantee
    ----------------
    With ε and without a seed, all that the result holds besides the models is (epsilon, delta)-differentially private
    if each person is in one deployment, once (docs/proofs.md, "Reactions from logs").

    Examples
    --------
    >>> import clipsilon as cs
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> logs = []
    >>> for theta in cs.responses.explore(np.zeros(2), size=0.5, deployments=8).models:
    ...     logs.append((theta, rng.standard_normal((1000, 2)) - 0.8 * theta))
    >>> found = cs.responses.estimate(logs, classes=1, structure="strength")
    >>> bool(found.strength_low[0] < 0.8 < found.strength_high[0])
    True
    """
    classes = checks.count("classes", classes)
    checks.choice("structure", structure, _STRUCTURES)
    refuses = checks.choice("unknown", unknown, _UNKNOWN)
    saturation = checks.positive_or_infinite("saturation", saturation)
    confidence = checks.open_fraction("confidence", confidence)
    data = check_logs(logs, classes)
    asked = _question(data, classes, columns, clip, center)
    means, statement = _ask(data, asked, epsilon, delta, adjacency, seed, budget)
    lengths = np.linalg.norm(data.models, axis=1, keepdims=True)
    inputs = data.models / np.maximum(1.0, lengths / saturation)
    fits = [
        fit_class(inputs, means.means[:, k], np.maximum(means.counts[:, k], 1e-9), asked.columns, structure)
        for k in range(classes)
    ]
    return _result(fits, data, asked, means, statement, confidence, saturation, refuses)


def _question(data: Logs, classes: int, columns: ArrayLike | None, clip: float | None, center: ArrayLike) -> Question:
    d = data.models.shape[1]
    chosen = np.arange(d) if columns is None else np.array(checks.columns("columns", columns))
    if chosen.max() >= d:
        raise ValueError(f"columns must be below {d}, the number of features, got {chosen.max()}.")
    length = 2.0 * float(np.sqrt(chosen.size)) if clip is None else checks.positive("clip", clip)
    return Question(chosen, classes, checks.vector("center", center, chosen.size), length)


def _ask(
    data: Logs,
    asked: Question,
    epsilon: float | None,
    delta: float,
    adjacency: str,
    seed: int | None,
    budget: Budget | str | PathLike[str] | None,
) -> tuple[Means, Statement]:
    """Return the means, exact or noisy, and what they reveal; charge a budget before they are computed."""
    delta = checks.open_fraction("delta", delta)
    require_public_size(adjacency)
    if epsilon is None:
        if budget is not None:
            raise ValueError("epsilon must be given with a budget, got None: means without noise cannot be charged.")
        return exact_means(data, asked), _state(data, None, delta, adjacency)
    mu = gaussian.largest_mu(checks.positive("epsilon", epsilon), delta)
    rng = spawn(seed, 1)[0].noise
    statement = _state(data, mu, delta, adjacency)
    charge_to(budget, statement, lambda salt: _identify(data, salt))
    if seed is not None:
        warnings.warn(f"{SEEDED} Leave seed at None for a release.", PrivacyWarning, stacklevel=3)
    warn_about_delta(delta, data.records, stacklevel=3)
    noise = deviations(mu, asked.clip, asked.classes, _CHANGES[adjacency])
    return noisy_means(data, asked, noise, rng), about_seed(statement, seed is not None)


def _identify(data: Logs, salt: int) -> str:
    """Return a digest of all rows together, whatever their order."""
    rows = np.sort(np.concatenate([hash_rows(table, salt) for table in data.features]))
    return hashlib.blake2b(rows.tobytes(), digest_size=16).hexdigest()


def _state(data: Logs, mu: float | None, delta: float, adjacency: str) -> Statement:
    """State what the estimate reveals; nothing is certified without a μ."""
    if mu is None:
        reasons: tuple[str, ...] = (
            "Means without noise: nothing is certified. Keep the estimate, and what is computed from it, in the circle "
            "of those who may see the logs.",
        )
        certificate = Certificate(None, reasons)
    else:
        reasons = (
            f"Noisy sums and counts by class and deployment: Gaussian differential privacy with μ = {mu:.4g} per "
            "deployment.",
            "Each person must be in one deployment, once: deployments compose in parallel. This is checked only where "
            "the logs name the people.",
            "The deployed models, the number of deployments and the number of people under each of them are public. "
            "What training the models revealed is not covered here.",
            "One estimate is covered: each further one is a release of its own.",
        )
        certificate = Certificate(profiles.gaussian(mu), reasons)
    certified = certificate.epsilon(delta)
    about = "estimate of a reaction", data.records, len(data.models), delta, adjacency
    return Statement(*about, certified, None, None, reasons, certificate)


def _result(
    fits: list[Fit],
    data: Logs,
    asked: Question,
    means: Means,
    statement: Statement,
    confidence: float,
    saturation: float,
    refuses: bool,
) -> EstimatedResponse:
    """Put the fits of all classes together."""
    d = data.models.shape[1]
    strengths, widths = np.zeros((2, len(fits), d, d))
    clipped = means.clipped_at_most()
    for k, fit in enumerate(fits):
        strengths[k, asked.columns] = fit.matrix
        chance = float(half_widths(np.array(fit.length_error), fit.freedom, confidence))
        margins = clipping_margins(fit.shrinkage, float(np.linalg.norm(fit.matrix, ord=2)) + chance, clipped[k])
        widths[k, asked.columns] = half_widths(fit.errors, fit.freedom, confidence) + margins
    strength = np.array([fit.strength for fit in fits])
    joint = 1.0 - (1.0 - confidence) / len(fits)
    reach = np.array([float(half_widths(np.array(fit.strength_error), fit.strength_freedom, joint)) for fit in fits])
    missing = clipped * [fit.shrinkage.strength for fit in fits]
    strength_low, strength_high = widen_strengths(strength - reach, strength + reach, missing)
    return EstimatedResponse(
        strengths=strengths,
        low=strengths - widths,
        high=strengths + widths,
        strength=strength,
        strength_low=strength_low,
        strength_high=strength_high,
        confidence=confidence,
        saturation=saturation,
        columns=asked.columns,
        unknown=tuple(fit.unknown for fit in fits),
        singular_values=tuple(fit.singular_values for fit in fits),
        models=data.models,
        means=means,
        statement=statement,
        refuses=refuses,
    )
