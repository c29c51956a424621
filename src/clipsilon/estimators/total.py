"""The privacy of several fitted steps together, such as those of a pipeline."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from sklearn.base import BaseEstimator
from sklearn.compose import ColumnTransformer
from sklearn.model_selection._search import BaseSearchCV
from sklearn.pipeline import FeatureUnion, Pipeline
from sklearn.utils import get_tags

from clipsilon._core import checks
from clipsilon.privacy.accounting import gaussian
from clipsilon.privacy.certificate import ADJACENCIES
from clipsilon.privacy.statement import Statement, format_epsilon
from clipsilon.privacy.warning import PrivacyWarning

_SHAPES = {"n_features_in_", "feature_names_in_", "n_output_features_"}  # attributes that depend on no record


class TotalPrivacy(NamedTuple):
    """What several steps spent: together they are (epsilon, delta)-private.

    Parameters
    ----------
    epsilon : float
        Infinite if one of the steps is not covered.
    delta : float
        The δ at which ε holds.
    adjacency : str
        "zero-out", "add-remove" or "replace-one".
    reasons : tuple of str
        How ε is composed, and the notes.
    notes : tuple of str
        What is not covered, such as the other fits of a search.
    """

    epsilon: float
    delta: float
    adjacency: str
    reasons: tuple[str, ...]
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [
            f"all steps: ε = {format_epsilon(self.epsilon)} at δ = {self.delta:g}",
            f"  neighbours: {ADJACENCIES[self.adjacency]}",
        ]
        lines += [f"  - {reason}" for reason in self.reasons if reason not in self.notes]
        return "\n".join(lines + [f"  - Not covered: {note}" for note in self.notes])


def total_privacy(steps: BaseEstimator | Iterable[BaseEstimator], delta: float | None = None) -> TotalPrivacy:
    """Compose the privacy of several fitted steps on one data set.

    Each note warns with a `PrivacyWarning`. What a statement does not cover, such as the other fits of a search, is not
    covered here either. If a step learnt from the data without a statement, nothing is certified; if its data were
    public, list the other steps alone.

    Parameters
    ----------
    steps : pipeline, search or list of estimators
        A fitted pipeline, a list of fitted steps, or a fitted search, of which the best estimator is taken.
    delta : float, optional
        The δ at which ε is certified; by default the sum of those of the statements.

    Returns
    -------
    TotalPrivacy
        ε and δ of all steps, with reasons.

    Formal guarantee
    ----------------
    The outputs of all steps together are (epsilon, delta)-private under the adjacency of their statements. Gaussian
    steps compose exactly, μ² = Σμ_i²; otherwise ε and δ add up.
    """
    parts = list(_parts(steps))
    spent = [part.statement_ for part in parts if hasattr(part, "statement_")]
    unstated = [type(part).__name__ for part in parts if not hasattr(part, "statement_") and _has_learnt(part)]
    if not spent:
        raise ValueError(f"steps must hold a fitted private step, got {_type_names(parts)}.")
    adjacencies = sorted({statement.adjacency for statement in spent})
    if len(adjacencies) > 1:
        raise ValueError(f"steps must be about the same kind of neighbours, got {', '.join(adjacencies)}.")
    own = sum(statement.delta for statement in spent)
    level = checks.open_fraction("delta", own if delta is None else delta)
    if math.isclose(level, own, rel_tol=1e-12):  # sums of fractions are off by rounding
        level = own
    epsilon, reasons = _compose(spent, level / own)
    notes = [f"{statement.rule}: {note}" for statement in spent for note in statement.notes]
    if unstated:
        epsilon = math.inf
        notes.append(f"Learnt from the data without budget: {', '.join(unstated)}. Nothing is certified.")
    for note in notes:
        warnings.warn(note, PrivacyWarning, stacklevel=2)
    return TotalPrivacy(epsilon, level, adjacencies[0], (*reasons, *notes), tuple(notes))


def _compose(spent: list[Statement], fraction: float) -> tuple[float, list[str]]:
    """Return the ε of all statements, each at this fraction of its own δ, and the reasons."""
    exact = [statement for statement in spent if _mu(statement) is not None]
    others = [(s.rule, s.epsilon(s.delta * fraction), s.delta * fraction) for s in spent if _mu(s) is None]
    if exact:
        mu = math.hypot(*(_mu(statement) or 0.0 for statement in exact))
        level = fraction * sum(statement.delta for statement in exact)
        others.append((" and ".join(s.rule for s in exact), gaussian.epsilon(mu, level), level))
    reasons = [f"{rule}: ε = {format_epsilon(epsilon)} at δ = {level:.4g}." for rule, epsilon, level in others]
    return sum(epsilon for _, epsilon, _ in others), reasons


def _mu(statement: Statement) -> float | None:
    profile = statement.certificate.profile
    return math.inf if profile is None else profile.mu


def _parts(steps: Any) -> Iterator[Any]:
    """Yield the steps themselves, without the pipelines and searches around them."""
    if isinstance(steps, BaseSearchCV):
        steps = [_best(steps)]
    if isinstance(steps, Pipeline | FeatureUnion | ColumnTransformer):
        steps = _members(steps)
    elif hasattr(steps, "fit"):
        yield steps
        return
    elif not isinstance(steps, Iterable) or isinstance(steps, str):
        raise ValueError(f"steps must be a pipeline, a search or a list of fitted steps, got {_type_names([steps])}.")
    for step in steps:
        if not isinstance(step, str) and step is not None:  # "passthrough" and "drop" learn nothing
            yield from _parts(step)


def _best(search: BaseSearchCV) -> Any:
    if not hasattr(search, "best_estimator_"):
        raise ValueError("steps must be fitted, and a search with refit=True, got one without a best_estimator_.")
    return search.best_estimator_


def _type_names(parts: list[Any]) -> str:
    """List the types of steps for a message."""
    return ", ".join(type(part).__name__ for part in parts) or "none"


def _members(steps: Any) -> list[Any]:
    if isinstance(steps, Pipeline):
        return [step for _, step in steps.steps]
    if isinstance(steps, FeatureUnion):
        return [step for _, step in steps.transformer_list]
    return [step for _, step, _ in steps.transformers_]


def _has_learnt(step: Any) -> bool:
    """Whether a step has attributes that, by scikit-learn's naming, come from records; shapes do not count."""
    found = {name for name in vars(step) if name.endswith("_") and not name.startswith("_")}
    return bool(get_tags(step).requires_fit and found - _SHAPES)
