"""What several fitted private steps spent together."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from sklearn.compose import ColumnTransformer
from sklearn.pipeline import FeatureUnion, Pipeline
from sklearn.utils import get_tags

from clipwise import checks
from clipwise.privacy import gaussian
from clipwise.privacy.statement import Statement, shown
from clipwise.privacy.warning import PrivacyWarning

_SHAPES = {"n_features_in_", "feature_names_in_", "n_output_features_"}  # known without a look at any record


class TotalPrivacy(NamedTuple):
    """All steps together are (epsilon, delta)-private; epsilon is infinite if one of them is not covered."""

    epsilon: float
    delta: float
    adjacency: str
    reasons: tuple[str, ...]


def total_privacy(steps: Any, delta: float | None = None) -> TotalPrivacy:
    """What a fitted pipeline, or a list of fitted steps, spent on one data set.

    Formal guarantee: the outputs of all steps together are (epsilon, delta)-private under the adjacency of their
    statements. Gaussian steps compose exactly, μ² = Σμ_i²; then ε and δ add up. Without `delta` it is the sum of the
    statements' own. The reasons repeat the notes of the statements: what those do not cover, this does not either. A
    step that learnt from the data without a statement raises a `PrivacyWarning`, and nothing is certified then; if its
    data were public, list the other steps alone.
    """
    parts = list(_parts(steps))
    spent = [part.statement_ for part in parts if hasattr(part, "statement_")]
    silent = [type(part).__name__ for part in parts if not hasattr(part, "statement_") and _learnt(part)]
    if not spent:
        raise ValueError(f"steps must hold a fitted private step, got {steps!r}.")
    adjacencies = sorted({statement.adjacency for statement in spent})
    if len(adjacencies) > 1:
        raise ValueError(f"steps must be about the same kind of neighbours, got {', '.join(adjacencies)}.")
    own = sum(statement.delta for statement in spent)
    level = checks.open_fraction("delta", own if delta is None else delta)
    epsilon, reasons = _compose(spent, level / own)
    reasons += [f"{statement.rule}: {note}" for statement in spent for note in statement.notes]
    if silent:
        epsilon, reasons = math.inf, [*reasons, f"Learnt from the data without budget: {', '.join(silent)}."]
        warnings.warn(f"{reasons[-1]} Nothing is certified.", PrivacyWarning, stacklevel=2)
    return TotalPrivacy(epsilon, level, adjacencies[0], tuple(reasons))


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
    """The steps themselves, without the pipelines around them."""
    if isinstance(steps, Pipeline | FeatureUnion | ColumnTransformer):
        steps = _members(steps)
    elif hasattr(steps, "fit"):
        yield steps
        return
    elif not isinstance(steps, Iterable) or isinstance(steps, str):
        raise ValueError(f"steps must be a pipeline or a list of fitted steps, got {steps!r}.")
    for step in steps:
        if not isinstance(step, str) and step is not None:  # "passthrough" and "drop" learn nothing
            yield from _parts(step)


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
