"""The result of a private evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from clipsilon.estimators.evaluation.curves import Curve
from clipsilon.estimators.evaluation.ratios import Figure
from clipsilon.estimators.total import TotalPrivacy, total_privacy
from clipsilon.privacy.statement import Statement, format_certified, format_epsilon
from clipsilon.privacy.warning import UNITS

if TYPE_CHECKING:
    from sklearn.base import BaseEstimator

NAMES = {
    "accuracy": "accuracy",
    "roc_auc": "AUC",
    "log_loss": "log loss",
    "positive_rate": "positive rate",
    "mean_absolute_error": "mean absolute error",
    "root_mean_squared_error": "root mean squared error",
}
INTERVALS = (
    "95 % confidence intervals: they account for the noise, and for those evaluated being a random sample of all."
)


@dataclass(frozen=True)
class PrivateScores:
    """The quality of a model on a number of people, within a privacy budget.

    Attributes
    ----------
    figures : mapping of str to Figure
        With two classes "accuracy", "roc_auc", "log_loss" and "positive_rate"; "log_loss" is left out for a model
        without probabilities. With several classes "accuracy" and "log_loss". For numbers "mean_absolute_error" and
        "root_mean_squared_error".
    roc, calibration : Curve or None
        The curves for two classes; no calibration for a model without probabilities.
    positive : str
        Name of the positive class; "" unless there are two.
    people : int
        Number of people; with adjacency "add-remove", a noisy count.
    held_out : bool
        Whether nobody evaluated is among those who trained the model, as the caller stated.
    statement : Statement
        What the evaluation spends.
    """

    figures: Mapping[str, Figure]
    roc: Curve | None
    calibration: Curve | None
    positive: str
    people: int
    held_out: bool
    statement: Statement

    def total(self, model: BaseEstimator) -> TotalPrivacy:
        """Return what the model and this evaluation spend together, for each person.

        If the people were held out, each is in one of the two, and spends the larger ε (parallel composition).
        Otherwise the two compose.
        """
        if not self.held_out:
            return total_privacy([model, self.statement])
        return in_parallel(total_privacy(model), total_privacy(self.statement))

    def to_dict(self) -> dict[str, Any]:
        """Return everything for JSON: NaN becomes None."""
        return {
            "people": self.people,
            "held_out": self.held_out,
            "positive": self.positive or None,
            "figures": {
                name: {key: _or_none(value) for key, value in figure._asdict().items()}
                for name, figure in self.figures.items()
            },
            "roc": _curve(self.roc),
            "calibration": _curve(self.calibration),
            "statement": self.statement.to_dict(),
        }

    def __str__(self) -> str:
        lines = [f"private evaluation on {self.statement.size}: {format_certified(self.statement)}"]
        lines += [f"  {NAMES[name]}: {format_figure(figure)}" for name, figure in self.figures.items()]
        return "\n".join([*lines, f"  {INTERVALS}"])


def in_parallel(training: TotalPrivacy, evaluation: TotalPrivacy) -> TotalPrivacy:
    """Compose two releases on different people: each person spends the larger ε.

    Parameters
    ----------
    training, evaluation : TotalPrivacy
        What each of the two spends, about the same kind of neighbours.

    Returns
    -------
    TotalPrivacy
        At the larger one of the two δ.
    """
    if training.adjacency != evaluation.adjacency:
        raise ValueError(
            f"model and evaluation must be about the same kind of neighbours, got {training.adjacency} and "
            f"{evaluation.adjacency}."
        )
    if training.unit != evaluation.unit:
        raise ValueError(
            "model and evaluation must both protect people or both protect records, got a model that protects "
            f"{UNITS[training.unit]} and an evaluation that protects {UNITS[evaluation.unit]}."
        )
    both = training, evaluation
    faults = tuple(dict.fromkeys(fault for one in both for fault in one.faults))
    notes = tuple(dict.fromkeys(note for one in both for note in one.notes))
    reasons = (
        *faults,
        f"Training: ε = {format_epsilon(training.nominal)} at δ = {training.delta:.4g}. "
        f"Evaluation: ε = {format_epsilon(evaluation.nominal)} at δ = {evaluation.delta:.4g}.",
        "Nobody is in both, and who is held out was chosen without looking at anybody's data"
        f"{_ALSO[training.adjacency]}: each {training.unit} spends the larger ε (parallel composition).",
        *notes,
    )
    epsilon, nominal, delta = (max(getattr(one, name) for one in both) for name in ("epsilon", "nominal", "delta"))
    return training._replace(epsilon=epsilon, nominal=nominal, delta=delta, reasons=reasons, notes=notes, faults=faults)


_ALSO = {
    "zero-out": "",
    "replace-one": "",
    "add-remove": ", nor at how many there are, which a split by a fraction would do",
}


def format_figure(figure: Figure) -> str:
    """Return a figure with its interval as text; a dash if the noise hides it."""
    value = "–" if np.isnan(figure.value) else f"{figure.value:.4g}"
    return f"{value} ({figure.low:.4g} to {figure.high:.4g})"


def _curve(curve: Curve | None) -> dict[str, list[float | None]] | None:
    if curve is None:
        return None
    return {name: [_or_none(value) for value in values.tolist()] for name, values in curve._asdict().items()}


def _or_none(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
