"""What several fitted private steps spent together."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from sklearn.compose import ColumnTransformer
from sklearn.model_selection._search import BaseSearchCV
from sklearn.pipeline import FeatureUnion, Pipeline
from sklearn.utils import get_tags

from clipsilon._core import checks
from clipsilon.privacy.accounting import gaussian
from clipsilon.privacy.certificate import ADJACENCIES
from clipsilon.privacy.statement import Statement, shown
from clipsilon.privacy.warning import PrivacyWarning

_SHAPES = {"n_features_in_", "feature_names_in_", "n_output_features_"}  # known without a look at any record


class TotalPrivacy(NamedTuple):
    """All steps together are (epsilon, delta)-private; epsilon is infinite if one of them is not covered."""

    epsilon: float
    delta: float
    adjacency: str
    reasons: tuple[str, ...]
    notes: tuple[str, ...] = ()  #: those of the reasons that tell what is not covered, such as other fits of a search

    def __str__(self) -> str:
        lines = [
            f"all steps: ε = {shown(self.epsilon)} at δ = {self.delta:g}",
            f"  neighbours: {ADJACENCIES[self.adjacency]}",
        ]
        lines += [f"  - {reason}" for reason in self.reasons if reason not in self.notes]
        return "\n".join(lines + [f"  - Not covered: {note}" for note in self.notes])


def total_privacy(steps: Any, delta: float | None = None) -> TotalPrivacy:
    """What a fitted pipeline, a list of fitted steps, or the best of a fitted search spent on one data set.

    Formal guarantee: the outputs of all steps together are (epsilon, delta)-private under the adjacency of their
    statements. Gaussian steps compose exactly, μ² = Σμ_i²; then ε and δ add up. Without `delta` it is the sum of the
    statements' own. The notes repeat those of the statements, and raise a `PrivacyWarning`: what those do not cover,
    such as the other fits of a search, this does not either. So does a step that learnt from the data without a
    statement, and nothing is certified then; if its data were public, list the other steps alone.
    """
    parts = list(_parts(steps))
    spent = [part.statement_ for part in parts if hasattr(part, "statement_")]
    silent = [type(part).__name__ for part in parts if not hasattr(part, "statement_") and _learnt(part)]
    if not spent:
        raise ValueError(f"steps must hold a fitted private step, got {_named(parts)}.")
    adjacencies = sorted({statement.adjacency for statement in spent})
    if len(adjacencies) > 1:
        raise ValueError(f"steps must be about the same kind of neighbours, got {', '.join(adjacencies)}.")
    own = sum(statement.delta for statement in spent)
    level = checks.open_fraction("delta", own if delta is None else delta)
    if math.isclose(level, own, rel_tol=1e-12):  # a sum of shares may miss its whole by a last digit
        level = own
    epsilon, reasons = _compose(spent, level / own)
    notes = [f"{statement.rule}: {note}" for statement in spent for note in statement.notes]
    if silent:
        epsilon = math.inf
        notes.append(f"Learnt from the data without budget: {', '.join(silent)}. Nothing is certified.")
    for note in notes:
        warnings.warn(note, PrivacyWarning, stacklevel=2)
    return TotalPrivacy(epsilon, level, adjacencies[0], (*reasons, *notes), tuple(notes))


def _compose(spent: list[Statement], share: float) -> tuple[float, list[str]]:
    """The ε of all statements, each at this share of its own δ, and how it was found."""
    exact = [statement for statement in spent if _mu(statement) is not None]
    others = [(s.rule, s.epsilon(s.delta * share), s.delta * share) for s in spent if _mu(s) is None]
    if exact:
        mu = math.hypot(*(_mu(statement) or 0.0 for statement in exact))
        level = share * sum(statement.delta for statement in exact)
        others.append((" and ".join(s.rule for s in exact), gaussian.epsilon(mu, level), level))
    reasons = [f"{rule}: ε = {shown(epsilon)} at δ = {level:.4g}." for rule, epsilon, level in others]
    return sum(epsilon for _, epsilon, _ in others), reasons


def _mu(statement: Statement) -> float | None:
    profile = statement.certificate.profile
    return math.inf if profile is None else profile.mu


def _parts(steps: Any) -> Iterator[Any]:
    """The steps themselves, without the pipelines and searches around them."""
    if isinstance(steps, BaseSearchCV):
        steps = [_best(steps)]
    if isinstance(steps, Pipeline | FeatureUnion | ColumnTransformer):
        steps = _members(steps)
    elif hasattr(steps, "fit"):
        yield steps
        return
    elif not isinstance(steps, Iterable) or isinstance(steps, str):
        raise ValueError(f"steps must be a pipeline, a search or a list of fitted steps, got {_named([steps])}.")
    for step in steps:
        if not isinstance(step, str) and step is not None:  # "passthrough" and "drop" learn nothing
            yield from _parts(step)


def _best(search: BaseSearchCV) -> Any:
    if not hasattr(search, "best_estimator_"):
        raise ValueError("steps must be fitted, and a search with refit=True, got one without a best_estimator_.")
    return search.best_estimator_


def _named(parts: list[Any]) -> str:
    """The kinds of things, which is all that a message needs."""
    return ", ".join(type(part).__name__ for part in parts) or "none"


def _members(steps: Any) -> list[Any]:
    if isinstance(steps, Pipeline):
        return [step for _, step in steps.steps]
    if isinstance(steps, FeatureUnion):
        return [step for _, step in steps.transformer_list]
    return [step for _, step, _ in steps.transformers_]


def _learnt(step: Any) -> bool:
    """Whether a step holds what it found in records: attributes of scikit-learn's naming, but for shapes."""
    found = {name for name in vars(step) if name.endswith("_") and not name.startswith("_")}
    return bool(get_tags(step).requires_fit and found - _SHAPES)
